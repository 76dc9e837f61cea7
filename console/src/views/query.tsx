// One query of data frames: what each of its stages and each of its ranks has done.

import type { JSX } from "preact";

import { api } from "../api/client";
import type { Query, QueryPart } from "../api/types";
import { ActionButton } from "../components/dialog";
import { Badge, Card, Facts, Head, Notice, Pending, Source, When } from "../components/parts";
import { Table } from "../components/table";
import { bytes, count, line, money, shortId, spanMs } from "../lib/format";
import { useLive } from "../lib/live";
import { link } from "../lib/router";
import { useRights } from "../lib/session";
import { queryState, Skew, SKEWED, titleOf } from "./queries";

export function QueryView({ id }: { id: string }): JSX.Element {
  const rights = useRights();
  const { data: query, error, reload } = useLive(() => api.query(id), [id], 1_000);
  const back = { title: "Queries", href: link(["queries"]) };
  if (!query) return <><Head title="Query" back={back} /><Pending error={error} /></>;
  const { total } = query;
  return (
    <>
      <Head title={`Query ${titleOf(query, 60)}`} back={back}>
        <Badge state={queryState(query)} />
        {query.state === "running" && !query.is_cancelling && rights.may("user") && (
          <ActionButton title="Cancel the query" label="Cancel" action="Cancel the query" danger act={async () => {
            await api.cancelQuery(query.id);
            reload();
            return "The query is being cancelled.";
          }}>
            <p>Its client ends it within about a second.</p>
          </ActionButton>
        )}
      </Head>
      {query.state === "lost" && <Notice kind="warn">Its client reports no more. It may have ended.</Notice>}
      {query.error && <Notice kind="bad">{line(query.error, 2_000)}</Notice>}
      <Card title="About">
        <Facts of={[
          ["Id", <span class="id">{query.id}</span>],
          ["Tenant", line(query.tenant, 64)],
          ["Started", <When ms={query.started_at_ms} />],
          ["Time", spanMs(query.elapsed_ms)],
          ["Tasks", `${count(total.ended)} of ${count(total.tasks)} have ended`],
          ["Rows sent", count(total.rows)],
          ["Received", bytes(total.received_bytes)],
          ["Spilled", bytes(total.spilled_bytes)],
          ["Computed", spanMs(total.core_us / 1_000)],
          ["Skew", <Skew value={query.skew} />],
          ["Lost runs", count(query.lost_runs)],
          ["Cost", query.cost === undefined || query.cost === null ? "not known" : money(query.cost)],
          ["Leases", query.leases.length === 0 ? "none" : <a href={link(["leases"], { text: query.leases.length === 1 ? query.leases[0] : "", state: "all" })}>{query.leases.map(shortId).slice(0, 4).join(", ")}{query.leases.length > 4 ? ` and ${query.leases.length - 4} more` : ""}</a>],
        ]} />
      </Card>
      <Card title="Text"><Source text={query.text} label="Text of the query" /></Card>
      <Card title="Stages">
        <Parts label="Stages of the query" name="Stage" parts={query.stages ?? []} empty="No stage has begun." />
      </Card>
      <Card title="Ranks">
        <Parts label="Ranks of the query" name="Rank" parts={query.ranks ?? []} empty="No rank has a task yet." slow={slowRanks(query)} />
      </Card>
    </>
  );
}

/** Numbers of the ranks that compute much longer than the mean. */
function slowRanks({ ranks = [] }: Query): Set<number> {
  const mean = ranks.reduce((sum, { core_us }) => sum + core_us, 0) / Math.max(1, ranks.length);
  return new Set(ranks.filter(({ core_us }) => mean > 0 && core_us >= SKEWED * mean).map(({ number }) => number));
}

interface PartsProps {
  label: string;
  name: string;
  parts: QueryPart[];
  empty: string;
  slow?: Set<number>;
}

/** A table of parts, with bars as long as each part's share of the largest one. */
function Parts({ label, name, parts, empty, slow }: PartsProps): JSX.Element {
  const most = (of: (part: QueryPart) => number): number => parts.reduce((largest, part) => Math.max(largest, of(part)), 0);
  const bar = (title: string, of: (part: QueryPart) => number, text: (value: number) => string, wide = false) => {
    const largest = most(of);
    return { title, wide, cell: (part: QueryPart) => <><Bar value={of(part)} most={largest} /> {text(of(part))}</>, sort: of };
  };
  return (
    <Table label={label} rows={parts} id={({ number }) => String(number)} empty={empty} columns={[
      { title: name, cell: ({ number }) => <>{number}{slow?.has(number) && <> <Badge state="slow" /></>}</>, sort: ({ number }) => number },
      { title: "Tasks", cell: ({ ended, tasks }) => <><Bar value={ended} most={tasks} /> {count(ended)}/{count(tasks)}</> },
      bar("Rows", ({ rows }) => rows, count),
      bar("Computed", ({ core_us }) => core_us, (us) => spanMs(us / 1_000)),
      bar("Received", ({ received_bytes }) => received_bytes, bytes, true),
      bar("Spilled", ({ spilled_bytes }) => spilled_bytes, bytes, true),
    ]} />
  );
}

/** The text beside it has the value. */
function Bar({ value, most }: { value: number; most: number }): JSX.Element {
  const share = most > 0 ? Math.min(1, value / most) : 0;
  return <span class="meter" aria-hidden="true"><span style={{ width: `${(100 * share).toFixed(1)}%` }} /></span>;
}
