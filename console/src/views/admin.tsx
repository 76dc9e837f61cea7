// Administration: tenants, tokens, teams, prices and the audit log.

import type { JSX } from "preact";

import { Head } from "../components/parts";
import { link } from "../lib/router";
import { useRights } from "../lib/session";
import { Audit } from "./admin/audit";
import { Pricing } from "./admin/prices";
import { Teams } from "./admin/teams";
import { Tenants } from "./admin/tenants";
import { Tokens } from "./admin/tokens";

export function Admin({ tab, query }: { tab: string; query: Record<string, string> }): JSX.Element {
  const rights = useRights();
  const tabs = [
    { key: "", name: "Tenants", view: <Tenants /> },
    { key: "tokens", name: "Tokens", view: <Tokens query={query} /> },
    { key: "teams", name: "Teams", view: <Teams /> },
    { key: "prices", name: "Prices", view: <Pricing /> },
    ...(rights.is("administrator") ? [{ key: "audit", name: "Audit", view: <Audit query={query} /> }] : []),
  ];
  const shown = tabs.find(({ key }) => key === tab) ?? tabs[0];
  return (
    <>
      <Head title="Administration" />
      <nav class="tabs" aria-label="Administration">
        {tabs.map(({ key, name }) => <a key={key} href={link(key ? ["admin", key] : ["admin"])} aria-current={shown?.key === key ? "page" : undefined}>{name}</a>)}
        <a href={link(["nodes"])}>Nodes</a>
      </nav>
      {shown?.view}
    </>
  );
}
