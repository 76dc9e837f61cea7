// One function: what it needs, its source, its versions and their differences, who may run it, what nodes learnt about
// it, and its tasks.

import type { JSX } from "preact";
import { useState } from "preact/hooks";

import { api } from "../api/client";
import type { CallResources, Fn, Profile } from "../api/types";
import { Difference } from "../components/diff";
import { ActionButton, Field, Input, Select } from "../components/dialog";
import { Card, Facts, Head, Pending, Source, When } from "../components/parts";
import { RunButton } from "../components/run";
import { Table } from "../components/table";
import { bytes, count, decimal, line, shortId, spanMs } from "../lib/format";
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
      {versions.length > 1 && <Compared fn={fn} versions={versions} />}
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
      <Learnt id={fn.id} />
      <Card title="Tasks"><TaskList query={{ function: fn.name ? name : fn.id }} label="Tasks of this function" /></Card>
    </>
  );
}

/** The source beside that of another version. */
function Compared({ fn, versions }: { fn: Fn; versions: Fn[] }): JSX.Element {
  const others = versions.filter(({ id }) => id !== fn.id);
  const before = others.find(({ version }) => version < fn.version) ?? others[0];
  const [chosen, setChosen] = useState("");
  const other = others.find(({ id }) => id === chosen) ?? before;
  if (!other) return <></>;
  return (
    <Card title="Changes" actions={<Select label="Version to compare with" value={other.id} set={setChosen} options={others.map(({ id, version }) => [id, `since version ${version}`])} />}>
      {fn.source && other.source
        ? <Difference before={other.source} after={fn.source} label={`Changes of the source since version ${other.version}`} />
        : <p class="faint">The source of one of the versions was not registered.</p>}
    </Card>
  );
}

const amount = ({ milli_cores, memory_bytes }: CallResources): string => `${decimal(milli_cores / 1_000)} cores, ${bytes(memory_bytes)}`;

/** What nodes that harvest learnt about calls of this tenant. */
function Learnt({ id }: { id: string }): JSX.Element {
  const { data, error, code } = useLive(() => api.profile(id), [id], 10_000);
  if (!data && code !== "not_found") return <></>;
  return (
    <Card title="What nodes learnt">
      {!data ? <p class="faint">{line(error ?? "", 400)}</p> : (
        <Table label="What nodes learnt" rows={data} id={(one) => `${one.node} ${one.function}`} empty="No node has learnt from its calls." columns={[
          { title: "Node", cell: ({ node_name }: Profile) => line(node_name, 64) },
          { title: "Function", wide: true, cell: ({ function: of }: Profile) => line(of, 80) },
          { title: "Harvesting", cell: ({ mode }: Profile) => mode },
          { title: "Samples", numeric: true, cell: ({ samples, samples_needed }: Profile) => `${count(samples)} of ${count(samples_needed)}` },
          { title: "Model", wide: true, cell: ({ model }: Profile) => line(model.replaceAll("_", " "), 40) },
          { title: "Owns", wide: true, cell: ({ owned }: Profile) => amount(owned) },
          { title: "Needs up to", wide: true, cell: ({ high }: Profile) => (high ? amount(high) : "not known") },
          { title: "Why", cell: ({ reason }: Profile) => line(reason, 400) },
        ]} />
      )}
    </Card>
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
