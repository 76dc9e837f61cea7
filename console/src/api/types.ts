// The parts of the manager's API that the console reads, as in docs/reference/openapi.json.

export type Role = "user" | "operator" | "administrator";
export type TaskState = "queued" | "waiting" | "environment" | "running" | "done";
export type FlowState = "waiting" | "running" | "done" | "failed";
export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };

export interface Exception {
  type: string;
  message: string;
  traceback: string;
}

export interface Failure {
  code: string;
  message: string;
  exception?: Exception | null;
}

export interface Token {
  id: string;
  name: string;
  tenant: string;
  role: Role;
  read_only: boolean;
  expires_at_ms: number;
}

export interface NewToken extends Token {
  token: string;
}

export interface TokenRequest {
  name: string;
  role: Role;
  read_only: boolean;
  tenant?: string;
  valid_for_ms: number;
}

export interface LoginInfo {
  issuer: string;
  authorization_endpoint?: string | null;
}

export interface Task {
  id: string;
  owner: string;
  function: string;
  name: string;
  endpoint: string;
  tag: string;
  state: TaskState;
  error?: Failure | null;
  building?: string | null;
  attempts: number;
  priority: number;
  submitted_at_ms: number;
  waiting_at_ms: number;
  environment_at_ms: number;
  started_at_ms: number;
  ended_at_ms: number;
  raw?: boolean;
  argument_bytes?: number;
}

export interface TaskCounts {
  queued: number;
  waiting: number;
  environment?: number;
  running: number;
  done: number;
  failed: number;
  times?: { queued_ms: number; waiting_ms: number; environment_ms: number; running_ms: number };
}

export interface TaskQuery {
  tag?: string;
  endpoint?: string;
  function?: string;
  state?: string;
  failed?: boolean;
  text?: string;
  before?: string;
  limit?: number;
  everybody?: boolean;
}

export interface Content {
  hash: string;
  bytes: number;
}

export interface StoredContent extends Content {
  since_ms: number;
  used_at_ms: number;
  arguments_of: number;
  results_of: number;
  task?: string;
}

export interface Outcome {
  id: string;
  number: number;
  answer?: string;
  attempts: number;
  content?: Content | null;
  error?: Failure | null;
  foreign?: string[];
  raised?: boolean;
  result?: Json;
}

export interface OutputPage {
  from: number;
  next: number;
  over: boolean;
  pieces: { stream: "out" | "err"; bytes: string }[];
}

export interface LoanAmounts {
  milli_cores: number;
  memory_bytes: number;
}

export type LoanKind = "owned" | "used" | "lent" | "borrowed";

export interface Loans {
  task: string;
  us: number;
  sums: Record<LoanKind, { core_us: number; mib_s: number }>;
  points: ({ us: number } & Record<LoanKind, LoanAmounts>)[];
}

export interface TaskOptions {
  priority?: number;
  retries?: number;
  retry_wait_ms?: number;
  walltime_ms?: number;
  deadline_ms?: number;
  memoize?: boolean;
  repeatable?: boolean | null;
}

export interface Submission {
  function: string;
  endpoint?: string;
  tag?: string;
  options?: TaskOptions;
  tasks: { call: { arguments?: Json[]; keywords?: Record<string, Json> } }[];
}

export interface Form {
  form: string;
  symbol?: string;
  name?: string;
  python?: string;
  entry?: string;
}

export interface Runtime {
  kind: string;
  version?: string;
  environment?: { python?: string; requirements?: string[] } | null;
}

export interface Resources {
  cores?: number;
  gpus?: number;
  memory_bytes?: number;
  ranks?: number;
  walltime_ms?: number;
  placement?: string;
  lend?: boolean;
  borrow?: string;
}

export interface Fn {
  id: string;
  name?: string | null;
  version: number;
  owner: string;
  description: string;
  source: string;
  hash: string;
  form: Form;
  runtime: Runtime;
  image?: string | null;
  resources: Resources;
  repeatable: boolean;
  shared_with: string[];
  registered_at_ms: number;
}

export interface Block {
  name: string;
  job: string;
  state: "pending" | "running";
  words: string;
  nodes: number;
  joined: number;
  submitted_at_ms: number;
  ends_at_ms: number;
}

export interface Endpoint {
  id: string;
  name: string;
  owner: string;
  description?: string;
  provider?: string;
  shared_with?: string[];
  accounts?: boolean;
  foreign?: boolean;
  state: "up" | "down";
  tasks: TaskCounts;
  workers: number;
  blocks: Block[];
  trouble?: string | null;
}

export interface FlowStep {
  name: string;
  function: string;
  from?: string[] | null;
  map?: boolean;
  endpoint?: string | null;
  keywords?: Record<string, Json>;
  options?: TaskOptions;
}

export interface FlowRequest {
  name: string;
  steps: FlowStep[];
  input: Json;
}

export type EventSource =
  | { kind: "timer"; cron: string; zone?: string; catch_up?: boolean }
  | { kind: "webhook" }
  | { kind: "files"; place: string; pattern?: string; endpoint?: string | null; every_ms?: number; existing?: boolean };

export interface Trigger {
  id: string;
  name: string;
  owner: string;
  description?: string;
  function: string;
  endpoint?: string | null;
  source: EventSource;
  keywords?: Record<string, Json>;
  options?: TaskOptions;
  then?: FlowStep[];
  state: "active" | "paused" | "expired";
  created_at_ms: number;
  expires_at_ms: number;
  next_at_ms: number;
  started: number;
  refused: number;
  waiting: number;
  trouble?: Failure | null;
  watched_at?: string | null;
}

export interface TriggerRequest {
  name: string;
  description?: string;
  function: string;
  endpoint?: string;
  source: EventSource;
  keywords?: Record<string, Json>;
  options?: TaskOptions;
  then?: FlowStep[];
  paused?: boolean;
  valid_for_ms?: number;
}

export interface NewTrigger {
  url: string;
  token: string;
  status: Trigger;
}

export interface TriggerEvent {
  number: number;
  at_ms: number;
  key: string;
  event: Json;
  state: "waiting" | "started" | "refused";
  error?: Failure | null;
  task?: string | null;
  task_state?: TaskState | null;
  flow?: string | null;
}

export interface StepStatus {
  name: string;
  state: FlowState;
  tasks: number;
  done: number;
  function?: string;
  from?: string[];
  map?: boolean;
}

export interface Flow {
  id: string;
  name: string;
  state: FlowState;
  tag: string;
  error?: Failure | null;
  steps: StepStatus[];
  result?: Json;
  started_at_ms: number;
  ended_at_ms: number;
}

export interface Usage {
  allocated_us: number;
  computing_us: number;
  polling_us: number;
  calls: number;
  failures: number;
}

export interface Lease {
  lease: string;
  node: string;
  tenant: string;
  state: "granted" | "active" | "released" | "expired" | "revoked" | "lost";
  mode: string;
  sandbox: string;
  image?: string | null;
  workers: number;
  cores_per_worker: number;
  memory_bytes: number;
  granted_at_ms: number;
  expires_at_ms: number;
  usage: Usage;
}

export interface Capacity {
  cores: number;
  gpus?: number;
  memory_bytes: number;
  workers: number;
}

export interface Node {
  address: { id: string; name: string; host: string };
  state: "up" | "suspended" | "leaving" | "reclaimed" | "left" | "lost";
  why?: string | null;
  capacity: Capacity;
  free: Capacity;
  heartbeat_age_ms: number;
  leases: number;
  suspended_ms?: number;
  harvest?: {
    mode: "off" | "watch" | "on";
    calls: number;
    functions: number;
    why?: string | null;
    now?: Record<LoanKind, LoanAmounts> | null;
  } | null;
}

export interface Group {
  name: string;
  tenant?: string;
  run: string;
  size: number;
  ranks: number[];
  formed: boolean;
  lost_rank?: number;
  why?: string;
}

export type QueryState = "running" | "done" | "failed" | "cancelled" | "lost";

export interface QueryWork {
  tasks: number;
  ended: number;
  rows: number;
  received_bytes: number;
  spilled_bytes: number;
  core_us: number;
}

/** What a stage or a rank has done. */
export interface QueryPart extends QueryWork {
  number: number;
}

export interface Query {
  id: string;
  tenant: string;
  text: string;
  state: QueryState;
  error?: string | null;
  is_cancelling: boolean;
  started_at_ms: number;
  elapsed_ms: number;
  reported_at_ms: number;
  leases: string[];
  total: QueryWork;
  skew?: number | null;
  lost_runs: number;
  cost?: number | null;
  stages?: QueryPart[];
  ranks?: QueryPart[];
}

export interface Sample {
  at_ms: number;
  nodes_up: number;
  leases: number;
  cores: number;
  cores_leased: number;
  workers: number;
  workers_leased: number;
  memory_bytes: number;
  memory_leased_bytes: number;
  used: Usage;
}

export interface NodeResize {
  cores?: number;
  memory_bytes?: number;
  workers?: number;
  gpus?: number;
}

export interface Prices {
  allocation_per_gib_s: number;
  computing_per_s: number;
  polling_per_s: number;
  core_per_s?: number;
  gpu_per_s?: number;
  borrowed_core_per_s?: number;
  borrowed_per_gib_s?: number;
}

export interface Quota {
  cores?: number | null;
  leases?: number | null;
  memory_bytes?: number | null;
  workers?: number | null;
}

export interface TenantSpec {
  budget?: number | null;
  prices?: Prices | null;
  quota?: Quota;
  suspended?: boolean;
}

export interface Tenant extends TenantSpec {
  id: string;
  name: string;
  leases: number;
  workers: number;
  spent: number;
  spent_on_tasks?: number;
}

export interface BillLine {
  lease: string;
  node: string;
  tenant: string;
  tenant_name: string;
  state: string;
  mode: string;
  workers: number;
  granted_at_ms: number;
  ended_at_ms: number;
  usage: Usage;
  allocation: number;
  computing: number;
  polling: number;
  borrowing?: number;
  total: number;
  functions?: { function: string; calls: number; failures: number; computing_us: number }[];
}

export interface BillPage {
  lines: BillLine[];
  next?: string | null;
}

export interface UsageLine {
  day_ms: number;
  tenant: string;
  function: string;
  name: string;
  endpoint: string;
  tasks: number;
  failed: number;
  took_ms: number;
  cost?: number;
}

export interface AuditEntry {
  number: number;
  at_ms: number;
  tenant: string;
  token: string;
  action: string;
  subject: string;
  details: string;
}

export interface Health {
  status: "ok" | "degraded";
  nodes_up: number;
  leases: number;
  store_error?: string | null;
}

export interface Manager {
  manager: string;
  state: "up" | "silent";
  silent_ms: number;
}

export interface CallResources {
  milli_cores: number;
  memory_bytes: number;
}

/** What a node learnt about a function's calls. */
export interface Profile {
  node: string;
  node_name: string;
  mode: "off" | "watch" | "on";
  function: string;
  samples: number;
  samples_needed: number;
  model: string;
  owned: CallResources;
  high?: CallResources | null;
  lends: CallResources;
  reason: string;
}

export interface Team {
  name: string;
  owner: string;
  description?: string;
  members?: string[];
}
