// How one text differs from another, line by line.

import type { JSX } from "preact";

import { lines } from "../lib/format";

/** Lines of the longer text. The comparison takes time and memory for the product of both. */
const MAX_LINES = 1_500;

interface Line {
  kind: "same" | "old" | "new";
  text: string;
}

/** Returns the lines of both texts in order, by the longest common subsequence; null if they are too long. */
function compared(before: string, after: string): Line[] | null {
  const [old, fresh] = [before, after].map((text) => text.replace(/\n$/, "").split("\n")) as [string[], string[]];
  if (Math.max(old.length, fresh.length) > MAX_LINES) return null;
  const width = fresh.length + 1;
  const common = new Uint16Array((old.length + 1) * width);
  const at = (i: number, j: number): number => common[i * width + j] ?? 0;
  for (let i = old.length - 1; i >= 0; i -= 1)
    for (let j = fresh.length - 1; j >= 0; j -= 1)
      common[i * width + j] = old[i] === fresh[j] ? at(i + 1, j + 1) + 1 : Math.max(at(i + 1, j), at(i, j + 1));
  const found: Line[] = [];
  let [i, j] = [0, 0];
  while (i < old.length || j < fresh.length) {
    if (i < old.length && j < fresh.length && old[i] === fresh[j]) {
      found.push({ kind: "same", text: old[i] ?? "" });
      i += 1;
      j += 1;
    } else if (j >= fresh.length || (i < old.length && at(i + 1, j) >= at(i, j + 1))) {
      found.push({ kind: "old", text: old[i] ?? "" });
      i += 1;
    } else {
      found.push({ kind: "new", text: fresh[j] ?? "" });
      j += 1;
    }
  }
  return found;
}

const MARKS = { same: " ", old: "-", new: "+" };

export function Difference({ before, after, label }: { before: string; after: string; label: string }): JSX.Element {
  const found = compared(before, after);
  if (!found) return <p class="faint">The sources are too long to be compared here.</p>;
  if (found.every(({ kind }) => kind === "same")) return <p>The sources are the same.</p>;
  return (
    <pre class="difference" tabIndex={0} aria-label={label}>
      {found.map(({ kind, text }, place) => <span key={place} class={kind}>{MARKS[kind]} {lines(text)}{"\n"}</span>)}
    </pre>
  );
}
