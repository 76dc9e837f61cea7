// Nodes: capacity, what is leased and lent, and taking them back for their owners.

import type { JSX } from "preact";
import { useState } from "preact/hooks";

import { api } from "../api/client";
import type { Node } from "../api/types";
import { ActionButton, Field, Input, Select } from "../components/dialog";
import { Filters } from "../components/filters";
import { Badge, Head, Meter, Pending } from "../components/parts";
import { Table } from "../components/table";
import { bytes, count, decimal, line, spanMs } from "../lib/format";
import { useLive } from "../lib/live";
import { link } from "../lib/router";
import { useRights } from "../lib/session";

/** Bytes of one GiB. */
const GIB = 1 << 30;

function harvestText({ harvest }: Node): string {
  if (!harvest || harvest.mode === "off") return "off";
  const { now } = harvest;
  const lent = now ? `, lends ${decimal(now.lent.milli_cores / 1000)} cores and ${bytes(now.lent.memory_bytes)}` : "";
  return `${harvest.mode}${lent}${harvest.why ? `: ${harvest.why}` : ""}`;
}

export function Nodes({ query }: { query: Record<string, string> }): JSX.Element {
  const rights = useRights();
  const { data, error, reload } = useLive(api.nodes, [], 4_000, true);
  const [secret, setSecret] = useState("");
  const text = (query.text ?? "").toLowerCase();
  const isGone = ({ state }: Node): boolean => state === "left" || state === "lost";
  const rows = (data ?? []).filter((node) => (query.state ? query.state === "all" || node.state === query.state : !isGone(node)) && `${node.address.name} ${node.address.host} ${node.address.id}`.toLowerCase().includes(text));
  return (
    <>
      <Head title="Nodes">
        {rights.may("operator") && (
          <ActionButton title="Let a node join" label="Let a node join" action="Make a token" act={async () => {
            setSecret((await api.joinToken(3_600_000)).token);
            return "A join token was made.";
          }}>
            <p>A join token lets one node join within an hour.</p>
          </ActionButton>
        )}
      </Head>
      {secret && <div class="card"><h2>Join token</h2><p>Start the node with it. It is shown once.</p><p class="secret">{secret}</p></div>}
      <Filters filters={[{ key: "text", label: "Text" }, { key: "state", label: "State", options: [["", "Present"], ["all", "All"], ["up", "Up"], ["suspended", "Suspended"], ["reclaimed", "Reclaimed"], ["lost", "Lost"], ["left", "Left"]] }]} />
      {!data ? <Pending error={error} /> : (
        <Table label="Nodes" rows={rows} id={({ address }) => address.id} empty="There is no such node." columns={[
          { title: "Node", cell: ({ address }) => <span title={address.id}>{line(address.name, 60)}</span>, sort: ({ address }) => address.name },
          { title: "State", cell: ({ state, why }) => <span title={why ?? ""}><Badge state={state} />{why ? ` ${line(why, 60)}` : ""}</span>, sort: ({ state }) => state },
          { title: "Leased workers", cell: ({ address, capacity, free }) => <><Meter label={`Leased workers of ${line(address.name, 60)}`} value={capacity.workers - free.workers} most={capacity.workers} /> {decimal(capacity.workers - free.workers)} of {decimal(capacity.workers)}</> },
          { title: "Hot cores", numeric: true, wide: true, cell: ({ capacity, free }) => `${capacity.cores - free.cores} of ${capacity.cores}` },
          { title: "Memory", numeric: true, wide: true, cell: ({ capacity, free }) => `${bytes(capacity.memory_bytes - free.memory_bytes)} of ${bytes(capacity.memory_bytes)}` },
          { title: "GPUs", numeric: true, wide: true, cell: ({ capacity }) => capacity.gpus ?? 0 },
          { title: "Leases", numeric: true, cell: ({ leases, address }) => <a href={link(["leases"], { node: address.id })}>{count(leases)}</a>, sort: ({ leases }) => leases },
          { title: "Harvesting", wide: true, cell: (node) => line(harvestText(node), 100) },
          { title: "Heartbeat", numeric: true, wide: true, cell: ({ heartbeat_age_ms }) => `${spanMs(heartbeat_age_ms)} ago` },
          ...(rights.may("operator") ? [{ title: "Actions", cell: (node: Node) => <Actions node={node} reload={reload} /> }] : []),
        ]} />
      )}
    </>
  );
}

function Actions({ node, reload }: { node: Node; reload: () => void }): JSX.Element | null {
  const [grace, setGrace] = useState("30");
  const [mode, setMode] = useState<string>(node.harvest?.mode ?? "off");
  const [offer, setOffer] = useState({
    cores: String(node.capacity.cores),
    workers: String(Math.floor(node.capacity.workers)),
    gib: String(node.capacity.memory_bytes / GIB),
    gpus: String(node.capacity.gpus ?? 0),
  });
  const { id, name } = node.address;
  const named = line(name, 60);
  if (node.state === "left" || node.state === "lost") return null;
  return (
    <span class="actions">
      {node.state === "reclaimed" || node.state === "suspended" ? (
        <ActionButton small title={`Give ${named} back`} label="Give back" action="Give back" act={async () => { await api.resumeNode(id); reload(); return `${name} is in service again.`; }}>
          <p>The node gets leases again.</p>
        </ActionButton>
      ) : (
        <ActionButton small title={`Take ${named} back`} label="Take back" action="Take back" danger act={async () => {
          const { leases } = await api.reclaimNode(id, Number(grace));
          reload();
          return `${name} is empty: ${leases} leases ended.`;
        }}>
          <p>The node gets no new lease, and its leases end. No call begins any more.</p>
          <Field label="Seconds for running calls"><Input type="number" min="0" value={grace} set={setGrace} required /></Field>
        </ActionButton>
      )}
      <ActionButton small title={`What ${named} offers`} label="Resize" action="Offer" act={async () => {
        const { capacity } = await api.resizeNode(id, {
          cores: Number(offer.cores),
          workers: Number(offer.workers),
          memory_bytes: Math.round(Number(offer.gib) * GIB),
          gpus: Number(offer.gpus),
        }, Number(grace));
        reload();
        return `${name} offers ${count(capacity.cores)} cores and ${bytes(capacity.memory_bytes)}.`;
      }}>
        <p>A node offers at most what it was started with. Idle leases end first, others after their calls or the given seconds.</p>
        <Field label="Hot cores"><Input type="number" min="0" value={offer.cores} set={(cores) => setOffer({ ...offer, cores })} required /></Field>
        <Field label="Places for warm workers"><Input type="number" min="0" value={offer.workers} set={(workers) => setOffer({ ...offer, workers })} required /></Field>
        <Field label="Memory in GiB"><Input type="number" min="0" step="any" value={offer.gib} set={(gib) => setOffer({ ...offer, gib })} required /></Field>
        <Field label="GPUs"><Input type="number" min="0" value={offer.gpus} set={(gpus) => setOffer({ ...offer, gpus })} required /></Field>
        <Field label="Seconds for running calls"><Input type="number" min="0" value={grace} set={setGrace} required /></Field>
      </ActionButton>
      <ActionButton small title={`Harvesting of ${named}`} label="Harvesting" action="Set" act={async () => { await api.harvestNode(id, mode); reload(); return `Harvesting of ${name} is ${mode}.`; }}>
        <Field label="Mode" hint="It holds until the node ends."><Select value={mode} set={setMode} options={[["off", "Off"], ["watch", "Watch only"], ["on", "On"]]} /></Field>
      </ActionButton>
    </span>
  );
}
