// The content store: the tenant's use of its quota, its contents with what uses them, and one content by its hash.

import type { JSX } from "preact";
import { useState } from "preact/hooks";

import { api, messageOf } from "../api/client";
import type { StoredContent } from "../api/types";
import { Field, Input } from "../components/dialog";
import { Card, Facts, Head, Meter, Notice, Pending, TaskLink, When } from "../components/parts";
import { Table } from "../components/table";
import { bytes, count, decimal, line } from "../lib/format";
import { useLive } from "../lib/live";
import { link } from "../lib/router";

const HASH = /^[0-9a-f]{64}$/;
const PAGE = 200;
/** The manager counts no further. */
const MAX_COUNTED = 1_000;

export function Contents(): JSX.Element {
  const { data, error } = useLive(api.contents, [], 5_000);
  const [hash, setHash] = useState("");
  const wanted = hash.trim().toLowerCase();
  return (
    <>
      <Head title="Contents" />
      <Card title="Quota">
        {!data ? <Pending error={error} /> : (
          <>
            <p><Meter label="Used part of the quota" value={data.bytes} most={data.most_bytes} /> {decimal((100 * data.bytes) / Math.max(1, data.most_bytes))} %</p>
            <Facts of={[["Used", bytes(data.bytes)], ["Quota", bytes(data.most_bytes)], ["Free", bytes(Math.max(0, data.most_bytes - data.bytes))]]} />
          </>
        )}
        <p class="faint">Long arguments and results are here. Output of tasks and shorter arguments count too, and are not in the list. To free space, delete the results of a batch: <a href={link(["tasks"])}>Tasks</a>.</p>
      </Card>
      <Card title="What is stored"><Stored /></Card>
      <Card title="One content">
        <Field label="Hash" hint="The BLAKE3 hash: 64 hexadecimal digits"><Input value={hash} set={setHash} /></Field>
        {HASH.test(wanted) && <a class="button" href={api.contentPath(wanted)} download={nameOf(wanted)}>Download</a>}
      </Card>
    </>
  );
}

const nameOf = (hash: string): string => `content-${hash.slice(0, 12)}.bin`;

const uses = (number: number): string => (number >= MAX_COUNTED ? `${count(MAX_COUNTED)} or more tasks` : number === 1 ? "1 task" : `${count(number)} tasks`);

function kindOf({ arguments_of, results_of }: StoredContent): string {
  const kinds = [arguments_of > 0 && `arguments of ${uses(arguments_of)}`, results_of > 0 && `result of ${uses(results_of)}`];
  return kinds.filter(Boolean).join(", ") || "not used by a task";
}

/** The contents in the order of their hashes: the first page is current, and further ones are read on request. */
function Stored(): JSX.Element {
  const { data, error } = useLive(() => api.contentList(undefined, PAGE), [], 5_000);
  const [later, setLater] = useState<StoredContent[]>([]);
  const [isAll, setAll] = useState(false);
  const [trouble, setTrouble] = useState("");
  if (!data) return <Pending error={error} />;
  const rows = [...data, ...later.filter(({ hash }) => hash > (data.at(-1)?.hash ?? ""))];
  const more = (): void => {
    const last = rows.at(-1)?.hash;
    void api.contentList(last, PAGE).then(
      (found) => {
        setLater((old) => [...old, ...found.filter(({ hash }) => !old.some((known) => known.hash === hash))]);
        setAll(found.length < PAGE);
      },
      (caught: unknown) => setTrouble(messageOf(caught)),
    );
  };
  return (
    <>
      {trouble && <Notice kind="bad">{line(trouble, 400)}</Notice>}
      <Table label="Contents" rows={rows} id={({ hash }) => hash} empty="Nothing is stored." more={more} hasMore={data.length === PAGE && !isAll && !trouble} columns={[
        { title: "Hash", cell: ({ hash }: StoredContent) => <a class="id" href={api.contentPath(hash)} download={nameOf(hash)} title={hash} aria-label={`Download ${hash}`}>{hash.slice(0, 12)}…</a> },
        { title: "Size", numeric: true, cell: ({ bytes: size }: StoredContent) => bytes(size), sort: ({ bytes: size }: StoredContent) => size },
        { title: "Kind", cell: kindOf },
        { title: "Task", cell: ({ task }: StoredContent) => (task ? <TaskLink id={task} /> : "") },
        { title: "Since", wide: true, cell: ({ since_ms }: StoredContent) => (since_ms ? <When ms={since_ms} /> : "not known"), sort: ({ since_ms }: StoredContent) => since_ms },
        { title: "Last use", wide: true, cell: ({ used_at_ms }: StoredContent) => <When ms={used_at_ms} ago />, sort: ({ used_at_ms }: StoredContent) => used_at_ms },
      ]} />
    </>
  );
}
