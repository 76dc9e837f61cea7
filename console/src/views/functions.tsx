// Registered functions: the latest version of each name, and functions without a name.

import type { JSX } from "preact";

import { api } from "../api/client";
import type { Fn } from "../api/types";
import { Filters } from "../components/filters";
import { Head, Pending, When } from "../components/parts";
import { Table } from "../components/table";
import { line } from "../lib/format";
import { useLive } from "../lib/live";
import { link } from "../lib/router";
import { useRights } from "../lib/session";

/** The name by which a tenant calls a function. */
export const nameFor = (fn: Fn, tenant: string): string => {
  const name = fn.name ?? fn.form.name ?? fn.form.symbol ?? fn.form.entry ?? fn.id;
  return fn.owner === tenant ? name : `${fn.owner}/${name}`;
};

/** Of each owner's name the latest version, with the number of versions. */
function latest(functions: Fn[]): { fn: Fn; versions: number }[] {
  const found = new Map<string, { fn: Fn; versions: number }>();
  for (const fn of functions) {
    const key = fn.name ? `${fn.owner}/${fn.name}` : fn.id;
    const before = found.get(key);
    const fresh = !before || fn.version >= before.fn.version ? fn : before.fn;
    found.set(key, { fn: fresh, versions: (before?.versions ?? 0) + 1 });
  }
  return [...found.values()].sort((a, b) => b.fn.registered_at_ms - a.fn.registered_at_ms);
}

export function Functions({ query }: { query: Record<string, string> }): JSX.Element {
  const rights = useRights();
  const { data, error } = useLive(api.functions, [], 10_000);
  if (!data) return <><Head title="Functions" /><Pending error={error} /></>;
  const text = (query.text ?? "").toLowerCase();
  const named = data.filter(({ name }) => name || query.all === "1");
  const rows = latest(named).filter(({ fn }) => `${nameFor(fn, rights.tenant)} ${fn.description} ${fn.runtime.kind}`.toLowerCase().includes(text));
  return (
    <>
      <Head title="Functions" />
      <Filters filters={[{ key: "text", label: "Text" }, { key: "all", label: "Kind", options: [["", "With a name"], ["1", "All"]] }]} />
      <Table label="Functions" rows={rows} id={({ fn }) => fn.id} empty="There is no such function. Register one with dayfly function register." columns={[
        { title: "Function", cell: ({ fn }) => <a href={link(["functions", fn.id])}>{line(nameFor(fn, rights.tenant), 90)}</a>, sort: ({ fn }) => nameFor(fn, rights.tenant) },
        { title: "Versions", numeric: true, cell: ({ versions }) => versions, sort: ({ versions }) => versions },
        { title: "Runtime", wide: true, cell: ({ fn }) => line(`${fn.runtime.kind} ${fn.runtime.version ?? ""}`, 60) },
        { title: "Description", wide: true, cell: ({ fn }) => line(fn.description, 120) },
        { title: "Owner", wide: true, cell: ({ fn }) => line(fn.owner, 60), sort: ({ fn }) => fn.owner },
        { title: "Registered", cell: ({ fn }) => <When ms={fn.registered_at_ms} />, sort: ({ fn }) => fn.registered_at_ms },
      ]} />
    </>
  );
}
