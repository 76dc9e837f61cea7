// Triggers: what starts functions by the clock, by files or by webhooks.

import type { JSX } from "preact";
import { useState } from "preact/hooks";

import { api } from "../api/client";
import type { EventSource, NewTrigger, Trigger, TriggerRequest } from "../api/types";
import { ActionDialog, Dialog, Field, Input, Select } from "../components/dialog";
import { Badge, CopyButton, Head, Pending, When } from "../components/parts";
import { parseJson } from "../components/run";
import { Table } from "../components/table";
import { count, line } from "../lib/format";
import { useLive } from "../lib/live";
import { link } from "../lib/router";
import { useRights } from "../lib/session";
import { nameFor } from "./functions";

export function sourceText(source: EventSource): string {
  switch (source.kind) {
    case "timer":
      return `timer ${source.cron} ${source.zone ?? "UTC"}`;
    case "files":
      return `files ${source.place} ${source.pattern ?? ""}`;
    case "webhook":
      return "webhook";
  }
}

export function Triggers(): JSX.Element {
  const rights = useRights();
  const { data, error, reload } = useLive(api.triggers, [], 3_000);
  const [isOpen, setOpen] = useState(false);
  const [made, setMade] = useState<NewTrigger | null>(null);
  return (
    <>
      <Head title="Triggers">{rights.may("user") && <button type="button" class="primary" onClick={() => setOpen(true)}>New trigger</button>}</Head>
      {!data ? <Pending error={error} /> : (
        <Table label="Triggers" rows={data} id={({ id }) => id} empty="You have no trigger." columns={[
          { title: "Trigger", cell: ({ name }) => <a href={link(["triggers", name])}>{line(name, 80)}</a>, sort: ({ name }) => name },
          { title: "State", cell: ({ state, trouble }) => <><Badge state={state} /> {trouble && <Badge state="failed" />}</> },
          { title: "Source", cell: ({ source }) => line(sourceText(source), 100) },
          { title: "Started", numeric: true, cell: ({ started }) => count(started), sort: ({ started }) => started },
          { title: "Waiting", numeric: true, wide: true, cell: ({ waiting }) => count(waiting) },
          { title: "Refused", numeric: true, wide: true, cell: ({ refused }) => count(refused) },
          { title: "Next", wide: true, cell: ({ next_at_ms }) => (next_at_ms ? <When ms={next_at_ms} /> : "") },
          { title: "Trouble", wide: true, cell: ({ trouble }) => (trouble ? line(trouble.message, 160) : "") },
        ] satisfies { title: string; cell: (trigger: Trigger) => unknown; numeric?: boolean; wide?: boolean; sort?: (trigger: Trigger) => number | string }[]} />
      )}
      {isOpen && <NewTriggerDialog onClose={() => setOpen(false)} onMade={(trigger) => { setMade(trigger); reload(); }} />}
      {made && (
        <Dialog title={`Trigger ${line(made.status.name, 60)}`} onClose={() => setMade(null)}>
          <p>Anyone who knows this address can send events. It is shown once.</p>
          <p class="secret">{made.url}</p>
          <div class="buttons"><CopyButton text={made.url} what="address" /><button type="button" onClick={() => setMade(null)}>Close</button></div>
        </Dialog>
      )}
    </>
  );
}

function NewTriggerDialog({ onClose, onMade }: { onClose: () => void; onMade: (made: NewTrigger) => void }): JSX.Element {
  const rights = useRights();
  const functions = useLive(api.functions, [], 0);
  const [name, setName] = useState("");
  const [kind, setKind] = useState("timer");
  const [fn, setFn] = useState("");
  const [cron, setCron] = useState("0 2 * * *");
  const [zone, setZone] = useState("UTC");
  const [place, setPlace] = useState("");
  const [pattern, setPattern] = useState("");
  const [endpoint, setEndpoint] = useState("");
  const [keywords, setKeywords] = useState("{}");
  const act = async (): Promise<string> => {
    const source: EventSource =
      kind === "timer" ? { kind: "timer", cron, zone } : kind === "files" ? { kind: "files", place, pattern: pattern || undefined, endpoint: endpoint || undefined } : { kind: "webhook" };
    const request: TriggerRequest = {
      name,
      function: (await api.fn(fn)).id,
      endpoint: endpoint || undefined,
      source,
      keywords: parseJson(keywords, "The keyword arguments", "object") as TriggerRequest["keywords"],
    };
    const made = await api.setTrigger(request);
    if (kind === "webhook") onMade(made);
    else onMade({ ...made, url: made.url });
    return `The trigger ${name} was made.`;
  };
  return (
    <ActionDialog title="New trigger" action="Make" onClose={onClose} act={act}>
      <Field label="Name"><Input value={name} set={setName} required /></Field>
      <Field label="Starts at"><Select value={kind} set={setKind} options={[["timer", "Times"], ["files", "New files"], ["webhook", "Webhooks"]]} /></Field>
      {kind === "timer" && <><Field label="Times" hint="Cron: minute, hour, day, month, weekday"><Input value={cron} set={setCron} required /></Field><Field label="Time zone"><Input value={zone} set={setZone} required /></Field></>}
      {kind === "files" && <><Field label="Directory or bucket"><Input value={place} set={setPlace} required /></Field><Field label="Pattern" hint="Such as *.tif"><Input value={pattern} set={setPattern} /></Field></>}
      <Field label="Function" hint="It is called with the event.">
        <Input value={fn} set={setFn} list="trigger-functions" required />
        <datalist id="trigger-functions">{[...new Set(functions.data?.filter(({ name: of }) => of).map((of) => nameFor(of, rights.tenant)))].map((of) => <option key={of} value={of} />)}</datalist>
      </Field>
      <Field label="Keyword arguments" hint="A JSON object"><textarea value={keywords} onInput={(event) => setKeywords(event.currentTarget.value)} spellcheck={false} /></Field>
      <Field label="Endpoint" hint="Empty: the manager's own"><Input value={endpoint} set={setEndpoint} /></Field>
    </ActionDialog>
  );
}
