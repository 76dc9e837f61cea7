// Flows: functions that are called with each other's results. A flow is started with steps that are typed here.

import type { JSX } from "preact";
import { useState } from "preact/hooks";

import { api } from "../api/client";
import { ActionDialog, Field, Input } from "../components/dialog";
import { Badge, Head, Pending, When } from "../components/parts";
import { parseJson } from "../components/run";
import { asSteps, draft, namesOf, StepFields, type DraftStep } from "../components/steps";
import { Table } from "../components/table";
import { line, shortId, spanMs } from "../lib/format";
import { useLive, useNow } from "../lib/live";
import { go, link } from "../lib/router";
import { useRights } from "../lib/session";
import { nameFor } from "./functions";

const MAX_FLOWS = 1_000;

export function Flows(): JSX.Element {
  const [limit, setLimit] = useState(100);
  const { data, error } = useLive(() => api.flows(limit), [limit], 3_000);
  const now = useNow();
  const rights = useRights();
  const [isOpen, setOpen] = useState(false);
  return (
    <>
      <Head title="Flows">{rights.may("user") && <button type="button" class="primary" onClick={() => setOpen(true)}>Start a flow</button>}</Head>
      {!data ? <Pending error={error} /> : (
        <Table label="Flows" rows={data} id={({ id }) => id} empty="You have no flow." hasMore={data.length === limit && limit < MAX_FLOWS} more={() => setLimit(MAX_FLOWS)} columns={[
          { title: "Flow", cell: ({ id, name }) => <a href={link(["flows", id])}>{line(name || shortId(id), 80)}</a> },
          { title: "State", cell: ({ state }) => <Badge state={state} /> },
          { title: "Started", cell: ({ started_at_ms }) => <When ms={started_at_ms} /> },
          { title: "Lasted", numeric: true, cell: ({ started_at_ms, ended_at_ms }) => spanMs((ended_at_ms || now) - started_at_ms) },
          { title: "Tag", wide: true, cell: ({ tag }) => <a href={link(["tasks"], { tag })}>{line(tag, 60)}</a> },
          { title: "Failure", wide: true, cell: ({ error: failure }) => (failure ? line(failure.message, 160) : "") },
        ]} />
      )}
      {isOpen && <StartDialog onClose={() => setOpen(false)} />}
    </>
  );
}

function StartDialog({ onClose }: { onClose: () => void }): JSX.Element {
  const rights = useRights();
  const functions = useLive(api.functions, [], 0);
  const [name, setName] = useState("");
  const [input, setInput] = useState("null");
  const [steps, setSteps] = useState<DraftStep[]>([draft(1)]);
  const act = async (): Promise<string> => {
    const flow = await api.startFlow({ name, input: parseJson(input, "The input", "any"), steps: await asSteps(steps) });
    go(link(["flows", flow.id]));
    return "The flow was started.";
  };
  return (
    <ActionDialog title="Start a flow" action="Start" onClose={onClose} act={act}>
      <Field label="Name of the flow"><Input value={name} set={setName} /></Field>
      <Field label="Input" hint="JSON"><textarea value={input} onInput={(event) => setInput(event.currentTarget.value)} spellcheck={false} /></Field>
      <StepFields steps={steps} set={setSteps} functions={namesOf(functions.data, (fn) => nameFor(fn, rights.tenant))} least={1} />
    </ActionDialog>
  );
}
