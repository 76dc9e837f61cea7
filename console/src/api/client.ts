// The one module that sends requests. The browser adds the session's cookie; the header makes a change one of this page.

import type * as T from "./types";

/** A refusal of the manager, or `offline` if there was no response. */
export class ApiError extends Error {
  constructor(
    readonly code: string,
    message: string,
    readonly status: number,
  ) {
    super(message);
  }
}

const LIMIT_MS = 30_000;

type Query = Record<string, string | number | boolean | null | undefined>;

/** Is called when the session has ended. */
let onUnauthorized: () => void = () => {};
/** Is called after each response, or failure to get one. */
let onReach: (reached: boolean) => void = () => {};

export function watchSession(unauthorized: () => void, reach: (reached: boolean) => void): void {
  onUnauthorized = unauthorized;
  onReach = reach;
}

export const part = encodeURIComponent;

function address(path: string, query?: Query): string {
  const pairs = Object.entries(query ?? {}).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = pairs.map(([name, value]) => `${part(name)}=${part(String(value))}`).join("&");
  return text ? `${path}?${text}` : path;
}

interface Options {
  query?: Query;
  body?: unknown;
  signal?: AbortSignal;
  limitMs?: number;
  /** Whether a refused session is the caller's matter. */
  quiet?: boolean;
}

async function send(method: string, path: string, options: Options = {}): Promise<Response> {
  const limit = AbortSignal.timeout(options.limitMs ?? LIMIT_MS);
  const headers: Record<string, string> = { Accept: "application/json" };
  if (method !== "GET") headers["Dayfly-Console"] = "1";
  if (options.body !== undefined) headers["Content-Type"] = "application/json";
  let response: Response;
  try {
    response = await fetch(address(path, options.query), {
      method,
      headers,
      body: options.body === undefined ? undefined : JSON.stringify(options.body),
      signal: options.signal ? AbortSignal.any([options.signal, limit]) : limit,
      cache: "no-store",
    });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    onReach(false);
    throw new ApiError("offline", "The manager does not respond.", 0);
  }
  onReach(true);
  if (response.ok) return response;
  const failure = await response.json().then(
    (body: { error?: T.Failure }) => body.error,
    () => undefined,
  );
  if (response.status === 401 && !options.quiet) onUnauthorized();
  throw new ApiError(
    failure?.code ?? "internal",
    failure?.message ?? `The manager responded with status ${response.status}.`,
    response.status,
  );
}

async function json<R>(method: string, path: string, options?: Options): Promise<R> {
  const response = await send(method, path, options);
  return (response.status === 204 ? undefined : await response.json()) as R;
}

const get = <R>(path: string, query?: Query, options?: Options): Promise<R> => json("GET", path, { ...options, query });
const post = <R>(path: string, body?: unknown, query?: Query): Promise<R> => json("POST", path, { body: body ?? {}, query });
const put = <R>(path: string, body?: unknown): Promise<R> => json("PUT", path, { body });
const del = <R>(path: string, query?: Query): Promise<R> => json("DELETE", path, { query });

/** Milliseconds that a request waits at the manager. */
export const WAIT_MS = 15_000;

export const api = {
  session: () => get<T.Token>("/v1/session", undefined, { quiet: true }),
  logIn: (body: { token: string } | { ticket: string }) => json<T.Token>("POST", "/v1/session", { body, quiet: true }),
  logOut: () => del<void>("/v1/session"),
  loginInfo: () => get<T.LoginInfo>("/v1/login", undefined, { quiet: true }),
  version: () => get<{ version: string }>("/v1/version"),
  health: () => get<T.Health>("/v1/health"),
  managers: () => get<T.Manager[]>("/v1/managers"),
  history: (after_ms: number) => get<T.Sample[]>("/v1/history", { after_ms }),

  tasks: (query: T.TaskQuery, signal?: AbortSignal) => get<T.Task[]>("/v1/tasks", { ...query }, { signal, limitMs: 60_000 }),
  counts: (tag?: string) => get<T.TaskCounts>("/v1/tasks/counts", { tag }),
  task: (id: string) => get<T.Task>(`/v1/tasks/${part(id)}`),
  outcome: (id: string, wait_ms = 0, signal?: AbortSignal) =>
    get<T.Outcome>(`/v1/tasks/${part(id)}/outcome`, { wait_ms }, { signal }),
  output: (id: string, from: number, wait_ms: number, signal?: AbortSignal) =>
    get<T.OutputPage>(`/v1/tasks/${part(id)}/output`, { from, wait_ms }, { signal }),
  loans: (id: string) => get<T.Loans>(`/v1/tasks/${part(id)}/loans`),
  submit: (body: T.Submission) => post<{ endpoint: string; tasks: string[] }>("/v1/tasks", body),
  retry: (id: string) => post<{ tasks: string[] }>(`/v1/tasks/${part(id)}/retry`),
  cancel: (body: { tasks?: string[]; tag?: string; endpoint?: string; everybody?: boolean }) =>
    post<{ ended: number; told: number; running?: number }>("/v1/tasks/cancel", body),
  forget: (body: { tasks?: string[]; tag?: string }) => post<{ forgotten: number; left: number }>("/v1/tasks/forget", body),

  functions: () => get<T.Fn[]>("/v1/functions"),
  fn: (id: string) => get<T.Fn>(`/v1/functions/${part(id)}`),
  removeFunction: (id: string) => del<T.Fn[]>(`/v1/functions/${part(id)}`),
  shareFunction: (id: string, shared_with: string[]) => put<T.Fn>(`/v1/functions/${part(id)}/sharing`, { shared_with }),
  profile: (id: string) => get<T.Profile[]>(`/v1/functions/${part(id)}/profile`),
  teams: () => get<T.Team[]>("/v1/teams"),
  setTeam: (name: string, body: { description: string; members: string[] }) => put<T.Team>(`/v1/teams/${part(name)}`, body),
  removeTeam: (name: string) => del<T.Team>(`/v1/teams/${part(name)}`),

  endpoints: () => get<T.Endpoint[]>("/v1/endpoints"),
  removeEndpoint: (name: string) => del<T.Endpoint>(`/v1/endpoints/${part(name)}`),

  triggers: () => get<T.Trigger[]>("/v1/triggers"),
  trigger: (name: string) => get<T.Trigger>(`/v1/triggers/${part(name)}`),
  setTrigger: (body: T.TriggerRequest) => post<T.NewTrigger>("/v1/triggers", body),
  pauseTrigger: (name: string, paused: boolean) =>
    post<T.Trigger>(`/v1/triggers/${part(name)}/${paused ? "pause" : "resume"}`),
  fireTrigger: (name: string, event: T.Json) =>
    post<{ number: number; task?: string | null; flow?: string | null }>(`/v1/triggers/${part(name)}/events`, event),
  removeTrigger: (name: string) => del<T.Trigger>(`/v1/triggers/${part(name)}`),
  triggerEvents: (name: string, before?: number, limit = 100) =>
    get<T.TriggerEvent[]>(`/v1/triggers/${part(name)}/events`, { before, limit }),

  flows: (limit: number) => get<T.Flow[]>("/v1/flows", { limit }),
  flow: (id: string) => get<T.Flow>(`/v1/flows/${part(id)}`),
  startFlow: (body: T.FlowRequest) => post<T.Flow>("/v1/flows", body),
  cancelFlow: (id: string) => post<T.Flow>(`/v1/flows/${part(id)}/cancel`),

  nodes: () => get<T.Node[]>("/v1/nodes"),
  reclaimNode: (id: string, grace: number) => del<{ leases: number; empty_ms: number }>(`/v1/nodes/${part(id)}`, { grace }),
  resizeNode: (id: string, change: T.NodeResize, grace: number) =>
    json<T.Node>("PATCH", `/v1/nodes/${part(id)}`, { query: { grace }, body: change, limitMs: LIMIT_MS + 1000 * grace }),
  resumeNode: (id: string) => put<T.Node>(`/v1/nodes/${part(id)}`),
  harvestNode: (id: string, mode: string) => put<T.Node>(`/v1/nodes/${part(id)}/harvest`, { mode }),
  joinToken: (valid_for_ms: number) => post<{ token: string; manager: string }>("/v1/nodes/join-tokens", { valid_for_ms }),
  leases: () => get<T.Lease[]>("/v1/leases"),
  revokeLease: (id: string, grace: number) => post<T.Lease>(`/v1/leases/${part(id)}/revoke`, {}, { grace }),
  groups: () => get<T.Group[]>("/v1/groups"),

  queries: (state?: string) => get<T.Query[]>("/v1/queries", { state }),
  query: (id: string) => get<T.Query>(`/v1/queries/${part(id)}`),
  cancelQuery: (id: string) => del<T.Query>(`/v1/queries/${part(id)}`),

  contents: () => get<{ bytes: number; most_bytes: number }>("/v1/contents"),
  contentList: (after: string | undefined, limit: number) => get<T.StoredContent[]>("/v1/contents/list", { after, limit }),
  contentPath: (hash: string) => `/v1/contents/${part(hash)}`,

  usage: (from: number, until: number, everybody: boolean) => get<T.UsageLine[]>("/v1/usage", { from, until, everybody }),
  bill: (from: number, until: number, tenant?: string, after?: string) =>
    get<T.BillPage>("/v1/bill", { from, until, tenant, after }),
  prices: () => get<T.Prices>("/v1/prices"),
  setPrices: (prices: T.Prices) => put<T.Prices>("/v1/prices", prices),
  tenants: () => get<T.Tenant[]>("/v1/tenants"),
  setTenant: (name: string, spec: T.TenantSpec) => put<T.Tenant>(`/v1/tenants/${part(name)}`, spec),
  tokens: () => get<T.Token[]>("/v1/tokens"),
  createToken: (body: T.TokenRequest) => post<T.NewToken>("/v1/tokens", body),
  revokeToken: (id: string, keep_leases: boolean) =>
    del<T.Token & { leases_ended: number; leases_kept: number }>(`/v1/tokens/${part(id)}`, { keep_leases }),
  audit: (before?: number, limit = 200) => get<T.AuditEntry[]>("/v1/audit", { before, limit }),
};

/** Returns the address of the events' WebSocket. */
export const eventsAddress = (): string => `${location.protocol.replace("http", "ws")}//${location.host}/v1/events`;

/** Returns the message of a caught value. */
export const messageOf = (error: unknown): string => (error instanceof Error ? error.message : String(error));
