// Tokens: made, narrowed and revoked. Secrets are shown once.

import type { JSX } from "preact";
import { useState } from "preact/hooks";

import { api } from "../../api/client";
import type { NewToken, Role, Token } from "../../api/types";
import { ActionButton, ActionDialog, Check, Dialog, Field, Input, Select } from "../../components/dialog";
import { Filters } from "../../components/filters";
import { CopyButton, Pending, When } from "../../components/parts";
import { Table } from "../../components/table";
import { line } from "../../lib/format";
import { useLive } from "../../lib/live";
import { useRights } from "../../lib/session";

const HOUR_MS = 3_600_000;
const ROLES: [Role, string][] = [["user", "User"], ["operator", "Operator"], ["administrator", "Administrator"]];

export function Tokens({ query }: { query: Record<string, string> }): JSX.Element {
  const rights = useRights();
  const { data, error, reload } = useLive(api.tokens, [], 5_000);
  const [asked, setAsked] = useState<Token | "new" | null>(null);
  const [made, setMade] = useState<NewToken | null>(null);
  if (!data) return <Pending error={error} />;
  const text = (query.text ?? "").toLowerCase();
  const rows = data.filter(({ name, tenant, role }) => `${name} ${tenant} ${role}`.toLowerCase().includes(text));
  return (
    <>
      {rights.may("user") && <p><button type="button" class="primary" onClick={() => setAsked("new")}>New token</button></p>}
      <Filters filters={[{ key: "text", label: "Text" }]} />
      <Table label="Tokens" rows={rows} id={({ id }) => id} empty="There is no such token." columns={[
        { title: "Name", cell: ({ name, id }) => <>{line(name, 64) || "of a part of the manager"}{id === rights.id ? " (this session)" : ""}</>, sort: ({ name }) => name },
        { title: "Tenant", cell: ({ tenant }) => line(tenant, 64), sort: ({ tenant }) => tenant },
        { title: "Role", cell: ({ role, read_only }) => `${role}${read_only ? ", read-only" : ""}`, sort: ({ role }) => role },
        { title: "Id", wide: true, cell: ({ id }) => <span class="id">{id}</span> },
        { title: "Expires", wide: true, cell: ({ expires_at_ms }) => <When ms={expires_at_ms} />, sort: ({ expires_at_ms }) => expires_at_ms },
        ...(rights.may("user") ? [{ title: "Actions", cell: (token: Token) => (
          <span class="actions">
            <button type="button" class="small" onClick={() => setAsked(token)}>Narrow<span class="unseen"> {line(token.name, 64)}</span></button>
            <Revoke token={token} reload={reload} />
          </span>
        ) }] : []),
      ]} />
      {asked && <TokenDialog of={asked === "new" ? null : asked} onClose={() => setAsked(null)} onMade={(token) => { setMade(token); reload(); }} />}
      {made && (
        <Dialog title={`Token ${line(made.name, 64)}`} onClose={() => setMade(null)}>
          <p>Keep it now: it is shown once.</p>
          <p class="secret">{made.token}</p>
          <div class="buttons"><CopyButton text={made.token} what="token" /><button type="button" onClick={() => setMade(null)}>Close</button></div>
        </Dialog>
      )}
    </>
  );
}

function Revoke({ token, reload }: { token: Token; reload: () => void }): JSX.Element {
  const [keep, setKeep] = useState(false);
  return (
    <ActionButton small title={`Revoke ${line(token.name, 64)}`} label="Revoke" action="Revoke" danger act={async () => {
      const { leases_ended, leases_kept } = await api.revokeToken(token.id, keep);
      reload();
      return `The token was revoked. ${leases_ended} leases ended, ${leases_kept} continue.`;
    }}>
      <p>Its connections end at once.</p>
      <Check label="Let its leases continue" value={keep} set={setKeep} />
    </ActionButton>
  );
}

/** Makes a token; of an existing one, a narrower one that replaces it: a token replaces an earlier one of its name. */
function TokenDialog({ of, onClose, onMade }: { of: Token | null; onClose: () => void; onMade: (token: NewToken) => void }): JSX.Element {
  const rights = useRights();
  const tenants = useLive(api.tenants, [], 0);
  const left = Math.floor(((of ?? rights).expires_at_ms - Date.now()) / HOUR_MS);
  const [name, setName] = useState(of?.name ?? "");
  const [tenant, setTenant] = useState(of?.tenant ?? rights.tenant);
  const [role, setRole] = useState<string>(of?.role ?? "user");
  const [isReadOnly, setReadOnly] = useState(of ? true : false);
  const [hours, setHours] = useState(String(Math.max(1, Math.min(left, of ? left : 24 * 30))));
  const most = of?.role ?? rights.role;
  const roles = ROLES.slice(0, ROLES.findIndex(([known]) => known === most) + 1);
  const act = async (): Promise<string> => {
    onMade(await api.createToken({ name, role: role as Role, read_only: isReadOnly, tenant: tenant === rights.tenant ? undefined : tenant, valid_for_ms: Math.round(Number(hours) * HOUR_MS) }));
    return of ? "The token was replaced by a narrower one." : "The token was made.";
  };
  return (
    <ActionDialog title={of ? `Narrow ${line(of.name, 64)}` : "New token"} action={of ? "Replace" : "Make"} onClose={onClose} act={act}>
      {of ? <p>The token is replaced by one that permits less. Programs need the new secret.</p> : <Field label="Name" hint="A token replaces an earlier one of its name."><Input value={name} set={setName} required /></Field>}
      {!of && rights.is("administrator") && (
        <Field label="Tenant"><Select value={tenant} set={setTenant} options={(tenants.data ?? [{ name: rights.tenant }]).map(({ name: known }) => [known, known])} /></Field>
      )}
      <Field label="Role"><Select value={role} set={setRole} options={roles} /></Field>
      <Check label="May only read" value={isReadOnly} set={setReadOnly} />
      <Field label="Valid for hours"><Input type="number" min="0" step="any" value={hours} set={setHours} required /></Field>
    </ActionDialog>
  );
}
