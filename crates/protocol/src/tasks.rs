//! Functions, tasks and endpoints in the bodies of the manager's HTTP API.
//!
//! Each body travels as JSON. Dayfly's programs also use MessagePack ([`MESSAGE_PACK`]), with the same names.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::api::{Placement, Runtime, is_none};
use crate::blob::Blob;
use crate::contents::{Content, Payload};
use crate::error::{Code, Failure};
use crate::executor::Form;
use crate::ids::{CodeHash, EndpointId, FunctionId, TaskId, TenantId};
use crate::node_api::Stream;

/// Content type of MessagePack bodies.
pub const MESSAGE_PACK: &str = "application/msgpack";
/// Most bytes of a body that contains functions, tasks or flows, or lists tasks.
pub const MAX_BODY_BYTES: usize = 64 << 20;
/// Most bytes of a body that lists tenants to share with.
pub const MAX_SHARING_BODY_BYTES: usize = 2 << 20;
/// Most bytes of one task's result in JSON. Clients of other formats fetch long results by reference.
pub const MAX_ANSWER_BYTES: usize = 64 << 20;
/// Most tasks in one submission.
pub const MAX_TASKS: usize = 100_000;
/// Most dependencies of a task.
pub const MAX_AFTER: usize = 10_000;
/// Prefix of a team's name in a sharing list.
pub const TEAM: &str = "team:";
/// Most members of a team.
pub const MAX_MEMBERS: usize = 10_000;
/// Most teams of one owner.
pub const MAX_TEAMS: usize = 1_000;
/// Longest name, in bytes. [`bounds`](crate::bounds) limits other texts.
pub const MAX_NAME_BYTES: usize = 128;
/// Longest delay before a retry, in milliseconds.
pub const MAX_RETRY_WAIT_MS: u32 = 3_600_000;
/// Longest wait of a request for outcomes, in milliseconds.
pub const MAX_WAIT_MS: u64 = 30_000;

/// Last byte of a payload that is a call in JSON. Python workers recognise it.
pub const JSON_CALL: u8 = 5;
/// Last byte of a payload that is a result in JSON. Python workers recognise it.
pub const JSON_ANSWER: u8 = 4;
/// Last byte of a [joined](join) payload that contains a call and the results of its dependencies.
pub const CALL_WITH_ANSWERS: u8 = 6;
/// Last byte of a [joined](join) payload that contains a call and, as JSON, the rank's invitation to its group.
pub const CALL_OF_RANK: u8 = 7;
/// Last byte of a [joined](join) payload that contains the results of all ranks, in order.
pub const ANSWERS_OF_RANKS: u8 = 5;
/// Last byte of the part that follows the results in a [`CALL_WITH_ANSWERS`] with [foreign](TaskOutcome::foreign)
/// results. For each result the part lists, as JSON, the names of the tenants that may have produced it.
pub const MAKERS_OF_ANSWERS: u8 = 8;
/// Alignment of the parts of a payload, so that aligned data in a part stays aligned.
const PART_ALIGN: usize = 64;

/// Joins several payloads into one. Layout: the parts, each at a multiple of 64 bytes; offset and length of each part
/// (two little-endian u64); the number of parts (u32); and as the last byte `what`, which is [`CALL_WITH_ANSWERS`],
/// [`CALL_OF_RANK`] or [`ANSWERS_OF_RANKS`].
pub fn join(parts: &[&[u8]], what: u8) -> Vec<u8> {
    let bytes: usize = parts.iter().map(|part| part.len() + PART_ALIGN + 16).sum();
    let mut joined = Vec::with_capacity(bytes + 5);
    let mut table = Vec::with_capacity(16 * parts.len());
    for part in parts {
        joined.resize(joined.len().next_multiple_of(PART_ALIGN), 0);
        for word in [joined.len(), part.len()] {
            table.extend_from_slice(&(word as u64).to_le_bytes());
        }
        joined.extend_from_slice(part);
    }
    joined.extend_from_slice(&table);
    joined.extend_from_slice(&(parts.len() as u32).to_le_bytes());
    joined.push(what);
    joined
}

/// Returns the parts of a payload made by [`join`], of any kind, or `None` if it is malformed.
pub fn parts(joined: &[u8]) -> Option<Vec<&[u8]>> {
    let (_, rest) = joined.split_last()?;
    let (rest, count) = rest.split_last_chunk::<4>()?;
    let table = usize::try_from(u32::from_le_bytes(*count)).ok()?.checked_mul(16)?;
    let (rest, table) = rest.split_at_checked(rest.len().checked_sub(table)?)?;
    let word = |bytes: &[u8]| {
        let exact = <[u8; 8]>::try_from(bytes).ok()?;
        usize::try_from(u64::from_le_bytes(exact)).ok()
    };
    let part = |entry: &[u8]| {
        let (start, length) = (word(&entry[..8])?, word(&entry[8..])?);
        rest.get(start..start.checked_add(length)?)
    };
    table.chunks_exact(16).map(part).collect()
}

/// Resources that one execution of a function needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Resources {
    /// Cores of its worker.
    pub cores: u16,
    /// Memory of its worker in bytes; 0 for the node's share per worker.
    pub memory_bytes: u64,
    /// GPUs of its worker. The worker sees no others.
    #[serde(skip_serializing_if = "is_none")]
    pub gpus: u16,
    /// Time limit of one execution in milliseconds, after which all its processes are killed; 0 for no limit.
    pub walltime_ms: u32,
    /// Number of workers that one execution uses, all of them or none. Each worker calls the function as a rank of one
    /// group, and the result is the list of their results. 0 for a single worker without a group.
    #[serde(skip_serializing_if = "is_none")]
    #[schema(maximum = 4096)]
    pub ranks: u16,
    /// Placement of the ranks on nodes.
    #[serde(skip_serializing_if = "is_usual")]
    pub placement: Placement,
}

impl Resources {
    /// Number of workers of one execution, at least 1.
    pub fn workers(&self) -> u16 {
        self.ranks.max(1)
    }
}

fn is_usual(placement: &Placement) -> bool {
    *placement == Placement::default()
}

impl Default for Resources {
    fn default() -> Self {
        Self {
            cores: 1,
            memory_bytes: 0,
            gpus: 0,
            walltime_ms: 0,
            ranks: 0,
            placement: Placement::default(),
        }
    }
}

/// A function to register. Idempotent: registering the same function again returns the existing one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FunctionRegistration {
    /// Name of the function. Functions of one owner with the same name are versions; the name refers to the latest.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 128, pattern = "^[^/@]*$")]
    pub name: Option<String>,
    /// Description, for display.
    #[serde(default)]
    #[schema(max_length = 16_384)]
    pub description: String,
    /// Source, for display only.
    #[serde(default)]
    #[schema(max_length = 262_144)]
    pub source: String,
    /// Form of `code`.
    pub form: Form,
    /// Runtime that it needs. The default is any Python, which suits source.
    #[serde(default = "Runtime::any_python")]
    pub runtime: Runtime,
    /// Container image to run in, as a lease names it; absent for workers without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 256)]
    pub image: Option<String>,
    /// The code: the pickle, the library or the text.
    pub code: Blob,
    /// Resources of one execution.
    #[serde(default)]
    pub resources: Resources,
    /// Whether it may be executed again after a fault that may have interrupted an execution.
    #[serde(default)]
    pub repeatable: bool,
    /// Names of tenants other than the owner that may run it; `team:NAME` for a team, `*` for everyone.
    #[serde(default)]
    pub shared_with: Vec<String>,
}

/// Replaces the list of tenants that may run a function of the caller's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FunctionSharing {
    /// Names of tenants, `team:NAME` for a team, `*` for everyone. Empty for the owner alone.
    pub shared_with: Vec<String>,
}

/// A registered function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FunctionStatus {
    /// Id of the function.
    pub id: FunctionId,
    /// Name, if it has one.
    pub name: Option<String>,
    /// Version among the owner's functions of this name, from 1; 0 without a name.
    pub version: u32,
    /// Name of the owner.
    pub owner: String,
    /// Description, for display.
    pub description: String,
    /// Source, for display.
    pub source: String,
    /// SHA-256 of the code.
    pub hash: CodeHash,
    /// Form of the code.
    pub form: Form,
    /// Runtime that it needs.
    pub runtime: Runtime,
    /// Container image to run in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Resources of one execution.
    pub resources: Resources,
    /// Whether it may be executed again after a fault.
    pub repeatable: bool,
    /// Tenants other than the owner that may run it.
    pub shared_with: Vec<String>,
    /// Time of registration, in milliseconds since the Unix epoch.
    pub registered_at_ms: u64,
}

/// How to treat tasks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct TaskOptions {
    /// Tasks of the same owner with a higher priority run first.
    pub priority: i8,
    /// Milliseconds from acceptance until the task is ended; 0 for no limit.
    pub deadline_ms: u64,
    /// Time limit of one execution in milliseconds; 0 for the function's own.
    pub walltime_ms: u32,
    /// Most retries after the function fails.
    pub retries: u16,
    /// Delay before the first retry in milliseconds; 0 for none. It doubles with each further retry, up to one hour.
    #[serde(skip_serializing_if = "is_none")]
    #[schema(maximum = 3_600_000)]
    pub retry_wait_ms: u32,
    /// Whether it may be executed again after a fault; if absent, the function's setting.
    pub repeatable: Option<bool>,
    /// Whether the result of an earlier task of the same owner with the same function and arguments may replace an
    /// execution.
    pub memoize: bool,
}

/// Tasks to accept, all for one function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TaskSubmission {
    /// The function to run.
    pub function: FunctionId,
    /// Endpoint by name or id. If absent, the manager's own endpoint, or, if it has none, the only one that the caller
    /// may use.
    #[serde(default)]
    pub endpoint: Option<String>,
    /// Label chosen by the submitter, by which outcomes are requested.
    #[serde(default)]
    #[schema(max_length = 256)]
    pub tag: String,
    /// Options of all tasks.
    #[serde(default)]
    pub options: TaskOptions,
    /// One entry for each task.
    #[schema(min_items = 1, max_items = 100_000)]
    pub tasks: Vec<TaskInput>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct TaskInput {
    /// Id chosen by the submitter. Makes the submission idempotent: a task with a known id is accepted only once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<TaskId>,
    /// Idempotency key in place of an id: a text that its owner uses for no other task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Arguments, encoded for the function's runtime.
    pub arguments: Blob,
    /// Arguments in the content store, in place of `arguments`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<Content>,
    /// Dependencies: tasks of the same owner, submitted before or earlier in this submission, that must succeed first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 10_000)]
    pub after: Vec<TaskId>,
    /// Whether the dependencies' results are passed with the arguments. For Python functions registered as pickles.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub with_answers: bool,
    /// Arguments in JSON in place of `arguments`, for Python functions. The result is then also JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call: Option<JsonCall>,
}

/// Arguments of a Python function.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct JsonCall {
    /// Positional arguments.
    pub arguments: Vec<serde_json::Value>,
    /// Keyword arguments.
    pub keywords: serde_json::Map<String, serde_json::Value>,
}

/// Accepted tasks. They are stored durably, and each has exactly one outcome whatever fails.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Accepted {
    /// Ids, in the order of the submission.
    pub tasks: Vec<TaskId>,
    /// The endpoint that runs them.
    pub endpoint: EndpointId,
}

/// State of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    /// Accepted, in the manager's queue.
    Queued,
    /// At its endpoint, waiting for a free worker.
    Waiting,
    /// At its endpoint, which builds the task's environment.
    Environment,
    /// On a worker. Executions shorter than about 50 ms skip this state.
    Running,
    /// Ended, with its outcome.
    Done,
}

impl TaskState {
    /// All states, in the order of a task's life.
    pub const ALL: [Self; 5] = [
        Self::Queued,
        Self::Waiting,
        Self::Environment,
        Self::Running,
        Self::Done,
    ];

    /// The state's name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Waiting => "waiting",
            Self::Environment => "environment",
            Self::Running => "running",
            Self::Done => "done",
        }
    }

    /// Returns the state with this [`TaskState::name`], or `None`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }
}

/// A task without its arguments and result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TaskStatus {
    /// Id of the task.
    pub id: TaskId,
    /// Name of the owner.
    #[serde(default)]
    pub owner: String,
    /// The function that it runs.
    pub function: FunctionId,
    /// Name of the function, for display; empty if the function has been deleted.
    pub name: String,
    /// Name of the endpoint.
    pub endpoint: String,
    /// Tag of the submission.
    pub tag: String,
    /// State of the task.
    pub state: TaskState,
    /// Why it failed; absent unless it failed.
    pub error: Option<Failure>,
    /// In state `environment`, the progress of the build: when it began, the last output of `uv`, or why it failed and
    /// when it is retried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub building: Option<String>,
    /// Executions that began or may have begun.
    pub attempts: u16,
    /// Tasks with a higher priority run first.
    pub priority: i8,
    /// Time of acceptance, in milliseconds since the Unix epoch.
    pub submitted_at_ms: u64,
    /// When its endpoint last received it, in milliseconds since the Unix epoch; 0 before.
    #[serde(default)]
    pub waiting_at_ms: u64,
    /// When the endpoint began to build its environment; 0 if no build was needed.
    #[serde(default)]
    pub environment_at_ms: u64,
    /// When its last execution began; 0 before.
    pub started_at_ms: u64,
    /// When it ended; 0 before.
    pub ended_at_ms: u64,
    /// Whether arguments and result are raw bytes, as for a function of a shared library.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub raw: bool,
}

impl TaskStatus {
    /// Returns the time spent in each state until its end, or until `now_ms` (milliseconds since the Unix epoch).
    pub fn times(&self, now_ms: u64) -> TaskTimes {
        let marks = [
            self.submitted_at_ms,
            self.waiting_at_ms,
            self.environment_at_ms,
            self.started_at_ms,
        ];
        TaskTimes::between(marks, if self.ended_at_ms > 0 { self.ended_at_ms } else { now_ms })
    }
}

/// Outcome of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TaskOutcome {
    /// Id of the task.
    pub id: TaskId,
    /// Sequence number among all outcomes. A request for outcomes after it returns only later ones.
    pub number: u64,
    /// Why it failed; absent if it succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
    /// Whether `answer` is a pickled exception.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub raised: bool,
    /// The function's result, encoded by its runtime.
    #[serde(default, skip_serializing_if = "Blob::is_empty")]
    pub answer: Blob,
    /// The result in the content store, in place of `answer`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Content>,
    /// The result as JSON, if the call was in JSON and the outcome is requested in JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<serde_json::Value>,
    /// Executions that began or may have begun.
    pub attempts: u16,
    /// Names of tenants other than the task's owner that may have produced the result: the function's owner and the
    /// endpoint's owner. An empty name stands for a deleted tenant. Only plain data may be read from such a result.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub foreign: Vec<String>,
    /// Origin of the result. Used only inside the manager.
    #[serde(skip)]
    pub ran: Option<Ran>,
}

/// Origin of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ran {
    /// Owner of the task.
    pub tenant: TenantId,
    /// The function that ran.
    pub function: FunctionId,
    /// The endpoint that ran it.
    pub endpoint: EndpointId,
}

impl TaskOutcome {
    /// Returns the outcome with `result` filled in, if the result is JSON.
    pub fn shown(mut self) -> Self {
        if let Some((&JSON_ANSWER, text)) = self.answer.split_last() {
            self.result = serde_json::from_slice(text).ok();
        }
        self
    }

    /// The result, inline or by reference.
    pub fn payload(&self) -> Payload {
        Payload::of(self.answer.clone(), self.content)
    }

    /// Error code of a failed task; `None` for a successful one.
    pub fn code(&self) -> Option<Code> {
        self.error.as_ref().map(|failure| failure.code)
    }
}

/// Outcomes of tasks with one tag.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Outcomes {
    /// In ascending order of their numbers.
    pub outcomes: Vec<TaskOutcome>,
    /// Value of `after` for the next request.
    pub next: u64,
}

/// Output of a task: its last 64 KiB, kept as long as its outcome.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TaskPrinted {
    /// Offset of the first byte of `pieces`. Greater than requested if earlier output has been discarded.
    pub from: u64,
    /// Offset for the next request.
    pub next: u64,
    /// In the order of printing, as far as the order of two streams is known.
    pub pieces: Vec<TaskPiece>,
    /// Whether the task has ended and all its output has been returned.
    pub over: bool,
}

/// A piece of a task's output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TaskPiece {
    /// Standard output or standard error.
    pub stream: Stream,
    /// The bytes. A piece may end anywhere, even inside a character.
    pub bytes: Blob,
}

/// Tasks to cancel: by id, by tag, or by endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Cancellation {
    /// Ids of tasks.
    pub tasks: Vec<TaskId>,
    /// All unfinished tasks with this tag.
    pub tag: Option<String>,
    /// Restricts the selection to this endpoint, by name or id. Without tasks and tag, all unfinished tasks at the
    /// endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Whether to include other owners' tasks. Allowed for operators, and, with an endpoint, for the endpoint's owner.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub everybody: bool,
    /// Whether to cancel only tasks that no worker has received yet. Running tasks continue.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub only_waiting: bool,
}

/// Ended tasks to delete with their outcomes: by id and by tag.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Forgetting {
    /// Ids of tasks.
    pub tasks: Vec<TaskId>,
    /// All tasks with this tag.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
}

/// Result of a deletion.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Forgotten {
    /// Number of deleted tasks.
    pub forgotten: u64,
    /// Number of tasks that were kept, because they or tasks that depend on them have not ended.
    pub left: u64,
}

/// Result of a cancellation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Cancelled {
    /// Tasks that had not begun and never will.
    pub ended: u64,
    /// Tasks that may be running. They end soon, as `cancelled` unless they finish first.
    pub told: u64,
    /// Tasks that may be running and continue, because only waiting tasks were to be cancelled.
    #[serde(default)]
    pub running: u64,
}

/// Number of tasks in each state.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TaskCounts {
    /// Accepted, in the manager's queue.
    pub queued: u64,
    /// At their endpoint, waiting for a worker.
    pub waiting: u64,
    /// At their endpoint, which builds their environment.
    #[serde(default)]
    pub environment: u64,
    /// On a worker.
    pub running: u64,
    /// Ended since the manager started. For one tag, all whose outcomes are kept.
    pub done: u64,
    /// The part of `done` that failed.
    pub failed: u64,
    /// Total time in each state of ended tasks. For one tag, includes unfinished tasks up to now.
    #[serde(default)]
    pub times: TaskTimes,
}

/// Time that tasks spent in each state, in milliseconds. Time before a retry counts as queued.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TaskTimes {
    /// In the manager's queue.
    pub queued_ms: u64,
    /// At their endpoint, waiting for a worker.
    pub waiting_ms: u64,
    /// At their endpoint, waiting for their environment.
    pub environment_ms: u64,
    /// On a worker.
    pub running_ms: u64,
}

impl TaskTimes {
    /// Returns the times of a task that entered the four states at `marks` (0 for never) and left the last one at
    /// `until_ms`. All are in milliseconds since the Unix epoch.
    pub fn between(marks: [u64; 4], until_ms: u64) -> Self {
        let mut until = until_ms;
        let mut times = [0; 4];
        for (time, mark) in times.iter_mut().zip(marks).rev() {
            if mark > 0 {
                // The clocks of two hosts may differ.
                *time = until.saturating_sub(mark);
                until = mark;
            }
        }
        let [queued_ms, waiting_ms, environment_ms, running_ms] = times;
        Self {
            queued_ms,
            waiting_ms,
            environment_ms,
            running_ms,
        }
    }

    /// Adds the times of another task.
    pub fn add(&mut self, other: Self) {
        self.queued_ms += other.queued_ms;
        self.waiting_ms += other.waiting_ms;
        self.environment_ms += other.environment_ms;
        self.running_ms += other.running_ms;
    }
}

impl TaskCounts {
    /// Counts an unfinished task in this state.
    pub fn count(&mut self, state: TaskState) {
        match state {
            TaskState::Queued => self.queued += 1,
            TaskState::Waiting => self.waiting += 1,
            TaskState::Environment => self.environment += 1,
            TaskState::Running | TaskState::Done => self.running += 1,
        }
    }
}

/// Cost of the tasks of one tenant that ran one function at one endpoint on one day.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UsageLine {
    /// Start of the day in UTC, in milliseconds since the Unix epoch.
    pub day_ms: u64,
    /// Name of the tenant.
    pub tenant: String,
    /// Id of the function.
    pub function: FunctionId,
    /// Name of the function, for display.
    pub name: String,
    /// Name of the endpoint.
    pub endpoint: String,
    /// Tasks that ended.
    pub tasks: u64,
    /// The part of `tasks` that failed.
    pub failed: u64,
    /// Milliseconds on workers, for all executions.
    pub took_ms: u64,
    /// Amount charged, in billionths of the site's unit of account. Only executions at other tenants' remote endpoints
    /// are charged here. Executions on the manager's own nodes are charged as leases, and those at the tenant's own
    /// endpoints are free.
    #[serde(default)]
    pub cost: u64,
}

/// A named group of tenants. Functions and endpoints are shared with it as `team:NAME`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct TeamSpec {
    /// Description, for display.
    #[schema(max_length = 1_024)]
    pub description: String,
    /// Names of the member tenants.
    #[schema(max_items = 10_000)]
    pub members: Vec<String>,
}

/// A team.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Team {
    /// Unique name.
    pub name: String,
    /// Name of the owner, who may change the team.
    pub owner: String,
    /// Description and members.
    #[serde(flatten)]
    pub spec: TeamSpec,
}

/// Settings of an endpoint, made by its owner.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct EndpointSpec {
    /// Description, for display.
    pub description: String,
    /// How it obtains nodes: `local`, `slurm`, ...
    pub provider: String,
    /// Names of tenants other than the owner that may run tasks there; `team:NAME` for a team, `*` for everyone.
    pub shared_with: Vec<String>,
    /// Whether each tenant's tasks run under the tenant's own account, at a separate endpoint named after this one and
    /// the tenant.
    pub accounts: bool,
}

/// A request from an endpoint with per-tenant accounts for the credentials of one tenant's daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AccountRequest {
    /// Id of the tenant.
    pub tenant: TenantId,
}

/// An endpoint to register.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EndpointRegistration {
    /// Unique name.
    #[schema(pattern = "^[A-Za-z][A-Za-z0-9._-]{0,127}$")]
    pub name: String,
    /// Settings of the endpoint.
    #[serde(flatten)]
    pub spec: EndpointSpec,
}

/// A registered endpoint and the token of its dispatcher. The token is shown only once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NewEndpoint {
    /// Bearer token of the dispatcher. Invalidates earlier tokens of the same endpoint.
    pub token: String,
    /// `https://address:port` of the manager.
    pub manager: String,
    /// The manager's certificate authority, as PEM.
    pub ca_pem: String,
    /// Status of the endpoint.
    pub status: EndpointStatus,
}

/// State of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BlockState {
    /// In the batch system's queue.
    Pending,
    /// Running on its nodes.
    Running,
}

impl BlockState {
    /// The state's name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
        }
    }
}

/// Nodes that a site requested or holds through one batch job: a pilot job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BlockStatus {
    /// Name of the block at the endpoint.
    pub name: String,
    /// Job id in the batch system.
    pub job: String,
    /// State of the block.
    pub state: BlockState,
    /// Nodes requested.
    pub nodes: u32,
    /// Nodes that have joined.
    pub joined: u32,
    /// Time of submission, in milliseconds since the Unix epoch.
    pub submitted_at_ms: u64,
    /// Latest end, in milliseconds since the Unix epoch; 0 if unknown or unlimited.
    pub ends_at_ms: u64,
    /// The batch system's message, such as why the job is pending.
    pub words: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EndpointStatus {
    /// Id of the endpoint.
    pub id: EndpointId,
    pub name: String,
    /// Name of the owner.
    pub owner: String,
    /// Whether another tenant operates it. Only plain data may be read from its results, unless the caller trusts that
    /// tenant.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub foreign: bool,
    /// Settings of the endpoint.
    #[serde(flatten)]
    pub spec: EndpointSpec,
    /// `up` while its dispatcher is connected, else `down`.
    pub state: String,
    /// Workers at present.
    pub workers: u32,
    /// Blocks that it holds or has requested from a batch system.
    pub blocks: Vec<BlockStatus>,
    /// Why it has no more workers, if it wants more: the error message of the party that refused.
    pub trouble: Option<String>,
    /// Its tasks, of all owners.
    pub tasks: TaskCounts,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_time_until_the_next_state_that_a_task_came_into_is_that_of_the_one_before() {
        let times = |marks, until| {
            let times = TaskTimes::between(marks, until);
            let TaskTimes {
                queued_ms,
                waiting_ms,
                environment_ms,
                running_ms,
            } = times;
            [queued_ms, waiting_ms, environment_ms, running_ms]
        };
        assert_eq!(times([1_000, 0, 0, 0], 4_000), [3_000, 0, 0, 0]);
        assert_eq!(times([1_000, 1_200, 0, 1_500], 4_000), [200, 300, 0, 2_500]);
        assert_eq!(times([1_000, 1_200, 1_300, 3_000], 3_001), [200, 100, 1_700, 1]);
        assert_eq!(times([1_000, 1_200, 1_300, 0], 3_000), [200, 100, 1_700, 0]);
        // The manager's clock is ahead of the endpoint's.
        assert_eq!(times([1_000, 1_200, 0, 1_500], 1_400), [200, 300, 0, 0]);
    }

    proptest! {
        #[test]
        fn what_is_joined_comes_apart_again_and_its_parts_are_aligned(
            given in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..6),
        ) {
            let given: Vec<&[u8]> = given.iter().map(Vec::as_slice).collect();
            let joined = join(&given, CALL_WITH_ANSWERS);
            let found = parts(&joined).unwrap();
            prop_assert_eq!(&found, &given);
            for part in found {
                prop_assert_eq!((part.as_ptr() as usize - joined.as_ptr() as usize) % PART_ALIGN, 0);
            }
        }

        #[test]
        fn nothing_comes_of_bytes_that_nobody_joined(mut bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            bytes.push(CALL_WITH_ANSWERS);
            // No input makes the parser read outside the payload.
            let _ = parts(&bytes);
        }
    }
}
