//! What must survive of functions and tasks. All of it is on the disk before anybody hears that it is.

use dayfly_protocol::blob::Blob;
use dayfly_protocol::contents::{Content, Payload};
use dayfly_protocol::dispatch::Attempt;
use dayfly_protocol::error::Failure;
use dayfly_protocol::executor::Form;
use dayfly_protocol::ids::{CodeHash, ContentHash, EndpointId, FunctionId, TaskId, TenantId};
use dayfly_protocol::tasks::{EndpointSpec, Ran, Resources, TaskCounts, TaskOutcome, TaskPiece};
use serde::{Deserialize, Serialize};

use super::Pending;
use super::accounts::{SharingStore, Usage, UsageKey};
use super::flows::FlowStore;
use super::triggers::TriggerStore;

/// Outcomes of one answer have so many bytes, roughly, unless a single one has more.
pub const PAGE_BYTES: usize = 8 << 20;

/// Tasks that are looked at in one step of a list.
pub const LOOK: u32 = 10_000;
/// Tasks that are counted in one step: their times stand behind their answers, which may be long.
pub const TALLIED: u32 = 1_000;

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
    pub runtime: dayfly_protocol::api::Runtime,
    /// The container image that it runs in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
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
    /// Whose it is; nobody's where it is the manager's own.
    pub tenant: TenantId,
    /// What it is.
    pub spec: EndpointSpec,
    /// Whose account's it is, and where, if it is one.
    pub of: Option<AccountOf>,
}

/// The account of a tenant at an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountOf {
    /// The endpoint that starts this one.
    pub endpoint: EndpointId,
    /// Whose tasks run here.
    pub tenant: TenantId,
}

/// What is kept of an endpoint as JSON.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct KeptEndpoint {
    #[serde(flatten)]
    spec: EndpointSpec,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    of: Option<AccountOf>,
}

impl EndpointRecord {
    /// What is kept of it as JSON.
    pub(crate) fn kept(&self) -> KeptEndpoint {
        KeptEndpoint {
            spec: self.spec.clone(),
            of: self.of,
        }
    }

    /// The other way.
    pub(crate) fn of_kept(id: EndpointId, name: String, tenant: TenantId, kept: KeptEndpoint) -> Self {
        let KeptEndpoint { spec, of } = kept;
        Self {
            id,
            name,
            tenant,
            spec,
            of,
        }
    }
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
    /// Milliseconds before the first execution after one in which its function failed.
    pub retry_wait_ms: u32,
    /// Wall clock; 0 for none.
    pub deadline_at_ms: u64,
    /// Wall clock.
    pub submitted_at_ms: u64,
    /// Tasks that must have ended well before.
    pub after: Vec<TaskId>,
    /// Whether their answers go along with the arguments.
    pub with_answers: bool,
    /// What it has in common with tasks whose answer it may have, if it may.
    pub memo: Option<[u8; 32]>,
}

/// What an execution is given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Given {
    /// What the function is called with.
    pub arguments: Payload,
    /// What those answered that come before, where that goes along; none for one that is forgotten.
    pub answers: Vec<Option<Payload>>,
    /// What made each of these.
    pub ran: Vec<Option<Ran>>,
}

impl Given {
    /// How many bytes are in it.
    pub fn bytes_here(&self) -> usize {
        let parts = self.answers.iter().flatten().chain([&self.arguments]);
        parts.map(Payload::bytes_here).sum()
    }
}

/// How a task that others come after ended: whose it is, and why not well.
pub type Ending = (TenantId, Option<Failure>);

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
    pub arguments: Payload,
}

/// A task that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedTask {
    /// How.
    pub outcome: TaskOutcome,
    /// When its endpoint was given it, the last time; 0 if it never was.
    pub waiting_at_ms: u64,
    /// When its environment began to be built there; 0 if it did not have to be.
    pub environment_at_ms: u64,
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
    /// When its endpoint was given it, the last time.
    pub waiting_at_ms: u64,
    /// When its environment began to be built there.
    pub environment_at_ms: u64,
    /// When its last execution began.
    pub started_at_ms: u64,
    /// When it ended.
    pub ended_at_ms: u64,
    /// Bytes of its arguments that are with it.
    pub inline_bytes: u64,
}

/// Which tasks are wanted, the latest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskQuery {
    /// Of one tenant.
    pub tenant: Option<TenantId>,
    /// Of one tag.
    pub tag: Option<String>,
    /// Of one endpoint.
    pub endpoint: Option<EndpointId>,
    /// Of one of these functions.
    pub functions: Option<Vec<FunctionId>>,
    /// Of those that have ended, such as did so.
    pub ended: Option<How>,
    /// Earlier ones than this: the last of the page before.
    pub before: Option<TaskId>,
    /// At most.
    pub limit: u32,
}

/// Which ids are wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Like {
    /// Of one tenant's tasks.
    pub tenant: Option<TenantId>,
    /// How they begin or end.
    pub digits: String,
    /// Not smaller ones.
    pub from: TaskId,
    /// Smaller ones.
    pub before: TaskId,
}

/// The last of what a task printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptOutput {
    /// Which.
    pub task: TaskId,
    /// Where it ran.
    pub endpoint: EndpointId,
    /// The number of the first byte.
    pub first: u64,
    /// What.
    pub pieces: Vec<TaskPiece>,
}

impl KeptOutput {
    /// Its pieces in one column.
    pub(crate) fn packed(&self) -> Vec<u8> {
        // Pieces are plain bytes, which MessagePack always takes.
        rmp_serde::to_vec_named(&self.pieces).unwrap_or_default()
    }

    /// What [`KeptOutput::packed`] wrote; nothing where it cannot be read.
    pub(crate) fn unpacked(column: &[u8]) -> Vec<TaskPiece> {
        rmp_serde::from_slice(column).unwrap_or_default()
    }
}

/// What one step of forgetting came by.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Passed {
    /// Where to go on, if anywhere.
    pub next: Option<TaskId>,
    /// The functions of all tasks that were looked at, each once.
    pub functions: Vec<FunctionId>,
    /// Bytes of printed output that went.
    pub printed: Vec<(TenantId, u64)>,
}

/// A task that was forgotten because its owner wanted that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gone {
    /// Which.
    pub id: TaskId,
    /// Its tag.
    pub tag: String,
    /// See [`TaskSpec::memo`].
    pub memo: Option<[u8; 32]>,
    /// Bytes of printed output that went with it.
    pub printed_bytes: u64,
}

/// An answer that others may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Memoized {
    /// See [`TaskSpec::memo`].
    pub memo: [u8; 32],
    /// What it is.
    pub answer: Payload,
    /// When its task ended.
    pub ended_at_ms: u64,
}

/// How a task ended, as far as one asks for that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// In any way.
    Somehow,
    /// Well.
    Well,
    /// Not well.
    Failed,
}

/// Tasks that were found in one look.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskPage {
    /// The latest first.
    pub tasks: Vec<TaskRecord>,
    /// Where to look on, as [`TaskQuery::before`]; none where there are no more, or enough were found.
    pub next: Option<TaskId>,
}

/// All that a starting manager needs to know.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskSnapshot {
    /// Every function.
    pub functions: Vec<FunctionRecord>,
    /// Every endpoint.
    pub endpoints: Vec<EndpointRecord>,
    /// The processes that tasks went to last, of endpoints elsewhere.
    pub instances: Vec<(EndpointId, u64)>,
    /// Tasks that have not ended.
    pub tasks: Vec<TaskRecord>,
    /// The greatest number of an outcome.
    pub last_number: u64,
    /// How those ended that tasks come after which have not.
    pub endings: Vec<(TaskId, Option<Failure>)>,
    /// How many bytes of contents tenants have.
    pub contents: Vec<(TenantId, u64)>,
    /// How many bytes of printed output tenants have.
    pub printed: Vec<(TenantId, u64)>,
    /// What tenants' tasks cost in all, in billionths.
    pub costs: Vec<(TenantId, u64)>,
}

/// The manager's memory of functions and tasks. Writes take effect in the order of the calls; each is kept entirely or not at all.
pub trait TaskStore: TriggerStore + FlowStore + SharingStore + Send + Sync + 'static {
    /// Whoever else wants them may have the tasks from now on; every later write is [refused](super::StoreError::Moved).
    fn release(&self) -> Pending<()> {
        Pending::ready(Ok(()))
    }

    /// All but outcomes.
    fn load(&self) -> Pending<TaskSnapshot>;

    /// Keeps a function, as the next version of its name; as it was if it is known.
    fn register(&self, function: FunctionRecord, code: Blob) -> Pending<FunctionRecord>;

    /// Changes what is said of functions; those that are not known stay so.
    fn change(&self, functions: Vec<(FunctionId, FunctionSpec)>) -> Pending<()>;

    /// Forgets functions, with their code.
    fn remove_functions(&self, functions: Vec<FunctionId>) -> Pending<()>;

    /// A function's code.
    fn code(&self, function: FunctionId) -> Pending<Option<Blob>>;

    /// Keeps an endpoint. One that has the name already keeps its id, and changes only for its owner; answers what is kept.
    fn endpoint(&self, endpoint: EndpointRecord) -> Pending<EndpointRecord>;

    /// From now on tasks go to this process of an endpoint's.
    fn instance(&self, endpoint: EndpointId, instance: u64) -> Pending<()>;

    /// Forgets an endpoint.
    fn remove_endpoint(&self, endpoint: EndpointId) -> Pending<()>;

    /// Keeps tasks, and answers which were not known before.
    fn enqueue(&self, tasks: Vec<NewTask>) -> Pending<Vec<bool>>;

    /// Executions are about to begin; answers what those are given for which that is wanted.
    fn begin(&self, tasks: Vec<(TaskId, Tries, bool)>) -> Pending<Vec<Given>>;

    /// How tasks ended; none for those that have not, or are not known.
    fn endings(&self, tasks: Vec<TaskId>) -> Pending<Vec<Option<Ending>>>;

    /// Tasks ended, and what some have cost since the last call. Their arguments are not kept.
    fn end(&self, tasks: Vec<EndedTask>, usage: Vec<(UsageKey, Usage)>) -> Pending<()>;

    /// Keeps what tasks that have ended printed, in place of what was kept of them before: as long as their outcomes, only for tasks
    /// of the endpoint that is named, and none of these tenants, which have too much. Returns how many bytes more tenants have of it.
    fn keep_printed(&self, printed: Vec<KeptOutput>, full: Vec<TenantId>) -> Pending<Vec<(TenantId, i64)>>;

    /// What was kept of what a task printed: the number of its first byte, and the pieces.
    fn printed(&self, task: TaskId) -> Pending<Option<(u64, Vec<TaskPiece>)>>;

    /// Outcomes of a tenant's tag with numbers above this, in the order of their numbers.
    fn outcomes(&self, tenant: TenantId, tag: String, after: u64, limit: u32) -> Pending<Vec<TaskOutcome>>;

    /// The outcome of one task, if it has one.
    fn outcome(&self, task: TaskId) -> Pending<Option<TaskOutcome>>;

    /// One task.
    fn task(&self, task: TaskId) -> Pending<Option<TaskRecord>>;

    /// Ids of tasks that begin or end as given, among the next [`LOOK`] before `before`, and where to look on, if anywhere.
    fn like(&self, like: Like) -> Pending<(Vec<TaskId>, Option<TaskId>)>;

    /// Tasks, the latest first. Looks at some [`LOOK`] of them, so that no write waits long for it.
    fn tasks(&self, query: TaskQuery) -> Pending<TaskPage>;

    /// How many of a tenant's tag have ended with numbers above `after` and up to `up_to`, how many of them not well, and their
    /// times; counts [`TALLIED`] at a time, and answers the last number, where there are more.
    fn tally(&self, tenant: TenantId, tag: String, after: u64, up_to: u64) -> Pending<(TaskCounts, Option<u64>)>;

    /// Keeps that a tenant's content is stored; whether that was not known.
    fn keep_content(&self, tenant: TenantId, content: Content, now_ms: u64) -> Pending<bool>;

    /// Contents of a tenant that are about to be used, which keeps them for a while; none where there is no such content.
    fn use_contents(&self, tenant: TenantId, hashes: Vec<ContentHash>, now_ms: u64) -> Pending<Vec<Option<Content>>>;

    /// Contents that no task has and nobody used since this time, some at a time: from now on they are not known, and are
    /// answered until they are [dropped](Self::drop_contents).
    fn unused_contents(&self, unused_since_ms: u64) -> Pending<Vec<(TenantId, Content)>>;

    /// Unused contents are deleted.
    fn drop_contents(&self, contents: Vec<(TenantId, Content)>) -> Pending<()>;

    /// Forgets tasks that ended before this time, some at a time: begins behind `from`.
    fn forget(&self, ended_before_ms: u64, from: TaskId) -> Pending<Passed>;

    /// Tasks of a tenant's tag that have ended, with numbers above one and up to another, in the order of these; so many at most.
    fn ended(&self, tenant: TenantId, tag: String, after: u64, up_to: u64, most: u32) -> Pending<Vec<(u64, TaskId)>>;

    /// Forgets those of these tasks that are this tenant's and ended with numbers up to this one, but for those of some tags.
    fn forget_these(&self, tenant: TenantId, tasks: Vec<TaskId>, up_to: u64, but: Vec<String>) -> Pending<Vec<Gone>>;

    /// Answers of tasks that ended well, from this time on, and may be others' too, the last first: so many at most, and so many bytes.
    fn memoized(&self, ended_since_ms: u64, most: u32, most_bytes: u64) -> Pending<Vec<Memoized>>;
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
