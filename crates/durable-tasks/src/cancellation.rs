//! Cancels tasks: all of those named, or only those that no worker has been given yet.
//!
//! Which ones wait is decided where it is known, under the lock of whoever has the task: here as long as it was not sent, and
//! by its dispatcher after that. So a task that this counts as ended never begins.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use dayfly_protocol::dispatch::{Attempt, ToDispatcher};
use dayfly_protocol::error::Code;
use dayfly_protocol::ids::{EndpointId, TaskId};
use dayfly_protocol::tasks::{Cancellation, CancelledTasks};
use tokio::sync::oneshot;

use crate::Tasks;
use crate::live_task::{LiveTask, Stage, TaskScope};
use crate::open_requests::OpenRequests;
use crate::outcomes::{cancelled_before, given_up, instead};
use crate::state::State;

/// Most that are cancelled under one hold of the lock.
const CANCELLED_AT_ONCE: usize = 10_000;
/// How long a dispatcher may take to say which tasks it had not begun. Those of a silent one count as running.
const PATIENCE: Duration = Duration::from_secs(5);

/// Open [`ToDispatcher::Withdraw`] requests of one dispatcher.
pub type Withdrawals = OpenRequests<Vec<Attempt>>;

/// A request to a dispatcher that has not been answered.
struct Withdrawal {
    asked: usize,
    answer: oneshot::Receiver<Vec<Attempt>>,
}

impl Tasks {
    /// Ends tasks, of those that are somebody's.
    pub async fn cancel(self: &Arc<Self>, whose: &TaskScope, what: Cancellation) -> CancelledTasks {
        // All at an endpoint, where nothing else is said.
        let all = what.tag.is_some() || (whose.at.is_some() && what.tasks.is_empty());
        let is_it = |live: &LiveTask| whose.has(live) && what.tag.as_deref().is_none_or(|tag| live.tag.name() == tag);
        let wanted: HashSet<TaskId> = match all {
            false => what.tasks.into_iter().collect(),
            true => {
                let state = self.state();
                let hit = state.live.iter().filter(|(_, live)| is_it(live));
                hit.map(|(id, _)| *id).chain(what.tasks).collect()
            }
        };
        let wanted: Vec<TaskId> = wanted.into_iter().collect();
        let mut cancelled = CancelledTasks::default();
        let mut withdrawals = Vec::new();
        for some in wanted.chunks(CANCELLED_AT_ONCE) {
            match what.only_waiting {
                true => withdrawals.extend(self.withdraw_some(whose, some, &mut cancelled)),
                false => self.cancel_some(whose, some, &mut cancelled),
            }
            tokio::task::yield_now().await;
        }
        let until = tokio::time::Instant::now() + PATIENCE;
        for Withdrawal { asked, answer } in withdrawals {
            let answer = tokio::time::timeout_at(until, answer).await;
            let withdrawn = answer.ok().and_then(Result::ok).unwrap_or_default().len().min(asked);
            cancelled.ended += withdrawn as u64;
            cancelled.running += (asked - withdrawn) as u64;
        }
        cancelled
    }

    fn cancel_some(&self, whose: &TaskScope, wanted: &[TaskId], cancelled: &mut CancelledTasks) {
        let mut state = self.state();
        let mut ended = Vec::new();
        let mut unheard = Vec::new();
        let mut told: HashMap<EndpointId, Vec<Attempt>> = HashMap::new();
        for id in wanted {
            let Some(live) = state.live.get_mut(id).filter(|live| whose.has(live)) else {
                continue;
            };
            match live.place {
                Stage::Ending => {}
                place if place.is_unsent() => ended.push((*id, Some(cancelled_before()))),
                _ => {
                    live.cancelled = true;
                    cancelled.told += 1;
                    let (endpoint, attempt) = (live.endpoint, live.attempt(*id));
                    match live.is_out() && !state.is_up(endpoint) {
                        true => unheard.push(given_up(attempt, instead(Code::Cancelled, None, false))),
                        false => told.entry(endpoint).or_default().push(attempt),
                    }
                }
            }
        }
        cancelled.ended += ended.len() as u64;
        for (endpoint, attempts) in told {
            state.tell(endpoint, ToDispatcher::Cancel(attempts));
        }
        self.end_unexecuted(&mut state, ended);
        self.end(&mut state, unheard, None);
    }

    /// Ends those that were not sent, and asks dispatchers about those that were.
    fn withdraw_some(&self, whose: &TaskScope, wanted: &[TaskId], cancelled: &mut CancelledTasks) -> Vec<Withdrawal> {
        let mut state = self.state();
        let mut ended = Vec::new();
        let mut sent: HashMap<EndpointId, Vec<Attempt>> = HashMap::new();
        for id in wanted {
            let Some(live) = state.live.get_mut(id).filter(|live| whose.has(live)) else {
                continue;
            };
            match live.place {
                Stage::Ending => {}
                place if place.is_unsent() => ended.push((*id, Some(cancelled_before()))),
                // It ends in place of being queued, or sent.
                Stage::Accepting | Stage::Beginning => {
                    live.cancelled = true;
                    cancelled.ended += 1;
                }
                Stage::Sent | Stage::Building => sent.entry(live.endpoint).or_default().push(live.attempt(*id)),
                _ => cancelled.running += 1,
            }
        }
        cancelled.ended += ended.len() as u64;
        self.end_unexecuted(&mut state, ended);
        let mut withdrawals = Vec::with_capacity(sent.len());
        for (endpoint, attempts) in sent {
            let asked = attempts.len();
            match state.withdraw(endpoint, attempts) {
                Some(answer) => withdrawals.push(Withdrawal { asked, answer }),
                None => cancelled.running += asked as u64,
            }
        }
        withdrawals
    }
}

impl State {
    /// Asks a dispatcher to end tasks that it has not begun. None if it is not connected: what it has may run.
    fn withdraw(&mut self, id: EndpointId, attempts: Vec<Attempt>) -> Option<oneshot::Receiver<Vec<Attempt>>> {
        let link = self.endpoints.get_mut(&id)?.link.as_mut()?;
        let (number, answer) = link.withdrawals.ask();
        // The end of a dispatcher that is gone drops the question, and with it the wait.
        let _ = link.outgoing.send(ToDispatcher::Withdraw { number, attempts });
        Some(answer)
    }

    /// A dispatcher says which tasks end without having begun.
    pub(super) fn on_withdrawn(&mut self, id: EndpointId, number: u64, attempts: Vec<Attempt>) {
        for attempt in &attempts {
            let live = self.live.get_mut(&attempt.task);
            let is_it = |live: &&mut LiveTask| live.endpoint == id && live.tries.attempts == attempt.number;
            if let Some(live) = live.filter(is_it) {
                // It is not executed again where its end is lost on the way.
                live.cancelled = true;
            }
        }
        let link = self.endpoints.get_mut(&id).and_then(|endpoint| endpoint.link.as_mut());
        if let Some(link) = link {
            link.withdrawals.answer(number, attempts);
        }
    }
}
