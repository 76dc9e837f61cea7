//! Cancellation: ends all of the named tasks, or only those that no worker has begun.
//!
//! The holder of a task decides whether it has begun: this manager before the task is sent, then its dispatcher. So a
//! task that is counted as ended never begins.
//!
//! Adds to `State` the withdrawal, which needs the endpoint's connection and the live tasks.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use dayfly_protocol::dispatch::{Attempt, ToDispatcher};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{EndpointId, TaskId, TenantId};
use dayfly_protocol::tasks::{Cancellation, CancelledTasks};
use tokio::sync::oneshot;

use crate::Tasks;
use crate::live_tasks::{LiveTask, Stage};
use crate::outcomes::{abandoned, cancelled_before, replaced_failure};
use crate::state::State;

/// Maximum number of tasks that are cancelled under one hold of the lock.
const MAX_BATCH: usize = 10_000;
/// Longest wait for a dispatcher's reply to a withdrawal. Without a reply, its tasks count as running.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The tasks that a caller may cancel.
#[derive(Debug, Clone)]
pub struct TaskScope {
    /// The owner of the tasks; `None` for all tenants.
    tenant: Option<TenantId>,
    /// The endpoints of the tasks; `None` for all.
    endpoints: Option<HashSet<EndpointId>>,
}

impl TaskScope {
    /// All tasks of a tenant.
    pub(super) fn of(tenant: TenantId) -> Self {
        Self {
            tenant: Some(tenant),
            endpoints: None,
        }
    }

    fn contains(&self, live: &LiveTask) -> bool {
        self.tenant.is_none_or(|tenant| tenant == live.tenant())
            && self.endpoints.as_ref().is_none_or(|at| at.contains(&live.endpoint()))
    }
}

/// An open request for a withdrawal.
struct Withdrawal {
    asked: usize,
    answer: oneshot::Receiver<Vec<Attempt>>,
}

impl Tasks {
    /// Returns the tasks that a tenant may cancel: its own, or those of `everybody`; at one endpoint and its account
    /// endpoints, or at all.
    ///
    /// # Errors
    /// `NotFound` for an unknown endpoint. `Forbidden` if a tenant that is neither an operator nor the endpoint's owner
    /// wants the tasks of everybody.
    pub fn cancellation_scope(
        &self,
        tenant: TenantId,
        is_operator: bool,
        everybody: bool,
        endpoint: Option<&str>,
    ) -> Result<TaskScope, Failure> {
        let state = self.state();
        let found = endpoint.map(|wanted| {
            state.endpoints.find(wanted).ok_or_else(|| {
                let text = format!("there is no endpoint `{wanted:.80}`; `dayfly endpoint list` shows all");
                Failure::new(Code::NotFound, text)
            })
        });
        let found = found.transpose()?.map(|endpoint| endpoint.record());
        if everybody && !is_operator && !found.is_some_and(|record| state.endpoints.is_owner(record, tenant)) {
            let text =
                "only an operator may do that, or an endpoint's owner for the tasks there; name an endpoint of yours";
            return Err(Failure::new(Code::Forbidden, text));
        }
        Ok(TaskScope {
            tenant: (!everybody).then_some(tenant),
            endpoints: found.map(|at| state.endpoints.with_accounts(at.id).collect()),
        })
    }

    /// Cancels tasks in a scope: the named ones, those of a tag, or all at an endpoint if nothing else is given. Waits
    /// up to 5 s for dispatchers if only waiting tasks are to end.
    pub async fn cancel(self: &Arc<Self>, scope: &TaskScope, what: Cancellation) -> CancelledTasks {
        let all = what.tag.is_some() || (scope.endpoints.is_some() && what.tasks.is_empty());
        let is_it =
            |live: &LiveTask| scope.contains(live) && what.tag.as_deref().is_none_or(|tag| live.tag().name() == tag);
        let wanted: HashSet<TaskId> = match all {
            false => what.tasks.into_iter().collect(),
            true => {
                let state = self.state();
                let found = state.tasks.iter().filter(|(_, live)| is_it(live));
                found.map(|(id, _)| id).chain(what.tasks).collect()
            }
        };
        let wanted: Vec<TaskId> = wanted.into_iter().collect();
        let mut cancelled = CancelledTasks::default();
        let mut withdrawals = Vec::new();
        for some in wanted.chunks(MAX_BATCH) {
            match what.only_waiting {
                true => withdrawals.extend(self.withdraw_some(scope, some, &mut cancelled)),
                false => self.cancel_some(scope, some, &mut cancelled),
            }
            tokio::task::yield_now().await;
        }
        let until = tokio::time::Instant::now() + TIMEOUT;
        for Withdrawal { asked, answer } in withdrawals {
            let answer = tokio::time::timeout_at(until, answer).await;
            let withdrawn = answer.ok().and_then(Result::ok).unwrap_or_default().len().min(asked);
            cancelled.ended += withdrawn as u64;
            cancelled.running += (asked - withdrawn) as u64;
        }
        cancelled
    }

    fn cancel_some(&self, scope: &TaskScope, wanted: &[TaskId], cancelled: &mut CancelledTasks) {
        let mut state = self.state();
        let state = &mut *state;
        let mut ended = Vec::new();
        let mut unreported = Vec::new();
        let mut sent: HashMap<EndpointId, Vec<Attempt>> = HashMap::new();
        for id in wanted {
            let Some(live) = state.tasks.get_mut(*id).filter(|live| scope.contains(live)) else {
                continue;
            };
            match live.stage() {
                Stage::Ending => {}
                stage if stage.is_unsent() => ended.push((*id, Some(cancelled_before()))),
                _ => {
                    live.cancel();
                    cancelled.told += 1;
                    let (endpoint, attempt) = (live.endpoint(), live.attempt(*id));
                    match live.is_out() && !state.endpoints.is_up(endpoint) {
                        true => unreported.push(abandoned(attempt, replaced_failure(Code::Cancelled, None, false))),
                        false => sent.entry(endpoint).or_default().push(attempt),
                    }
                }
            }
        }
        cancelled.ended += ended.len() as u64;
        for (endpoint, attempts) in sent {
            state.endpoints.send(endpoint, ToDispatcher::Cancel(attempts));
        }
        self.end_unexecuted(state, ended);
        self.end(state, unreported, None);
    }

    /// Ends tasks that were not sent, and asks dispatchers to withdraw the others.
    fn withdraw_some(&self, scope: &TaskScope, wanted: &[TaskId], cancelled: &mut CancelledTasks) -> Vec<Withdrawal> {
        let mut state = self.state();
        let mut ended = Vec::new();
        let mut sent: HashMap<EndpointId, Vec<Attempt>> = HashMap::new();
        for id in wanted {
            let Some(live) = state.tasks.get_mut(*id).filter(|live| scope.contains(live)) else {
                continue;
            };
            match live.stage() {
                Stage::Ending => {}
                stage if stage.is_unsent() => ended.push((*id, Some(cancelled_before()))),
                // It ends when it would be queued or sent.
                Stage::Accepting | Stage::Beginning => {
                    live.cancel();
                    cancelled.ended += 1;
                }
                Stage::Sent | Stage::Building => sent.entry(live.endpoint()).or_default().push(live.attempt(*id)),
                _ => cancelled.running += 1,
            }
        }
        cancelled.ended += ended.len() as u64;
        self.end_unexecuted(&mut state, ended);
        let mut withdrawals = Vec::with_capacity(sent.len());
        for (endpoint, attempts) in sent {
            let asked = attempts.len();
            match state.endpoints.connection_mut(endpoint) {
                Some(connection) => withdrawals.push(Withdrawal {
                    asked,
                    answer: connection.request_withdrawal(attempts),
                }),
                // A dispatcher that is not connected may run its tasks.
                None => cancelled.running += asked as u64,
            }
        }
        withdrawals
    }
}

impl State {
    /// A dispatcher reports which attempts it has withdrawn before they began.
    pub fn on_withdrawn(&mut self, id: EndpointId, number: u64, attempts: Vec<Attempt>) {
        for attempt in &attempts {
            let live = self.tasks.get_mut(attempt.task);
            let is_it = |live: &&mut LiveTask| live.endpoint() == id && live.tries().attempts == attempt.number;
            if let Some(live) = live.filter(is_it) {
                // So it is not executed again if the report of its end is lost.
                live.cancel();
            }
        }
        if let Some(connection) = self.endpoints.connection_mut(id) {
            connection.answer_withdrawal(number, attempts);
        }
    }
}
