// The views by their address, and the navigation.

import type { JSX } from "preact";

import type { Token } from "../api/types";
import { Head, Notice } from "../components/parts";
import type { Route } from "../lib/router";
import { Admin } from "./admin";
import { Contents } from "./contents";
import { EndpointView } from "./endpoint";
import { Endpoints } from "./endpoints";
import { FlowView } from "./flow";
import { Flows } from "./flows";
import { FunctionView } from "./function";
import { Functions } from "./functions";
import { Groups } from "./groups";
import { Leases } from "./leases";
import { Nodes } from "./nodes";
import { Overview } from "./overview";
import { Queries } from "./queries";
import { QueryView } from "./query";
import { TaskView } from "./task";
import { Tasks } from "./tasks";
import { TriggerView } from "./trigger";
import { Triggers } from "./triggers";
import { UsageView } from "./usage";

interface Entry {
  path: string;
  name: string;
  shown?: (token: Token) => boolean;
}

export const NAVIGATION: { title: string; entries: Entry[] }[] = [
  {
    title: "Work",
    entries: [
      { path: "", name: "Overview" },
      { path: "tasks", name: "Tasks" },
      { path: "functions", name: "Functions" },
      { path: "triggers", name: "Triggers" },
      { path: "flows", name: "Flows" },
      { path: "queries", name: "Queries" },
    ],
  },
  {
    title: "Places",
    entries: [
      { path: "endpoints", name: "Endpoints" },
      { path: "nodes", name: "Nodes" },
      { path: "leases", name: "Leases" },
      { path: "groups", name: "Groups" },
      { path: "contents", name: "Contents" },
    ],
  },
  {
    title: "Account",
    entries: [
      { path: "usage", name: "Usage and bills" },
      { path: "admin", name: "Administration" },
    ],
  },
];

export function viewOf({ path: [view = "", id, ...rest], query }: Route): JSX.Element {
  switch (view) {
    case "":
      return <Overview />;
    case "tasks":
      return id ? <TaskView key={id} id={id} /> : <Tasks query={query} />;
    case "functions":
      // A name may be `OWNER/NAME`.
      return id ? <FunctionView key={id} id={[id, ...rest].join("/")} /> : <Functions query={query} />;
    case "triggers":
      return id ? <TriggerView key={id} name={id} /> : <Triggers />;
    case "flows":
      return id ? <FlowView key={id} id={id} /> : <Flows />;
    case "queries":
      return id ? <QueryView key={id} id={id} /> : <Queries query={query} />;
    case "endpoints":
      return id ? <EndpointView key={id} name={id} /> : <Endpoints query={query} />;
    case "nodes":
      return <Nodes query={query} />;
    case "leases":
      return <Leases query={query} />;
    case "groups":
      return <Groups />;
    case "contents":
      return <Contents />;
    case "usage":
      return <UsageView query={query} tab={id ?? "tasks"} />;
    case "admin":
      return <Admin tab={id ?? ""} query={query} />;
    default:
      return (
        <>
          <Head title="No such view" />
          <Notice>The address names no view. Choose one in the navigation.</Notice>
        </>
      );
  }
}
