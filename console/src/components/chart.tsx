// Pictures of numbers over time, by uPlot, each with the same numbers as a table.

import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";

import { line, two } from "../lib/format";
import { Table } from "./table";

export interface Series {
  name: string;
  values: (number | null)[];
}

interface Props {
  title: string;
  /** Seconds since the Unix epoch, or any other number with `axis`. */
  x: number[];
  series: Series[];
  /** Text of a value. */
  text: (value: number) => string;
  kind?: "lines" | "bars" | "steps";
  /** Text of an `x` in the table. */
  place: (x: number) => string;
  /** Text of an `x` at the axis, if it is no time. */
  axis?: (x: number) => string;
  height?: number;
}

const COLOURS = ["--c1", "--c2", "--c3", "--c4", "--c5", "--c6", "--c7", "--c8"];

const colour = (name: string): string => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Adds each series to those before it, so that bars stand on each other. */
export function stacked(series: Series[]): Series[] {
  const sums: number[] = [];
  return series.map(({ name, values }) => ({
    name,
    values: values.map((value, i) => (sums[i] = (sums[i] ?? 0) + (value ?? 0))),
  }));
}

/** Times at the axis: days in UTC below bars, else the time of day, with seconds if they differ. */
function times(splits: number[], isDays: boolean): string[] {
  const fine = (splits[1] ?? 0) - (splits[0] ?? 0) < 60;
  return splits.map((at) => {
    const date = new Date(at * 1000);
    if (isDays) return date.toISOString().slice(5, 10);
    return `${two(date.getHours())}:${two(date.getMinutes())}${fine ? `:${two(date.getSeconds())}` : ""}`;
  });
}

const DAY_S = 86_400;

function options({ series, text, kind, axis }: Props, width: number, height: number, point: (at: number | null) => void): uPlot.Options {
  const ink = colour("--faint");
  const grid = { stroke: colour("--line"), width: 1 };
  const font = "12px system-ui, sans-serif";
  const bars = uPlot.paths.bars?.({ size: [0.7, 60] });
  const steps = uPlot.paths.stepped?.({ align: 1 });
  const paths = kind === "bars" ? bars : kind === "steps" ? steps : undefined;
  return {
    width,
    height,
    scales: { x: { time: !axis, range: kind === "bars" ? (_, from, to) => [from - 43_200, to + 43_200] : undefined }, y: { range: (_, __, to) => [0, to > 0 ? to * 1.08 : 1] } },
    legend: { show: false },
    cursor: { drag: { x: false, y: false } },
    hooks: { setCursor: [({ cursor }) => point(cursor.left === undefined || cursor.left < 0 ? null : (cursor.idx ?? null))] },
    tzDate: kind === "bars" ? (at) => uPlot.tzDate(new Date(at * 1000), "Etc/UTC") : undefined,
    axes: [
      {
        stroke: ink, grid, ticks: grid, font, space: 70, incrs: kind === "bars" ? [1, 2, 7, 14, 30, 90, 365].map((days) => days * DAY_S) : undefined,
        values: (_, splits) => (axis ? splits.map(axis) : times(splits, kind === "bars")),
      },
      { stroke: ink, grid, ticks: grid, font, size: 74, values: (_, splits) => splits.map(text) },
    ],
    series: [
      {},
      ...series.map(({ name }, i) => {
        const stroke = colour(COLOURS[i % COLOURS.length] ?? "--c1");
        return { label: name, stroke, width: kind === "bars" ? 0 : 1.6, fill: kind === "bars" ? stroke : undefined, paths, points: { show: false }, spanGaps: false };
      }),
    ],
  };
}

export function Chart(props: Props): JSX.Element {
  const { title, x, series, text, kind = "lines", place, height = 200 } = props;
  const frame = useRef<HTMLDivElement>(null);
  const [isTable, setTable] = useState(false);
  const [theme, setTheme] = useState(0);
  const [pointed, setPointed] = useState<number | null>(null);
  useEffect(() => {
    const follow = (): void => setTheme((old) => old + 1);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", follow);
    addEventListener("theme", follow);
    return () => {
      dark.removeEventListener("change", follow);
      removeEventListener("theme", follow);
    };
  }, []);
  const names = series.map(({ name }) => name).join("\n");
  const plot = useRef<uPlot | null>(null);
  // Bars that stand on each other are drawn from the tallest to the lowest.
  const drawn = kind === "bars" ? stacked(series).reverse() : series;
  const data: uPlot.AlignedData = [x, ...drawn.map(({ values }) => values)];
  useEffect(() => {
    const element = frame.current;
    if (!element || isTable) return;
    const made = options(props, element.clientWidth, height, setPointed);
    const series = made.series;
    if (kind === "bars") made.series = [series[0] ?? {}, ...series.slice(1).reverse()];
    plot.current = new uPlot(made, data, element);
    const resized = new ResizeObserver(() => plot.current?.setSize({ width: element.clientWidth, height }));
    resized.observe(element);
    return () => {
      resized.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [names, theme, isTable, kind, height]);
  useEffect(() => {
    plot.current?.setData(data);
  }, [x, series]);

  return (
    <figure class="chart">
      <figcaption>
        <span>{title}</span>
        <button type="button" class="small" aria-pressed={isTable} onClick={() => setTable(!isTable)}>
          {isTable ? "Picture" : "Table"}
          <span class="unseen"> of {title}</span>
        </button>
      </figcaption>
      {isTable ? (
        <Table
          label={`Table: ${title}`}
          rows={x.map((at, i) => ({ at, i }))}
          id={({ i }) => String(i)}
          empty="There is nothing yet."
          columns={[
            { title: "At", cell: ({ at }) => place(at) },
            ...series.map(({ name, values }) => ({
              title: name,
              numeric: true,
              cell: ({ i }: { i: number }) => {
                const value = values[i];
                return value === null || value === undefined ? "" : text(value);
              },
            })),
          ]}
        />
      ) : (
        <>
          <div ref={frame} role="img" aria-label={`Picture: ${title}. The button above shows the same as a table.`} class="plot" />
          <ul class="legend">
            {series.map(({ name, values }, i) => (
              <li key={name}>
                <span class={`dot c${(i % COLOURS.length) + 1}`} aria-hidden="true" /> {line(name, 60)}
                {pointed !== null && values[pointed] != null && <b> {text(values[pointed])}</b>}
              </li>
            ))}
            {pointed !== null && x[pointed] !== undefined && <li class="faint">{place(x[pointed])}</li>}
          </ul>
        </>
      )}
    </figure>
  );
}
