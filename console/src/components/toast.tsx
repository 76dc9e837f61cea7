// Short messages about what an action did. Screen readers announce them.

import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";

import { line } from "../lib/format";

interface Message {
  key: number;
  text: string;
  kind: "good" | "bad";
}

const SHOWN_MS = 6_000;
const MAX_SHOWN = 4;
let listener: (message: Message) => void = () => {};
let next = 1;

export function notify(text: string, kind: "good" | "bad" = "good"): void {
  listener({ key: next++, text, kind });
}

export function Toasts(): JSX.Element {
  const [shown, setShown] = useState<Message[]>([]);
  useEffect(() => {
    listener = (message) => {
      setShown((old) => [...old.slice(1 - MAX_SHOWN), message]);
      setTimeout(() => setShown((old) => old.filter(({ key }) => key !== message.key)), SHOWN_MS);
    };
    return () => {
      listener = () => {};
    };
  }, []);
  return (
    <div class="toasts" role="status" aria-live="polite">
      {shown.map(({ key, text, kind }) => (
        <p key={key} class={kind}>
          {line(text, 400)}
        </p>
      ))}
    </div>
  );
}
