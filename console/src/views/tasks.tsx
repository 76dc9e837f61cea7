// The live list of tasks, with filters, the progress of a batch, and actions on what is listed.

import type { JSX } from "preact";
import { useCallback, useEffect, useRef, useState } from "preact/hooks";

import { api, messageOf } from "../api/client";
import type { Task, TaskQuery } from "../api/types";
import { ActionButton } from "../components/dialog";
import { Filters } from "../components/filters";
import { Badge, Card, Head, Notice, Progress, TaskLink, When } from "../components/parts";
import { Table, type Column } from "../components/table";
import { count, line, spanMs } from "../lib/format";
import { pauseAfter, useLive, useNow } from "../lib/live";
import { link } from "../lib/router";
import { useRights } from "../lib/session";
import { taskParts } from "./overview";

const PAGE = 200;
const MAX_REFRESHED = 600;
const EVERY_MS = 2_500;

/** Ids of tasks begin with the time of their acceptance: 48 bits of milliseconds. */
const firstIdAt = (ms: number): string => `${Math.max(0, ms).toString(16).padStart(12, "0")}${"0".repeat(20)}`;

const instant = (text: string | undefined): number | undefined => {
  const ms = text ? new Date(text).getTime() : Number.NaN;
  return Number.isNaN(ms) ? undefined : ms;
};

function asQuery(query: Record<string, string>): TaskQuery {
  const { state, until } = query;
  const end = instant(until);
  const isOutcome = state === "failed" || state === "succeeded";
  return {
    tag: query.tag,
    endpoint: query.endpoint,
    function: query.function,
    text: query.text,
    state: isOutcome ? undefined : state,
    failed: isOutcome ? state === "failed" : undefined,
    before: end === undefined ? undefined : firstIdAt(end),
    everybody: query.everybody === "1" || undefined,
  };
}

interface List {
  rows: Task[];
  hasMore: boolean;
  error: string | null;
  more: () => void;
  reload: () => void;
}

/** The tasks of a query: more pages on request, and those that were read are read again at intervals. */
function useTasks(query: Record<string, string>): List {
  const [rows, setRows] = useState<Task[]>([]);
  const [hasMore, setMore] = useState(true);
  const [error, setError] = useState<string | null>(null);
  const [turn, setTurn] = useState(0);
  const key = JSON.stringify(query);
  const state = useRef({ rows, isReading: false, generation: 0 });
  state.current.rows = rows;
  const asked = asQuery(query);
  const since = instant(query.since) ?? 0;

  const page = async (more: TaskQuery, signal: AbortSignal): Promise<{ found: Task[]; isLast: boolean }> => {
    const limit = more.limit ?? PAGE;
    const listed = await api.tasks({ ...asked, ...more, limit }, signal);
    const found = listed.filter(({ submitted_at_ms }) => submitted_at_ms >= since);
    return { found, isLast: listed.length < limit || found.length < listed.length };
  };

  const controller = useRef(new AbortController());
  useEffect(() => {
    const own = new AbortController();
    controller.current = own;
    state.current.isReading = false;
    let timer: ReturnType<typeof setTimeout> | undefined;
    let isBusy = false;
    setRows([]);
    setMore(true);
    setError(null);
    const refresh = async (): Promise<void> => {
      const loaded = state.current.rows.length;
      const limit = Math.min(MAX_REFRESHED, Math.max(PAGE, loaded));
      const begun = performance.now();
      isBusy = true;
      try {
        if (!document.hidden) {
          const { found, isLast } = await page({ limit }, own.signal);
          if (own.signal.aborted) return;
          // Older tasks that were read before stay as they were.
          const oldest = found.at(-1)?.id ?? "";
          const older = state.current.rows.filter(({ id }) => found.length >= limit && id < oldest);
          setRows([...found, ...older]);
          if (older.length === 0) setMore(!isLast);
          setError(null);
        }
      } catch (caught) {
        if (own.signal.aborted) return;
        setError(messageOf(caught));
        setMore(false);
      }
      isBusy = false;
      timer = setTimeout(() => void refresh(), pauseAfter(begun, EVERY_MS));
    };
    // A page that was hidden or suspended for long catches up at once.
    const onShown = (): void => {
      if (document.hidden || isBusy) return;
      clearTimeout(timer);
      void refresh();
    };
    document.addEventListener("visibilitychange", onShown);
    void refresh();
    return () => {
      own.abort();
      document.removeEventListener("visibilitychange", onShown);
      clearTimeout(timer);
    };
  }, [key, turn]);

  const more = useCallback(() => {
    const last = state.current.rows.at(-1)?.id;
    if (!last || state.current.isReading) return;
    state.current.isReading = true;
    const own = controller.current;
    page({ before: last }, own.signal).then(
      ({ found, isLast }) => {
        if (own.signal.aborted) return;
        state.current.isReading = false;
        setRows((old) => [...old, ...found.filter(({ id }) => id < last)]);
        setMore(!isLast);
      },
      () => {
        state.current.isReading = false;
      },
    );
  }, [key, turn]);
  const reload = useCallback(() => setTurn((old) => old + 1), []);
  return { rows, hasMore, error, more, reload };
}

/** How long a task has been, or was, in its last state. */
function Lasted({ task }: { task: Task }): JSX.Element {
  const now = useNow();
  const from = task.started_at_ms || task.submitted_at_ms;
  return <>{spanMs(Math.max(0, (task.ended_at_ms || now) - from))}</>;
}

export const taskState = (task: Task): string => (task.state !== "done" ? task.state : task.error ? "failed" : "succeeded");

export function TaskTable({ list, label, isOfAll = false }: { list: List; label: string; isOfAll?: boolean }): JSX.Element {
  const columns: Column<Task>[] = [
    { title: "Task", cell: ({ id }) => <TaskLink id={id} /> },
    { title: "State", cell: (task) => <Badge state={taskState(task)} /> },
    { title: "Function", cell: (task) => <a href={link(["functions", task.function])}>{line(task.name || task.function, 80)}</a> },
    { title: "Tag", wide: true, cell: ({ tag }) => (tag ? <a href={link(["tasks"], { tag })}>{line(tag, 60)}</a> : "") },
    { title: "Endpoint", wide: true, cell: ({ endpoint }) => <a href={link(["endpoints", endpoint])}>{line(endpoint, 60)}</a> },
    ...(isOfAll ? [{ title: "Tenant", wide: true, cell: ({ owner }: Task) => line(owner, 60) }] : []),
    { title: "Submitted", cell: ({ submitted_at_ms }) => <When ms={submitted_at_ms} ago /> },
    { title: "Lasted", numeric: true, cell: (task) => <Lasted task={task} /> },
    { title: "Attempts", numeric: true, wide: true, cell: ({ attempts }) => attempts },
    { title: "Failure", wide: true, cell: ({ error, building }) => (error ? `${line(error.code, 40)}: ${line(error.message, 120)}` : building ? line(building, 120) : "") },
  ];
  return <Table label={label} columns={columns} rows={list.rows} id={({ id }) => id} empty="No task fits these filters." more={list.more} hasMore={list.hasMore} />;
}

/** Tasks of one filter, within another view. */
export function TaskList({ query, label }: { query: Record<string, string>; label: string }): JSX.Element {
  const list = useTasks(query);
  return (
    <>
      {list.error && <Notice kind="bad">{line(list.error, 400)}</Notice>}
      <TaskTable list={list} label={label} />
    </>
  );
}

const STATES: [string, string][] = [
  ["", "All"],
  ["queued", "Queued"],
  ["waiting", "Waiting"],
  ["environment", "Building"],
  ["running", "Running"],
  ["done", "Ended"],
  ["succeeded", "Succeeded"],
  ["failed", "Failed"],
];

export function Tasks({ query }: { query: Record<string, string> }): JSX.Element {
  const rights = useRights();
  const list = useTasks(query);
  const functions = useLive(api.functions, [], 30_000);
  const endpoints = useLive(api.endpoints, [], 30_000);
  const own = functions.data?.map(({ name, owner }) => (name ? (owner === rights.tenant ? name : `${owner}/${name}`) : "")) ?? [];
  const names = [...new Set(own)].filter(Boolean);
  return (
    <>
      <Head title="Tasks" />
      <Filters
        filters={[
          { key: "state", label: "State", options: STATES },
          { key: "tag", label: "Tag" },
          { key: "function", label: "Function", suggestions: names },
          { key: "endpoint", label: "Endpoint", suggestions: endpoints.data?.map(({ name }) => name) ?? [] },
          { key: "text", label: "Text" },
          { key: "since", label: "From", type: "datetime-local" },
          { key: "until", label: "Until", type: "datetime-local" },
          ...(rights.is("operator") || query.endpoint ? [{ key: "everybody", label: "Tenants", options: [["", "My own"], ["1", "All"]] as [string, string][] }] : []),
        ]}
      />
      {query.tag && <Batch tag={query.tag} reload={list.reload} />}
      {list.error && <Notice kind="bad">{line(list.error, 400)}</Notice>}
      <TaskTable list={list} label="Tasks" isOfAll={query.everybody === "1"} />
    </>
  );
}

function Batch({ tag, reload }: { tag: string; reload: () => void }): JSX.Element {
  const rights = useRights();
  const { data } = useLive(() => api.counts(tag), [tag], EVERY_MS);
  const all = data ? data.queued + data.waiting + (data.environment ?? 0) + data.running + data.done : 0;
  return (
    <Card
      title={`Batch ${line(tag, 80)}`}
      actions={
        rights.may("user") && (
          <>
            <ActionButton
              label="Cancel the batch"
              title="Cancel the batch"
              action="Cancel its tasks"
              danger
              act={async () => {
                const { ended, told } = await api.cancel({ tag });
                reload();
                return `${count(ended)} tasks ended, and ${count(told)} are being stopped.`;
              }}
            >
              <p>All unfinished tasks with this tag end. Running ones are stopped.</p>
            </ActionButton>
            <ActionButton
              label="Delete results"
              title="Delete results"
              action="Delete"
              danger
              act={async () => {
                const { forgotten, left } = await api.forget({ tag });
                reload();
                return `${count(forgotten)} tasks were deleted; ${count(left)} are left.`;
              }}
            >
              <p>All ended tasks with this tag are deleted, with their results.</p>
            </ActionButton>
          </>
        )
      }
    >
      {data && (
        <>
          <p>
            {count(data.done)} of {count(all)} tasks have ended.
          </p>
          <Progress parts={taskParts(data)} />
          {data.times && (
            <p class="faint">
              In all: {spanMs(data.times.queued_ms)} queued, {spanMs(data.times.waiting_ms)} waiting, {spanMs(data.times.environment_ms)} building,{" "}
              {spanMs(data.times.running_ms)} running.
            </p>
          )}
        </>
      )}
    </Card>
  );
}
