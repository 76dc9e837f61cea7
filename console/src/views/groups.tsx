// Groups of ranks that meet at this manager: the tenant's own, and all for operators.

import type { JSX } from "preact";

import { api } from "../api/client";
import type { Group } from "../api/types";
import { Badge, Card, Head, Notice, Pending } from "../components/parts";
import { line } from "../lib/format";
import { useLive } from "../lib/live";
import { useRights } from "../lib/session";

const MAX_DRAWN = 512;

const stateOf = (group: Group): string => (group.lost_rank !== undefined ? "lost" : group.formed ? "formed" : "forming");

export function Groups(): JSX.Element {
  const rights = useRights();
  const { data, error } = useLive(api.groups, [], 2_000);
  return (
    <>
      <Head title="Groups" />
      {!data ? <Pending error={error} /> : data.length === 0 ? <Notice>No {rights.is("operator") ? "group" : "group of yours"} meets here now.</Notice> : (
        data.map((group) => (
          <Card key={`${group.tenant} ${group.name} ${group.run}`} title={`Group ${line(group.name, 80)}`} actions={<Badge state={stateOf(group)} />}>
            <p>{rights.is("operator") && <>Tenant {line(group.tenant ?? "not known", 64)}. </>}{group.run && <>Run {line(group.run, 80)}. </>}{group.ranks.length} of {group.size} ranks are present.</p>
            {group.why && <Notice kind="bad">Rank {group.lost_rank} was lost: {line(group.why, 300)}</Notice>}
            <Ranks group={group} />
          </Card>
        ))
      )}
    </>
  );
}

function Ranks({ group }: { group: Group }): JSX.Element {
  const there = new Set(group.ranks);
  const shown = Array.from({ length: Math.min(group.size, MAX_DRAWN) }, (_, rank) => rank);
  const kind = (rank: number): string => (there.has(rank) ? "there" : rank === group.lost_rank ? "lost" : "");
  const words = (rank: number): string => (there.has(rank) ? "present" : rank === group.lost_rank ? "lost" : group.formed ? "has left" : "missing");
  return (
    <>
      <ol class="ranks">
        {shown.map((rank) => <li key={rank} class={kind(rank)} title={words(rank)}>{rank}<span class="unseen"> {words(rank)}</span></li>)}
      </ol>
      {group.size > MAX_DRAWN && <p class="faint">and {group.size - MAX_DRAWN} more</p>}
    </>
  );
}
