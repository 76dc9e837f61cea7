// One task: its states over time, its output live, and how it ended.

import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

import { api, ApiError, messageOf, WAIT_MS } from "../api/client";
import type { Loans, Outcome, Task } from "../api/types";
import { Chart } from "../components/chart";
import { ActionButton } from "../components/dialog";
import { Badge, Card, CopyButton, Facts, Failed, Head, Pending, Source, When } from "../components/parts";
import { RunButton } from "../components/run";
import { bytes, decimal, fromBase64, line, lines, span, spanMs } from "../lib/format";
import { useLive, useNow } from "../lib/live";
import { go, link } from "../lib/router";
import { useRights } from "../lib/session";
import { taskState } from "./tasks";

const MAX_SHOWN_CHARACTERS = 100_000;

export function TaskView({ id }: { id: string }): JSX.Element {
  const [isOver, setOver] = useState(false);
  const { data: task, error, reload } = useLive(() => api.task(id), [id], isOver ? 0 : 1_500);
  useEffect(() => setOver(task?.state === "done"), [task?.state]);
  const rights = useRights();
  const back = { title: "Tasks", href: link(["tasks"]) };
  if (!task) return <><Head title="Task" back={back} /><Pending error={error} /></>;
  const isOwn = task.owner === rights.tenant;
  return (
    <>
      <Head title={`Task ${line(task.name || task.function, 60)}`} back={back}>
        <Badge state={taskState(task)} />
        {isOwn && task.error && rights.may("user") && (
          <ActionButton title="Retry the task" label="Retry" action="Retry" act={async () => {
            const [again] = (await api.retry(task.id)).tasks;
            if (again) go(link(["tasks", again]));
            return "The task was submitted again.";
          }}>
            <p>A new task begins, with the same function, arguments, tag and options.</p>
          </ActionButton>
        )}
        {isOwn && !task.raw && rights.may("user") && <RunButton function={task.function} label={task.error ? "Retry with other arguments" : "Run again"} tag={task.tag} endpoint={task.endpoint} priority={task.priority} of={task.id} />}
        {task.state !== "done" && rights.may("user") && (
          <ActionButton title="Cancel the task" label="Cancel" action="Cancel the task" danger act={async () => {
            await api.cancel({ tasks: [task.id], everybody: isOwn ? undefined : true });
            reload();
            return "The task is being cancelled.";
          }}>
            <p>A waiting task ends at once. A running one is stopped.</p>
          </ActionButton>
        )}
        {task.state === "done" && isOwn && rights.may("user") && (
          <ActionButton title="Delete the task" label="Delete" action="Delete" danger act={async () => {
            await api.forget({ tasks: [task.id] });
            go(link(["tasks"]));
            return "The task was deleted.";
          }}>
            <p>The task and its result are deleted before their time.</p>
          </ActionButton>
        )}
      </Head>
      <Card title="About">
        <Facts of={[
          ["Id", <span class="id">{task.id}</span>],
          ["Function", <a href={link(["functions", task.function])}>{line(task.name || task.function, 80)}</a>],
          ["Endpoint", <a href={link(["endpoints", task.endpoint])}>{line(task.endpoint, 80)}</a>],
          ["Tag", task.tag ? <a href={link(["tasks"], { tag: task.tag })}>{line(task.tag, 80)}</a> : "none"],
          ["Tenant", line(task.owner, 64)],
          ["Attempts", task.attempts],
          ["Priority", task.priority],
          ["Arguments", task.argument_bytes === undefined ? "of unknown size" : bytes(task.argument_bytes)],
        ]} />
        {task.building && <p>Build of its environment: {line(task.building, 400)}</p>}
      </Card>
      <States task={task} />
      {task.error && <Card title="Failure"><Failed failure={task.error} /></Card>}
      {isOwn && task.state === "done" && !task.error && <Result id={task.id} />}
      <Output id={task.id} isOver={task.state === "done"} />
      {task.state === "done" && <LoansOf id={task.id} />}
    </>
  );
}

function States({ task }: { task: Task }): JSX.Element {
  const now = useNow();
  const marks = [
    { name: "Queued", at: task.submitted_at_ms, kind: "c8" },
    { name: "Waiting", at: task.waiting_at_ms, kind: "c2" },
    { name: "Building", at: task.environment_at_ms, kind: "c4" },
    { name: "Running", at: task.started_at_ms, kind: "c1" },
  ].filter(({ at }) => at > 0);
  const end = task.ended_at_ms || now;
  const whole = Math.max(1, end - task.submitted_at_ms);
  return (
    <Card title="States over time">
      <ol class="timeline">
        {marks.map(({ name, at, kind }, i) => {
          const until = marks[i + 1]?.at ?? end;
          const lasted = Math.max(0, until - at);
          return (
            <li key={name}>
              <span>{name}</span>
              <span><When ms={at} /> for {spanMs(lasted)}</span>
              <div class="bar" aria-hidden="true">
                <span class={kind} style={{ left: `${(100 * (at - task.submitted_at_ms)) / whole}%`, width: `${(100 * lasted) / whole}%` }} />
              </div>
            </li>
          );
        })}
        {task.ended_at_ms > 0 && <li><span>Ended</span><span><When ms={task.ended_at_ms} /> after {spanMs(whole)}</span></li>}
      </ol>
    </Card>
  );
}

function Result({ id }: { id: string }): JSX.Element {
  const { data: outcome, error } = useLive(() => api.outcome(id), [id], 0);
  return (
    <Card title="Result" actions={outcome && <Download outcome={outcome} />}>
      {outcome ? <Shown outcome={outcome} /> : <Pending error={error} />}
    </Card>
  );
}

const asText = (outcome: Outcome): string | undefined =>
  outcome.result === undefined ? undefined : JSON.stringify(outcome.result, null, 2);

function Shown({ outcome }: { outcome: Outcome }): JSX.Element {
  const text = asText(outcome);
  if (outcome.content) return <p>The result has {bytes(outcome.content.bytes)}, and is in the content store.</p>;
  if (text !== undefined) return <Source text={text.slice(0, MAX_SHOWN_CHARACTERS)} label="Result as JSON" />;
  if (outcome.answer) return <p>The result has {bytes(fromBase64(outcome.answer).length)} in a form that only its language reads, such as a pickle.</p>;
  return <p>The function returned nothing.</p>;
}

/** Saves the result: JSON if it is JSON, else its bytes. */
function Download({ outcome }: { outcome: Outcome }): JSX.Element | null {
  const name = `result-${outcome.id}`;
  const [address, setAddress] = useState<string | null>(null);
  const text = asText(outcome);
  useEffect(() => {
    if (outcome.content) return;
    const data = text !== undefined ? new Blob([text], { type: "application/json" }) : outcome.answer ? new Blob([fromBase64(outcome.answer).slice()]) : null;
    if (!data) return;
    const made = URL.createObjectURL(data);
    setAddress(made);
    return () => URL.revokeObjectURL(made);
  }, [outcome]);
  const href = outcome.content ? api.contentPath(outcome.content.hash) : address;
  if (!href) return null;
  const end = text !== undefined && !outcome.content ? "json" : "bin";
  return <a class="button small" href={href} download={`${name}.${end}`}>Download the result</a>;
}

interface Piece {
  stream: "out" | "err";
  text: string;
}

function Output({ id, isOver }: { id: string; isOver: boolean }): JSX.Element {
  const [pieces, setPieces] = useState<Piece[]>([]);
  const [skipped, setSkipped] = useState(0);
  const [error, setError] = useState("");
  const [isLive, setLive] = useState(true);
  const box = useRef<HTMLPreElement>(null);
  const follows = useRef(true);
  useEffect(() => {
    const own = new AbortController();
    const decoders = { out: new TextDecoder(), err: new TextDecoder() };
    const follow = async (): Promise<void> => {
      let from = 0;
      while (!own.signal.aborted) {
        try {
          const page = await api.output(id, from, WAIT_MS, own.signal);
          setError("");
          if (page.from > from) setSkipped((old) => old + page.from - from);
          const more = page.pieces.map(({ stream, bytes }) => ({ stream, text: decoders[stream].decode(fromBase64(bytes), { stream: true }) }));
          if (more.length > 0) setPieces((old) => [...old, ...more]);
          from = page.next;
          if (page.over && more.length === 0) break;
        } catch (caught) {
          if (own.signal.aborted) return;
          if (!(caught instanceof ApiError) || caught.code !== "offline") {
            setError(messageOf(caught));
            break;
          }
          await new Promise((resolve) => setTimeout(resolve, 2_000));
        }
      }
      setLive(false);
    };
    setPieces([]);
    setSkipped(0);
    setLive(true);
    void follow();
    return () => own.abort();
  }, [id]);
  useEffect(() => {
    const element = box.current;
    // Follows the end unless somebody reads further up.
    if (element && follows.current) element.scrollTop = element.scrollHeight;
  }, [pieces]);
  const text = pieces.map((piece) => piece.text).join("");
  return (
    <Card title="Output" actions={<>{isLive && !isOver && <span class="faint">live</span>}{text && <CopyButton text={text} what="output" />}</>}>
      {skipped > 0 && <p class="faint">The first {bytes(skipped)} are not kept.</p>}
      {error && <p class="faint">{line(error, 300)}</p>}
      {text ? (
        <pre ref={box} tabIndex={0} role="region" aria-label="Output" onScroll={({ currentTarget: box }) => {
          follows.current = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
        }}>
          {pieces.map((piece, i) => <span key={i} class={piece.stream}>{lines(piece.text)}</span>)}
        </pre>
      ) : (
        !error && <p class="faint">{isLive ? "Nothing was printed yet." : "It printed nothing."}</p>
      )}
    </Card>
  );
}

const LOANS = ["owned", "used", "lent", "borrowed"] as const;

function LoansOf({ id }: { id: string }): JSX.Element | null {
  const { data } = useLive<Loans>(() => api.loans(id), [id], 0);
  if (!data) return null;
  const { x, values } = corners(data);
  return (
    <Card title="Cores and memory that it owned, used, lent and borrowed">
      <div class="pair">
        <Chart title="Cores" x={x} axis={span} place={span} text={decimal} series={LOANS.map((name) => ({ name, values: values(name, "milli_cores").map((v) => v / 1000) }))} />
        <Chart title="Memory" x={x} axis={span} place={span} text={bytes} series={LOANS.map((name) => ({ name, values: values(name, "memory_bytes") }))} />
      </div>
    </Card>
  );
}

/** The two ends of each span of time. */
function corners(loans: Loans): { x: number[]; values: (name: (typeof LOANS)[number], unit: "milli_cores" | "memory_bytes") => number[] } {
  let at = 0;
  const x = loans.points.flatMap(({ us }) => {
    const from = at;
    at += us / 1e6;
    return [from, at];
  });
  return { x, values: (name, unit) => loans.points.flatMap((point) => [point[name][unit], point[name][unit]]) };
}
