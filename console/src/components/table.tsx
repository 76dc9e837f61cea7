// A table that draws only the rows in sight, and asks for more when its end comes near.

import type { ComponentChildren, JSX } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

import { useNarrow } from "../lib/live";

export interface Column<R> {
  title: string;
  cell: (row: R) => ComponentChildren;
  numeric?: boolean;
  /** Left out on narrow screens. */
  wide?: boolean;
  /** Makes the column sortable in the browser. Only for lists that are read whole. */
  sort?: (row: R) => number | string;
}

interface Props<R> {
  label: string;
  columns: Column<R>[];
  rows: R[];
  id: (row: R) => string;
  empty: string;
  /** Reads the next page. */
  more?: () => void;
  hasMore?: boolean;
  /** Number of rows in all, if it is known. */
  total?: number;
}

const ROW_PX = 38;
const SPARE_ROWS = 12;
const FIRST_ROWS = 40;

function sorted<R>(rows: R[], of: ((row: R) => number | string) | undefined, isDown: boolean): R[] {
  if (!of) return rows;
  const way = isDown ? -1 : 1;
  return rows
    .map((row, place) => ({ row, place, key: of(row) }))
    .sort((a, b) => (a.key < b.key ? -way : a.key > b.key ? way : a.place - b.place))
    .map(({ row }) => row);
}

export function Table<R>({ label, columns, rows, id, empty, more, hasMore = false, total }: Props<R>): JSX.Element {
  const frame = useRef<HTMLDivElement>(null);
  const [seen, setSeen] = useState({ top: 0, height: FIRST_ROWS * ROW_PX });
  const [order, setOrder] = useState<{ title: string; isDown: boolean } | null>(null);
  const isNarrow = useNarrow();
  const shown = columns.filter(({ wide }) => !(wide && isNarrow));
  const ordered = sorted(rows, columns.find(({ title }) => title === order?.title)?.sort, order?.isDown ?? false);

  useLayoutEffect(() => {
    const element = frame.current;
    if (!element) return;
    const look = (): void => setSeen({ top: element.scrollTop, height: element.clientHeight });
    look();
    element.addEventListener("scroll", look, { passive: true });
    const resized = new ResizeObserver(look);
    resized.observe(element);
    return () => {
      element.removeEventListener("scroll", look);
      resized.disconnect();
    };
  }, []);

  const first = Math.max(0, Math.floor(seen.top / ROW_PX) - SPARE_ROWS);
  const last = Math.min(ordered.length, Math.ceil((seen.top + seen.height) / ROW_PX) + SPARE_ROWS);
  const isNearEnd = last >= ordered.length - SPARE_ROWS;
  useEffect(() => {
    if (hasMore && isNearEnd) more?.();
  }, [hasMore, isNearEnd, rows.length]);

  const spacer = (count: number): JSX.Element | null =>
    count > 0 ? (
      <tr aria-hidden="true" class="spacer">
        <td colSpan={shown.length} style={{ height: `${count * ROW_PX}px` }} />
      </tr>
    ) : null;

  const sort = (title: string): void =>
    setOrder((old) => (old?.title === title ? (old.isDown ? null : { title, isDown: true }) : { title, isDown: false }));
  const direction = (title: string): "ascending" | "descending" | undefined =>
    order?.title === title ? (order.isDown ? "descending" : "ascending") : undefined;

  return (
    <div class="table" ref={frame} tabIndex={0} role="region" aria-label={label}>
      <table aria-rowcount={total ?? (hasMore ? -1 : ordered.length + 1)}>
        <thead>
          <tr>
            {shown.map(({ title, numeric, sort: of }) => (
              <th key={title} scope="col" class={numeric ? "n" : ""} aria-sort={direction(title)}>
                {of ? (
                  <button type="button" class="sort" onClick={() => sort(title)}>
                    {title}
                    <span aria-hidden="true">{direction(title) ? (order?.isDown ? " ↓" : " ↑") : ""}</span>
                  </button>
                ) : (
                  title
                )}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {spacer(first)}
          {ordered.slice(first, last).map((row, place) => (
            <tr key={id(row)} aria-rowindex={first + place + 2}>
              {shown.map(({ title, cell, numeric }) => (
                <td key={title} class={numeric ? "n" : ""}>
                  {cell(row)}
                </td>
              ))}
            </tr>
          ))}
          {spacer(ordered.length - last)}
          {ordered.length === 0 && (
            <tr>
              <td colSpan={shown.length} class="faint">
                {hasMore ? "Loading…" : empty}
              </td>
            </tr>
          )}
        </tbody>
      </table>
    </div>
  );
}
