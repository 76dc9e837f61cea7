//! Outcomes are written down, and told in the order of their numbers.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use dayfly_protocol::contents::Payload;
use dayfly_protocol::dispatch::{Attempt, Ended};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{EndpointId, TaskId};
use dayfly_protocol::tasks::{ResultOrigin, TaskOutcome, TaskTimes};
use dayfly_scheduling::MAX_FAULTS;
use dayfly_store::accounts::{Usage, UsageKey};
use dayfly_store::system::{now_ms, since_boot_ms};
use dayfly_store::tasks::EndedTask;
use dayfly_store::{Pending, StoreError};
use tokio::sync::mpsc;

use crate::Tasks;
use crate::live_task::Stage;
use crate::memo::Key;
use crate::state::State;
use crate::tag::Tag;

/// Between two attempts on a store that cannot write.
const RETRY: Duration = Duration::from_millis(500);

/// What is ended: the task, and why not well.
pub(super) type Ending = (TaskId, Option<Failure>);

/// Outcomes on their way to the disk.
pub struct UnwrittenOutcomes {
    tasks: Vec<EndedTask>,
    usage: Vec<(UsageKey, Usage)>,
    written: Pending<()>,
    /// The dispatcher that may forget them.
    kept: Option<(EndpointId, Vec<Attempt>)>,
}

impl Tasks {
    /// Tasks that were not executed end so.
    pub(super) fn end_unexecuted(&self, state: &mut State, ended: Vec<Ending>) {
        let tasks = ended
            .into_iter()
            .map(|(id, error)| unexecuted(id, error, Payload::default()));
        self.end(state, tasks.collect(), None);
    }

    /// Executions were the last of their tasks: their outcomes are written down, in this order.
    pub(super) fn end(&self, state: &mut State, ended: Vec<Ended>, by: Option<EndpointId>) {
        let (today_ms, since_boot_ms) = (now_ms(), since_boot_ms());
        let mut tasks = Vec::with_capacity(ended.len());
        let mut kept = Vec::new();
        let mut anew = Vec::new();
        let mut ended = VecDeque::from(ended);
        while let Some(one) = ended.pop_front() {
            let id = one.attempt.task;
            let number = state.last_number + 1;
            let Some(live) = state.live.get_mut(&id).filter(|live| live.place != Stage::Ending) else {
                continue;
            };
            live.place = Stage::Ending;
            let now_ms = live.time_ms(since_boot_ms);
            let arguments = live.arguments.take();
            let led = live.memo.filter(|_| live.leads);
            let started_at_ms = match (live.tries.attempts, live.started_at_ms) {
                (0, _) => 0,
                // Where it was told of, it was a moment later.
                (_, told_ms) => {
                    let told_ms = if told_ms > 0 { told_ms } else { now_ms };
                    let began_ms = told_ms.min(now_ms.saturating_sub(one.took_us / 1000));
                    let came_ms = [live.submitted_at_ms, live.waiting_at_ms, live.environment_at_ms];
                    came_ms.into_iter().fold(began_ms, u64::max)
                }
            };
            let (waiting_at_ms, environment_at_ms) = (live.waiting_at_ms, live.environment_at_ms);
            let attempts = live.tries.attempts;
            let ran = ResultOrigin {
                tenant: live.tenant,
                function: live.function.id,
                endpoint: live.endpoint,
            };
            let cost = state.usage.entry(live.usage_key(today_ms)).or_default();
            cost.tasks += 1;
            cost.failed += u64::from(one.error.is_some());
            state.cached_bytes -= arguments.map_or(0, |arguments| arguments.inline_bytes());
            state.last_number = number;
            if let Some(key) = led {
                match &one.error {
                    None => ended.extend(state.answered(key, &one.answer, self.kept_ms())),
                    Some(_) => anew.extend(state.memo.failed(key)),
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
                    attempts,
                    foreign: Vec::new(),
                    ran: Some(ran),
                },
                waiting_at_ms,
                environment_at_ms,
                started_at_ms,
                ended_at_ms: now_ms,
            });
        }
        if tasks.is_empty() {
            return;
        }
        // Under the lock, so that the store gets them in the order of their numbers.
        let usage = Vec::from_iter(state.usage.drain());
        let written = self.store.end(tasks.clone(), usage.clone());
        let kept = by.map(|endpoint| (endpoint, kept));
        // It ends with the manager alone.
        let _ = self.finishing.send(UnwrittenOutcomes {
            tasks,
            usage,
            written,
            kept,
        });
        for task in anew {
            // The first one leads the others, so that none of them has an answer now.
            if state.is_following(task) {
                state.line_up(task);
            }
        }
    }

    fn publish(&self, tasks: Vec<EndedTask>, usage: &[(UsageKey, Usage)], kept: Option<(EndpointId, Vec<Attempt>)>) {
        let mut state = self.state();
        let charged = state.add_costs(usage);
        let mut told: Vec<Arc<Tag>> = Vec::new();
        let mut awaited = Vec::new();
        for mut task in tasks {
            state.published = task.outcome.number;
            // While its function is surely there.
            task.outcome.foreign = state.foreign(task.outcome.ran, &*self.tenants);
            let Some(live) = state.live_no_more(task.outcome.id) else {
                continue;
            };
            let marks = [
                live.submitted_at_ms,
                task.waiting_at_ms,
                task.environment_at_ms,
                task.started_at_ms,
            ];
            let times = TaskTimes::between(marks, task.ended_at_ms);
            let mut has_printed = false;
            if let Some(endpoint) = state.endpoints.get_mut(&live.endpoint) {
                has_printed = endpoint.outputs.knows(task.outcome.id);
                endpoint.done += 1;
                endpoint.failed += u64::from(task.outcome.error.is_some());
                endpoint.times.add(times);
            }
            if has_printed {
                state.unkept.insert((live.endpoint, task.outcome.id));
            }
            let ended = state.ended.entry(live.tenant).or_default();
            ended.done += 1;
            ended.failed += u64::from(task.outcome.error.is_some());
            ended.times.add(times);
            if state.later.contains_key(&task.outcome.id) {
                awaited.push((
                    task.outcome.id,
                    task.outcome.error.clone().map(Failure::without_exception),
                ));
            }
            // Whoever follows a tag gets the pickled exception. Its text is for those who ask for one task, and for functions
            // that are called in JSON, which have no other.
            let mut outcome = task.outcome;
            if outcome.raised {
                outcome.error = outcome.error.map(Failure::without_exception);
            }
            live.tag.add(outcome);
            if !told.last().is_some_and(|last| Arc::ptr_eq(last, &live.tag)) {
                told.push(live.tag);
            }
        }
        if let Some((endpoint, attempts)) = kept {
            state.tell_kept(endpoint, attempts);
        }
        self.go_on(&mut state, &awaited);
        drop(state);
        if !charged.is_empty() {
            self.tenants.charge(charged);
        }
        for tag in told {
            tag.tell();
        }
    }

    fn say(&self, trouble: Option<StoreError>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }
}

impl State {
    fn is_following(&self, task: TaskId) -> bool {
        self.live.get(&task).is_some_and(|live| live.place == Stage::Following)
    }

    /// Tasks that waited for this answer, and have it.
    fn answered(&mut self, key: Key, answer: &Payload, kept_ms: u64) -> Vec<Ended> {
        let mut followers = self.memo.answered(key, answer, kept_ms, since_boot_ms());
        followers.retain(|task| self.is_following(*task));
        followers
            .into_iter()
            .map(|task| unexecuted(task, None, answer.clone()))
            .collect()
    }
}

/// The end of a task that was not executed itself.
pub fn unexecuted(task: TaskId, error: Option<Failure>, answer: Payload) -> Ended {
    Ended {
        answer,
        ..Ended::unexecuted(Attempt { task, number: 0 }, error)
    }
}

/// Waits for each write in its turn, and tells of it. One that fails is tried until it does not: it has happened.
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
            // Whoever has the tasks now hears of them from their dispatcher.
            if error == StoreError::Moved {
                return;
            }
            let Some(tasks) = tasks.upgrade() else { return };
            if tasks.trouble().is_none() {
                tracing::error!(%error, "the store cannot write outcomes; they wait until it can");
            }
            tasks.say(Some(error));
            tokio::time::sleep(RETRY).await;
            written = tasks.store.end(ended.clone(), usage.clone()).wait().await;
            if written.is_ok() {
                tracing::info!("the store can write outcomes again");
                tasks.say(None);
            }
        }
        let Some(tasks) = tasks.upgrade() else { return };
        tasks.publish(ended, &usage, kept);
    }
}

/// The end of an execution whose dispatcher is away: what it says when it is back comes too late.
pub(super) fn given_up(attempt: Attempt, failure: Failure) -> Ended {
    Ended {
        begun: true,
        ..Ended::unexecuted(attempt, Some(failure))
    }
}

/// The outcome of a task that was cancelled before it began.
pub(super) fn cancelled_before() -> Failure {
    Failure::new(Code::Cancelled, "the task was cancelled before it began")
}

/// The outcome of a task whose deadline passed.
pub(super) fn late() -> Failure {
    Failure::new(
        Code::DeadlineExceeded,
        "the task's deadline passed before it ended; allow more time, or more workers",
    )
}

/// What a task ends with in place of what was told.
pub fn instead(code: Code, told: Option<&Failure>, repeatable: bool) -> Failure {
    let told = told.map_or_else(String::new, |failure| format!(": {}", failure.message));
    let text = match code {
        Code::Cancelled => "the task was cancelled while it may have been running".into(),
        Code::DeadlineExceeded => return late(),
        Code::MaybeExecuted if repeatable => format!(
            "the task may have been executed, and is not executed again: it cost {MAX_FAULTS} executions their worker{told}"
        ),
        Code::MaybeExecuted => format!(
            "the task may have been executed, and is not executed again, as its owner did not say that it is repeatable{told}"
        ),
        _ => told,
    };
    Failure::new(code, text)
}
