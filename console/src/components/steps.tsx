// Steps of a flow, as fields and drawn while they are typed.

import type { JSX } from "preact";

import { api } from "../api/client";
import type { FlowStep, Fn, Json } from "../api/types";
import { Check, Field, Input } from "./dialog";
import { Graph } from "./graph";
import { parseJson } from "./run";

/** A step as a person types it. */
export interface DraftStep {
  name: string;
  function: string;
  /** Names of earlier steps with commas between them; empty for the step before. */
  from: string;
  map: boolean;
  keywords: string;
  endpoint: string;
  retries: string;
}

export const MAX_STEPS = 100;

export const draft = (number: number): DraftStep => ({
  name: `step-${number}`, function: "", from: "", map: false, keywords: "{}", endpoint: "", retries: "0",
});

const sources = (from: string): string[] | undefined => {
  const names = from.split(",").map((name) => name.trim()).filter(Boolean);
  return names.length ? names : undefined;
};

/** Returns the steps as the manager takes them, with the ids of their functions. */
export async function asSteps(drafts: DraftStep[]): Promise<FlowStep[]> {
  const names = [...new Set(drafts.map(({ function: fn }) => fn))];
  const ids = new Map(await Promise.all(names.map(async (name) => [name, (await api.fn(name)).id] as const)));
  return drafts.map((step) => ({
    name: step.name,
    function: ids.get(step.function) ?? step.function,
    from: sources(step.from),
    map: step.map || undefined,
    endpoint: step.endpoint || undefined,
    keywords: parseJson(step.keywords, `The keyword arguments of ${step.name}`, "object") as Record<string, Json>,
    options: { retries: Number(step.retries) },
  }));
}

interface Props {
  steps: DraftStep[];
  set: (steps: DraftStep[]) => void;
  functions: string[];
  /** Steps that precede these. */
  before?: { name: string; text?: string }[];
  /** Fewest steps. */
  least: number;
}

export function StepFields({ steps, set, functions, before = [], least }: Props): JSX.Element {
  const change = (place: number, more: Partial<DraftStep>): void => set(steps.map((step, i) => (i === place ? { ...step, ...more } : step)));
  const free = (): number => {
    const taken = new Set(steps.map(({ name }) => name));
    let number = steps.length + 1;
    while (taken.has(`step-${number}`)) number += 1;
    return number;
  };
  return (
    <>
      <datalist id="step-functions">{functions.map((name) => <option key={name} value={name} />)}</datalist>
      {steps.map((step, place) => (
        <fieldset key={place}>
          <legend>Step {place + 1}</legend>
          <div class="fields">
            <Field label={`Name of step ${place + 1}`}><Input value={step.name} set={(name) => change(place, { name })} required pattern="[A-Za-z][A-Za-z0-9._\\-]{0,127}" /></Field>
            <Field label={`Function of step ${place + 1}`}><Input value={step.function} set={(fn) => change(place, { function: fn })} list="step-functions" required /></Field>
            <Field label={`Results that step ${place + 1} takes`} hint="Names of steps, or input; empty: of the step before"><Input value={step.from} set={(from) => change(place, { from })} /></Field>
          </div>
          <Check value={step.map} set={(map) => change(place, { map })} label={`Call step ${place + 1} for each element of a list`} />
          <details>
            <summary>More of step {place + 1}</summary>
            <Field label={`Keyword arguments of step ${place + 1}`} hint="A JSON object"><Input value={step.keywords} set={(keywords) => change(place, { keywords })} /></Field>
            <Field label={`Endpoint of step ${place + 1}`} hint="Empty: the manager's own"><Input value={step.endpoint} set={(endpoint) => change(place, { endpoint })} /></Field>
            <Field label={`Retries of step ${place + 1}`}><Input value={step.retries} set={(retries) => change(place, { retries })} type="number" min="0" /></Field>
          </details>
          {steps.length > least && <button type="button" class="small" onClick={() => set(steps.filter((_, i) => i !== place))}>Remove step {place + 1}</button>}
        </fieldset>
      ))}
      <div class="buttons">
        <button type="button" disabled={steps.length >= MAX_STEPS} onClick={() => set([...steps, draft(free())])}>Add a step</button>
      </div>
      {steps.length > 0 && (
        <Graph label="Steps as they are typed" steps={[...before, ...steps.map((step) => ({ name: step.name, from: sources(step.from), map: step.map, text: step.function }))]} />
      )}
    </>
  );
}

/** Names of functions that a step may call. */
export const namesOf = (functions: Fn[] | null, nameFor: (fn: Fn) => string): string[] =>
  [...new Set(functions?.filter(({ name }) => name).map(nameFor))];
