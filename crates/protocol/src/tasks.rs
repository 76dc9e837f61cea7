//! Functions, tasks and endpoints as the manager's HTTP API shows them.
//!
//! Each body travels as JSON or, for programs, as MessagePack ([`MESSAGE_PACK`]) with the same names.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::api::{Placement, Runtime, is_none};
use crate::blob::Blob;
use crate::contents::{Content, Payload};
use crate::error::{Code, Failure};
use crate::executor::Form;
use crate::ids::{CodeHash, EndpointId, FunctionId, TaskId, TenantId};
use crate::node_api::Stream;

/// The content type of bodies that are not JSON.
pub const MESSAGE_PACK: &str = "application/msgpack";
/// Most bytes of a body that brings functions, tasks or flows, or names tasks.
pub const MOST_BODY_BYTES: usize = 64 << 20;
/// Most bytes of a body that names tenants to share with.
pub const MAX_SHARING_BODY_BYTES: usize = 2 << 20;
/// Most bytes of one task's result in JSON; others go by reference when they are long.
pub const MOST_ANSWER_BYTES: usize = 64 << 20;
/// Most tasks in one submission.
pub const MOST_TASKS: usize = 100_000;
/// Most tasks that one may come after.
pub const MOST_AFTER: usize = 10_000;
/// What stands before a team's name where something is shared with it.
pub const TEAM: &str = "team:";
/// Most members of a team, and most teams of one owner.
pub const MOST_MEMBERS: usize = 10_000;
/// See [`MOST_MEMBERS`].
pub const MOST_TEAMS: usize = 1_000;
/// The longest name. Other texts have bounds in [`bounds`](crate::bounds).
pub const MOST_NAME_BYTES: usize = 128;
/// The longest that a task waits for its next execution after its function failed.
pub const MOST_RETRY_WAIT_MS: u32 = 3_600_000;
/// The longest that a request for outcomes is held open.
pub const MOST_WAIT_MS: u64 = 30_000;

/// Last byte of a payload that is a call in JSON, and of an answer in JSON; Python's workers know both.
pub const JSON_CALL: u8 = 5;
/// See [`JSON_CALL`].
pub const JSON_ANSWER: u8 = 4;
/// Last byte of a payload that has others in it: a call, and the answers that it is made with; see [`join`].
pub const CALL_WITH_ANSWERS: u8 = 6;
/// Last byte of a payload that has others in it: a call, and the rank's invitation to its group, as JSON; see [`join`].
pub const CALL_OF_RANK: u8 = 7;
/// Last byte of a payload that has others in it: the answers of all ranks, in their order; see [`join`].
pub const ANSWERS_OF_RANKS: u8 = 5;
/// Last byte of what stands behind the answers of a [`CALL_WITH_ANSWERS`] of which some are [foreign](TaskOutcome::foreign): for each
/// answer the names of who may have made it, as lists in JSON.
pub const MAKERS_OF_ANSWERS: u8 = 8;
/// Where parts of a payload may begin, so that what is aligned in them stays so.
const PART_ALIGN: usize = 64;

/// Several payloads as one: the parts, each at a multiple of 64 bytes; where each is and how long (two u64, little-endian); how
/// many there are (u32); and as the last byte what this is: [`CALL_WITH_ANSWERS`], [`CALL_OF_RANK`] or [`ANSWERS_OF_RANKS`].
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

/// The parts of what [`join`] made, whatever it is; none of what it did not.
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

/// What one execution of a function needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Resources {
    /// Cores of its worker.
    pub cores: u16,
    /// Memory of its worker in bytes; 0 for the node's usual share.
    pub memory_bytes: u64,
    /// GPUs of its worker, which sees no others.
    #[serde(skip_serializing_if = "is_none")]
    pub gpus: u16,
    /// Milliseconds that one execution may take, after which it is ended with all its processes; 0 for no limit.
    pub walltime_ms: u32,
    /// Workers that one execution has at once, all of them or none: each calls the function, as a rank of one group, and the
    /// result is the list of theirs. 0 for a single one without a group.
    #[serde(skip_serializing_if = "is_none")]
    #[schema(maximum = 4096)]
    pub ranks: u16,
    /// On which nodes the ranks run.
    #[serde(skip_serializing_if = "is_usual")]
    pub placement: Placement,
}

impl Resources {
    /// Workers that one execution has.
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

/// A function to register. The same one twice is one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FunctionRegistration {
    /// Its name; functions of one owner and name are versions, of which the last is meant by the name.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 128, pattern = "^[^/@]*$")]
    pub name: Option<String>,
    /// What it does, for people.
    #[serde(default)]
    #[schema(max_length = 16_384)]
    pub description: String,
    /// Its source, for people.
    #[serde(default)]
    #[schema(max_length = 262_144)]
    pub source: String,
    /// What `code` is.
    pub form: Form,
    /// What runs it; by default whichever Python there is, which suits source.
    #[serde(default = "Runtime::any_python")]
    pub runtime: Runtime,
    /// The container image that it runs in, as a lease names it; none for workers without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 256)]
    pub image: Option<String>,
    /// The code itself: the pickle, the library, or the text.
    pub code: Blob,
    /// What one execution needs.
    #[serde(default)]
    pub resources: Resources,
    /// Whether it may be executed again after a fault, when it may have been executed already.
    #[serde(default)]
    pub repeatable: bool,
    /// Names of tenants that may run it beside its owner, `team:NAME` for those of a team, `*` for everyone.
    #[serde(default)]
    pub shared_with: Vec<String>,
}

/// Who may run a function of the caller's from now on, beside the caller.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FunctionSharing {
    /// Names of tenants, `team:NAME` for those of a team, `*` for everyone; none for nobody else.
    pub shared_with: Vec<String>,
}

/// A registered function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FunctionStatus {
    /// Which.
    pub id: FunctionId,
    /// Its name, if it has one.
    pub name: Option<String>,
    /// Which of its name's versions, from 1; 0 without a name.
    pub version: u32,
    /// Whose it is.
    pub owner: String,
    /// What it does.
    pub description: String,
    /// Its source.
    pub source: String,
    /// SHA-256 of its code.
    pub hash: CodeHash,
    /// What the code is.
    pub form: Form,
    /// What runs it.
    pub runtime: Runtime,
    /// The container image that it runs in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// What one execution needs.
    pub resources: Resources,
    /// Whether it may be executed again.
    pub repeatable: bool,
    /// Who may run it beside its owner.
    pub shared_with: Vec<String>,
    /// Wall clock, milliseconds since the Unix epoch.
    pub registered_at_ms: u64,
}

/// How tasks are to be treated.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct TaskOptions {
    /// Higher ones of the same owner run first.
    pub priority: i8,
    /// Milliseconds from its acceptance until its end, after which it is ended; 0 for no limit.
    pub deadline_ms: u64,
    /// Milliseconds that one execution may take; 0 for what its function says.
    pub walltime_ms: u32,
    /// How often it is executed again when its function fails.
    pub retries: u16,
    /// Milliseconds before the first of these, and before each further one twice as long as before the last, an hour at most; 0 for at once.
    #[serde(skip_serializing_if = "is_none")]
    #[schema(maximum = 3_600_000)]
    pub retry_wait_ms: u32,
    /// Whether it may be executed again after a fault; none for what its function says.
    pub repeatable: Option<bool>,
    /// Whether it may have the result of another of its owner's with the same function and arguments, in place of an execution.
    pub memoize: bool,
}

/// Tasks to accept, all of one function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TaskSubmission {
    /// What to run.
    pub function: FunctionId,
    /// Where, by name or id; none for the manager's own, or, where it has none, for the only one that the caller may use.
    #[serde(default)]
    pub endpoint: Option<String>,
    /// A name of the submitter's for all that belongs together; outcomes are asked for by it.
    #[serde(default)]
    #[schema(max_length = 256)]
    pub tag: String,
    /// How to treat them.
    #[serde(default)]
    pub options: TaskOptions,
    /// One for each.
    #[schema(min_items = 1, max_items = 100_000)]
    pub tasks: Vec<TaskInput>,
}

/// One task of a submission.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct TaskInput {
    /// Its id, if the submitter makes it: what is submitted again, since no answer came, is accepted once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<TaskId>,
    /// An idempotency key in place of an id: a text that its owner uses for nothing else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// What the function is called with, as its runtime encodes it.
    pub arguments: Blob,
    /// The same in the content store, in place of `arguments`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<Content>,
    /// Tasks of the same owner's that must have ended well before, submitted earlier, or earlier in the same submission.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 10_000)]
    pub after: Vec<TaskId>,
    /// Whether their answers go along with the arguments: for Python functions that were registered as pickles.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub with_answers: bool,
    /// The same in JSON, in place of `arguments`, for Python functions; the result is then JSON, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call: Option<JsonCall>,
}

/// What a Python function is called with.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct JsonCall {
    /// In their order.
    pub arguments: Vec<serde_json::Value>,
    /// By their names.
    pub keywords: serde_json::Map<String, serde_json::Value>,
}

/// Tasks that are accepted: written to the disk, to end in one outcome each whatever fails.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Accepted {
    /// In the order of the submission.
    pub tasks: Vec<TaskId>,
    /// The endpoint that will run them.
    pub endpoint: EndpointId,
}

/// Where a task is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    /// Accepted, and behind others.
    Queued,
    /// At its endpoint, for a worker that is free, or about to be.
    Waiting,
    /// At its endpoint, which builds the environment that it runs in.
    Environment,
    /// On a worker. Executions that take less than some 50 ms are not seen in this state.
    Running,
    /// It has its outcome.
    Done,
}

impl TaskState {
    /// All, in the order of a task's life.
    pub const ALL: [Self; 5] = [
        Self::Queued,
        Self::Waiting,
        Self::Environment,
        Self::Running,
        Self::Done,
    ];

    /// Its name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Waiting => "waiting",
            Self::Environment => "environment",
            Self::Running => "running",
            Self::Done => "done",
        }
    }

    /// Reads [`TaskState::name`].
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }
}

/// A task, without its arguments and its result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TaskStatus {
    /// Which.
    pub id: TaskId,
    /// Whose.
    #[serde(default)]
    pub owner: String,
    /// What it runs.
    pub function: FunctionId,
    /// The function's name, for people; empty once the function is gone.
    pub name: String,
    /// Where.
    pub endpoint: String,
    /// As it was submitted.
    pub tag: String,
    /// Where it is in its life.
    pub state: TaskState,
    /// How it ended, if it did not end well.
    pub error: Option<Failure>,
    /// In state `environment`, how the build goes: since when, what `uv` said last, or why it failed and when it is tried again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub building: Option<String>,
    /// Executions that were begun, or may have been.
    pub attempts: u16,
    /// Higher ones run first.
    pub priority: i8,
    /// Wall clock, milliseconds since the Unix epoch.
    pub submitted_at_ms: u64,
    /// When its endpoint was given it, the last time; 0 before.
    #[serde(default)]
    pub waiting_at_ms: u64,
    /// When its environment began to be built there; 0 if it did not have to be.
    #[serde(default)]
    pub environment_at_ms: u64,
    /// When its last execution began; 0 before.
    pub started_at_ms: u64,
    /// When it ended; 0 before.
    pub ended_at_ms: u64,
    /// Whether its arguments and its result are bytes as they are, as those of a shared library's function.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub raw: bool,
}

impl TaskStatus {
    /// How long it has been in each state so far.
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

/// How a task ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TaskOutcome {
    /// Which.
    pub id: TaskId,
    /// Its place among all that ended; asking for what came after it leaves out this one and those before.
    pub number: u64,
    /// Why not well; none if it ended well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
    /// Whether `answer` is a pickled exception.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub raised: bool,
    /// What the function answered, as its runtime encodes it.
    #[serde(default, skip_serializing_if = "Blob::is_empty")]
    pub answer: Blob,
    /// The same in the content store, in place of `answer`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Content>,
    /// The result, where the call was in JSON and the outcome is asked for in JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<serde_json::Value>,
    /// Executions that were begun, or may have been.
    pub attempts: u16,
    /// Names of tenants that may have made the answer and are not the task's owner: whose function it is, and whose endpoint it ran
    /// at. An empty one stands for a tenant that is not known any more. What is read of their answers must be data alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub foreign: Vec<String>,
    /// What made the answer. Inside the manager alone.
    #[serde(skip)]
    pub ran: Option<Ran>,
}

/// What makes an answer: a function at an endpoint, for a tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ran {
    /// Whose task it is.
    pub tenant: TenantId,
    /// What it runs.
    pub function: FunctionId,
    /// Where.
    pub endpoint: EndpointId,
}

impl TaskOutcome {
    /// With its result shown as JSON, where it is.
    pub fn shown(mut self) -> Self {
        if let Some((&JSON_ANSWER, text)) = self.answer.split_last() {
            self.result = serde_json::from_slice(text).ok();
        }
        self
    }

    /// What the function answered, wherever that is.
    pub fn payload(&self) -> Payload {
        Payload::of(self.answer.clone(), self.content)
    }

    /// The code of how it ended; none for well.
    pub fn code(&self) -> Option<Code> {
        self.error.as_ref().map(|failure| failure.code)
    }
}

/// Outcomes of one tag.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Outcomes {
    /// In the order of their numbers.
    pub outcomes: Vec<TaskOutcome>,
    /// What to name as `after` next.
    pub next: u64,
}

/// What a task has printed: the last 64 KiB of it, for as long as its outcome is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TaskPrinted {
    /// The number of the first byte of `pieces`; more than what was asked for if that is not kept any more.
    pub from: u64,
    /// What to ask for next.
    pub next: u64,
    /// In the order in which it was printed, as far as one can tell of two streams.
    pub pieces: Vec<TaskPiece>,
    /// Whether the task has ended, and all was read.
    pub over: bool,
}

/// Something that a task printed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TaskPiece {
    /// Standard output or error.
    pub stream: Stream,
    /// What. Pieces end anywhere.
    pub bytes: Blob,
}

/// Tasks to cancel: those named, all of a tag, or all at an endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Cancellation {
    /// These.
    pub tasks: Vec<TaskId>,
    /// All that are not done of this tag.
    pub tag: Option<String>,
    /// Of these, those at this endpoint, by name or id; all that are not done there, where neither tasks nor a tag are named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Whoever's they are: for operators, and, with an endpoint, for its owner.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub everybody: bool,
    /// Only those that no worker has been given yet. Those that run go on.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub only_waiting: bool,
}

/// Tasks that have ended to forget, with their outcomes: those named, and all of a tag.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Forgetting {
    /// These.
    pub tasks: Vec<TaskId>,
    /// All of this tag.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
}

/// What was forgotten.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Forgotten {
    /// Tasks that are not there any more.
    pub forgotten: u64,
    /// Tasks that were left alone, as they, or tasks that come after them, have not ended.
    pub left: u64,
}

/// What was cancelled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Cancelled {
    /// Tasks that had not begun, and never will.
    pub ended: u64,
    /// Tasks that run, or may run: they end soon, as `cancelled` unless they are done before.
    pub told: u64,
    /// Tasks that run, or may run, and go on, because only those that wait were to be cancelled.
    #[serde(default)]
    pub running: u64,
}

/// How many tasks are where.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TaskCounts {
    /// Accepted, and behind others.
    pub queued: u64,
    /// At their endpoint, for a worker.
    pub waiting: u64,
    /// At their endpoint, which builds the environment that they run in.
    #[serde(default)]
    pub environment: u64,
    /// On a worker.
    pub running: u64,
    /// Ended since the manager started; of one tag, all whose outcomes are kept.
    pub done: u64,
    /// Of those, not well.
    pub failed: u64,
    /// How long those that ended were in each state, added up; of one tag, also those that have not, so far.
    #[serde(default)]
    pub times: TaskTimes,
}

/// How long tasks were in each state before they ended, in milliseconds. What came before another attempt counts as queued.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TaskTimes {
    /// Behind others.
    pub queued_ms: u64,
    /// At their endpoint, for a worker.
    pub waiting_ms: u64,
    /// At their endpoint, for their environment.
    pub environment_ms: u64,
    /// On a worker.
    pub running_ms: u64,
}

impl TaskTimes {
    /// Of a task that came into these states then, or never (0), and left the last one at `until_ms`.
    pub fn between(marks: [u64; 4], until_ms: u64) -> Self {
        let mut until = until_ms;
        let mut times = [0; 4];
        for (time, mark) in times.iter_mut().zip(marks).rev() {
            if mark > 0 {
                // Clocks of two machines may differ.
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

    /// Adds another's.
    pub fn add(&mut self, other: Self) {
        self.queued_ms += other.queued_ms;
        self.waiting_ms += other.waiting_ms;
        self.environment_ms += other.environment_ms;
        self.running_ms += other.running_ms;
    }
}

impl TaskCounts {
    /// One more in this state, that has not ended.
    pub fn count(&mut self, state: TaskState) {
        match state {
            TaskState::Queued => self.queued += 1,
            TaskState::Waiting => self.waiting += 1,
            TaskState::Environment => self.environment += 1,
            TaskState::Running | TaskState::Done => self.running += 1,
        }
    }
}

/// What tasks of one function cost one tenant at one endpoint on one day.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UsageLine {
    /// When the day began, in UTC. Milliseconds since the Unix epoch.
    pub day_ms: u64,
    /// Who.
    pub tenant: String,
    /// What.
    pub function: FunctionId,
    /// The function's name, for people.
    pub name: String,
    /// Where.
    pub endpoint: String,
    /// Tasks that ended.
    pub tasks: u64,
    /// Of those, not well.
    pub failed: u64,
    /// Milliseconds on workers, of all their executions.
    pub took_ms: u64,
    /// What of that was charged, in billionths of the site's unit of account: executions at others' endpoints elsewhere. Those here
    /// are charged as leases are, and those at one's own endpoints are not.
    #[serde(default)]
    pub cost: u64,
}

/// Several tenants under one name, which functions and endpoints are shared with as `team:NAME`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct TeamSpec {
    /// For people.
    #[schema(max_length = 1_024)]
    pub description: String,
    /// Names of tenants.
    #[schema(max_items = 10_000)]
    pub members: Vec<String>,
}

/// A team.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Team {
    /// Its name, which no other has.
    pub name: String,
    /// Who changes it.
    pub owner: String,
    /// Who is in it.
    #[serde(flatten)]
    pub spec: TeamSpec,
}

/// What an endpoint is, as its owner says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct EndpointSpec {
    /// For people.
    pub description: String,
    /// How it gets nodes: `local`, `slurm`, ...
    pub provider: String,
    /// Names of tenants that may run tasks there too, `team:NAME` for those of a team, `*` for everyone.
    pub shared_with: Vec<String>,
    /// Whether each tenant's tasks run there as an account of its own, at an endpoint of the tenant's that is called after both.
    pub accounts: bool,
}

/// What an endpoint asks whose tenants have accounts: what the daemon of one of them connects with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AccountRequest {
    /// Whose.
    pub tenant: TenantId,
}

/// A site where tasks are to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EndpointRegistration {
    /// Its name, which no other has.
    #[schema(pattern = "^[A-Za-z][A-Za-z0-9._-]{0,127}$")]
    pub name: String,
    /// What it is.
    #[serde(flatten)]
    pub spec: EndpointSpec,
}

/// An endpoint that was registered, and the token with which its dispatcher connects: told this once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NewEndpoint {
    /// For `Authorization: Bearer`. An earlier one of the same endpoint is worth nothing any more.
    pub token: String,
    /// `https://address:port` of the manager.
    pub manager: String,
    /// Its certificate authority, PEM.
    pub ca_pem: String,
    /// How it does.
    pub status: EndpointStatus,
}

/// Where a block is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BlockState {
    /// In the batch system's queue.
    Pending,
    /// On its nodes.
    Running,
}

impl BlockState {
    /// Its name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
        }
    }
}

/// Nodes that a site got, or wants, by one job of its batch system: a pilot job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BlockStatus {
    /// Its name at the endpoint.
    pub name: String,
    /// What the batch system calls its job.
    pub job: String,
    /// Where it is in its life.
    pub state: BlockState,
    /// Nodes that it is for.
    pub nodes: u32,
    /// Nodes of it that are there.
    pub joined: u32,
    /// When it was submitted. Wall clock, milliseconds since the Unix epoch.
    pub submitted_at_ms: u64,
    /// When it ends at the latest; 0 if that is not known, or never.
    pub ends_at_ms: u64,
    /// What the batch system says of it, such as why it waits.
    pub words: String,
}

/// An endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EndpointStatus {
    /// Which.
    pub id: EndpointId,
    /// Its name.
    pub name: String,
    /// Whose it is.
    pub owner: String,
    /// Whether another tenant runs it: what it answers to the caller must be data alone, unless they trust that tenant.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub foreign: bool,
    /// What it is.
    #[serde(flatten)]
    pub spec: EndpointSpec,
    /// `up` while its dispatcher is connected, else `down`.
    pub state: String,
    /// Workers that it has now.
    pub workers: u32,
    /// What it has of a batch system, or asked it for.
    pub blocks: Vec<BlockStatus>,
    /// Why it has not got more, if it wants more: the words of whoever refused.
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
        // The manager's clock is ahead of this one's.
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
            // Whatever it says, it does not lead out of what is there.
            let _ = parts(&bytes);
        }
    }
}
