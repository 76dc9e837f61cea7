// One flow: its steps drawn, their progress, its result and its tasks.

import type { JSX } from "preact";

import { api } from "../api/client";
import { ActionButton } from "../components/dialog";
import { Graph } from "../components/graph";
import { Badge, Card, Facts, Failed, Head, Pending, Source, When } from "../components/parts";
import { Table } from "../components/table";
import { count, line, shortId } from "../lib/format";
import { useLive } from "../lib/live";
import { link } from "../lib/router";
import { useRights } from "../lib/session";
import { TaskList } from "./tasks";

export function FlowView({ id }: { id: string }): JSX.Element {
  const rights = useRights();
  const { data: flow, error, reload } = useLive(() => api.flow(id), [id], 2_000);
  const back = { title: "Flows", href: link(["flows"]) };
  if (!flow) return <><Head title="Flow" back={back} /><Pending error={error} /></>;
  const isOver = flow.state === "done" || flow.state === "failed";
  return (
    <>
      <Head title={`Flow ${line(flow.name || shortId(flow.id), 60)}`} back={back}>
        <Badge state={flow.state} />
        {!isOver && rights.may("user") && (
          <ActionButton title="Cancel the flow" label="Cancel" action="Cancel the flow" danger act={async () => {
            await api.cancelFlow(flow.id);
            reload();
            return "The flow was cancelled.";
          }}>
            <p>The flow and its tasks end.</p>
          </ActionButton>
        )}
      </Head>
      <Card title="About">
        <Facts of={[
          ["Id", <span class="id">{flow.id}</span>],
          ["Tag", <a href={link(["tasks"], { tag: flow.tag })}>{line(flow.tag, 80)}</a>],
          ["Started", <When ms={flow.started_at_ms} />],
          ["Ended", <When ms={flow.ended_at_ms} />],
        ]} />
      </Card>
      {flow.error && <Card title="Failure"><Failed failure={flow.error} /></Card>}
      <Card title="Steps">
        <Graph label="Steps of the flow" steps={flow.steps.map((step) => ({ ...step, text: `${step.state}, ${step.done} of ${step.tasks} tasks` }))} />
        <Table label="Progress of the steps" rows={flow.steps} id={({ name }) => name} empty="There is no step." columns={[
          { title: "Step", cell: ({ name }) => line(name, 80) },
          { title: "State", cell: ({ state }) => <Badge state={state} /> },
          { title: "Done", numeric: true, cell: ({ done, tasks }) => `${count(done)} of ${count(tasks)}` },
          { title: "Function", wide: true, cell: ({ function: fn }) => (fn ? <a class="id" href={link(["functions", fn])}>{shortId(fn)}</a> : "") },
        ]} />
      </Card>
      {flow.state === "done" && flow.result !== undefined && <Card title="Result"><Source text={JSON.stringify(flow.result, null, 2)} label="Result" /></Card>}
      <Card title="Tasks"><TaskList query={{ tag: flow.tag }} label="Tasks of the flow" /></Card>
    </>
  );
}
