//! Functions, tasks and endpoints as the manager's HTTP API shows them.
//!
//! Each body travels as JSON or, for programs, as MessagePack ([`MESSAGE_PACK`]) with the same names.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::api::Runtime;
use crate::blob::Blob;
use crate::error::{Code, Failure};
use crate::executor::Form;
use crate::ids::{CodeHash, EndpointId, FunctionId, TaskId};

/// The content type of bodies that are not JSON.
pub const MESSAGE_PACK: &str = "application/msgpack";
/// Most bytes of a body that brings functions or tasks.
pub const MOST_BODY_BYTES: usize = 64 << 20;
/// Most bytes of one task's result.
pub const MOST_ANSWER_BYTES: usize = 64 << 20;
/// Most tasks in one submission.
pub const MOST_TASKS: usize = 100_000;
/// The longest tag, name or key.
pub const MOST_NAME_BYTES: usize = 256;
/// The longest that a request for outcomes is held open.
pub const MOST_WAIT_MS: u64 = 30_000;

/// Last byte of a payload that is a call in JSON, and of an answer in JSON; Python's workers know both.
pub const JSON_CALL: u8 = 5;
/// See [`JSON_CALL`].
pub const JSON_ANSWER: u8 = 4;

/// What one execution of a function needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Resources {
    /// Cores of its worker.
    pub cores: u16,
    /// Memory of its worker in bytes; 0 for the node's usual share.
    pub memory_bytes: u64,
    /// Milliseconds that one execution may take, after which it is ended with all its processes; 0 for no limit.
    pub walltime_ms: u32,
}

impl Default for Resources {
    fn default() -> Self {
        Self {
            cores: 1,
            memory_bytes: 0,
            walltime_ms: 0,
        }
    }
}

/// A function to register. The same one twice is one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FunctionRegistration {
    /// Its name; functions of one owner and name are versions, of which the last is meant by the name.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 256)]
    pub name: Option<String>,
    /// What it does, for people.
    #[serde(default)]
    pub description: String,
    /// Its source, for people.
    #[serde(default)]
    pub source: String,
    /// What `code` is.
    pub form: Form,
    /// What runs it; by default whichever Python there is, which suits source.
    #[serde(default = "Runtime::any_python")]
    pub runtime: Runtime,
    /// The code itself: the pickle, the library, or the text.
    pub code: Blob,
    /// What one execution needs.
    #[serde(default)]
    pub resources: Resources,
    /// Whether it may be executed again after a fault, when it may have been executed already.
    #[serde(default)]
    pub repeatable: bool,
    /// Names of tenants that may run it beside its owner; `*` for everyone.
    #[serde(default)]
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
    /// Where, by name or id; none where there is one endpoint alone.
    #[serde(default)]
    pub endpoint: Option<String>,
    /// A name of the submitter's for all that belongs together; outcomes are asked for by it.
    #[serde(default)]
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
    /// On a worker. Executions that take less than some 50 ms are not seen in this state.
    Running,
    /// It has its outcome.
    Done,
}

impl TaskState {
    /// All, in the order of a task's life.
    pub const ALL: [Self; 4] = [Self::Queued, Self::Waiting, Self::Running, Self::Done];

    /// Its name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Waiting => "waiting",
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
    /// What it runs.
    pub function: FunctionId,
    /// The function's name, for people.
    pub name: String,
    /// Where.
    pub endpoint: String,
    /// As it was submitted.
    pub tag: String,
    /// Where it is in its life.
    pub state: TaskState,
    /// How it ended, if it did not end well.
    pub error: Option<Failure>,
    /// Executions that were begun, or may have been.
    pub attempts: u16,
    /// Higher ones run first.
    pub priority: i8,
    /// Wall clock, milliseconds since the Unix epoch.
    pub submitted_at_ms: u64,
    /// When its last execution began; 0 before.
    pub started_at_ms: u64,
    /// When it ended; 0 before.
    pub ended_at_ms: u64,
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
    /// The result, where the call was in JSON and the outcome is asked for in JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<serde_json::Value>,
    /// Executions that were begun, or may have been.
    pub attempts: u16,
}

impl TaskOutcome {
    /// With its result shown as JSON, where it is.
    pub fn shown(mut self) -> Self {
        if let Some((&JSON_ANSWER, text)) = self.answer.split_last() {
            self.result = serde_json::from_slice(text).ok();
        }
        self
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

/// Tasks to cancel: those named, or all of a tag.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Cancellation {
    /// These.
    pub tasks: Vec<TaskId>,
    /// All that are not done of this tag.
    pub tag: Option<String>,
}

/// What was cancelled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Cancelled {
    /// Tasks that had not begun, and never will.
    pub ended: u64,
    /// Tasks that run, or may run: they end soon, as `cancelled` unless they are done before.
    pub told: u64,
}

/// How many tasks are where.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TaskCounts {
    /// Accepted, and behind others.
    pub queued: u64,
    /// At their endpoint, for a worker.
    pub waiting: u64,
    /// On a worker.
    pub running: u64,
    /// Ended since the manager started.
    pub done: u64,
    /// Of those, not well.
    pub failed: u64,
}

/// An endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EndpointStatus {
    /// Which.
    pub id: EndpointId,
    /// Its name.
    pub name: String,
    /// `up` while its dispatcher is connected, else `down`.
    pub state: String,
    /// Workers that it has now.
    pub workers: u32,
    /// Why it has not got more, if it wants more: the words of whoever refused.
    pub trouble: Option<String>,
    /// Its tasks, of all owners.
    pub tasks: TaskCounts,
}
