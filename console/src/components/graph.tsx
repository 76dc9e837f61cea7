// The picture of a flow: its steps from left to right, each after those whose results it takes.

import type { JSX } from "preact";

import { line } from "../lib/format";

export interface GraphStep {
  name: string;
  /** As in the API: absent means the step before, or the input. */
  from?: string[];
  map?: boolean;
  state?: string;
  /** A second line of text. */
  text?: string;
}

const WIDTH = 168;
const HEIGHT = 52;
const GAP_X = 56;
const GAP_Y = 18;
const EDGE = 12;

interface Placed extends GraphStep {
  x: number;
  y: number;
  after: string[];
}

/** Places each step in the column after the last of its sources. */
function place(steps: GraphStep[], input: string): Placed[] {
  const columns = new Map<string, number>([[input, 0]]);
  const heights: number[] = [];
  const put = (step: GraphStep, column: number, after: string[]): Placed => {
    const row = heights[column] ?? 0;
    heights[column] = row + 1;
    columns.set(step.name, column);
    return { ...step, after, x: EDGE + column * (WIDTH + GAP_X), y: EDGE + row * (HEIGHT + GAP_Y) };
  };
  const placed = [put({ name: input, state: "input" }, 0, [])];
  steps.forEach((step, i) => {
    const before = steps[i - 1]?.name ?? input;
    const after = step.from ? step.from.map((name) => (name === "input" ? input : name)) : [before];
    const column = 1 + Math.max(0, ...after.map((name) => columns.get(name) ?? 0));
    placed.push(put(step, after.length ? column : 1, after));
  });
  return placed;
}

export function Graph({ steps, label, input = "input" }: { steps: GraphStep[]; label: string; input?: string }): JSX.Element {
  const placed = place(steps, input);
  const byName = new Map(placed.map((step) => [step.name, step]));
  const width = Math.max(...placed.map(({ x }) => x)) + WIDTH + EDGE;
  const height = Math.max(...placed.map(({ y }) => y)) + HEIGHT + EDGE;
  return (
    <>
      <div class="dag" tabIndex={0} role="region" aria-label={label}>
        <svg width={width} height={height} viewBox={`0 0 ${width} ${height}`} role="img" aria-label={`${label}: ${placed.length - 1} steps. The list below has the same in words.`}>
          <defs>
            <marker id="arrow" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">
              <path d="M0 0L10 5L0 10z" />
            </marker>
          </defs>
          {placed.flatMap((step) =>
            [...new Set(step.after)].map((name) => {
              const source = byName.get(name);
              if (!source) return null;
              const [x1, y1, x2, y2] = [source.x + WIDTH, source.y + HEIGHT / 2, step.x, step.y + HEIGHT / 2];
              const middle = (x1 + x2) / 2;
              return <path key={`${name} ${step.name}`} d={`M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${x2 - 2} ${y2}`} marker-end="url(#arrow)" />;
            }),
          )}
          {placed.map((step) => (
            <g key={step.name} class={step.state ?? ""} transform={`translate(${step.x} ${step.y})`}>
              <rect width={WIDTH} height={HEIGHT} rx="8" />
              <text x="12" y={step.text ? 22 : 31}>{line(step.name, 20)}{step.map ? " (each)" : ""}</text>
              {step.text && <text class="faint" x="12" y="40">{line(step.text, 26)}</text>}
            </g>
          ))}
        </svg>
      </div>
      <ol class="unseen">
        {placed.slice(1).map((step) => (
          <li key={step.name}>
            {line(step.name, 80)}: {step.state ?? "step"}, after {step.after.map((name) => line(name, 80)).join(", ") || "nothing"}. {step.text}
          </li>
        ))}
      </ol>
    </>
  );
}
