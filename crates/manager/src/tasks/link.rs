//! What a dispatcher says.

use std::collections::HashSet;
use std::sync::{Arc, Weak};

use mayfly_protocol::blob::Blob;
use mayfly_protocol::dispatch::{Attempt, Ended, FromDispatcher, ToDispatcher};
use mayfly_protocol::error::{Code, Failure};
use mayfly_protocol::ids::{EndpointId, TaskId};
use mayfly_tasks::{Fate, Terms, fate};
use tokio::sync::mpsc;

use super::finish::instead;
use super::{Link, Place, State, Tasks, fresh_endpoint};

/// Most messages that are looked at under one hold of the lock.
const AT_ONCE: usize = 256;

/// A dispatcher's two halves of a conversation with the manager.
pub struct Conversation {
    /// What the manager says.
    pub heard: mpsc::UnboundedReceiver<ToDispatcher>,
    /// What the dispatcher says.
    pub said: mpsc::UnboundedSender<FromDispatcher>,
}

impl Tasks {
    /// A dispatcher connects for the endpoint of this name, which is made if there is none.
    pub async fn attach(self: &Arc<Self>, name: &str) -> Result<Conversation, Failure> {
        let record = self.store.endpoint(fresh_endpoint(name)).wait().await?;
        let id = record.id;
        let (outgoing, heard) = mpsc::unbounded_channel();
        let (said, hearing) = mpsc::unbounded_channel();
        let mut state = self.state();
        let endpoint = state
            .endpoints
            .entry(id)
            .or_insert_with(|| super::Endpoint::new(record));
        endpoint.links += 1;
        let number = endpoint.links;
        endpoint.link = Some(Link {
            number,
            // It ends with this process.
            keeps: false,
            outgoing,
            tenants: HashSet::new(),
            programs: HashSet::new(),
        });
        (endpoint.room, endpoint.held, endpoint.workers) = (0, 0, 0);
        let wake = Arc::clone(&endpoint.wake);
        drop(state);
        tokio::spawn(hear(Arc::downgrade(self), id, number, hearing));
        if number == 1 {
            tokio::spawn(super::send::run(Arc::downgrade(self), id, wake));
        }
        Ok(Conversation { heard, said })
    }

    fn on_messages(&self, id: EndpointId, number: u64, messages: &mut Vec<FromDispatcher>) {
        let mut state = self.state();
        let is_current = |state: &State| {
            let link = state.endpoints.get(&id).and_then(|endpoint| endpoint.link.as_ref());
            link.is_some_and(|link| link.number == number)
        };
        let mut ended = Vec::new();
        for message in messages.drain(..) {
            if !is_current(&state) {
                // A newer connection of the same dispatcher says all of it again.
                return;
            }
            let Some(endpoint) = state.endpoints.get_mut(&id) else {
                return;
            };
            match message {
                FromDispatcher::Holds(held) => ended.extend(state.on_holds(id, &held)),
                FromDispatcher::Room { tasks } => {
                    endpoint.room = tasks;
                    endpoint.wake.notify_one();
                }
                FromDispatcher::Workers { count, trouble } => {
                    endpoint.workers = count;
                    endpoint.trouble = trouble;
                }
                FromDispatcher::Running(attempts) => state.on_running(&attempts),
                FromDispatcher::Ended(more) => ended.extend(more),
            }
        }
        if !ended.is_empty() {
            self.on_ended(&mut state, id, ended);
        }
    }

    /// Executions ended, well or not.
    fn on_ended(&self, state: &mut State, id: EndpointId, ended: Vec<Ended>) {
        let mut last = Vec::with_capacity(ended.len());
        let mut stale = Vec::new();
        for mut one in ended {
            let task = one.attempt.task;
            let Some(live) = state.live.get_mut(&task) else {
                stale.push(one.attempt);
                continue;
            };
            if live.tries.attempts != one.attempt.number || !matches!(live.place, Place::Sent | Place::Running) {
                stale.push(one.attempt);
                continue;
            }
            let terms = Terms {
                repeatable: live.repeatable,
                retries_left: live.tries.retries_left,
                faults: live.tries.faults,
                cancelled: live.cancelled,
                late: live.late,
            };
            let code = one.error.as_ref().map(|failure| failure.code);
            let fate = fate(terms, code, one.begun);
            let (tenant, priority) = (live.tenant, live.priority);
            if let Fate::Again { retry, fault } = fate {
                live.tries.retries_left -= u16::from(retry);
                live.tries.faults += u16::from(fault);
                live.place = Place::Queued;
                live.started_at_ms = 0;
            }
            let Some(endpoint) = state.endpoints.get_mut(&id) else {
                return;
            };
            endpoint.held = endpoint.held.saturating_sub(1);
            if one.begun {
                endpoint.queue.took(tenant, one.took_us);
            }
            match fate {
                Fate::Done => last.push(one),
                Fate::As(code) => {
                    one.error = Some(instead(code, one.error.as_ref()));
                    (one.answer, one.raised) = (Blob::default(), false);
                    last.push(one);
                }
                Fate::Again { .. } => endpoint.queue.push_back(tenant, priority, task),
            }
        }
        if let Some(endpoint) = state.endpoints.get(&id) {
            endpoint.wake.notify_one();
        }
        state.tell_kept(id, stale);
        self.end(state, last, Some(id));
    }
}

impl State {
    /// Tells a dispatcher which outcomes it need not keep any more, if it keeps any.
    pub(super) fn tell_kept(&self, id: EndpointId, attempts: Vec<Attempt>) {
        let link = self.endpoints.get(&id).and_then(|endpoint| endpoint.link.as_ref());
        if link.is_some_and(|link| link.keeps) && !attempts.is_empty() {
            self.tell(id, ToDispatcher::Kept(attempts));
        }
    }

    /// A dispatcher says what it has. What it should have and has not, may have been executed by an earlier one.
    fn on_holds(&mut self, id: EndpointId, held: &[Attempt]) -> Vec<Ended> {
        let held: HashSet<Attempt> = held.iter().copied().collect();
        let at_it = |place| matches!(place, Place::Sent | Place::Running);
        let own = self
            .live
            .iter()
            .filter(|(_, live)| live.endpoint == id && at_it(live.place));
        let (kept, lost): (Vec<_>, Vec<_>) = own
            .map(|(task, live)| live.attempt(*task))
            .partition(|attempt| held.contains(attempt));
        // Those that are lost are taken off when they end.
        let count = u32::try_from(kept.len() + lost.len()).unwrap_or(u32::MAX);
        if let Some(endpoint) = self.endpoints.get_mut(&id) {
            endpoint.held = count;
        }
        let foreign = held
            .difference(&kept.into_iter().collect())
            .copied()
            .collect::<Vec<_>>();
        if !foreign.is_empty() {
            self.tell(id, ToDispatcher::Cancel(foreign));
        }
        let failure = Failure::new(Code::MaybeExecuted, "its dispatcher ended while it had the task");
        let lost = lost.into_iter().map(|attempt| Ended {
            attempt,
            error: Some(failure.clone()),
            raised: false,
            begun: true,
            answer: Blob::default(),
            took_us: 0,
        });
        lost.collect()
    }

    fn on_running(&mut self, attempts: &[Attempt]) {
        let now_ms = crate::control::now_ms();
        for attempt in attempts {
            let task: TaskId = attempt.task;
            let live = self.live.get_mut(&task);
            if let Some(live) = live.filter(|live| live.place == Place::Sent && live.tries.attempts == attempt.number) {
                live.place = Place::Running;
                live.started_at_ms = now_ms;
            }
        }
    }
}

async fn hear(tasks: Weak<Tasks>, id: EndpointId, number: u64, mut hearing: mpsc::UnboundedReceiver<FromDispatcher>) {
    let mut messages = Vec::with_capacity(AT_ONCE);
    while hearing.recv_many(&mut messages, AT_ONCE).await > 0 {
        let Some(tasks) = tasks.upgrade() else { return };
        tasks.on_messages(id, number, &mut messages);
        messages.clear();
    }
    let Some(tasks) = tasks.upgrade() else { return };
    let mut state = tasks.state();
    if let Some(endpoint) = state.endpoints.get_mut(&id)
        && endpoint.link.as_ref().is_some_and(|link| link.number == number)
    {
        tracing::warn!(endpoint = endpoint.record.name, "its dispatcher is gone");
        endpoint.link = None;
        (endpoint.room, endpoint.workers) = (0, 0);
    }
}
