// Small parts that views share.

import type { ComponentChildren, JSX } from "preact";
import { useState } from "preact/hooks";

import type { Failure } from "../api/types";
import { count, line, lines, shortId, spanMs, time } from "../lib/format";
import { useNow } from "../lib/live";
import { link } from "../lib/router";
import { notify } from "./toast";

const KINDS: Record<string, string> = {
  done: "good",
  succeeded: "good",
  up: "good",
  active: "good",
  started: "good",
  formed: "good",
  ok: "good",
  running: "busy",
  environment: "busy",
  granted: "busy",
  queued: "idle",
  waiting: "idle",
  pending: "idle",
  paused: "warn",
  suspended: "warn",
  leaving: "warn",
  cancelling: "warn",
  slow: "warn",
  reclaimed: "warn",
  expired: "warn",
  degraded: "warn",
  silent: "warn",
  forming: "idle",
  failed: "bad",
  down: "bad",
  lost: "bad",
  refused: "bad",
  cancelled: "bad",
};

export function Badge({ state }: { state: string }): JSX.Element {
  return <span class={`badge ${KINDS[state] ?? "idle"}`}>{line(state, 40)}</span>;
}

export function When({ ms, ago = false }: { ms: number; ago?: boolean }): JSX.Element {
  const now = useNow(ago ? 1_000 : 3_600_000);
  if (!ms) return <span class="faint">not yet</span>;
  const at = new Date(ms).toISOString();
  return (
    <time dateTime={at} title={time(ms)}>
      {ago ? `${spanMs(Math.max(0, now - ms))} ago` : time(ms)}
    </time>
  );
}

export function Card({ title, actions, children }: { title: string; actions?: ComponentChildren; children: ComponentChildren }): JSX.Element {
  return (
    <section class="card">
      <div class="card-head">
        <h2>{title}</h2>
        {actions && <div class="actions">{actions}</div>}
      </div>
      {children}
    </section>
  );
}

export function Head({ title, children, back }: { title: string; children?: ComponentChildren; back?: { title: string; href: string } }): JSX.Element {
  return (
    <div class="head">
      <div>
        {back && (
          <p class="back">
            <a href={back.href}>{back.title}</a>
          </p>
        )}
        <h1 tabIndex={-1}>{title}</h1>
      </div>
      {children && <div class="actions">{children}</div>}
    </div>
  );
}

export function Facts({ of }: { of: [string, ComponentChildren][] }): JSX.Element {
  return (
    <dl class="facts">
      {of.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

export function Notice({ kind = "info", children }: { kind?: "info" | "bad" | "warn"; children: ComponentChildren }): JSX.Element {
  return (
    <p class={`notice ${kind}`} role={kind === "bad" ? "alert" : undefined}>
      {children}
    </p>
  );
}

/** What stands in a view's place while its data is missing. */
export function Pending({ error }: { error: string | null }): JSX.Element {
  if (error) return <Notice kind="bad">{line(error, 600)}</Notice>;
  return (
    <p class="faint" role="status">
      Loading…
    </p>
  );
}

export function Failed({ failure }: { failure: Failure }): JSX.Element {
  const { exception } = failure;
  return (
    <div class="failure">
      <Notice kind="bad">
        <b>{line(failure.code, 60)}</b>: {line(failure.message, 2_000)}
      </Notice>
      {exception && (
        <>
          <h3>
            Traceback of {line(exception.type, 100)}
          </h3>
          <Source text={exception.traceback || exception.message} label="Traceback" />
        </>
      )}
    </div>
  );
}

/** Text in lines, such as source or output, with a button that copies it. */
export function Source({ text, label }: { text: string; label: string }): JSX.Element {
  return (
    <div class="source">
      <CopyButton text={text} what={label} />
      <pre tabIndex={0} role="region" aria-label={label}>
        {lines(text)}
      </pre>
    </div>
  );
}

export function CopyButton({ text, what }: { text: string; what: string }): JSX.Element {
  const [done, setDone] = useState(false);
  const copy = (): void => {
    navigator.clipboard.writeText(text).then(
      () => {
        setDone(true);
        setTimeout(() => setDone(false), 1_500);
      },
      () => notify("The browser does not permit copying. Select the text instead.", "bad"),
    );
  };
  return (
    <button type="button" class="small copy" onClick={copy} aria-label={`Copy: ${what}`}>
      {done ? "Copied" : "Copy"}
    </button>
  );
}

export const TaskLink = ({ id }: { id: string }): JSX.Element => (
  <a href={link(["tasks", id])} class="id" title={id}>
    {shortId(id)}
  </a>
);

/** A meter; a full one is a warning, unless that is good. */
export function Meter({ value, most, label, good = false }: { value: number; most: number; label: string; good?: boolean }): JSX.Element {
  const share = most > 0 ? Math.min(1, value / most) : 0;
  return (
    <span class="meter" role="meter" aria-label={label} aria-valuemin={0} aria-valuemax={most} aria-valuenow={Math.min(value, most)}>
      <span class={share > 0.9 && !good ? "full" : ""} style={{ width: `${(100 * share).toFixed(1)}%` }} />
    </span>
  );
}

/** Part of the tasks in each state, as a bar and in words. */
export function Progress({ parts }: { parts: { name: string; value: number; kind: string }[] }): JSX.Element {
  const all = parts.reduce((sum, { value }) => sum + value, 0);
  return (
    <div class="progress">
      <div class="bar" aria-hidden="true">
        {parts.map(({ name, value, kind }) =>
          value > 0 ? <span key={name} class={kind} style={{ width: `${(100 * value) / all}%` }} /> : null,
        )}
      </div>
      <ul>
        {parts.map(({ name, value, kind }) => (
          <li key={name}>
            <span class={`dot ${kind}`} aria-hidden="true" /> {name} <b>{count(value)}</b>
          </li>
        ))}
      </ul>
    </div>
  );
}
