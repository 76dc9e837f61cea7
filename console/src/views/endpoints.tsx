// Endpoints: state, queue, workers, blocks, and why one waits.

import type { JSX } from "preact";

import { api } from "../api/client";
import type { Endpoint } from "../api/types";
import { Filters } from "../components/filters";
import { Badge, Head, Pending } from "../components/parts";
import { Table } from "../components/table";
import { count, line } from "../lib/format";
import { useLive } from "../lib/live";
import { link } from "../lib/router";

export const queueOf = ({ tasks }: Endpoint): number => tasks.queued + tasks.waiting + (tasks.environment ?? 0);

/** Why tasks wait there, in one sentence; empty if none does. */
export function whyWaits(endpoint: Endpoint): string {
  if (endpoint.trouble) return endpoint.trouble;
  if (queueOf(endpoint) === 0) return "";
  if (endpoint.state === "down") return "The endpoint is not connected.";
  const pending = endpoint.blocks.filter(({ state }) => state === "pending");
  const [first] = pending;
  if (endpoint.workers === 0 && first) return `${pending.length} blocks wait in the batch system${first.words ? `: ${first.words}` : "."}`;
  if (endpoint.workers === 0) return "It has no worker yet.";
  return endpoint.tasks.environment ? "Environments are being built." : "All its workers are busy.";
}

export function Endpoints({ query }: { query: Record<string, string> }): JSX.Element {
  const { data, error } = useLive(api.endpoints, [], 4_000);
  if (!data) return <><Head title="Endpoints" /><Pending error={error} /></>;
  const text = (query.text ?? "").toLowerCase();
  const rows = data.filter((endpoint) => (!query.state || endpoint.state === query.state) && `${endpoint.name} ${endpoint.owner} ${endpoint.provider ?? ""} ${endpoint.description ?? ""}`.toLowerCase().includes(text));
  return (
    <>
      <Head title="Endpoints" />
      <Filters filters={[{ key: "text", label: "Text" }, { key: "state", label: "State", options: [["", "All"], ["up", "Up"], ["down", "Down"]] }]} />
      <p class="faint">{count(rows.length)} of {count(data.length)} endpoints</p>
      <Table label="Endpoints" rows={rows} id={({ id }) => id} empty="There is no such endpoint. Set one up with dayfly endpoint setup." columns={[
        { title: "Endpoint", cell: ({ name }) => <a href={link(["endpoints", name])}>{line(name, 80)}</a>, sort: ({ name }) => name },
        { title: "State", cell: ({ state }) => <Badge state={state} />, sort: ({ state }) => state },
        { title: "Queue", numeric: true, cell: (row) => count(queueOf(row)), sort: queueOf },
        { title: "Running", numeric: true, cell: ({ tasks }) => count(tasks.running), sort: ({ tasks }) => tasks.running },
        { title: "Workers", numeric: true, cell: ({ workers }) => count(workers), sort: ({ workers }) => workers },
        { title: "Blocks", numeric: true, wide: true, cell: ({ blocks }) => blocks.length, sort: ({ blocks }) => blocks.length },
        { title: "Provider", wide: true, cell: ({ provider }) => line(provider ?? "", 40), sort: ({ provider }) => provider ?? "" },
        { title: "Owner", wide: true, cell: ({ owner }) => line(owner, 60), sort: ({ owner }) => owner },
        { title: "Why it waits", wide: true, cell: (row) => line(whyWaits(row), 160) },
      ]} />
    </>
  );
}
