// The content store: the tenant's use of its quota, and one content by its hash.

import type { JSX } from "preact";
import { useState } from "preact/hooks";

import { api } from "../api/client";
import { Field, Input } from "../components/dialog";
import { Card, Facts, Head, Meter, Pending } from "../components/parts";
import { bytes, decimal } from "../lib/format";
import { useLive } from "../lib/live";
import { link } from "../lib/router";

const HASH = /^[0-9a-f]{64}$/;

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
        <p class="faint">Long arguments and results are here. Arguments are deleted at the end of their task, results with their task, and contents that no task refers to an hour after their last use. To free space, delete the results of a batch: <a href={link(["tasks"])}>Tasks</a>.</p>
      </Card>
      <Card title="One content">
        <Field label="Hash" hint="The BLAKE3 hash: 64 hexadecimal digits"><Input value={hash} set={setHash} /></Field>
        {HASH.test(wanted) && <a class="button" href={api.contentPath(wanted)} download={`content-${wanted.slice(0, 12)}.bin`}>Download</a>}
      </Card>
    </>
  );
}
