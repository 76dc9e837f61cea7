// Queries of data frames, which their clients report while they run.

import type { JSX } from "preact";

import { api } from "../api/client";
import type { Query } from "../api/types";
import { Filters } from "../components/filters";
import { Badge, Head, Meter, Pending, When } from "../components/parts";
import { Table } from "../components/table";
import { bytes, count, decimal, line, spanMs } from "../lib/format";
import { useLive } from "../lib/live";
import { link } from "../lib/router";
import { useRights } from "../lib/session";

/** A rank that computes this many times as long as the mean keeps the others waiting. */
export const SKEWED = 1.5;

const STATES: [string, string][] = [["", "All"], ["running", "Running"], ["done", "Done"], ["failed", "Failed"], ["cancelled", "Cancelled"], ["lost", "Lost"]];

export const queryState = ({ state, is_cancelling }: Query): string => (is_cancelling ? "cancelling" : state);

/** The beginning of a query's text, in one line. */
export const titleOf = ({ text }: Query, most: number): string => line(text.replace(/\s+/g, " ").trim(), most);

export function Skew({ value }: { value?: number | null }): JSX.Element {
  if (value === undefined || value === null) return <span class="faint">none yet</span>;
  return value >= SKEWED ? <span class="badge warn">{decimal(value)}</span> : <>{decimal(value)}</>;
}

export function Queries({ query }: { query: Record<string, string> }): JSX.Element {
  const rights = useRights();
  const { data, error } = useLive(() => api.queries(query.state), [query.state], 2_000);
  const text = (query.text ?? "").toLowerCase();
  const rows = (data ?? []).filter((one) => `${one.text} ${one.id} ${one.tenant}`.toLowerCase().includes(text));
  return (
    <>
      <Head title="Queries" />
      <Filters filters={[{ key: "text", label: "Text" }, { key: "state", label: "State", options: STATES }]} />
      {!data ? <Pending error={error} /> : (
        <Table label="Queries" rows={rows} id={({ id }) => id} empty="No query of data frames runs, or has run within the last hour. A query is shown once it has run for a second." columns={[
          { title: "Query", cell: (one) => <a href={link(["queries", one.id])} title={line(one.text, 1_000)}>{titleOf(one, 60)}</a> },
          { title: "State", cell: (one) => <Badge state={queryState(one)} /> },
          ...(rights.is("operator") ? [{ title: "Tenant", wide: true, cell: ({ tenant }: Query) => line(tenant, 60), sort: ({ tenant }: Query) => tenant }] : []),
          { title: "Started", wide: true, cell: ({ started_at_ms }) => <When ms={started_at_ms} /> },
          { title: "Time", numeric: true, cell: ({ elapsed_ms }) => spanMs(elapsed_ms), sort: ({ elapsed_ms }) => elapsed_ms },
          { title: "Tasks", cell: (one) => <><Meter label={`Ended tasks of ${titleOf(one, 40)}`} value={one.total.ended} most={one.total.tasks} good /> {count(one.total.ended)}/{count(one.total.tasks)}</> },
          { title: "Rows", numeric: true, wide: true, cell: ({ total }) => count(total.rows), sort: ({ total }) => total.rows },
          { title: "Received", numeric: true, wide: true, cell: ({ total }) => bytes(total.received_bytes), sort: ({ total }) => total.received_bytes },
          { title: "Spilled", numeric: true, wide: true, cell: ({ total }) => bytes(total.spilled_bytes), sort: ({ total }) => total.spilled_bytes },
          { title: "Skew", numeric: true, cell: ({ skew }) => <Skew value={skew} />, sort: ({ skew }) => skew ?? 0 },
        ]} />
      )}
    </>
  );
}
