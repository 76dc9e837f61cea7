// Tenants: budgets, quotas, suspension. Users see their own.

import type { JSX } from "preact";
import { useState } from "preact/hooks";

import { api } from "../../api/client";
import type { Tenant, TenantSpec } from "../../api/types";
import { ActionDialog, Check, Field, Input } from "../../components/dialog";
import { Badge, Meter, Pending } from "../../components/parts";
import { Table } from "../../components/table";
import { BILLION, bytes, count, line, money } from "../../lib/format";
import { useLive } from "../../lib/live";
import { useRights } from "../../lib/session";
import { PriceFields, pricesOf, priceTexts } from "./prices";

export function Tenants(): JSX.Element {
  const rights = useRights();
  const { data, error, reload } = useLive(api.tenants, [], 3_000);
  const [edited, setEdited] = useState<Tenant | "new" | null>(null);
  if (!data) return <Pending error={error} />;
  return (
    <>
      {rights.may("administrator") && <p><button type="button" class="primary" onClick={() => setEdited("new")}>New tenant</button></p>}
      <Table label="Tenants" rows={data} id={({ id }) => id} empty="There is no tenant." columns={[
        { title: "Tenant", cell: ({ name }) => line(name, 64), sort: ({ name }) => name },
        { title: "State", cell: ({ suspended }) => <Badge state={suspended ? "suspended" : "active"} /> },
        { title: "Spent", numeric: true, cell: ({ spent, spent_on_tasks }) => <span title={`${money(spent_on_tasks ?? 0)} of it on tasks`}>{money(spent)}</span>, sort: ({ spent }) => spent },
        { title: "Budget", cell: (row) => (row.budget == null ? "none" : <><Meter label={`Spent part of the budget of ${line(row.name, 64)}`} value={row.spent} most={row.budget} /> {money(row.budget)}</>) },
        { title: "Leases", numeric: true, wide: true, cell: ({ leases, quota }) => `${count(leases)}${quota?.leases ? ` of ${count(quota.leases)}` : ""}`, sort: ({ leases }) => leases },
        { title: "Workers", numeric: true, wide: true, cell: ({ workers, quota }) => `${count(workers)}${quota?.workers ? ` of ${count(quota.workers)}` : ""}`, sort: ({ workers }) => workers },
        { title: "Cores", numeric: true, wide: true, cell: ({ quota }) => (quota?.cores ? `at most ${count(quota.cores)}` : "no limit") },
        { title: "Memory", numeric: true, wide: true, cell: ({ quota }) => (quota?.memory_bytes ? `at most ${bytes(quota.memory_bytes)}` : "no limit") },
        ...(rights.may("administrator") ? [{ title: "Actions", cell: (row: Tenant) => <button type="button" class="small" onClick={() => setEdited(row)}>Change<span class="unseen"> {line(row.name, 64)}</span></button> }] : []),
      ]} />
      {edited && <TenantDialog tenant={edited === "new" ? null : edited} onClose={() => setEdited(null)} reload={reload} />}
    </>
  );
}

const asText = (value: number | null | undefined, unit = 1): string => (value == null ? "" : String(value / unit));
const asNumber = (text: string, unit = 1): number | null => (text.trim() === "" ? null : Math.round(Number(text) * unit));
const GIB = 2 ** 30;

function TenantDialog({ tenant, onClose, reload }: { tenant: Tenant | null; onClose: () => void; reload: () => void }): JSX.Element {
  const [name, setName] = useState(tenant?.name ?? "");
  const [budget, setBudget] = useState(asText(tenant?.budget, BILLION));
  const [leases, setLeases] = useState(asText(tenant?.quota?.leases));
  const [workers, setWorkers] = useState(asText(tenant?.quota?.workers));
  const [cores, setCores] = useState(asText(tenant?.quota?.cores));
  const [memory, setMemory] = useState(asText(tenant?.quota?.memory_bytes, GIB));
  const [suspended, setSuspended] = useState(tenant?.suspended ?? false);
  const [hasPrices, setHasPrices] = useState(Boolean(tenant?.prices));
  const [prices, setPrices] = useState(priceTexts(tenant?.prices));
  const act = async (): Promise<string> => {
    const spec: TenantSpec = {
      budget: asNumber(budget, BILLION),
      prices: hasPrices ? pricesOf(prices) : null,
      quota: { leases: asNumber(leases), workers: asNumber(workers), cores: asNumber(cores), memory_bytes: asNumber(memory, GIB) },
      suspended,
    };
    await api.setTenant(name, spec);
    reload();
    return tenant ? `The tenant ${name} was changed.` : `The tenant ${name} was made.`;
  };
  return (
    <ActionDialog title={tenant ? `Tenant ${line(tenant.name, 64)}` : "New tenant"} action={tenant ? "Change" : "Make"} onClose={onClose} act={act}>
      {!tenant && <Field label="Name"><Input value={name} set={setName} required pattern="[A-Za-z0-9._@\-]{1,64}" /></Field>}
      <Field label="Budget" hint="In units of money; empty for none"><Input type="number" step="any" min="0" value={budget} set={setBudget} /></Field>
      <Field label="Most leases" hint="Empty: no limit"><Input type="number" min="0" value={leases} set={setLeases} /></Field>
      <Field label="Most workers" hint="Empty: no limit"><Input type="number" min="0" value={workers} set={setWorkers} /></Field>
      <Field label="Most cores" hint="Empty: no limit"><Input type="number" min="0" value={cores} set={setCores} /></Field>
      <Field label="Most memory in GiB" hint="Empty: no limit"><Input type="number" step="any" min="0" value={memory} set={setMemory} /></Field>
      <Check label="Suspended: it gets no lease, and its leases end" value={suspended} set={setSuspended} />
      <Check label="Prices of its own" value={hasPrices} set={setHasPrices} />
      {hasPrices && <PriceFields texts={prices} set={setPrices} />}
    </ActionDialog>
  );
}
