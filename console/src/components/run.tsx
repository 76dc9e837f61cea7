// Runs a registered function with JSON arguments. What was sent from this tab is offered again, to be changed: the manager
// shows no arguments, and deletes those of a task that succeeded.

import type { JSX } from "preact";
import { useState } from "preact/hooks";

import { api } from "../api/client";
import type { Json } from "../api/types";
import { line } from "../lib/format";
import { useLive } from "../lib/live";
import { go, link } from "../lib/router";
import { ActionDialog, Field, Input } from "./dialog";
import { Notice } from "./parts";

interface Sent {
  positional: string;
  keywords: string;
}

const KEPT = "dayfly-sent";
const MAX_KEPT = 200;

function keep(task: string, sent: Sent): void {
  const all = Object.entries(kept()).slice(1 - MAX_KEPT);
  sessionStorage.setItem(KEPT, JSON.stringify({ ...Object.fromEntries(all), [task]: sent }));
}

function kept(): Record<string, Sent> {
  try {
    return JSON.parse(sessionStorage.getItem(KEPT) ?? "{}") as Record<string, Sent>;
  } catch {
    return {};
  }
}

/** Parses a JSON document of a certain form. */
export function parseJson(text: string, what: string, form: "list" | "object" | "any"): Json {
  let value: Json;
  try {
    value = JSON.parse(text) as Json;
  } catch (error) {
    throw new Error(`${what} is not valid JSON: ${error instanceof Error ? error.message : ""}`);
  }
  const isList = Array.isArray(value);
  if (form === "list" && !isList) throw new Error(`${what} must be a list, such as [1, "two"].`);
  if (form === "object" && (isList || typeof value !== "object" || value === null)) throw new Error(`${what} must be an object, such as {"size": 3}.`);
  return value;
}

interface Props {
  function: string;
  label: string;
  tag?: string;
  endpoint?: string;
  priority?: number;
  /** The task that this repeats. */
  of?: string;
}

export function RunButton(props: Props): JSX.Element {
  const [isOpen, setOpen] = useState(false);
  return (
    <>
      <button type="button" class="primary" onClick={() => setOpen(true)}>
        {props.label}
      </button>
      {isOpen && <RunDialog {...props} onClose={() => setOpen(false)} />}
    </>
  );
}

function RunDialog({ function: id, label, of, onClose, ...given }: Props & { onClose: () => void }): JSX.Element {
  const sent = of ? kept()[of] : undefined;
  const [positional, setPositional] = useState(sent?.positional ?? "[]");
  const [keywords, setKeywords] = useState(sent?.keywords ?? "{}");
  const [tag, setTag] = useState(given.tag ?? "");
  const [endpoint, setEndpoint] = useState(given.endpoint ?? "");
  const [priority, setPriority] = useState(String(given.priority ?? 0));
  const [retries, setRetries] = useState("0");
  const endpoints = useLive(api.endpoints, [], 0);
  const act = async (): Promise<string> => {
    const call = {
      arguments: parseJson(positional, "The arguments", "list") as Json[],
      keywords: parseJson(keywords, "The keyword arguments", "object") as Record<string, Json>,
    };
    const accepted = await api.submit({
      function: id,
      endpoint: endpoint || undefined,
      tag,
      options: { priority: Number(priority), retries: Number(retries) },
      tasks: [{ call }],
    });
    const [task] = accepted.tasks;
    if (task) {
      keep(task, { positional, keywords });
      go(link(["tasks", task]));
    }
    return "The task was accepted.";
  };
  return (
    <ActionDialog title={label} action="Run" onClose={onClose} act={act}>
      {of && !sent && <Notice kind="warn">The arguments of the task are not shown here. Give them again.</Notice>}
      <Field label="Arguments" hint="A JSON list">
        <textarea value={positional} onInput={(event) => setPositional(event.currentTarget.value)} spellcheck={false} />
      </Field>
      <Field label="Keyword arguments" hint="A JSON object">
        <textarea value={keywords} onInput={(event) => setKeywords(event.currentTarget.value)} spellcheck={false} />
      </Field>
      <Field label="Endpoint" hint="Empty: the manager's own">
        <Input value={endpoint} set={setEndpoint} list="run-endpoints" />
        <datalist id="run-endpoints">
          {endpoints.data?.map(({ name }) => <option key={name} value={name}>{line(name, 60)}</option>)}
        </datalist>
      </Field>
      <Field label="Tag">
        <Input value={tag} set={setTag} />
      </Field>
      <Field label="Priority" hint="-128 to 127; higher runs first">
        <Input value={priority} set={setPriority} type="number" />
      </Field>
      <Field label="Retries if the function fails">
        <Input value={retries} set={setRetries} type="number" min="0" />
      </Field>
    </ActionDialog>
  );
}
