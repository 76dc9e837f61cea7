// One endpoint: its queue, its blocks in the words of the batch system, and its tasks.

import type { JSX } from "preact";

import { api } from "../api/client";
import { ActionButton } from "../components/dialog";
import { Badge, Card, Facts, Head, Notice, Pending, Progress, When } from "../components/parts";
import { Table } from "../components/table";
import { count, line } from "../lib/format";
import { useLive } from "../lib/live";
import { go, link } from "../lib/router";
import { useRights } from "../lib/session";
import { whyWaits } from "./endpoints";
import { taskParts } from "./overview";
import { TaskList } from "./tasks";

export function EndpointView({ name }: { name: string }): JSX.Element {
  const rights = useRights();
  const { data, error } = useLive(api.endpoints, [], 3_000);
  const back = { title: "Endpoints", href: link(["endpoints"]) };
  if (!data) return <><Head title="Endpoint" back={back} /><Pending error={error} /></>;
  const endpoint = data.find((known) => known.name === name || known.id === name);
  if (!endpoint) return <><Head title="Endpoint" back={back} /><Notice>There is no endpoint {line(name, 80)}, or it is not shared with you.</Notice></>;
  const why = whyWaits(endpoint);
  const isOwn = endpoint.owner === rights.tenant;
  return (
    <>
      <Head title={line(endpoint.name, 80)} back={back}>
        <Badge state={endpoint.state} />
        {isOwn && rights.may("user") && (
          <ActionButton title="Cancel tasks here" label="Cancel my tasks" action="Cancel" danger act={async () => {
            const { ended, told } = await api.cancel({ endpoint: endpoint.name });
            return `${count(ended)} tasks ended, and ${count(told)} are being stopped.`;
          }}>
            <p>All your unfinished tasks at this endpoint end.</p>
          </ActionButton>
        )}
        {!endpoint.foreign && endpoint.owner && (isOwn || rights.is("operator")) && rights.may("user") && (
          <ActionButton title="Remove the endpoint" label="Remove" action="Remove" danger act={async () => {
            await api.removeEndpoint(endpoint.name);
            go(link(["endpoints"]));
            return "The endpoint was removed.";
          }}>
            <p>Its tasks must have ended. Its token becomes void.</p>
          </ActionButton>
        )}
      </Head>
      {why && <Notice kind={endpoint.trouble ? "bad" : "warn"}>{line(why, 600)}</Notice>}
      <Card title="About">
        {endpoint.description && <p>{line(endpoint.description, 400)}</p>}
        <Facts of={[
          ["Owner", line(endpoint.owner, 64) || "the manager"],
          ["Provider", line(endpoint.provider || "none", 64)],
          ["Workers", count(endpoint.workers)],
          ["Shared with", line(endpoint.shared_with?.join(", ") || "nobody", 300)],
          ["Id", <span class="id">{endpoint.id}</span>],
        ]} />
      </Card>
      <Card title="Queue"><Progress parts={taskParts(endpoint.tasks)} /></Card>
      <Card title="Blocks">
        <Table label="Blocks" rows={endpoint.blocks} id={({ name: block }) => block} empty="It has no block: it asks for nodes when there are tasks." columns={[
          { title: "Block", cell: (block) => line(block.name, 60) },
          { title: "State", cell: ({ state }) => <Badge state={state} /> },
          { title: "Job", cell: ({ job }) => line(job, 60) },
          { title: "The scheduler's words", cell: ({ words }) => line(words, 200) },
          { title: "Nodes", numeric: true, cell: ({ joined, nodes }) => `${joined} of ${nodes}` },
          { title: "Submitted", wide: true, cell: ({ submitted_at_ms }) => <When ms={submitted_at_ms} ago /> },
          { title: "Ends", wide: true, cell: ({ ends_at_ms }) => (ends_at_ms ? <When ms={ends_at_ms} /> : "") },
        ]} />
      </Card>
      <Card title="Tasks"><TaskList query={{ endpoint: endpoint.name }} label="Tasks at this endpoint" /></Card>
    </>
  );
}
