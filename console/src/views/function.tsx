// One function: what it needs, its source, its versions, who may run it, and its tasks.

import type { JSX } from "preact";
import { useState } from "preact/hooks";

import { api } from "../api/client";
import type { Fn } from "../api/types";
import { ActionButton, Field, Input } from "../components/dialog";
import { Card, Facts, Head, Pending, Source, When } from "../components/parts";
import { RunButton } from "../components/run";
import { Table } from "../components/table";
import { bytes, line, shortId, spanMs } from "../lib/format";
import { useLive } from "../lib/live";
import { go, link } from "../lib/router";
import { useRights } from "../lib/session";
import { nameFor } from "./functions";
import { TaskList } from "./tasks";

export function FunctionView({ id }: { id: string }): JSX.Element {
  const rights = useRights();
  const { data: fn, error, reload } = useLive(() => api.fn(id), [id], 10_000);
  const all = useLive(api.functions, [], 10_000);
  const back = { title: "Functions", href: link(["functions"]) };
  if (!fn) return <><Head title="Function" back={back} /><Pending error={error} /></>;
  const isOwn = fn.owner === rights.tenant;
  const versions = all.data?.filter((other) => fn.name && other.name === fn.name && other.owner === fn.owner).reverse() ?? [];
  const name = nameFor(fn, rights.tenant);
  return (
    <>
      <Head title={line(name, 80)} back={back}>
        {rights.may("user") && <RunButton function={fn.id} label="Run" />}
        {isOwn && rights.may("user") && <Share fn={fn} reload={reload} />}
        {(isOwn || rights.is("operator")) && rights.may("user") && (
          <ActionButton title="Remove this version" label="Remove" action="Remove" danger act={async () => {
            await api.removeFunction(fn.id);
            go(link(["functions"]));
            return "The version was removed.";
          }}>
            <p>Version {fn.version} of {line(name, 80)} is removed. Its tasks must have ended. Outcomes remain.</p>
          </ActionButton>
        )}
      </Head>
      <Card title="About">
        {fn.description && <p>{line(fn.description, 500)}</p>}
        <Facts of={[
          ["Id", <span class="id">{fn.id}</span>],
          ["Version", fn.version || "none, because it has no name"],
          ["Owner", line(fn.owner, 64)],
          ["Registered", <When ms={fn.registered_at_ms} />],
          ["Form", line(fn.form.form, 40)],
          ["Runtime", line(`${fn.runtime.kind} ${fn.runtime.version ?? ""}`, 60)],
          ["Image", fn.image ? line(fn.image, 120) : "none"],
          ["Packages", line(fn.runtime.environment?.requirements?.join(", ") || "none", 200)],
          ["Cores", fn.resources.cores ?? 1],
          ["Memory", fn.resources.memory_bytes ? bytes(fn.resources.memory_bytes) : "as the worker"],
          ["GPUs", fn.resources.gpus ?? 0],
          ["Ranks", fn.resources.ranks ?? 1],
          ["Time limit", fn.resources.walltime_ms ? spanMs(fn.resources.walltime_ms) : "none"],
          ["Repeatable", fn.repeatable ? "yes" : "no"],
          ["Shared with", fn.shared_with.length ? line(fn.shared_with.join(", "), 300) : "nobody"],
        ]} />
      </Card>
      <Card title="Source">{fn.source ? <Source text={fn.source} label="Source" /> : <p class="faint">The source was not registered.</p>}</Card>
      {versions.length > 0 && (
        <Card title="Versions">
          <Table label="Versions" rows={versions} id={(other) => other.id} empty="" columns={[
            { title: "Version", cell: (other) => (other.id === fn.id ? <b>{other.version}</b> : <a href={link(["functions", other.id])}>{other.version}</a>) },
            { title: "Id", cell: (other) => <span class="id">{shortId(other.id)}</span> },
            { title: "Registered", cell: (other) => <When ms={other.registered_at_ms} /> },
            { title: "Description", wide: true, cell: (other) => line(other.description, 120) },
          ]} />
        </Card>
      )}
      <Card title="Tasks"><TaskList query={{ function: fn.name ? name : fn.id }} label="Tasks of this function" /></Card>
    </>
  );
}

function Share({ fn, reload }: { fn: Fn; reload: () => void }): JSX.Element {
  const [names, setNames] = useState(fn.shared_with.join(", "));
  return (
    <ActionButton title="Share the function" label="Share" action="Set" act={async () => {
      await api.shareFunction(fn.name ?? fn.id, names.split(",").map((name) => name.trim()).filter(Boolean));
      reload();
      return "Sharing was set.";
    }}>
      <Field label="Who may run it" hint="Names of tenants, team:NAME, or * for everyone, with commas. All versions are shared.">
        <Input value={names} set={setNames} />
      </Field>
    </ActionButton>
  );
}
