// Flows: functions that are called with each other's results.

import type { JSX } from "preact";
import { useState } from "preact/hooks";

import { api } from "../api/client";
import { Badge, Head, Pending, When } from "../components/parts";
import { Table } from "../components/table";
import { line, shortId, spanMs } from "../lib/format";
import { useLive, useNow } from "../lib/live";
import { link } from "../lib/router";

const MAX_FLOWS = 1_000;

export function Flows(): JSX.Element {
  const [limit, setLimit] = useState(100);
  const { data, error } = useLive(() => api.flows(limit), [limit], 3_000);
  const now = useNow();
  return (
    <>
      <Head title="Flows" />
      {!data ? <Pending error={error} /> : (
        <Table label="Flows" rows={data} id={({ id }) => id} empty="You have no flow. Start one with dayfly flow run." hasMore={data.length === limit && limit < MAX_FLOWS} more={() => setLimit(MAX_FLOWS)} columns={[
          { title: "Flow", cell: ({ id, name }) => <a href={link(["flows", id])}>{line(name || shortId(id), 80)}</a> },
          { title: "State", cell: ({ state }) => <Badge state={state} /> },
          { title: "Started", cell: ({ started_at_ms }) => <When ms={started_at_ms} /> },
          { title: "Lasted", numeric: true, cell: ({ started_at_ms, ended_at_ms }) => spanMs((ended_at_ms || now) - started_at_ms) },
          { title: "Tag", wide: true, cell: ({ tag }) => <a href={link(["tasks"], { tag })}>{line(tag, 60)}</a> },
          { title: "Failure", wide: true, cell: ({ error: failure }) => (failure ? line(failure.message, 160) : "") },
        ]} />
      )}
    </>
  );
}
