//! Outcomes: written to the store in the order of their numbers, and then published in this order.
//!
//! Adds to `State` the end of tasks that follow another, which needs the live tasks and the memo.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use dayfly_protocol::contents::Payload;
use dayfly_protocol::dispatch::{Attempt, Ended};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{EndpointId, TaskId, TenantId};
use dayfly_protocol::tasks::{TaskCounts, TaskOutcome, TaskTimes};
use dayfly_scheduling::MAX_FAULTS;
use dayfly_store::system::{now_ms, since_boot_ms};
use dayfly_store::tasks::EndedTask;
use dayfly_store::teams::{Usage, UsageKey};
use dayfly_store::{Pending, StoreError};
use tokio::sync::mpsc;

use crate::Tasks;
use crate::live_tasks::Stage;
use crate::memo::Key;
use crate::state::State;
use crate::tag::Tag;

/// Delay before another attempt if the store cannot write.
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// A task to end, and the failure that it ends with, if any.
pub(super) type Ending = (TaskId, Option<Failure>);

/// The numbers of outcomes, and the counts of ended tasks.
#[derive(Default)]
pub struct OutcomeLog {
    /// Greatest number of an outcome.
    last_number: u64,
    /// Greatest number of a published outcome.
    published: u64,
    /// Ended tasks of each tenant since the manager started.
    ended: HashMap<TenantId, TaskCounts>,
}

impl OutcomeLog {
    /// Continues after the last number in the store.
    pub fn restored(last_number: u64) -> Self {
        Self {
            last_number,
            published: last_number,
            ended: HashMap::new(),
        }
    }

    pub fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    pub fn published(&self) -> u64 {
        self.published
    }

    fn publish(&mut self, number: u64) {
        self.published = number;
    }

    fn count(&mut self, tenant: TenantId, failed: bool, times: TaskTimes) {
        let ended = self.ended.entry(tenant).or_default();
        ended.done += 1;
        ended.failed += u64::from(failed);
        ended.times.add(times);
    }

    /// Ended tasks of a tenant since the manager started.
    pub fn counts(&self, tenant: TenantId) -> TaskCounts {
        self.ended.get(&tenant).cloned().unwrap_or_default()
    }

    /// Ended tasks of all tenants since the manager started.
    pub fn total(&self) -> TaskCounts {
        let mut total = TaskCounts::default();
        for ended in self.ended.values() {
            total.done += ended.done;
            total.failed += ended.failed;
            total.times.add(ended.times);
        }
        total
    }
}

/// Outcomes that the store is writing.
pub struct UnwrittenOutcomes {
    tasks: Vec<EndedTask>,
    usage: Vec<(UsageKey, Usage)>,
    written: Pending<()>,
    /// The dispatcher that keeps these attempts until they are written.
    kept: Option<(EndpointId, Vec<Attempt>)>,
}

/// The store's last error, while it cannot write outcomes.
#[derive(Default)]
pub struct StoreHealth {
    error: Mutex<Option<StoreError>>,
}

impl StoreHealth {
    fn set(&self, error: Option<StoreError>) {
        *self.error.lock().unwrap_or_else(PoisonError::into_inner) = error;
    }

    /// The store's last error, while it cannot write outcomes.
    pub fn error(&self) -> Option<StoreError> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Tasks {
    /// Ends tasks that were not executed.
    pub(super) fn end_unexecuted(&self, state: &mut State, ended: Vec<Ending>) {
        let tasks = ended
            .into_iter()
            .map(|(id, error)| unexecuted(id, error, Payload::default()));
        self.end(state, tasks.collect(), None);
    }

    /// Ends tasks after their last attempts: hands the outcomes to the store, in this order. `by` is the endpoint whose
    /// dispatcher keeps them until they are written.
    pub(super) fn end(&self, state: &mut State, ended: Vec<Ended>, by: Option<EndpointId>) {
        let (today_ms, since_boot_ms) = (now_ms(), since_boot_ms());
        let mut tasks = Vec::with_capacity(ended.len());
        let mut kept = Vec::new();
        let mut undecided = Vec::new();
        let mut ended = VecDeque::from(ended);
        while let Some(one) = ended.pop_front() {
            let id = one.attempt.task;
            let Some(summary) = state.tasks.end(id, one.took_us, since_boot_ms) else {
                continue;
            };
            let number = state.outcomes.next_number();
            let mut keeps_arguments = false;
            if let Some(live) = state.tasks.get(id) {
                state.usage.add_ended(live.usage_key(today_ms), one.error.is_some());
                keeps_arguments = one.error.is_some() && self.contents.has_room(live.tenant());
            }
            if let Some(key) = summary.leads {
                match &one.error {
                    None => ended.extend(state.end_followers(key, &one.answer, self.retention_ms())),
                    Some(_) => undecided.extend(state.memo.fail(key)),
                }
            }
            kept.push(one.attempt);
            let (answer, content) = one.answer.split();
            tasks.push(EndedTask {
                outcome: TaskOutcome {
                    id,
                    number,
                    error: one.error,
                    raised: one.raised,
                    answer,
                    content,
                    result: None,
                    attempts: summary.attempts,
                    foreign: Vec::new(),
                    ran: Some(summary.ran),
                },
                waiting_at_ms: summary.waiting_at_ms,
                environment_at_ms: summary.environment_at_ms,
                started_at_ms: summary.started_at_ms,
                ended_at_ms: summary.ended_at_ms,
                keeps_arguments,
            });
        }
        if tasks.is_empty() {
            return;
        }
        // Under the lock, so that the store gets them in the order of their numbers.
        let usage = state.usage.take_unwritten();
        let written = self.store.end(tasks.clone(), usage.clone());
        let kept = by.map(|endpoint| (endpoint, kept));
        // The receiver lives as long as the manager.
        let _ = self.unwritten.send(UnwrittenOutcomes {
            tasks,
            usage,
            written,
            kept,
        });
        for task in undecided {
            // The first one leads the others, so none of them has a result yet.
            if state.tasks.is_at_stage(task, Stage::Following) {
                state.enqueue(task);
            }
        }
    }

    /// Publishes outcomes that are written.
    fn publish(&self, tasks: Vec<EndedTask>, usage: &[(UsageKey, Usage)], kept: Option<(EndpointId, Vec<Attempt>)>) {
        let mut state = self.state();
        let charged = state.usage.add_costs(usage);
        let mut notified: Vec<Arc<Tag>> = Vec::new();
        let mut awaited = Vec::new();
        for mut task in tasks {
            state.outcomes.publish(task.outcome.number);
            // The function still exists now.
            task.outcome.foreign = state.foreign_makers(task.outcome.ran, &*self.tenants);
            let Some(mut live) = state.tasks.remove(task.outcome.id) else {
                continue;
            };
            if task.keeps_arguments {
                live.keep_arguments();
            }
            let marks = [
                live.submitted_at_ms(),
                task.waiting_at_ms,
                task.environment_at_ms,
                task.started_at_ms,
            ];
            let times = TaskTimes::between(marks, task.ended_at_ms);
            let failed = task.outcome.error.is_some();
            if let Some(endpoint) = state.endpoints.get_mut(live.endpoint()) {
                endpoint.count_ended(failed, times);
                if endpoint.outputs().contains(task.outcome.id) {
                    state.output.add(live.endpoint(), task.outcome.id);
                }
            }
            state.outcomes.count(live.tenant(), failed, times);
            if state.tasks.has_dependents(task.outcome.id) {
                awaited.push((
                    task.outcome.id,
                    task.outcome.error.clone().map(Failure::without_exception),
                ));
            }
            // Followers of a tag get the pickled exception. The text is for those who ask for one task, and for
            // functions that are called in JSON, which have no pickled exception.
            let mut outcome = task.outcome;
            if outcome.raised {
                outcome.error = outcome.error.map(Failure::without_exception);
            }
            live.tag().add(outcome);
            if !notified.last().is_some_and(|last| Arc::ptr_eq(last, live.tag())) {
                notified.push(Arc::clone(live.tag()));
            }
        }
        if let Some((endpoint, attempts)) = kept {
            state.confirm_outcomes(endpoint, attempts);
        }
        self.release_dependents(&mut state, &awaited);
        drop(state);
        if !charged.is_empty() {
            self.tenants.charge(charged);
        }
        for tag in notified {
            tag.notify();
        }
    }
}

impl State {
    /// Ends the tasks that wait for this result.
    fn end_followers(&mut self, key: Key, result: &Payload, retention_ms: u64) -> Vec<Ended> {
        let followers = self.memo.finish(key, result, retention_ms, since_boot_ms());
        let followers = followers
            .into_iter()
            .filter(|task| self.tasks.is_at_stage(*task, Stage::Following));
        followers.map(|task| unexecuted(task, None, result.clone())).collect()
    }
}

/// Waits for each write, and publishes its outcomes. Retries a failed write until it succeeds: the tasks have ended.
pub async fn run(tasks: Weak<Tasks>, mut queue: mpsc::UnboundedReceiver<UnwrittenOutcomes>) {
    while let Some(UnwrittenOutcomes {
        tasks: ended,
        usage,
        written,
        kept,
    }) = queue.recv().await
    {
        let mut written = written.wait().await;
        while let Err(error) = written {
            // The dispatchers repeat these outcomes to the manager that has the tasks now.
            if error == StoreError::Moved {
                return;
            }
            let Some(tasks) = tasks.upgrade() else { return };
            if tasks.health.error().is_none() {
                tracing::error!(%error, "the store cannot write outcomes; they wait until it can");
            }
            tasks.health.set(Some(error));
            tokio::time::sleep(RETRY_DELAY).await;
            written = tasks.store.end(ended.clone(), usage.clone()).wait().await;
            if written.is_ok() {
                tracing::info!("the store can write outcomes again");
                tasks.health.set(None);
            }
        }
        let Some(tasks) = tasks.upgrade() else { return };
        tasks.publish(ended, &usage, kept);
    }
}

/// The end of a task that was not executed itself.
pub fn unexecuted(task: TaskId, error: Option<Failure>, result: Payload) -> Ended {
    Ended {
        answer: result,
        ..Ended::unexecuted(Attempt { task, number: 0 }, error)
    }
}

/// The end of an execution whose dispatcher is disconnected. Later reports about it are stale.
pub(super) fn abandoned(attempt: Attempt, failure: Failure) -> Ended {
    Ended {
        begun: true,
        ..Ended::unexecuted(attempt, Some(failure))
    }
}

/// The failure of a task that was cancelled before it began.
pub(super) fn cancelled_before() -> Failure {
    Failure::new(Code::Cancelled, "the task was cancelled before it began")
}

/// The failure of a task whose deadline has passed.
pub(super) fn late() -> Failure {
    Failure::new(
        Code::DeadlineExceeded,
        "the task's deadline passed before it ended; allow more time, or more workers",
    )
}

/// The failure with this code that replaces the reported one.
pub fn replaced_failure(code: Code, reported: Option<&Failure>, is_repeatable: bool) -> Failure {
    let reported = reported.map_or_else(String::new, |failure| format!(": {}", failure.message));
    let text = match code {
        Code::Cancelled => "the task was cancelled while it may have been running".into(),
        Code::DeadlineExceeded => return late(),
        Code::MaybeExecuted if is_repeatable => format!(
            "the task may have been executed, and is not executed again: {MAX_FAULTS} of its executions lost their \
             workers{reported}"
        ),
        Code::MaybeExecuted => format!(
            "the task may have been executed, and is not executed again, because it is not marked repeatable{reported}"
        ),
        _ => reported,
    };
    Failure::new(code, text)
}
