//! What must survive of functions and tasks. All of it is on the disk before anybody hears that it is.

use mayfly_protocol::blob::Blob;
use mayfly_protocol::dispatch::Attempt;
use mayfly_protocol::error::Failure;
use mayfly_protocol::executor::Form;
use mayfly_protocol::ids::{CodeHash, EndpointId, FunctionId, TaskId, TenantId};
use mayfly_protocol::tasks::{Resources, TaskOutcome};
use serde::{Deserialize, Serialize};

use super::Pending;

/// Outcomes of one answer have so many bytes, roughly, unless a single one has more.
pub const PAGE_BYTES: usize = 8 << 20;

/// What a function is, beside its code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionSpec {
    /// For people.
    pub description: String,
    /// For people.
    pub source: String,
    /// What the code is.
    pub form: Form,
    /// What runs it.
    pub runtime: mayfly_protocol::api::Runtime,
    /// What one execution needs.
    pub resources: Resources,
    /// Whether it may be executed again.
    pub repeatable: bool,
    /// Names of tenants that may run it too; `*` for everyone.
    pub shared_with: Vec<String>,
}

/// A function in the books.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionRecord {
    /// Which.
    pub id: FunctionId,
    /// Whose.
    pub tenant: TenantId,
    /// Its name, if it has one.
    pub name: Option<String>,
    /// Which of its name's versions; 0 without a name. The store counts them.
    pub version: u32,
    /// SHA-256 of its code.
    pub hash: CodeHash,
    /// What it is.
    pub spec: FunctionSpec,
    /// Wall clock, milliseconds since the Unix epoch.
    pub registered_at_ms: u64,
}

/// An endpoint in the books.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointRecord {
    /// Which.
    pub id: EndpointId,
    /// Its name, which no other has.
    pub name: String,
}

/// What is known of a task from its acceptance on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskSpec {
    /// Which.
    pub id: TaskId,
    /// Whose.
    pub tenant: TenantId,
    /// What it runs.
    pub function: FunctionId,
    /// Where.
    pub endpoint: EndpointId,
    /// As it was submitted.
    pub tag: String,
    /// Higher ones run first.
    pub priority: i8,
    /// Milliseconds that one execution may take.
    pub walltime_ms: u32,
    /// Whether it may be executed again after a fault.
    pub repeatable: bool,
    /// Wall clock; 0 for none.
    pub deadline_at_ms: u64,
    /// Wall clock.
    pub submitted_at_ms: u64,
}

/// How often a task was executed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tries {
    /// Executions that were begun, or may have been.
    pub attempts: u16,
    /// How often it may yet be executed again because its function failed.
    pub retries_left: u16,
    /// Executions that faults have cost.
    pub faults: u16,
}

/// A task to keep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewTask {
    /// What it is.
    pub spec: TaskSpec,
    /// With one attempt if it is sent as soon as it is kept.
    pub tries: Tries,
    /// What its function is called with.
    pub arguments: Blob,
}

/// A task that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedTask {
    /// How.
    pub outcome: TaskOutcome,
    /// When its last execution began; 0 if none did.
    pub started_at_ms: u64,
    /// When it ended.
    pub ended_at_ms: u64,
}

/// A task in the books, without arguments and answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskRecord {
    /// What it is.
    pub spec: TaskSpec,
    /// How often it was executed.
    pub tries: Tries,
    /// How it ended, if it did: its number, and why not well.
    pub ended: Option<(u64, Option<Failure>)>,
    /// When its last execution began.
    pub started_at_ms: u64,
    /// When it ended.
    pub ended_at_ms: u64,
}

/// Which tasks are wanted, the latest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskQuery {
    /// Of one tenant.
    pub tenant: Option<TenantId>,
    /// Of one tag.
    pub tag: Option<String>,
    /// Earlier ones than this: the last of the page before.
    pub before: Option<TaskId>,
    /// At most.
    pub limit: u32,
}

/// All that a starting manager needs to know.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskSnapshot {
    /// Every function.
    pub functions: Vec<FunctionRecord>,
    /// Every endpoint.
    pub endpoints: Vec<EndpointRecord>,
    /// Tasks that have not ended.
    pub tasks: Vec<TaskRecord>,
    /// The greatest number of an outcome.
    pub last_number: u64,
}

/// The manager's memory of functions and tasks. Writes take effect in the order of the calls; each is kept entirely or not at all.
pub trait TaskStore: Send + Sync + 'static {
    /// All but outcomes.
    fn load(&self) -> Pending<TaskSnapshot>;

    /// Keeps a function, as the next version of its name; as it was if it is known.
    fn register(&self, function: FunctionRecord, code: Blob) -> Pending<FunctionRecord>;

    /// A function's code.
    fn code(&self, function: FunctionId) -> Pending<Option<Blob>>;

    /// Keeps an endpoint; answers the one that has the name already, if there is one.
    fn endpoint(&self, endpoint: EndpointRecord) -> Pending<EndpointRecord>;

    /// Keeps tasks, and answers which were not known before.
    fn enqueue(&self, tasks: Vec<NewTask>) -> Pending<Vec<bool>>;

    /// Executions are about to begin; answers the arguments of those tasks for which they are wanted.
    fn begin(&self, tasks: Vec<(TaskId, Tries, bool)>) -> Pending<Vec<Blob>>;

    /// Tasks ended. Their arguments are not kept.
    fn end(&self, tasks: Vec<EndedTask>) -> Pending<()>;

    /// Outcomes of a tenant's tag with numbers above this, in the order of their numbers.
    fn outcomes(&self, tenant: TenantId, tag: String, after: u64, limit: u32) -> Pending<Vec<TaskOutcome>>;

    /// The outcome of one task, if it has one.
    fn outcome(&self, task: TaskId) -> Pending<Option<TaskOutcome>>;

    /// One task.
    fn task(&self, task: TaskId) -> Pending<Option<TaskRecord>>;

    /// Tasks, the latest first.
    fn tasks(&self, query: TaskQuery) -> Pending<Vec<TaskRecord>>;

    /// Forgets tasks that ended before this time, some at a time: begins behind `from`, and answers where to go on, if anywhere.
    fn forget(&self, ended_before_ms: u64, from: TaskId) -> Pending<Option<TaskId>>;
}

impl Tries {
    /// The execution that it stands at.
    pub fn attempt(self, task: TaskId) -> Attempt {
        Attempt {
            task,
            number: self.attempts,
        }
    }
}
