//! A task that has not ended: its specification, its stage, and all transitions between stages.

mod argument_size;

use std::sync::Arc;

use dayfly_protocol::contents::Payload;
use dayfly_protocol::dispatch::{Assigned, Attempt};
use dayfly_protocol::error::Failure;
use dayfly_protocol::ids::{EndpointId, TaskId, TenantId};
use dayfly_protocol::tasks::{ResultOrigin, TaskState, TaskTimes};
use dayfly_scheduling::{RetryState, next_wait};
use dayfly_store::system::booted_at_ms;
use dayfly_store::tasks::{FunctionRecord, TaskSpec, Tries};
use dayfly_store::teams::UsageKey;

use crate::contents::Inline;
use crate::dependencies::Dependencies;
use crate::memo::Key;
use crate::tag::Tag;
use crate::usage::day_of;

/// Where a task is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The store writes the task for the first time.
    Accepting,
    /// The task waits in its endpoint's queue.
    Queued,
    /// The task waits for its dependencies.
    Depending,
    /// The task waits for the result of an identical task.
    Following,
    /// The function failed, and the task waits for its next attempt.
    Resting,
    /// The store records that the task is being sent.
    Beginning,
    /// The dispatcher has the task.
    Sent,
    /// The dispatcher builds the task's environment.
    Building,
    /// The dispatcher has reported that the task runs.
    Running,
    /// The store writes the outcome.
    Ending,
}

impl Stage {
    /// Whether no dispatcher has the task, and none is about to get it.
    pub fn is_unsent(self) -> bool {
        matches!(self, Self::Queued | Self::Depending | Self::Following | Self::Resting)
    }

    /// Whether a dispatcher has the task.
    pub fn is_out(self) -> bool {
        matches!(self, Self::Sent | Self::Building | Self::Running)
    }
}

/// A task that has not ended.
pub struct LiveTask {
    tenant: TenantId,
    function: Arc<FunctionRecord>,
    endpoint: EndpointId,
    tag: Arc<Tag>,
    priority: i8,
    is_repeatable: bool,
    is_cancelled: bool,
    is_late: bool,
    /// Key of the memoized result that may end the task, if its owner allows that.
    memo: Option<Key>,
    /// Whether identical tasks may wait for this one's result.
    is_leader: bool,
    stage: Stage,
    tries: Tries,
    walltime_ms: u32,
    /// Delay before the next attempt if the function fails.
    retry_wait_ms: u32,
    /// Boot time of the machine by the wall clock, as set when the task was accepted: see [`LiveTask::time_ms`].
    booted_at_ms: u64,
    deadline_at_ms: u64,
    submitted_at_ms: u64,
    waiting_at_ms: u64,
    environment_at_ms: u64,
    /// Last reported progress of the build of its environment.
    build_progress: Option<Arc<str>>,
    started_at_ms: u64,
    /// Arguments, if they are in memory.
    arguments: Option<Payload>,
    /// Bytes of the arguments in the store of tasks. They count in the tenant's quota until this is dropped.
    inline: Option<Inline>,
    /// Results of its dependencies that are passed with the arguments.
    results: Vec<Payload>,
    dependencies: Dependencies,
}

/// What a task has at its end.
pub struct Summary {
    pub ran: ResultOrigin,
    pub attempts: u16,
    pub waiting_at_ms: u64,
    pub environment_at_ms: u64,
    pub started_at_ms: u64,
    pub ended_at_ms: u64,
    /// Key of the result for which identical tasks may wait.
    pub leads: Option<Key>,
}

impl LiveTask {
    /// A task that the store is about to write.
    pub fn accepting(
        spec: TaskSpec,
        function: Arc<FunctionRecord>,
        tag: Arc<Tag>,
        tries: Tries,
        arguments: Option<Payload>,
        inline: Option<Inline>,
    ) -> Self {
        let task = Self::restored(spec, function, tag, tries, Stage::Accepting, inline);
        Self { arguments, ..task }
    }

    /// A task that the store has.
    pub fn restored(
        spec: TaskSpec,
        function: Arc<FunctionRecord>,
        tag: Arc<Tag>,
        tries: Tries,
        stage: Stage,
        inline: Option<Inline>,
    ) -> Self {
        Self {
            tenant: spec.tenant,
            function,
            endpoint: spec.endpoint,
            tag,
            priority: spec.priority,
            is_repeatable: spec.repeatable,
            is_cancelled: false,
            is_late: false,
            memo: spec.memo.map(Key),
            is_leader: false,
            stage,
            tries,
            walltime_ms: spec.walltime_ms,
            retry_wait_ms: spec.retry_wait_ms,
            booted_at_ms: booted_at_ms(),
            deadline_at_ms: spec.deadline_at_ms,
            submitted_at_ms: spec.submitted_at_ms,
            waiting_at_ms: 0,
            environment_at_ms: 0,
            build_progress: None,
            started_at_ms: 0,
            arguments: None,
            inline,
            results: Vec::new(),
            dependencies: Dependencies::default(),
        }
    }
}

/// Reading.
impl LiveTask {
    pub fn tenant(&self) -> TenantId {
        self.tenant
    }

    pub fn function(&self) -> &Arc<FunctionRecord> {
        &self.function
    }

    pub fn endpoint(&self) -> EndpointId {
        self.endpoint
    }

    pub fn tag(&self) -> &Arc<Tag> {
        &self.tag
    }

    pub fn priority(&self) -> i8 {
        self.priority
    }

    pub fn is_repeatable(&self) -> bool {
        self.is_repeatable
    }

    pub fn is_cancelled(&self) -> bool {
        self.is_cancelled
    }

    pub fn is_late(&self) -> bool {
        self.is_late
    }

    pub fn memo(&self) -> Option<Key> {
        self.memo
    }

    pub fn stage(&self) -> Stage {
        self.stage
    }

    pub fn tries(&self) -> Tries {
        self.tries
    }

    /// Last reported progress of the build of its environment, while that lasts.
    pub fn build_progress(&self) -> Option<&str> {
        self.build_progress.as_deref().filter(|_| self.stage == Stage::Building)
    }

    pub fn dependencies(&self) -> &Dependencies {
        &self.dependencies
    }

    pub fn has_arguments(&self) -> bool {
        self.arguments.is_some()
    }

    /// The state as clients see it.
    pub fn state(&self) -> TaskState {
        match self.stage {
            Stage::Accepting | Stage::Beginning => TaskState::Queued,
            stage if stage.is_unsent() => TaskState::Queued,
            Stage::Sent => TaskState::Waiting,
            Stage::Building => TaskState::Environment,
            _ => TaskState::Running,
        }
    }

    /// Whether a dispatcher has the task.
    pub fn is_out(&self) -> bool {
        self.stage.is_out()
    }

    /// The current attempt, given the task's id.
    pub fn attempt(&self, id: TaskId) -> Attempt {
        self.tries.attempt(id)
    }

    /// Whether a dispatcher has this attempt.
    pub fn is_executing(&self, attempt: Attempt) -> bool {
        self.is_out() && self.tries.attempts == attempt.number
    }

    /// Input of the retry policy.
    pub fn retry_state(&self) -> RetryState {
        RetryState {
            is_repeatable: self.is_repeatable,
            retries_left: self.tries.retries_left,
            faults: self.tries.faults,
            is_cancelled: self.is_cancelled,
            is_late: self.is_late,
        }
    }

    /// The time in milliseconds since the Unix epoch, by the wall clock as it was set when the task was accepted. Later
    /// changes of that clock change neither the task's durations nor its deadline.
    pub fn time_ms(&self, since_boot_ms: u64) -> u64 {
        self.booted_at_ms + since_boot_ms
    }

    /// The deadline in milliseconds since the boot of the machine, if the task has one.
    pub fn deadline_since_boot_ms(&self) -> Option<u64> {
        (self.deadline_at_ms > 0).then(|| self.deadline_at_ms.saturating_sub(self.booted_at_ms))
    }

    pub fn submitted_at_ms(&self) -> u64 {
        self.submitted_at_ms
    }

    pub fn waiting_at_ms(&self) -> u64 {
        self.waiting_at_ms
    }

    pub fn environment_at_ms(&self) -> u64 {
        self.environment_at_ms
    }

    pub fn started_at_ms(&self) -> u64 {
        self.started_at_ms
    }

    /// The durations of its states until `now_ms`.
    pub fn times(&self, now_ms: u64) -> TaskTimes {
        let marks = [
            self.submitted_at_ms,
            self.waiting_at_ms,
            self.environment_at_ms,
            self.started_at_ms,
        ];
        TaskTimes::between(marks, now_ms)
    }

    /// The key that its cost is counted under.
    pub fn usage_key(&self, now_ms: u64) -> UsageKey {
        UsageKey {
            day: day_of(now_ms),
            tenant: self.tenant,
            function: self.function.id,
            endpoint: self.endpoint,
        }
    }
}

/// Transitions.
impl LiveTask {
    /// The store has accepted the task. `was_sent_at_once`: it was counted as sent, and cannot be sent now.
    pub fn accept(&mut self, was_sent_at_once: bool) {
        self.stage = Stage::Queued;
        if was_sent_at_once {
            self.tries.attempts -= 1;
        }
    }

    /// The task waits for its dependencies.
    pub fn depend(&mut self) {
        self.stage = Stage::Depending;
    }

    /// The task waits for the result of an identical one.
    pub fn follow(&mut self) {
        self.stage = Stage::Following;
    }

    /// The task waits for its execution. Identical tasks may wait for its result.
    pub fn enqueue(&mut self) {
        self.stage = Stage::Queued;
        self.is_leader = self.memo.is_some();
    }

    /// Sets whether identical tasks may wait for its result.
    pub fn set_leader(&mut self, is_leader: bool) {
        self.is_leader = is_leader;
    }

    /// The task has rested, and waits for its next attempt.
    pub fn end_rest(&mut self) {
        self.stage = Stage::Queued;
    }

    /// The next attempt is about to be recorded.
    pub fn begin(&mut self) {
        self.stage = Stage::Beginning;
        self.tries.attempts = self.tries.attempts.saturating_add(1);
    }

    /// The attempt cannot be sent now.
    pub fn undo_begin(&mut self) {
        self.stage = Stage::Queued;
        self.tries.attempts -= 1;
    }

    /// The recorded attempt is not sent: the task ends instead.
    pub fn skip_attempt(&mut self) {
        self.tries.attempts -= 1;
    }

    /// The dispatcher reports an attempt that this manager has not recorded.
    pub fn adopt(&mut self, number: u16, since_boot_ms: u64) {
        self.stage = Stage::Sent;
        self.waiting_at_ms = self.time_ms(since_boot_ms);
        self.tries.attempts = number;
    }

    /// The dispatcher builds the environment of an attempt. Ignores other attempts, and stages without a build.
    pub fn build(&mut self, attempt: Attempt, progress: &Arc<str>, since_boot_ms: u64) {
        if !matches!(self.stage, Stage::Sent | Stage::Building) || !self.is_executing(attempt) {
            return;
        }
        if self.stage == Stage::Sent {
            self.stage = Stage::Building;
            self.environment_at_ms = self.time_ms(since_boot_ms);
        }
        self.build_progress = Some(Arc::clone(progress));
    }

    /// The dispatcher executes an attempt. Ignores other attempts, and stages in which that is impossible.
    pub fn run(&mut self, attempt: Attempt, since_boot_ms: u64) {
        if matches!(self.stage, Stage::Sent | Stage::Building) && self.is_executing(attempt) {
            self.stage = Stage::Running;
            self.started_at_ms = self.time_ms(since_boot_ms);
        }
    }

    /// Its owner does not want it any more.
    pub fn cancel(&mut self) {
        self.is_cancelled = true;
    }

    /// Its deadline has passed.
    pub fn pass_deadline(&mut self) {
        self.is_late = true;
    }

    /// Prepares the next attempt. Returns the end of the delay before it, in milliseconds since boot, if there is one.
    /// `costs_retry`, `costs_fault`: what the last attempt is counted as.
    pub fn retry(&mut self, costs_retry: bool, costs_fault: bool, since_boot_ms: u64) -> Option<u64> {
        self.tries.retries_left -= u16::from(costs_retry);
        self.tries.faults += u16::from(costs_fault);
        self.stage = Stage::Queued;
        (self.waiting_at_ms, self.environment_at_ms, self.started_at_ms) = (0, 0, 0);
        if !costs_retry || self.retry_wait_ms == 0 {
            return None;
        }
        self.stage = Stage::Resting;
        let until_ms = since_boot_ms + u64::from(self.retry_wait_ms);
        self.retry_wait_ms = next_wait(self.retry_wait_ms);
        Some(until_ms)
    }

    /// Sets the tasks that must succeed first, how many of them have not ended, and the failure of one of them.
    pub fn set_dependencies(&mut self, tasks: &[TaskId], unfinished: u32, failure: Option<Failure>) {
        self.dependencies.set(tasks, unfinished);
        if let Some(failure) = failure {
            self.dependencies.fail(failure);
        }
        if self.stage == Stage::Queued && unfinished > 0 {
            self.stage = Stage::Depending;
        }
    }

    /// One of its dependencies has ended.
    pub fn end_dependency(&mut self, failure: Option<Failure>) {
        self.dependencies.end_one();
        if let Some(failure) = failure {
            self.dependencies.fail(failure);
        }
    }

    /// The task cannot be executed any more.
    pub fn fail(&mut self, failure: Failure) {
        self.dependencies.fail(failure);
    }
}

/// Arguments, whose bytes in memory [`super::LiveTasks`] counts, and transitions that move them.
impl LiveTask {
    /// Bytes of the arguments that are in memory.
    pub(super) fn cached_bytes(&self) -> usize {
        self.arguments.as_ref().map_or(0, Payload::inline_bytes)
    }

    /// Sets the inputs of the next attempt.
    pub(super) fn set_inputs(&mut self, arguments: Payload, results: Vec<Payload>) {
        (self.arguments, self.results) = (Some(arguments), results);
    }

    /// The dispatcher gets the task. Returns the message.
    pub(super) fn send(&mut self, id: TaskId, now_ms: u64) -> Assigned {
        self.stage = Stage::Sent;
        (self.waiting_at_ms, self.environment_at_ms) = (now_ms, 0);
        let left = |at_ms: u64| u32::try_from(at_ms.saturating_sub(now_ms).max(1)).unwrap_or(u32::MAX);
        let walltime_ms = match (self.walltime_ms, self.deadline_at_ms) {
            (walltime_ms, 0) => walltime_ms,
            (0, at_ms) => left(at_ms),
            (walltime_ms, at_ms) => walltime_ms.min(left(at_ms)),
        };
        Assigned {
            attempt: self.attempt(id),
            function: self.function.id,
            tenant: self.tenant,
            arguments: self.arguments.take().unwrap_or_default(),
            answers: std::mem::take(&mut self.results),
            walltime_ms,
            repeatable: self.is_repeatable,
        }
    }

    /// The task ends after an execution of `took_us` microseconds.
    pub(super) fn end(&mut self, took_us: u64, since_boot_ms: u64) -> Summary {
        self.stage = Stage::Ending;
        self.arguments = None;
        let now_ms = self.time_ms(since_boot_ms);
        let started_at_ms = match (self.tries.attempts, self.started_at_ms) {
            (0, _) => 0,
            // The report of the start arrived a moment after the start.
            (_, reported_ms) => {
                let reported_ms = if reported_ms > 0 { reported_ms } else { now_ms };
                let began_ms = reported_ms.min(now_ms.saturating_sub(took_us / 1000));
                let earlier_ms = [self.submitted_at_ms, self.waiting_at_ms, self.environment_at_ms];
                earlier_ms.into_iter().fold(began_ms, u64::max)
            }
        };
        Summary {
            ran: ResultOrigin {
                tenant: self.tenant,
                function: self.function.id,
                endpoint: self.endpoint,
            },
            attempts: self.tries.attempts,
            waiting_at_ms: self.waiting_at_ms,
            environment_at_ms: self.environment_at_ms,
            started_at_ms,
            ended_at_ms: now_ms,
            leads: self.memo.filter(|_| self.is_leader),
        }
    }
}
