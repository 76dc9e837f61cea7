// What the site does now, and did within the last hour.

import type { JSX } from "preact";
import { useRef } from "preact/hooks";

import { api } from "../api/client";
import type { Sample } from "../api/types";
import { Chart } from "../components/chart";
import { Badge, Head, Notice, Pending, Progress } from "../components/parts";
import { bytes, count, decimal, line, short, time } from "../lib/format";
import { useLive } from "../lib/live";
import { link } from "../lib/router";

const HOUR_MS = 3_600_000;
// Samples come every two seconds. A longer gap stays a gap.
const GAP_MS = 8_000;
const SMOOTH = 5;

/** A moment of a chart; without a sample where the manager took none, so that the line has a gap. */
interface Moment {
  at_ms: number;
  sample: Sample | null;
}

function moments(samples: Sample[]): Moment[] {
  return samples.flatMap((sample, i) => {
    const before = samples[i - 1];
    const moment = { at_ms: sample.at_ms, sample };
    return before && sample.at_ms - before.at_ms > GAP_MS ? [{ at_ms: before.at_ms + 1, sample: null }, moment] : [moment];
  });
}

/** What was used per second between two samples; a manager that restarted counts anew. */
function rates(of: (sample: Sample) => number, moments: Moment[]): (number | null)[] {
  return moments.map(({ sample }, i) => {
    const near = moments.slice(Math.max(0, i - SMOOTH), i + 1);
    const before = near[near.findLastIndex((moment) => moment.sample === null) + 1]?.sample;
    if (!sample || !before || before === sample) return null;
    const used = of(sample) - of(before);
    return used < 0 ? null : used / ((sample.at_ms - before.at_ms) / 1000);
  });
}

function useHistory(): { samples: Sample[]; error: string | null } {
  const kept = useRef<Sample[]>([]);
  const read = async (): Promise<Sample[]> => {
    const last = kept.current.at(-1)?.at_ms ?? 0;
    const more = await api.history(last);
    const oldest = Date.now() - HOUR_MS;
    kept.current = [...kept.current, ...more].filter(({ at_ms }) => at_ms > oldest);
    return kept.current;
  };
  const { data, error } = useLive(read, [], 4_000);
  return { samples: data ?? [], error };
}

export function taskParts(counts: { queued: number; waiting: number; environment?: number; running: number; done: number; failed: number }) {
  return [
    { name: "Succeeded", value: Math.max(0, counts.done - counts.failed), kind: "c3" },
    { name: "Failed", value: counts.failed, kind: "c5" },
    { name: "Running", value: counts.running, kind: "c1" },
    { name: "Building", value: counts.environment ?? 0, kind: "c4" },
    { name: "Waiting", value: counts.waiting, kind: "c2" },
    { name: "Queued", value: counts.queued, kind: "c8" },
  ];
}

export function Overview(): JSX.Element {
  const read = () => Promise.all([api.health(), api.nodes(), api.leases(), api.counts(), api.version(), api.managers()]);
  const { data, error } = useLive(read, [], 4_000, true);
  const { samples } = useHistory();
  if (!data) return <><Head title="Overview" /><Pending error={error} /></>;
  const [health, nodes, leases, counts, version, managers] = data;
  const up = nodes.filter(({ state }) => state === "up" || state === "suspended");
  const sum = (of: (node: (typeof nodes)[number]) => number): number => up.reduce((all, node) => all + of(node), 0);
  const live = leases.filter(({ state }) => state === "granted" || state === "active");
  const points = moments(samples);
  const x = points.map(({ at_ms }) => at_ms / 1000);
  const at = (seconds: number): string => time(seconds * 1000);
  const share = (part: "cores_leased" | "workers_leased" | "memory_leased_bytes", all: "cores" | "workers" | "memory_bytes") =>
    points.map(({ sample }) => sample && (sample[all] ? (100 * sample[part]) / sample[all] : 0));
  const rate = (of: (sample: Sample) => number): (number | null)[] => rates(of, points);
  return (
    <>
      <Head title="Overview">
        <Badge state={health.status} />
        <span class="faint">Dayfly {line(version.version, 30)}</span>
      </Head>
      {health.store_error && <Notice kind="bad">The store cannot write: {line(health.store_error, 400)}</Notice>}
      <div class="tiles">
        <a class="tile" href={link(["tasks"], { state: "running" })}><b>{count(counts.running)}</b><span>tasks running</span></a>
        <a class="tile" href={link(["tasks"], { state: "waiting" })}><b>{count(counts.queued + counts.waiting)}</b><span>tasks waiting</span></a>
        <a class="tile" href={link(["nodes"])}><b>{count(health.nodes_up)}</b><span>nodes up</span></a>
        <a class="tile" href={link(["leases"])}><b>{count(live.length)}</b><span>leases</span></a>
        <div class="tile"><b>{decimal(sum((n) => n.capacity.workers - n.free.workers))} of {decimal(sum((n) => n.capacity.workers))}</b><span>warm workers leased</span></div>
        <div class="tile"><b>{bytes(sum((n) => n.capacity.memory_bytes - n.free.memory_bytes))}</b><span>of {bytes(sum((n) => n.capacity.memory_bytes))} leased</span></div>
      </div>
      <section class="card" aria-label="Tasks">
        <div class="card-head"><h2>Tasks since the manager started</h2><a href={link(["tasks"])}>All tasks</a></div>
        <Progress parts={taskParts(counts)} />
      </section>
      <div class="pair">
        <Chart title="Leased, of all" x={x} place={at} text={(v) => `${decimal(v)} %`} series={[
          { name: "cores", values: share("cores_leased", "cores") },
          { name: "warm workers", values: share("workers_leased", "workers") },
          { name: "memory", values: share("memory_leased_bytes", "memory_bytes") },
        ]} />
        <Chart title="Worker time used" x={x} place={at} text={(v) => `${decimal(v)} s/s`} series={[
          { name: "allocated", values: rate((s) => s.used.allocated_us / 1e6) },
          { name: "computing", values: rate((s) => s.used.computing_us / 1e6) },
          { name: "polling", values: rate((s) => s.used.polling_us / 1e6) },
        ]} />
        <Chart title="Calls" x={x} place={at} text={(v) => `${short(v)}/s`} series={[
          { name: "calls", values: rate((s) => s.used.calls) },
          { name: "of them failed", values: rate((s) => s.used.failures) },
        ]} />
        <Chart title="Nodes and leases" x={x} place={at} text={short} kind="steps" series={[
          { name: "nodes up", values: points.map(({ sample }) => sample && sample.nodes_up) },
          { name: "leases", values: points.map(({ sample }) => sample && sample.leases) },
        ]} />
      </div>
      {managers.length > 1 && (
        <section class="card" aria-label="Managers">
          <div class="card-head"><h2>Managers</h2></div>
          <ul>{managers.map(({ manager, state }) => <li key={manager}>{line(manager, 100)} <Badge state={state} /></li>)}</ul>
        </section>
      )}
    </>
  );
}
