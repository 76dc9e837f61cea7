// Triggers: what starts functions by the clock, by files or by webhooks.

import type { JSX } from "preact";
import { useState } from "preact/hooks";

import { api } from "../api/client";
import type { EventSource, NewTrigger, Trigger, TriggerRequest } from "../api/types";
import { ActionDialog, Check, Dialog, Field, Input, Select } from "../components/dialog";
import { Badge, CopyButton, Head, Pending, When } from "../components/parts";
import { parseJson } from "../components/run";
import { asSteps, namesOf, StepFields, type DraftStep } from "../components/steps";
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

const HOUR_MS = 3_600_000;

function NewTriggerDialog({ onClose, onMade }: { onClose: () => void; onMade: (made: NewTrigger) => void }): JSX.Element {
  const rights = useRights();
  const functions = useLive(api.functions, [], 0);
  const names = namesOf(functions.data, (of) => nameFor(of, rights.tenant));
  const [name, setName] = useState("");
  const [description, setDescription] = useState("");
  const [kind, setKind] = useState("timer");
  const [fn, setFn] = useState("");
  const [cron, setCron] = useState("0 2 * * *");
  const [zone, setZone] = useState("UTC");
  const [catchesUp, setCatchUp] = useState(true);
  const [place, setPlace] = useState("");
  const [pattern, setPattern] = useState("");
  const [watchedAt, setWatchedAt] = useState("");
  const [takesExisting, setExisting] = useState(false);
  const [endpoint, setEndpoint] = useState("");
  const [keywords, setKeywords] = useState("{}");
  const [retries, setRetries] = useState("0");
  const [hours, setHours] = useState("");
  const [isPaused, setPaused] = useState(false);
  const [then, setThen] = useState<DraftStep[]>([]);
  const source = (): EventSource => {
    switch (kind) {
      case "timer":
        return { kind, cron, zone, catch_up: catchesUp };
      case "files":
        return { kind, place, pattern: pattern || undefined, endpoint: watchedAt || undefined, existing: takesExisting };
      default:
        return { kind: "webhook" };
    }
  };
  const act = async (): Promise<string> => {
    const request: TriggerRequest = {
      name,
      description,
      function: (await api.fn(fn)).id,
      endpoint: endpoint || undefined,
      source: source(),
      keywords: parseJson(keywords, "The keyword arguments", "object") as TriggerRequest["keywords"],
      options: { retries: Number(retries) },
      then: await asSteps(then),
      paused: isPaused,
      valid_for_ms: Math.round(Number(hours) * HOUR_MS),
    };
    onMade(await api.setTrigger(request));
    return `The trigger ${name} was made.`;
  };
  return (
    <ActionDialog title="New trigger" action="Make" onClose={onClose} act={act}>
      <Field label="Name"><Input value={name} set={setName} required /></Field>
      <Field label="Starts at"><Select value={kind} set={setKind} options={[["timer", "Times"], ["files", "New files"], ["webhook", "Webhooks"]]} /></Field>
      {kind === "timer" && (
        <>
          <Field label="Times" hint="Cron: minute, hour, day, month, weekday"><Input value={cron} set={setCron} required /></Field>
          <Field label="Time zone"><Input value={zone} set={setZone} required /></Field>
          <Check value={catchesUp} set={setCatchUp} label="Make up for the last time that passed while the manager was down" />
        </>
      )}
      {kind === "files" && (
        <>
          <Field label="Directory or bucket"><Input value={place} set={setPlace} required /></Field>
          <Field label="Pattern" hint="Such as *.tif"><Input value={pattern} set={setPattern} /></Field>
          <Field label="Watched at" hint="An endpoint of yours; empty: where its tasks run"><Input value={watchedAt} set={setWatchedAt} /></Field>
          <Check value={takesExisting} set={setExisting} label="Files that exist already count" />
        </>
      )}
      <Field label="Function" hint="It is called with the event.">
        <Input value={fn} set={setFn} list="trigger-functions" required />
        <datalist id="trigger-functions">{names.map((of) => <option key={of} value={of} />)}</datalist>
      </Field>
      <Field label="Keyword arguments" hint="A JSON object"><textarea value={keywords} onInput={(event) => setKeywords(event.currentTarget.value)} spellcheck={false} /></Field>
      <Field label="Endpoint" hint="Empty: the manager's own"><Input value={endpoint} set={setEndpoint} /></Field>
      <details>
        <summary>More options</summary>
        <Field label="Description"><Input value={description} set={setDescription} /></Field>
        <Field label="Retries if the function fails"><Input value={retries} set={setRetries} type="number" min="0" /></Field>
        <Field label="Hours of validity" hint="Empty: as long as your token"><Input value={hours} set={setHours} type="number" min="0" step="any" /></Field>
        <Check value={isPaused} set={setPaused} label="Make it paused" />
      </details>
      <details>
        <summary>Steps that follow</summary>
        <p class="faint">Each event starts a flow. Its first step is named event: the function above. A step may take its result, the input (which is the event), or results of earlier steps.</p>
        <StepFields steps={then} set={setThen} functions={names} before={[{ name: "event", text: fn }]} least={0} />
      </details>
    </ActionDialog>
  );
}
