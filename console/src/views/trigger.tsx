// One trigger, and the history of its events.

import type { JSX } from "preact";
import { useState } from "preact/hooks";

import { api } from "../api/client";
import type { TriggerEvent } from "../api/types";
import { ActionButton, Field } from "../components/dialog";
import { Graph } from "../components/graph";
import { Badge, Card, Facts, Failed, Head, Pending, Source, TaskLink, When } from "../components/parts";
import { parseJson } from "../components/run";
import { Table } from "../components/table";
import { count, line, shortId } from "../lib/format";
import { useLive } from "../lib/live";
import { go, link } from "../lib/router";
import { useRights } from "../lib/session";
import { sourceText } from "./triggers";

const PAGE = 100;

export function TriggerView({ name }: { name: string }): JSX.Element {
  const rights = useRights();
  const { data: trigger, error, reload } = useLive(() => api.trigger(name), [name], 3_000);
  const [payload, setPayload] = useState("{}");
  const back = { title: "Triggers", href: link(["triggers"]) };
  if (!trigger) return <><Head title="Trigger" back={back} /><Pending error={error} /></>;
  const isPaused = trigger.state === "paused";
  return (
    <>
      <Head title={line(trigger.name, 80)} back={back}>
        <Badge state={trigger.state} />
        {rights.may("user") && (
          <>
            <ActionButton title="Send an event" label="Send an event" action="Send" act={async () => {
              const { number, task } = await api.fireTrigger(trigger.name, parseJson(payload, "The event", "any"));
              reload();
              return `Event ${number} was accepted${task ? " and started a task" : ""}.`;
            }}>
              <Field label="Event" hint="JSON"><textarea value={payload} onInput={(event) => setPayload(event.currentTarget.value)} spellcheck={false} /></Field>
            </ActionButton>
            <ActionButton title={isPaused ? "Resume the trigger" : "Pause the trigger"} label={isPaused ? "Resume" : "Pause"} action={isPaused ? "Resume" : "Pause"} act={async () => {
              await api.pauseTrigger(trigger.name, !isPaused);
              reload();
              return isPaused ? "The trigger is active." : "The trigger is paused.";
            }}>
              <p>{isPaused ? "Times count again, and files that waited start the function." : "Times pass without effect, files wait, and events are refused."}</p>
            </ActionButton>
            <ActionButton title="Remove the trigger" label="Remove" action="Remove" danger act={async () => {
              await api.removeTrigger(trigger.name);
              go(link(["triggers"]));
              return "The trigger was removed.";
            }}>
              <p>The trigger and its history are removed. Its tasks continue.</p>
            </ActionButton>
          </>
        )}
      </Head>
      {trigger.trouble && <Failed failure={trigger.trouble} />}
      <Card title="About">
        {trigger.description && <p>{line(trigger.description, 400)}</p>}
        <Facts of={[
          ["Source", line(sourceText(trigger.source), 200)],
          ["Function", <a href={link(["functions", trigger.function])}>{line(trigger.function, 40)}</a>],
          ["Endpoint", line(trigger.endpoint ?? "the manager's own", 80)],
          ["Watched at", line(trigger.watched_at ?? "the manager", 80)],
          ["Next", trigger.next_at_ms ? <When ms={trigger.next_at_ms} /> : "none"],
          ["Started", count(trigger.started)],
          ["Waiting", count(trigger.waiting)],
          ["Refused", count(trigger.refused)],
          ["Made", <When ms={trigger.created_at_ms} />],
          ["Expires", <When ms={trigger.expires_at_ms} />],
        ]} />
        {trigger.keywords && Object.keys(trigger.keywords).length > 0 && <><h3>Keyword arguments</h3><Source text={JSON.stringify(trigger.keywords, null, 2)} label="Keyword arguments" /></>}
      </Card>
      {trigger.then && trigger.then.length > 0 && (
        <Card title="Its flow">
          <Graph label="Steps of each event" steps={[{ name: "event", text: "the trigger's function" }, ...trigger.then.map(({ name: step, from, map }) => ({ name: step, from: from ?? undefined, map }))]} />
          <Table label="Steps that follow" rows={trigger.then} id={({ name: step }) => step} empty="There is no step." columns={[
            { title: "Step", cell: ({ name: step }) => line(step, 80) },
            { title: "Takes", cell: ({ from }) => (from ? line(from.join(", "), 200) : "the step before") },
            { title: "Each", cell: ({ map }) => (map ? "yes" : "no") },
            { title: "Function", cell: ({ function: fn }) => <a class="id" href={link(["functions", fn])}>{shortId(fn)}</a> },
            { title: "Endpoint", wide: true, cell: ({ endpoint }) => (endpoint ? line(endpoint, 80) : "the manager's own") },
          ]} />
        </Card>
      )}
      <Card title="History"><History name={trigger.name} /></Card>
    </>
  );
}

function History({ name }: { name: string }): JSX.Element {
  const { data, error } = useLive(() => api.triggerEvents(name, undefined, PAGE), [name], 3_000);
  const [older, setOlder] = useState<TriggerEvent[]>([]);
  const [isAll, setAll] = useState(false);
  if (!data) return <Pending error={error} />;
  const rows = [...data, ...older.filter(({ number }) => number < (data.at(-1)?.number ?? 0))];
  const more = (): void => {
    const last = rows.at(-1)?.number;
    if (!last) return;
    void api.triggerEvents(name, last, PAGE).then((found) => {
      setOlder((old) => [...old, ...found.filter(({ number }) => !old.some((known) => known.number === number))]);
      setAll(found.length < PAGE);
    });
  };
  return (
    <Table label="Events" rows={rows} id={({ number }) => String(number)} empty="There was no event yet." more={more} hasMore={data.length === PAGE && !isAll} columns={[
      { title: "Number", numeric: true, cell: ({ number }) => number },
      { title: "At", cell: ({ at_ms }) => <When ms={at_ms} /> },
      { title: "State", cell: ({ state }) => <Badge state={state} /> },
      { title: "Started", cell: ({ task, flow }) => (task ? <TaskLink id={task} /> : flow ? <a href={link(["flows", flow])} class="id">flow …{flow.slice(-8)}</a> : "") },
      { title: "Task", cell: ({ task_state }) => (task_state ? <Badge state={task_state} /> : "") },
      { title: "Event", wide: true, cell: ({ event }) => <code>{line(JSON.stringify(event), 120)}</code> },
      { title: "Error", wide: true, cell: ({ error: failure }) => (failure ? line(failure.message, 160) : "") },
    ]} />
  );
}
