// Leases, and what their workers do: how much of their time computes, polls, or is idle.

import type { JSX } from "preact";
import { useRef, useState } from "preact/hooks";

import { api } from "../api/client";
import type { Lease } from "../api/types";
import { ActionButton, Field, Input } from "../components/dialog";
import { Filters } from "../components/filters";
import { Badge, Head, Meter, Pending } from "../components/parts";
import { Table } from "../components/table";
import { bytes, count, decimal, line, shortId, short, spanMs } from "../lib/format";
import { useLive, useNow } from "../lib/live";
import { useRights } from "../lib/session";

const EVERY_MS = 3_000;
const live = ({ state }: Lease): boolean => state === "granted" || state === "active";

interface Busy {
  at: number;
  usage: Lease["usage"];
  computing: number;
  polling: number;
  calls: number;
}

/** What the workers of a lease did since the node's last report, per second. */
function measure(before: Busy | undefined, lease: Lease, now: number): Busy {
  const start = { at: now, usage: lease.usage, computing: 0, polling: 0, calls: 0 };
  if (!before) return start;
  const seconds = (now - before.at) / 1000;
  // Nodes report every two seconds.
  if (seconds < 1.9) return before;
  const per = (key: "computing_us" | "polling_us" | "calls"): number => Math.max(0, lease.usage[key] - before.usage[key]) / seconds;
  return { ...start, computing: per("computing_us") / 1e6, polling: per("polling_us") / 1e6, calls: per("calls") };
}

export function Leases({ query }: { query: Record<string, string> }): JSX.Element {
  const rights = useRights();
  const seen = useRef(new Map<string, Busy>());
  const read = async () => {
    const [leases, nodes, tenants] = await Promise.all([api.leases(), api.nodes(), api.tenants()]);
    const now = Date.now();
    seen.current = new Map(leases.filter(live).map((lease) => [lease.lease, measure(seen.current.get(lease.lease), lease, now)]));
    return { leases, nodes: new Map(nodes.map(({ address }) => [address.id, address.name])), tenants: new Map(tenants.map(({ id, name }) => [id, name])) };
  };
  const { data, error, reload } = useLive(read, [], EVERY_MS, true);
  // What runs on them, as far as it is booked.
  const bill = useLive(() => api.bill(Date.now(), Date.now() + 60_000), [], 6_000);
  const runs = new Map(bill.data?.lines.map((booked) => [booked.lease, (booked.functions ?? []).map(({ function: name, calls }) => `${name} (${count(calls)})`).join(", ")]));
  const now = useNow();
  if (!data) return <><Head title="Leases" /><Pending error={error} /></>;
  const node = (id: string): string => data.nodes.get(id) ?? shortId(id);
  const tenant = (id: string): string => data.tenants.get(id) ?? shortId(id);
  const text = (query.text ?? "").toLowerCase();
  const rows = data.leases.filter((lease) => (query.state === "all" || (query.state ? lease.state === query.state : live(lease))) && (!query.node || lease.node === query.node) && `${lease.lease} ${node(lease.node)} ${tenant(lease.tenant)} ${lease.mode}`.toLowerCase().includes(text));
  const busy = (lease: Lease): Busy | undefined => seen.current.get(lease.lease);
  return (
    <>
      <Head title="Leases" />
      <Filters filters={[{ key: "text", label: "Text" }, { key: "state", label: "State", options: [["", "Live"], ["all", "All of the last hour"], ["released", "Released"], ["expired", "Expired"], ["revoked", "Revoked"], ["lost", "Lost"]] }, { key: "node", label: "Node", options: [["", "All"], ...data.nodes.entries()] }]} />
      <Table label="Leases" rows={rows} id={({ lease }) => lease} empty="There is no such lease." columns={[
        { title: "Lease", cell: ({ lease }) => <span class="id" title={lease}>{shortId(lease)}</span> },
        { title: "State", cell: ({ state }) => <Badge state={state} />, sort: ({ state }) => state },
        { title: "Tenant", wide: true, cell: (lease) => line(tenant(lease.tenant), 60), sort: (lease) => tenant(lease.tenant) },
        { title: "Node", cell: (lease) => line(node(lease.node), 60), sort: (lease) => node(lease.node) },
        { title: "Workers", numeric: true, cell: ({ workers, cores_per_worker }) => `${workers} × ${decimal(cores_per_worker)} cores`, sort: ({ workers }) => workers },
        { title: "Workers compute", cell: (lease) => { const did = busy(lease); return did ? <><Meter label={`Busy workers of lease ${shortId(lease.lease)}`} value={did.computing} most={lease.workers} /> {decimal(did.computing)} of {lease.workers}</> : ""; } },
        { title: "Functions", wide: true, cell: ({ lease }) => <span title={line(runs.get(lease) ?? "", 1_000)}>{line(runs.get(lease) ?? "", 60)}</span> },
        { title: "Poll", numeric: true, wide: true, cell: (lease) => { const did = busy(lease); return did ? decimal(did.polling) : ""; } },
        { title: "Calls/s", numeric: true, wide: true, cell: (lease) => { const did = busy(lease); return did ? short(did.calls) : ""; } },
        { title: "Calls", numeric: true, cell: ({ usage }) => count(usage.calls), sort: ({ usage }) => usage.calls },
        { title: "Failed", numeric: true, wide: true, cell: ({ usage }) => count(usage.failures), sort: ({ usage }) => usage.failures },
        { title: "Mode", wide: true, cell: ({ mode, sandbox }) => `${mode}, ${sandbox}` },
        { title: "Memory", numeric: true, wide: true, cell: ({ memory_bytes }) => bytes(memory_bytes) },
        { title: "Ends in", numeric: true, wide: true, cell: (lease) => (live(lease) ? spanMs(Math.max(0, lease.expires_at_ms - now)) : "") },
        ...(rights.may("user") ? [{ title: "Actions", cell: (lease: Lease) => (live(lease) ? <Revoke lease={lease} reload={reload} /> : "") }] : []),
      ]} />
    </>
  );
}

function Revoke({ lease, reload }: { lease: Lease; reload: () => void }): JSX.Element {
  const [grace, setGrace] = useState("10");
  return (
    <ActionButton small title={`Revoke lease ${shortId(lease.lease)}`} label="Revoke" action="Revoke" danger act={async () => {
      await api.revokeLease(lease.lease, Number(grace));
      reload();
      return "The lease has ended.";
    }}>
      <p>Its clients are informed at once, and no call begins any more.</p>
      <Field label="Seconds for running calls"><Input type="number" min="0" value={grace} set={setGrace} required /></Field>
    </ActionButton>
  );
}
