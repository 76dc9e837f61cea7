//! Tasks in the bodies of the manager's HTTP API: submission, status, outcome, output and cost.
//!
//! Each body travels as JSON. Dayfly's programs also use MessagePack ([`MESSAGE_PACK`]), with the same names.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::api::is_default;
use crate::blob::Blob;
use crate::contents::{Content, Payload};
use crate::encoding::JSON_RESULT;
use crate::error::{Code, Failure};
use crate::ids::{EndpointId, FunctionId, TaskId, TenantId};
use crate::named::named_enum;
use crate::node_api::Stream;

/// Content type of MessagePack bodies.
pub const MESSAGE_PACK: &str = "application/msgpack";
/// Most bytes of a body that contains functions, tasks or flows, or lists tasks.
pub const MAX_BODY_BYTES: usize = 64 << 20;
/// Most bytes of one task's result in JSON. Clients of other formats fetch long results by reference.
pub const MAX_RESULT_BYTES: usize = 64 << 20;
/// Most tasks in one submission.
pub const MAX_TASKS: usize = 100_000;
/// Most dependencies of a task.
pub const MAX_DEPENDENCIES: usize = 10_000;
/// Longest name, in bytes. [`bounds`](crate::bounds) limits other texts.
pub const MAX_NAME_BYTES: usize = 128;
/// Longest delay before a retry, in milliseconds.
pub const MAX_RETRY_WAIT_MS: u32 = 3_600_000;
/// Longest wait of a request for outcomes, in milliseconds.
pub const MAX_WAIT_MS: u64 = 30_000;

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
    #[serde(skip_serializing_if = "is_default")]
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
pub struct AcceptedTasks {
    /// Ids, in the order of the submission.
    pub tasks: Vec<TaskId>,
    /// The endpoint that runs them.
    pub endpoint: EndpointId,
}

named_enum! {
    /// State of a task.
    TaskState, "a task state" {
        /// Accepted, in the manager's queue.
        Queued = "queued",
        /// At its endpoint, waiting for a free worker.
        Waiting = "waiting",
        /// At its endpoint, which builds the task's environment.
        Environment = "environment",
        /// On a worker. Executions shorter than about 50 ms skip this state.
        Running = "running",
        /// Ended, with its outcome.
        Done = "done",
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
    /// Bytes of the arguments, as far as they are known. When the task ends, they are deleted, except those of a failed
    /// task that may be retried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argument_bytes: Option<u64>,
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
    pub ran: Option<ResultOrigin>,
}

/// Origin of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResultOrigin {
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
        if let Some((&JSON_RESULT, text)) = self.answer.split_last() {
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
pub struct TaskOutputPage {
    /// Offset of the first byte of `pieces`. Greater than requested if earlier output has been discarded.
    pub from: u64,
    /// Offset for the next request.
    pub next: u64,
    /// In the order of printing, as far as the order of two streams is known.
    pub pieces: Vec<OutputPiece>,
    /// Whether the task has ended and all its output has been returned.
    pub over: bool,
}

/// A piece of a task's output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OutputPiece {
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
pub struct TaskDeletion {
    /// Ids of tasks.
    pub tasks: Vec<TaskId>,
    /// All tasks with this tag.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
}

/// Result of a deletion.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeletedTasks {
    /// Number of deleted tasks.
    pub forgotten: u64,
    /// Number of tasks that were kept, because they or tasks that depend on them have not ended.
    pub left: u64,
}

/// Result of a cancellation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CancelledTasks {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_each_state_ends_at_the_next() {
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
}
