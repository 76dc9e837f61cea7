// Usage of tasks and bills of leases: by day, tenant and function, as picture and table, with export.

import type { JSX } from "preact";

import { api } from "../api/client";
import type { BillLine, UsageLine } from "../api/types";
import { Chart, type Series } from "../components/chart";
import { Filters } from "../components/filters";
import { Card, Head, Notice, Pending } from "../components/parts";
import { Table } from "../components/table";
import { csv, save } from "../lib/export";
import { BILLION, count, line, money, shortId, span, spanMs, time, utcDay } from "../lib/format";
import { useLive } from "../lib/live";
import { link } from "../lib/router";
import { useRights } from "../lib/session";

const DAY_MS = 86_400_000;
const MAX_SERIES = 7;
const MAX_BILL_PAGES = 20;

/** The chosen days, in UTC: from the first, up to the end of the last. */
function range(query: Record<string, string>): { from: number; until: number } {
  const parse = (text: string | undefined, otherwise: number): number => {
    const ms = text ? Date.parse(`${text}T00:00:00Z`) : Number.NaN;
    return Number.isNaN(ms) ? otherwise : ms;
  };
  const today = Math.floor(Date.now() / DAY_MS) * DAY_MS;
  return { from: parse(query.from, today - 29 * DAY_MS), until: parse(query.until, today) + DAY_MS };
}

/** Days without a value count as 0, so that the axis has no holes. */
function daysOf({ from, until }: { from: number; until: number }, known: number[]): number[] {
  const first = Math.max(Math.floor(from / DAY_MS) * DAY_MS, Math.min(...known, until) - 2 * DAY_MS);
  const days: number[] = [];
  for (let day = first; day < until && days.length < 1_000; day += DAY_MS) days.push(day);
  return days;
}

/** A series for each of the largest groups, and one for all others. */
function seriesOf<R>(rows: R[], days: number[], dayOf: (row: R) => number, groupOf: (row: R) => string, valueOf: (row: R) => number): Series[] {
  const sums = new Map<string, Map<number, number>>();
  const totals = new Map<string, number>();
  for (const row of rows) {
    const [group, day, value] = [groupOf(row), dayOf(row), valueOf(row)];
    const of = sums.get(group) ?? new Map<number, number>();
    of.set(day, (of.get(day) ?? 0) + value);
    sums.set(group, of);
    totals.set(group, (totals.get(group) ?? 0) + value);
  }
  const ordered = [...totals].sort((a, b) => b[1] - a[1]).map(([name]) => name);
  const largest = ordered.slice(0, MAX_SERIES);
  const series = largest.map((name) => ({ name, values: days.map((day) => sums.get(name)?.get(day) ?? 0) }));
  const rest = ordered.slice(MAX_SERIES);
  if (rest.length > 0) series.push({ name: `${rest.length} others`, values: days.map((day) => rest.reduce((sum, name) => sum + (sums.get(name)?.get(day) ?? 0), 0)) });
  return series;
}

export function UsageView({ query, tab }: { query: Record<string, string>; tab: string }): JSX.Element {
  const rights = useRights();
  const isBills = tab === "bills";
  const groups: [string, string][] = isBills ? [["", "Tenant"], ["function", "Function"], ["node", "Node"]] : [["", "Function"], ["tenant", "Tenant"], ["endpoint", "Endpoint"]];
  return (
    <>
      <Head title="Usage and bills" />
      <nav class="tabs" aria-label="Kinds of usage">
        <a href={link(["usage"])} aria-current={!isBills ? "page" : undefined}>Tasks</a>
        <a href={link(["usage", "bills"])} aria-current={isBills ? "page" : undefined}>Leases</a>
      </nav>
      <Filters filters={[
        { key: "from", label: "From (UTC)", type: "date" },
        { key: "until", label: "Until (UTC)", type: "date" },
        { key: "by", label: "By", options: groups },
        ...(rights.is("operator") ? [{ key: "own", label: "Tenants", options: [["", "All"], ["1", "My own"]] as [string, string][] }] : []),
      ]} />
      {isBills ? <Bills query={query} /> : <TaskUsage query={query} />}
    </>
  );
}

function TaskUsage({ query }: { query: Record<string, string> }): JSX.Element {
  const rights = useRights();
  const days = range(query);
  const everybody = rights.is("operator") && query.own !== "1";
  const { data, error } = useLive(() => api.usage(days.from, days.until, everybody), [query], 15_000);
  if (!data) return <Pending error={error} />;
  const by = query.by || "function";
  const groupOf = (row: UsageLine): string => (by === "tenant" ? row.tenant : by === "endpoint" ? row.endpoint : row.name || shortId(row.function));
  const x = daysOf(days, data.map(({ day_ms }) => day_ms));
  const seconds = x.map((day) => day / 1000);
  const place = (at: number): string => utcDay(at * 1000);
  const of = (value: (row: UsageLine) => number): Series[] => seriesOf(data, x, ({ day_ms }) => day_ms, groupOf, value);
  const rows = [...data].sort((a, b) => b.day_ms - a.day_ms || (b.cost ?? 0) - (a.cost ?? 0));
  const sum = (value: (row: UsageLine) => number): number => data.reduce((all, row) => all + value(row), 0);
  const titles = ["day", "tenant", "function", "function_id", "endpoint", "tasks", "failed", "seconds", "cost"];
  const cells = (row: UsageLine): (string | number)[] => [utcDay(row.day_ms), row.tenant, row.name, row.function, row.endpoint, row.tasks, row.failed, row.took_ms / 1000, (row.cost ?? 0) / BILLION];
  return (
    <>
      <div class="tiles">
        <div class="tile"><b>{count(sum(({ tasks }) => tasks))}</b><span>tasks</span></div>
        <div class="tile"><b>{count(sum(({ failed }) => failed))}</b><span>of them failed</span></div>
        <div class="tile"><b>{spanMs(sum(({ took_ms }) => took_ms))}</b><span>computed</span></div>
        <div class="tile"><b>{money(sum(({ cost }) => cost ?? 0))}</b><span>cost</span></div>
      </div>
      {data.length === 0 ? <Notice>No task ended on these days.</Notice> : (
        <div class="pair">
          <Chart kind="bars" title="Cost by day" x={seconds} place={place} text={money} series={of(({ cost }) => cost ?? 0)} />
          <Chart kind="bars" title="Time computed by day" x={seconds} place={place} text={span} series={of(({ took_ms }) => took_ms / 1000)} />
          <Chart kind="bars" title="Tasks by day" x={seconds} place={place} text={count} series={of(({ tasks }) => tasks)} />
        </div>
      )}
      <Card title="By day, tenant, function and endpoint" actions={<Export name="usage" titles={titles} rows={() => rows.map(cells)} raw={data} />}>
        <Table label="Usage" rows={rows} id={(row) => `${row.day_ms} ${row.tenant} ${row.function} ${row.endpoint}`} empty="There is no usage." columns={[
          { title: "Day", cell: ({ day_ms }) => utcDay(day_ms), sort: ({ day_ms }) => day_ms },
          { title: "Tenant", cell: ({ tenant }) => line(tenant, 60), sort: ({ tenant }) => tenant },
          { title: "Function", cell: (row) => <a href={link(["functions", row.function])}>{line(row.name || shortId(row.function), 80)}</a>, sort: ({ name }) => name },
          { title: "Endpoint", wide: true, cell: ({ endpoint }) => line(endpoint, 60), sort: ({ endpoint }) => endpoint },
          { title: "Tasks", numeric: true, cell: ({ tasks }) => count(tasks), sort: ({ tasks }) => tasks },
          { title: "Failed", numeric: true, wide: true, cell: ({ failed }) => count(failed), sort: ({ failed }) => failed },
          { title: "Computed", numeric: true, wide: true, cell: ({ took_ms }) => spanMs(took_ms), sort: ({ took_ms }) => took_ms },
          { title: "Cost", numeric: true, cell: ({ cost }) => money(cost ?? 0), sort: ({ cost }) => cost ?? 0 },
        ]} />
      </Card>
    </>
  );
}

function Export({ name, titles, rows, raw }: { name: string; titles: string[]; rows: () => (string | number)[][]; raw: unknown }): JSX.Element {
  return (
    <>
      <button type="button" class="small" onClick={() => save(`dayfly-${name}.csv`, csv(titles, rows()), "text/csv")}>Export CSV</button>
      <button type="button" class="small" onClick={() => save(`dayfly-${name}.json`, JSON.stringify(raw, null, 2), "application/json")}>Export JSON</button>
    </>
  );
}

async function readBill(from: number, until: number, tenant: string | undefined): Promise<{ lines: BillLine[]; isCut: boolean }> {
  const lines: BillLine[] = [];
  let after: string | undefined;
  for (let page = 0; page < MAX_BILL_PAGES; page += 1) {
    const found = await api.bill(from, until, tenant, after);
    lines.push(...found.lines);
    if (!found.next) return { lines, isCut: false };
    after = found.next;
  }
  return { lines, isCut: true };
}

interface Part {
  day: number;
  group: string;
  cost: number;
}

/** The parts of a lease's cost: a function has its share by computing time. */
function partsOf(bill: BillLine, by: string): Part[] {
  const day = Math.floor(bill.granted_at_ms / DAY_MS) * DAY_MS;
  if (by !== "function") return [{ day, group: by === "node" ? shortId(bill.node) : bill.tenant_name, cost: bill.total }];
  const functions = bill.functions ?? [];
  const all = functions.reduce((sum, { computing_us }) => sum + computing_us, 0);
  if (all === 0) return [{ day, group: "no function", cost: bill.total }];
  return functions.map(({ function: group, computing_us }) => ({ day, group, cost: (bill.total * computing_us) / all }));
}

function Bills({ query }: { query: Record<string, string> }): JSX.Element {
  const rights = useRights();
  const days = range(query);
  const tenant = rights.is("operator") && query.own !== "1" ? undefined : rights.tenant;
  const { data, error } = useLive(() => readBill(days.from, days.until, tenant), [query], 30_000);
  if (!data) return <Pending error={error} />;
  const by = query.by || "tenant";
  const parts = data.lines.flatMap((bill) => partsOf(bill, by));
  const x = daysOf(days, parts.map(({ day }) => day));
  const rows = [...data.lines].reverse();
  const sum = (of: (bill: BillLine) => number): number => data.lines.reduce((all, bill) => all + of(bill), 0);
  const titles = ["lease", "tenant", "state", "granted", "ended", "workers", "mode", "calls", "failures", "computing_s", "polling_s", "allocated_s", "cost_allocation", "cost_computing", "cost_polling", "cost_borrowing", "cost"];
  const iso = (ms: number): string => (ms ? new Date(ms).toISOString() : "");
  const cells = (bill: BillLine): (string | number)[] => [
    bill.lease, bill.tenant_name, bill.state, iso(bill.granted_at_ms), iso(bill.ended_at_ms), bill.workers, bill.mode, bill.usage.calls, bill.usage.failures,
    bill.usage.computing_us / 1e6, bill.usage.polling_us / 1e6, bill.usage.allocated_us / 1e6, bill.allocation / BILLION, bill.computing / BILLION, bill.polling / BILLION, (bill.borrowing ?? 0) / BILLION, bill.total / BILLION,
  ];
  return (
    <>
      {data.isCut && <Notice kind="warn">Only the first {count(data.lines.length)} leases are shown. Choose fewer days.</Notice>}
      <div class="tiles">
        <div class="tile"><b>{count(data.lines.length)}</b><span>leases</span></div>
        <div class="tile"><b>{count(sum(({ usage }) => usage.calls))}</b><span>calls</span></div>
        <div class="tile"><b>{span(sum(({ usage }) => usage.computing_us) / 1e6)}</b><span>computed</span></div>
        <div class="tile"><b>{money(sum(({ total }) => total))}</b><span>cost</span></div>
      </div>
      {data.lines.length > 0 && (
        <div class="pair">
          <Chart kind="bars" title="Cost by day" x={x.map((day) => day / 1000)} place={(at) => utcDay(at * 1000)} text={money} series={seriesOf(parts, x, ({ day }) => day, ({ group }) => group, ({ cost }) => cost)} />
        </div>
      )}
      <Card title="Leases" actions={<Export name="bill" titles={titles} rows={() => rows.map(cells)} raw={data.lines} />}>
        <Table label="Bill" rows={rows} id={({ lease }) => lease} empty="No lease was granted on these days." columns={[
          { title: "Lease", cell: ({ lease }) => <span class="id" title={lease}>{shortId(lease)}</span> },
          { title: "Tenant", cell: ({ tenant_name }) => line(tenant_name, 60), sort: ({ tenant_name }) => tenant_name },
          { title: "State", wide: true, cell: ({ state }) => state, sort: ({ state }) => state },
          { title: "Granted", cell: ({ granted_at_ms }) => time(granted_at_ms), sort: ({ granted_at_ms }) => granted_at_ms },
          { title: "Calls", numeric: true, wide: true, cell: ({ usage }) => count(usage.calls), sort: ({ usage }) => usage.calls },
          { title: "Computing", numeric: true, wide: true, cell: ({ usage }) => span(usage.computing_us / 1e6), sort: ({ usage }) => usage.computing_us },
          { title: "Polling", numeric: true, wide: true, cell: ({ usage }) => span(usage.polling_us / 1e6), sort: ({ usage }) => usage.polling_us },
          { title: "Functions", wide: true, cell: ({ functions }) => line((functions ?? []).map(({ function: name }) => name).join(", "), 120) },
          { title: "Cost", numeric: true, cell: ({ total }) => money(total), sort: ({ total }) => total },
        ]} />
      </Card>
    </>
  );
}
