// The audit log, the latest entry first. Older pages are read when its end comes near.

import type { JSX } from "preact";
import { useState } from "preact/hooks";

import { api } from "../../api/client";
import type { AuditEntry } from "../../api/types";
import { Filters } from "../../components/filters";
import { Pending, When } from "../../components/parts";
import { Table } from "../../components/table";
import { line, shortId } from "../../lib/format";
import { useLive } from "../../lib/live";

const PAGE = 200;
/** A page that ends with the latest entry ends before this number. */
const LATEST = 2 ** 53 - 1;

export function Audit({ query }: { query: Record<string, string> }): JSX.Element {
  const read = async () => {
    const [entries, tenants] = await Promise.all([api.audit(LATEST, PAGE), api.tenants()]);
    return { entries: entries.reverse(), tenants: new Map(tenants.map(({ id, name }) => [id, name])) };
  };
  const { data, error } = useLive(read, [], 5_000);
  const [older, setOlder] = useState<AuditEntry[]>([]);
  const [isAll, setAll] = useState(false);
  if (!data) return <Pending error={error} />;
  const all = [...data.entries, ...older.filter(({ number }) => number < (data.entries.at(-1)?.number ?? 0))];
  const more = (): void => {
    const last = all.at(-1)?.number;
    if (!last) return;
    void api.audit(last, PAGE).then((found) => {
      setOlder((old) => [...old, ...found.reverse().filter(({ number }) => !old.some((known) => known.number === number))]);
      setAll(found.length < PAGE);
    });
  };
  const tenant = (id: string): string => data.tenants.get(id) ?? shortId(id);
  const text = (query.text ?? "").toLowerCase();
  const rows = all.filter((entry) => `${entry.action} ${entry.subject} ${entry.details} ${tenant(entry.tenant)} ${entry.token}`.toLowerCase().includes(text));
  return (
    <>
      <Filters filters={[{ key: "text", label: "Text" }]} />
      <Table label="Audit log" rows={rows} id={({ number }) => String(number)} empty="No entry fits." more={more} hasMore={data.entries.length === PAGE && !isAll} columns={[
        { title: "Number", numeric: true, cell: ({ number }) => number },
        { title: "At", cell: ({ at_ms }) => <When ms={at_ms} /> },
        { title: "Tenant", wide: true, cell: (entry) => line(tenant(entry.tenant), 64) },
        { title: "Token", wide: true, cell: ({ token }) => <span class="id">{line(token, 40)}</span> },
        { title: "Action", cell: ({ action }) => line(action, 60) },
        { title: "Subject", cell: ({ subject }) => line(subject, 100) },
        { title: "Details", wide: true, cell: ({ details }) => <code title={line(details, 1_000)}>{line(details, 140)}</code> },
      ]} />
    </>
  );
}
