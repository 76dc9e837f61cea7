// Teams: named groups of tenants to share functions and endpoints with.

import type { JSX } from "preact";
import { useState } from "preact/hooks";

import { api } from "../../api/client";
import type { Team } from "../../api/types";
import { ActionButton, ActionDialog, Field, Input } from "../../components/dialog";
import { Pending } from "../../components/parts";
import { Table, type Column } from "../../components/table";
import { line } from "../../lib/format";
import { useLive } from "../../lib/live";
import { useRights } from "../../lib/session";

export function Teams(): JSX.Element {
  const rights = useRights();
  const { data, error, reload } = useLive(api.teams, [], 5_000);
  const [edited, setEdited] = useState<Team | "new" | null>(null);
  if (!data) return <Pending error={error} />;
  const columns: Column<Team>[] = [
    { title: "Team", cell: ({ name }) => line(name, 64), sort: ({ name }) => name },
    { title: "Owner", cell: ({ owner }) => line(owner, 64), sort: ({ owner }) => owner },
    { title: "Members", cell: ({ members }) => line(members?.join(", ") || "none", 300) },
    { title: "Description", wide: true, cell: ({ description }) => line(description ?? "", 160) },
    {
      title: "Actions",
      cell: (team) => rights.may("user") && team.owner === rights.tenant && (
        <span class="buttons">
          <button type="button" class="small" onClick={() => setEdited(team)}>Change<span class="unseen"> {line(team.name, 64)}</span></button>
          <ActionButton small title="Remove the team" label={`Remove ${line(team.name, 64)}`} action="Remove" danger act={async () => {
            await api.removeTeam(team.name);
            reload();
            return "The team was removed.";
          }}>
            <p>What is shared with the team is no longer shared with its members.</p>
          </ActionButton>
        </span>
      ),
    },
  ];
  return (
    <>
      <p class="faint">Share a function with team:NAME to share it with the present members of the team.</p>
      {rights.may("user") && <p><button type="button" class="primary" onClick={() => setEdited("new")}>New team</button></p>}
      <Table label="Teams" rows={data} id={({ name }) => name} empty="You are in no team." columns={columns} />
      {edited && <TeamDialog team={edited === "new" ? null : edited} onClose={() => setEdited(null)} reload={reload} />}
    </>
  );
}

function TeamDialog({ team, onClose, reload }: { team: Team | null; onClose: () => void; reload: () => void }): JSX.Element {
  const [name, setName] = useState(team?.name ?? "");
  const [description, setDescription] = useState(team?.description ?? "");
  const [members, setMembers] = useState(team?.members?.join(", ") ?? "");
  const act = async (): Promise<string> => {
    await api.setTeam(name, { description, members: members.split(",").map((member) => member.trim()).filter(Boolean) });
    reload();
    return team ? "The team was changed." : `The team ${name} was made.`;
  };
  return (
    <ActionDialog title={team ? `Team ${line(team.name, 64)}` : "New team"} action={team ? "Set" : "Make"} onClose={onClose} act={act}>
      {!team && <Field label="Name"><Input value={name} set={setName} required /></Field>}
      <Field label="Members" hint="Names of tenants, with commas"><Input value={members} set={setMembers} /></Field>
      <Field label="Description"><Input value={description} set={setDescription} /></Field>
    </ActionDialog>
  );
}
