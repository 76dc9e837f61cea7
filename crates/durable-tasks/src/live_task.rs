//! A task that has not ended, where it is, and which of them are meant.

use std::collections::HashSet;
use std::sync::Arc;

use dayfly_protocol::contents::Payload;
use dayfly_protocol::dispatch::Attempt;
use dayfly_protocol::ids::{EndpointId, TaskId, TenantId};
use dayfly_protocol::tasks::TaskState;
use dayfly_store::accounts::UsageKey;
use dayfly_store::system::booted_at_ms;
use dayfly_store::tasks::{FunctionRecord, TaskSpec, Tries};

use crate::tag::Tag;
use crate::{contents, dependencies, memo, teams};

/// Where a task is that has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Being written down for the first time.
    Accepting,
    Queued,
    /// Waits for the end of tasks that come before.
    Depending,
    /// Waits for the answer of a task that is the same.
    Following,
    /// Waits for a while, since its function failed.
    Resting,
    /// Being written down as sent.
    Beginning,
    /// At its dispatcher.
    Sent,
    /// At its dispatcher, which said that its environment is being built.
    Building,
    /// At its dispatcher, which said that it has been running for a while.
    Running,
    /// Its outcome is being written down.
    Ending,
}

impl Stage {
    /// Whether no dispatcher has it, nor is about to.
    pub(super) fn is_unsent(self) -> bool {
        matches!(self, Self::Queued | Self::Depending | Self::Following | Self::Resting)
    }
}

/// A task that has not ended.
pub(super) struct LiveTask {
    pub(super) tenant: TenantId,
    pub(super) function: Arc<FunctionRecord>,
    pub(super) endpoint: EndpointId,
    pub(super) tag: Arc<Tag>,
    pub(super) priority: i8,
    pub(super) repeatable: bool,
    pub(super) cancelled: bool,
    pub(super) late: bool,
    /// What it may be answered by, if its owner wants that, and whether others may follow it.
    pub(super) memo: Option<memo::Key>,
    pub(super) leads: bool,
    pub(super) place: Stage,
    pub(super) tries: Tries,
    pub(super) walltime_ms: u32,
    /// How long it rests when its function fails next.
    pub(super) retry_wait_ms: u32,
    /// When the machine was booted, by the wall clock as it was when the task came: see [`Live::time_ms`].
    pub(super) booted_at_ms: u64,
    pub(super) deadline_at_ms: u64,
    pub(super) submitted_at_ms: u64,
    pub(super) waiting_at_ms: u64,
    pub(super) environment_at_ms: u64,
    /// How the build of its environment went, as last heard.
    pub(super) building: Option<Arc<str>>,
    pub(super) started_at_ms: u64,
    pub(super) arguments: Option<Payload>,
    /// What of them is in the store of tasks, and counts as its tenant's until it has ended.
    pub(super) inline: Option<contents::Inline>,
    /// What goes along with them.
    pub(super) answers: Vec<Payload>,
    /// Tasks before it that have not ended, and why it is not to be executed when one of them ended.
    pub(super) before: dependencies::Dependencies,
}

impl LiveTask {
    pub(super) fn new(
        spec: TaskSpec,
        function: Arc<FunctionRecord>,
        tag: Arc<Tag>,
        tries: Tries,
        place: Stage,
        arguments: Option<Payload>,
    ) -> Self {
        Self {
            tenant: spec.tenant,
            function,
            endpoint: spec.endpoint,
            tag,
            priority: spec.priority,
            repeatable: spec.repeatable,
            cancelled: false,
            late: false,
            memo: spec.memo.map(memo::Key),
            leads: false,
            place,
            tries,
            walltime_ms: spec.walltime_ms,
            retry_wait_ms: spec.retry_wait_ms,
            booted_at_ms: booted_at_ms(),
            deadline_at_ms: spec.deadline_at_ms,
            submitted_at_ms: spec.submitted_at_ms,
            waiting_at_ms: 0,
            environment_at_ms: 0,
            building: None,
            started_at_ms: 0,
            arguments,
            inline: None,
            answers: Vec::new(),
            before: dependencies::Dependencies::default(),
        }
    }

    pub(super) fn state(&self) -> TaskState {
        match self.place {
            Stage::Accepting | Stage::Beginning => TaskState::Queued,
            place if place.is_unsent() => TaskState::Queued,
            Stage::Sent => TaskState::Waiting,
            Stage::Building => TaskState::Environment,
            _ => TaskState::Running,
        }
    }

    /// Whether a dispatcher has it.
    pub(super) fn is_out(&self) -> bool {
        matches!(self.place, Stage::Sent | Stage::Building | Stage::Running)
    }

    pub(super) fn attempt(&self, id: TaskId) -> Attempt {
        self.tries.attempt(id)
    }

    /// What time it is by the clock that it was submitted by, however that was set since: a task takes as long as it takes, and has as
    /// long as it was given.
    pub(super) fn time_ms(&self, since_boot_ms: u64) -> u64 {
        self.booted_at_ms + since_boot_ms
    }

    /// When its deadline is, since the machine was booted; none if it has none.
    pub(super) fn deadline_since_boot_ms(&self) -> Option<u64> {
        (self.deadline_at_ms > 0).then(|| self.deadline_at_ms.saturating_sub(self.booted_at_ms))
    }

    /// What it is counted with.
    pub(super) fn usage_key(&self, now_ms: u64) -> UsageKey {
        UsageKey {
            day: teams::day_of(now_ms),
            tenant: self.tenant,
            function: self.function.id,
            endpoint: self.endpoint,
        }
    }
}

/// Whose tasks are meant.
#[derive(Debug, Clone)]
pub struct TaskScope {
    /// One tenant's; none for everybody's.
    pub(super) tenant: Option<TenantId>,
    /// Those at these endpoints; none for all.
    pub(super) at: Option<HashSet<EndpointId>>,
}

impl TaskScope {
    /// A tenant's own.
    pub(super) fn of(tenant: TenantId) -> Self {
        let tenant = Some(tenant);
        Self { tenant, at: None }
    }

    pub(super) fn has(&self, live: &LiveTask) -> bool {
        self.tenant.is_none_or(|tenant| tenant == live.tenant)
            && self.at.as_ref().is_none_or(|at| at.contains(&live.endpoint))
    }
}
