//! The tasks in memory: one lock guards all parts, and each part owns its state.
//!
//! A rule that needs several parts is a method of `State`, in the module of that rule.

use std::sync::Arc;

use dayfly_protocol::dispatch::Ended;
use dayfly_protocol::ids::{TaskId, TenantId};
use dayfly_store::system::since_boot_ms;

use crate::endpoints::Endpoints;
use crate::flows::Flows;
use crate::functions::Functions;
use crate::live_tasks::LiveTasks;
use crate::loans::UnwrittenLoans;
use crate::memo::{Memo, Reuse};
use crate::outcomes::{OutcomeLog, unexecuted};
use crate::output::UnwrittenOutput;
use crate::tag::{Tag, Tags};
use crate::teams::Teams;
use crate::triggers::Triggers;
use crate::usage::UsageTotals;

/// All that one manager has in memory about tasks.
#[derive(Default)]
pub struct State {
    pub functions: Functions,
    pub tasks: LiveTasks,
    pub endpoints: Endpoints,
    pub tags: Tags,
    pub outcomes: OutcomeLog,
    pub memo: Memo,
    pub usage: UsageTotals,
    pub output: UnwrittenOutput,
    pub loans: UnwrittenLoans,
    pub triggers: Triggers,
    pub flows: Flows,
    pub teams: Teams,
}

impl State {
    /// Returns a tenant's tag, and adds it if necessary.
    pub fn tag(&mut self, tenant: TenantId, name: &str) -> Arc<Tag> {
        self.tags.get_or_insert(tenant, name, self.outcomes.published())
    }

    /// A task waits in its endpoint's queue, or for the result of an identical task. Returns its end if the result is
    /// known.
    pub fn enqueue(&mut self, id: TaskId) -> Option<Ended> {
        let task = self.tasks.get_mut(id)?;
        let decision = task
            .memo()
            .map_or(Reuse::Execute, |key| self.memo.decide(key, id, since_boot_ms()));
        match decision {
            Reuse::Finish(result) => return Some(unexecuted(id, None, result)),
            Reuse::Follow => task.follow(),
            Reuse::Execute => {
                task.enqueue();
                if let Some(endpoint) = self.endpoints.get_mut(task.endpoint()) {
                    endpoint.push(task.tenant(), task.priority(), id);
                    endpoint.wake();
                }
            }
        }
        None
    }
}
