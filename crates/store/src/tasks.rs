//! Durable state of functions and tasks. It is on the disk before it is confirmed.

use dayfly_protocol::api::LoanSeries;
use dayfly_protocol::blob::Blob;
use dayfly_protocol::contents::{Content, Payload};
use dayfly_protocol::dispatch::Attempt;
use dayfly_protocol::endpoints::EndpointSpec;
use dayfly_protocol::error::Failure;
use dayfly_protocol::executor::Form;
use dayfly_protocol::functions::Resources;
use dayfly_protocol::ids::{CodeHash, ContentHash, EndpointId, FunctionId, TaskId, TenantId};
use dayfly_protocol::tasks::{OutputPiece, ResultOrigin, TaskCounts, TaskOutcome};
use serde::{Deserialize, Serialize};

use super::Pending;
pub use super::content_list::{ListedContent, MAX_COUNTED_USES};
use super::flows::FlowStore;
pub use super::task_loans::StoredLoans;
pub use super::task_output::StoredOutput;
use super::teams::{TeamStore, Usage, UsageKey};
use super::triggers::TriggerStore;

/// Target size of one page of outcomes in bytes. A single larger outcome is still returned.
pub const PAGE_BYTES: usize = 8 << 20;
/// Bytes of a failed task's inline arguments that are kept in any case. Longer ones count in its tenant's quota.
pub const MAX_SHORT_ARGUMENTS: usize = 4 << 10;
/// Tasks that one step of a list examines.
pub const LIST_STEP: u32 = 10_000;
/// Tasks that one step of counting examines. It is smaller because the store reads a task's times after its result,
/// which may be long.
pub const TALLY_STEP: u32 = 1_000;

/// Properties of a function, without its code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionSpec {
    /// Description, for display.
    pub description: String,
    /// Source, for display.
    pub source: String,
    /// Form of the code.
    pub form: Form,
    /// Runtime that it needs.
    pub runtime: dayfly_protocol::api::Runtime,
    /// Container image to run in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Resources of one execution.
    pub resources: Resources,
    /// Whether it may be executed again after a fault.
    pub repeatable: bool,
    /// Names of tenants other than the owner that may run it; `*` for everyone.
    pub shared_with: Vec<String>,
}

/// A stored function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionRecord {
    /// Id of the function.
    pub id: FunctionId,
    /// Tenant that owns it.
    pub tenant: TenantId,
    /// Name, if it has one.
    pub name: Option<String>,
    /// Version among the owner's functions of this name; 0 without a name. Assigned by the store.
    pub version: u32,
    /// SHA-256 of its code.
    pub hash: CodeHash,
    /// Properties of the function.
    pub spec: FunctionSpec,
    /// Time of registration, in milliseconds since the Unix epoch.
    pub registered_at_ms: u64,
}

/// A stored endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointRecord {
    /// Id of the endpoint.
    pub id: EndpointId,
    /// Unique name.
    pub name: String,
    /// Tenant that owns it; all zeros for the manager's own endpoint.
    pub tenant: TenantId,
    /// Settings of the endpoint.
    pub spec: EndpointSpec,
    /// The tenant's account that it runs as, if it is an endpoint for one account.
    pub of: Option<AccountOf>,
}

/// A tenant's account at an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountOf {
    /// The endpoint that starts this one.
    pub endpoint: EndpointId,
    /// The tenant whose tasks run here.
    pub tenant: TenantId,
}

/// The columns of an endpoint that are stored as JSON.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct StoredEndpoint {
    #[serde(flatten)]
    spec: EndpointSpec,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    of: Option<AccountOf>,
}

impl EndpointRecord {
    /// Returns the part that is stored as JSON.
    pub(crate) fn stored(&self) -> StoredEndpoint {
        StoredEndpoint {
            spec: self.spec.clone(),
            of: self.of,
        }
    }

    /// Assembles a record from its columns.
    pub(crate) fn from_stored(id: EndpointId, name: String, tenant: TenantId, stored: StoredEndpoint) -> Self {
        let StoredEndpoint { spec, of } = stored;
        Self {
            id,
            name,
            tenant,
            spec,
            of,
        }
    }
}

/// The properties of a task that are known at its acceptance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskSpec {
    /// Id of the task.
    pub id: TaskId,
    /// Tenant that owns it.
    pub tenant: TenantId,
    /// The function that it runs.
    pub function: FunctionId,
    /// The endpoint that runs it.
    pub endpoint: EndpointId,
    /// Tag of the submission.
    pub tag: String,
    /// Tasks with a higher priority run first.
    pub priority: i8,
    /// Time limit of one execution in milliseconds.
    pub walltime_ms: u32,
    /// Whether it may be executed again after a fault.
    pub repeatable: bool,
    /// Delay before a retry after its function failed, in milliseconds.
    pub retry_wait_ms: u32,
    /// Deadline, in milliseconds since the Unix epoch; 0 for none.
    pub deadline_at_ms: u64,
    /// Time of acceptance, in milliseconds since the Unix epoch.
    pub submitted_at_ms: u64,
    /// Tasks that must succeed first.
    pub after: Vec<TaskId>,
    /// Whether their results are passed with the arguments.
    pub with_answers: bool,
    /// Hash shared by tasks whose result may replace this one's, if memoization is enabled.
    pub memo: Option<[u8; 32]>,
}

/// Inputs of an execution.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskInputs {
    /// Arguments of the function.
    pub arguments: Payload,
    /// Results of the dependencies, if they are passed; `None` for a task that was deleted.
    pub answers: Vec<Option<Payload>>,
    /// Origin of each of these results.
    pub ran: Vec<Option<ResultOrigin>>,
}

impl TaskInputs {
    /// Inline bytes of all inputs.
    pub fn inline_bytes(&self) -> usize {
        let parts = self.answers.iter().flatten().chain([&self.arguments]);
        parts.map(Payload::inline_bytes).sum()
    }
}

/// Owner of a dependency, and why it failed (`None` if it succeeded).
pub type Ending = (TenantId, Option<Failure>);

/// Counts a task's executions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tries {
    /// Executions that began or may have begun.
    pub attempts: u16,
    /// Remaining retries after failures of its function.
    pub retries_left: u16,
    /// Executions lost to faults.
    pub faults: u16,
}

/// A task to store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewTask {
    /// Properties of the task.
    pub spec: TaskSpec,
    /// Has one attempt if the task is sent as soon as it is stored.
    pub tries: Tries,
    /// Arguments of the function.
    pub arguments: Payload,
}

/// A task that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedTask {
    /// Outcome of the task.
    pub outcome: TaskOutcome,
    /// When its endpoint last received it, in milliseconds since the Unix epoch; 0 for never.
    pub waiting_at_ms: u64,
    /// When the endpoint began to build its environment; 0 if no build was needed.
    pub environment_at_ms: u64,
    /// When its last execution began; 0 if none did.
    pub started_at_ms: u64,
    /// When it ended.
    pub ended_at_ms: u64,
    /// Whether arguments that are not [short](MAX_SHORT_ARGUMENTS) are kept if it failed.
    pub keeps_arguments: bool,
}

/// A stored task, without arguments and result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskRecord {
    /// Properties of the task.
    pub spec: TaskSpec,
    /// Counts of its executions.
    pub tries: Tries,
    /// If it has ended, the number of its outcome and why it failed.
    pub ended: Option<(u64, Option<Failure>)>,
    /// When its endpoint last received it, in milliseconds since the Unix epoch; 0 for never.
    pub waiting_at_ms: u64,
    /// When the endpoint began to build its environment; 0 if no build was needed.
    pub environment_at_ms: u64,
    /// When its last execution began; 0 if none did.
    pub started_at_ms: u64,
    /// When it ended; 0 while it is unfinished.
    pub ended_at_ms: u64,
    /// Bytes of its inline arguments, if they are still stored.
    pub inline_bytes: u64,
    /// Bytes of the arguments that it was submitted with; `None` if an earlier release stored it.
    pub argument_bytes: Option<u64>,
}

/// Selects tasks, latest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskQuery {
    /// Tasks of this tenant.
    pub tenant: Option<TenantId>,
    /// Tasks with this tag.
    pub tag: Option<String>,
    /// Tasks at this endpoint.
    pub endpoint: Option<EndpointId>,
    /// Tasks that run one of these functions.
    pub functions: Option<Vec<FunctionId>>,
    /// Ended tasks with such an outcome.
    pub ended: Option<OutcomeFilter>,
    /// Earlier tasks than this one, the last of the previous page.
    pub before: Option<TaskId>,
    /// Most tasks.
    pub limit: u32,
}

/// Selects task ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdQuery {
    /// Tasks of this tenant.
    pub tenant: Option<TenantId>,
    /// Digits with which the ids begin or end.
    pub digits: String,
    /// Smallest id.
    pub from: TaskId,
    /// Upper bound of the ids, exclusive.
    pub before: TaskId,
}

/// Result of one step of deleting old tasks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExpiryStep {
    /// Where the next step begins, if there may be more tasks.
    pub next: Option<TaskId>,
    /// Functions of all examined tasks, each once.
    pub functions: Vec<FunctionId>,
    /// Bytes of deleted output and kept arguments, by tenant.
    pub freed_bytes: Vec<(TenantId, u64)>,
}

/// A task that was deleted at its owner's request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeletedTask {
    /// Id of the task.
    pub id: TaskId,
    pub tag: String,
    /// See [`TaskSpec::memo`].
    pub memo: Option<[u8; 32]>,
    /// Bytes of deleted output and kept arguments.
    pub freed_bytes: u64,
}

/// A result that other tasks may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Memoized {
    /// See [`TaskSpec::memo`].
    pub memo: [u8; 32],
    pub answer: Payload,
    /// When its task ended, in milliseconds since the Unix epoch.
    pub ended_at_ms: u64,
}

/// Returns how many bytes of a failed task's inline arguments count in its tenant's quota.
pub fn counted_bytes(inline_bytes: u64) -> u64 {
    if inline_bytes > MAX_SHORT_ARGUMENTS as u64 {
        inline_bytes
    } else {
        0
    }
}

/// Outcomes that a query selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutcomeFilter {
    /// Any outcome.
    Any,
    /// Success.
    Succeeded,
    /// Failure.
    Failed,
}

/// Tasks found in one step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskPage {
    /// The tasks, latest first.
    pub tasks: Vec<TaskRecord>,
    /// Where the next step begins, as [`TaskQuery::before`]; `None` if there are no more tasks, or enough were found.
    pub next: Option<TaskId>,
}

/// State that a manager loads when it starts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskSnapshot {
    /// All functions.
    pub functions: Vec<FunctionRecord>,
    /// All endpoints.
    pub endpoints: Vec<EndpointRecord>,
    /// For remote endpoints, the dispatcher process that last received tasks.
    pub instances: Vec<(EndpointId, u64)>,
    /// Unfinished tasks.
    pub tasks: Vec<TaskRecord>,
    /// Greatest number of an outcome.
    pub last_number: u64,
    /// How those tasks ended that unfinished tasks depend on.
    pub endings: Vec<(TaskId, Option<Failure>)>,
    /// Bytes in the content store, by tenant.
    pub contents: Vec<(TenantId, u64)>,
    /// Bytes of stored output, and of kept arguments that are not short, by tenant. A tenant may occur twice.
    pub kept_bytes: Vec<(TenantId, u64)>,
    /// Total cost of tasks in billionths, by tenant.
    pub costs: Vec<(TenantId, u64)>,
}

/// Durable state of functions and tasks. Writes take effect in the order of the calls. Each is kept completely or not
/// at all.
pub trait TaskStore: TriggerStore + FlowStore + TeamStore + Send + Sync + 'static {
    /// Releases the tasks to another manager. Every later write is [refused](super::StoreError::Moved).
    fn release(&self) -> Pending<()> {
        Pending::ready(Ok(()))
    }

    /// Loads everything except outcomes.
    fn load(&self) -> Pending<TaskSnapshot>;

    /// Stores a function as the next version of its name. Returns the existing function if it is known.
    fn register(&self, function: FunctionRecord, code: Blob) -> Pending<FunctionRecord>;

    /// Changes properties of functions. Ignores unknown functions.
    fn change(&self, functions: Vec<(FunctionId, FunctionSpec)>) -> Pending<()>;

    /// Deletes functions and their code.
    fn remove_functions(&self, functions: Vec<FunctionId>) -> Pending<()>;

    /// Returns a function's code.
    fn code(&self, function: FunctionId) -> Pending<Option<Blob>>;

    /// Stores an endpoint and returns the stored one. An endpoint with an existing name keeps its id, and only its
    /// owner can change it.
    fn endpoint(&self, endpoint: EndpointRecord) -> Pending<EndpointRecord>;

    /// Records the dispatcher process that receives an endpoint's tasks from now on.
    fn instance(&self, endpoint: EndpointId, instance: u64) -> Pending<()>;

    /// Deletes an endpoint.
    fn remove_endpoint(&self, endpoint: EndpointId) -> Pending<()>;

    /// Stores tasks. Returns for each whether it is new.
    fn enqueue(&self, tasks: Vec<NewTask>) -> Pending<Vec<bool>>;

    /// Records executions that are about to begin. Returns the inputs of those whose flag is set.
    fn begin(&self, tasks: Vec<(TaskId, Tries, bool)>) -> Pending<Vec<TaskInputs>>;

    /// Returns how tasks ended; `None` for unfinished and unknown ones.
    fn endings(&self, tasks: Vec<TaskId>) -> Pending<Vec<Option<Ending>>>;

    /// Stores outcomes and the usage since the last call. Deletes the arguments, except those of failed tasks that are
    /// [short](MAX_SHORT_ARGUMENTS) or [kept](EndedTask::keeps_arguments).
    fn end(&self, tasks: Vec<EndedTask>, usage: Vec<(UsageKey, Usage)>) -> Pending<()>;

    /// Returns the kept arguments of a failed task.
    fn kept_arguments(&self, task: TaskId) -> Pending<Option<Payload>>;

    /// Stores the output of ended tasks and replaces earlier output. Ignores tasks of other endpoints than the one
    /// named, and those of the tenants in `full`, which have too much output. Returns the change in stored bytes by
    /// tenant.
    fn keep_output(&self, outputs: Vec<StoredOutput>, full: Vec<TenantId>) -> Pending<Vec<(TenantId, i64)>>;

    /// Returns the stored output of a task: the offset of its first byte, and the pieces.
    fn output(&self, task: TaskId) -> Pending<Option<(u64, Vec<OutputPiece>)>>;

    /// Stores what tasks lent and borrowed, each task once. Ignores unfinished tasks, other attempts than the last, and
    /// tasks of other endpoints than the one named. Deleted with the task.
    fn keep_loans(&self, loans: Vec<StoredLoans>) -> Pending<()>;

    /// Returns what a task lent and borrowed, if that is stored.
    fn loans(&self, task: TaskId) -> Pending<Option<LoanSeries>>;

    /// Returns outcomes of a tenant's tag with numbers above `after`, in order.
    fn outcomes(&self, tenant: TenantId, tag: String, after: u64, limit: u32) -> Pending<Vec<TaskOutcome>>;

    /// Returns the outcome of a task, if it has ended.
    fn outcome(&self, task: TaskId) -> Pending<Option<TaskOutcome>>;

    /// Returns a task.
    fn task(&self, task: TaskId) -> Pending<Option<TaskRecord>>;

    /// Returns the ids that begin or end as given, among the next [`LIST_STEP`] tasks before `before`, and where the
    /// next step begins.
    fn find_ids(&self, wanted: IdQuery) -> Pending<(Vec<TaskId>, Option<TaskId>)>;

    /// Returns tasks, latest first. Examines about [`LIST_STEP`] tasks, so that no write waits long.
    fn tasks(&self, query: TaskQuery) -> Pending<TaskPage>;

    /// Counts the outcomes of a tenant's tag with numbers above `after` and up to `up_to`, with failures and times.
    /// Counts [`TALLY_STEP`] at a time, and returns the last number if there are more.
    fn tally(&self, tenant: TenantId, tag: String, after: u64, up_to: u64) -> Pending<(TaskCounts, Option<u64>)>;

    /// Records that a tenant's content is stored. Returns whether it is new.
    fn keep_content(&self, tenant: TenantId, content: Content, now_ms: u64) -> Pending<bool>;

    /// Returns contents that are about to be used and protects them for a while; `None` for unknown ones.
    fn use_contents(&self, tenant: TenantId, hashes: Vec<ContentHash>, now_ms: u64) -> Pending<Vec<Option<Content>>>;

    /// Returns contents that no task refers to and that were not used since this time, a limited number at a time. From
    /// now on they are unknown, and are returned again until they are [dropped](Self::drop_contents).
    fn unused_contents(&self, unused_since_ms: u64) -> Pending<Vec<(TenantId, Content)>>;

    /// Returns the tenant's contents with hashes after this one, in the order of their hashes.
    fn list_contents(&self, tenant: TenantId, after: Option<ContentHash>, limit: u32) -> Pending<Vec<ListedContent>>;

    /// Deletes unused contents.
    fn drop_contents(&self, contents: Vec<(TenantId, Content)>) -> Pending<()>;

    /// Deletes tasks that ended before this time, a limited number at a time, beginning after `from`.
    fn delete_expired(&self, ended_before_ms: u64, from: TaskId) -> Pending<ExpiryStep>;

    /// Returns ended tasks of a tenant's tag with numbers above `after` and up to `up_to`, in order; at most `most`.
    fn ended(&self, tenant: TenantId, tag: String, after: u64, up_to: u64, most: u32) -> Pending<Vec<(u64, TaskId)>>;

    /// Deletes those of `tasks` that belong to the tenant and ended with numbers up to `up_to`, except tasks with the
    /// tags in `but`.
    fn delete_tasks(
        &self,
        tenant: TenantId,
        tasks: Vec<TaskId>,
        up_to: u64,
        but: Vec<String>,
    ) -> Pending<Vec<DeletedTask>>;

    /// Returns reusable results of tasks that succeeded since this time, latest first, within the limits on number and
    /// bytes.
    fn memoized(&self, ended_since_ms: u64, most: u32, most_bytes: u64) -> Pending<Vec<Memoized>>;
}

impl Tries {
    /// Returns the current attempt.
    pub fn attempt(self, task: TaskId) -> Attempt {
        Attempt {
            task,
            number: self.attempts,
        }
    }
}
