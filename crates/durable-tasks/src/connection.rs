//! What a dispatcher says.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};

use dayfly_protocol::bounds::MAX_MESSAGE_BYTES;
use dayfly_protocol::contents::Payload;
use dayfly_protocol::dispatch::{Attempt, Ended, FromDispatcher, ToDispatcher};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{EndpointId, FunctionId, TenantId};
use dayfly_protocol::text;
use dayfly_scheduling::{Decision, RetryState, decide, next_wait};
use dayfly_store::system::{now_ms, since_boot_ms};
use tokio::sync::mpsc;

use crate::endpoints::{Endpoint, own};
use crate::live_task::{LiveTask, Stage};
use crate::outcomes::instead;
use crate::state::State;
use crate::{Tasks, cancellation, compatibility, dispatch, invitations};

/// Most messages that are looked at under one hold of the lock.
const AT_ONCE: usize = 256;

/// A dispatcher's two halves of a conversation with the manager.
pub struct Conversation {
    /// What the manager says.
    pub heard: mpsc::UnboundedReceiver<ToDispatcher>,
    /// What the dispatcher says.
    pub said: mpsc::UnboundedSender<FromDispatcher>,
}

/// The connection of a dispatcher.
pub(super) struct Connection {
    pub(super) number: u64,
    /// Of which process.
    pub(super) instance: u64,
    /// Whether it keeps outcomes until it is told that they are written down, as one does that may connect again.
    pub(super) keeps: bool,
    pub(super) outgoing: mpsc::UnboundedSender<ToDispatcher>,
    pub(super) tenants: HashSet<TenantId>,
    pub(super) programs: HashSet<FunctionId>,
    /// What it was asked, or has said, that it can run.
    pub(super) suits: HashMap<FunctionId, compatibility::Compatibility>,
    /// Who waits for what to lease with from its site itself.
    pub(super) invites: invitations::Invitations,
    /// Who waits to know which tasks it had not begun.
    pub(super) withdrawals: cancellation::Withdrawals,
}

impl Tasks {
    /// A dispatcher in this process connects for the manager's own endpoint of this name, which is made if there is none.
    pub async fn attach(self: &Arc<Self>, name: &str) -> Result<Conversation, Failure> {
        let record = self.store.endpoint(own(name)).wait().await?;
        let id = record.id;
        let mut state = self.state();
        let endpoint = state.endpoints.entry(id).or_insert_with(|| Endpoint::new(record));
        // It ends with this process, so that it has nothing yet.
        let conversation = self.link(endpoint, 0, false);
        let lost = state.on_holds(id, 0, &[]);
        self.on_ended(&mut state, id, lost);
        state.tell_watches(id);
        Ok(conversation)
    }

    /// A dispatcher at another host connects.
    pub fn connect(self: &Arc<Self>, id: EndpointId, instance: u64) -> Result<Conversation, Failure> {
        let mut state = self.state();
        let Some(endpoint) = state.endpoints.get_mut(&id) else {
            let text = format!("there is no endpoint {id} any more; set it up anew");
            return Err(Failure::new(Code::NotFound, text));
        };
        if endpoint.link.as_ref().is_some_and(|link| link.instance != instance) {
            let text = format!(
                "the endpoint `{}` is connected already, by another process; stop that one",
                endpoint.record.name
            );
            return Err(Failure::new(Code::AddressInUse, text));
        }
        let conversation = self.link(endpoint, instance, true);
        state.tell_watches(id);
        Ok(conversation)
    }

    fn link(self: &Arc<Self>, endpoint: &mut Endpoint, instance: u64, keeps: bool) -> Conversation {
        let (outgoing, heard) = mpsc::unbounded_channel();
        let (said, hearing) = mpsc::unbounded_channel();
        endpoint.links += 1;
        let (id, number) = (endpoint.record.id, endpoint.links);
        endpoint.link = Some(Connection {
            number,
            instance,
            keeps,
            outgoing,
            tenants: HashSet::new(),
            programs: HashSet::new(),
            suits: HashMap::new(),
            invites: Default::default(),
            withdrawals: Default::default(),
        });
        (endpoint.room, endpoint.held, endpoint.workers) = (0, 0, 0);
        tokio::spawn(hear(Arc::downgrade(self), id, number, hearing));
        if number == 1 {
            tokio::spawn(dispatch::run(Arc::downgrade(self), id, Arc::clone(&endpoint.wake)));
        }
        Conversation { heard, said }
    }

    fn on_messages(self: &Arc<Self>, id: EndpointId, number: u64, messages: &mut Vec<FromDispatcher>) {
        let mut state = self.state();
        let is_current = |state: &State| {
            let link = state.endpoints.get(&id).and_then(|endpoint| endpoint.link.as_ref());
            link.is_some_and(|link| link.number == number)
        };
        let mut ended = Vec::new();
        let mut came = None;
        for mut message in messages.drain(..) {
            if !is_current(&state) {
                // A newer connection of the same dispatcher says all of it again.
                return;
            }
            let Some(endpoint) = state.endpoints.get_mut(&id) else {
                return;
            };
            bound_texts(&mut message);
            match message {
                FromDispatcher::Hello { instance, holds, .. } => {
                    came = (endpoint.instance != Some(instance)).then_some(instance);
                    ended.extend(state.on_holds(id, instance, &holds));
                    state.want_all(Some(id), &*self.tenants);
                }
                FromDispatcher::Spec(spec) => self.on_spec(&mut state, id, spec),
                FromDispatcher::Credit { tasks } => {
                    endpoint.room = tasks;
                    endpoint.wake.notify_one();
                }
                FromDispatcher::Workers { count, trouble } => {
                    endpoint.workers = count;
                    endpoint.trouble = trouble;
                }
                FromDispatcher::Blocks { blocks, trouble } => {
                    (endpoint.blocks, endpoint.block_trouble) = (blocks, trouble);
                }
                FromDispatcher::Compatibility { function, refusal } => state.on_suits(id, function, refusal),
                FromDispatcher::Invited { number, answer } => state.on_invited(id, number, answer),
                FromDispatcher::Withdrawn { number, attempts } => state.on_withdrawn(id, number, attempts),
                FromDispatcher::Building { attempts, how } => state.on_building(&attempts, how),
                FromDispatcher::Printed(printed) => state.on_printed(id, &printed),
                FromDispatcher::Running(attempts) => state.on_running(&attempts),
                FromDispatcher::Ended(more) => ended.extend(more),
                FromDispatcher::Arrived { trigger, files } => self.on_arrived(&mut state, id, trigger, files),
                FromDispatcher::Unmapped { tenant, failure } => self.on_unmapped(&mut state, id, tenant, &failure),
                FromDispatcher::Watching { trigger, trouble } => state.on_watching(id, trigger, trouble),
            }
        }
        if !ended.is_empty() {
            self.on_ended(&mut state, id, ended);
        }
        if let Some(instance) = came {
            // After what became of the tasks that an earlier process had, and before the first that goes to this one: so a manager that
            // is started again knows whether what this one does not have went to it, or to an earlier one.
            drop(self.store.instance(id, instance));
        }
    }

    /// Executions ended, well or not.
    fn on_ended(&self, state: &mut State, id: EndpointId, ended: Vec<Ended>) {
        let (now_ms, since_boot_ms) = (now_ms(), since_boot_ms());
        let mut pay = state.charges_at(id);
        let mut last = Vec::with_capacity(ended.len());
        let mut stale = Vec::new();
        for mut one in ended {
            let task = one.attempt.task;
            let Some(live) = state.live.get_mut(&task) else {
                stale.push(one.attempt);
                continue;
            };
            if live.tries.attempts != one.attempt.number || !live.is_out() {
                stale.push(one.attempt);
                continue;
            }
            let retry_state = RetryState {
                is_repeatable: live.repeatable,
                retries_left: live.tries.retries_left,
                faults: live.tries.faults,
                is_cancelled: live.cancelled,
                is_late: live.late,
            };
            let code = one.error.as_ref().map(|failure| failure.code);
            let decision = decide(retry_state, code, one.begun);
            let (tenant, priority) = (live.tenant, live.priority);
            let workers = u64::from(live.function.spec.resources.workers());
            if one.begun {
                let cost = state.usage.entry(live.usage_key(now_ms)).or_default();
                // An endpoint may say anything.
                let most_us = live
                    .time_ms(since_boot_ms)
                    .saturating_sub(live.submitted_at_ms)
                    .saturating_add(1_000)
                    .saturating_mul(1_000);
                let took_us = one.took_us.min(most_us);
                cost.took_us = cost.took_us.saturating_add(took_us.saturating_mul(workers));
                let resources = &live.function.spec.resources;
                let charged = pay.cost(&*self.tenants, tenant, took_us, resources);
                cost.cost = cost.cost.saturating_add(charged);
            }
            if let Decision::Requeue { retry, fault } = decision {
                live.tries.retries_left -= u16::from(retry);
                live.tries.faults += u16::from(fault);
                live.place = Stage::Queued;
                if retry && live.retry_wait_ms > 0 {
                    live.place = Stage::Resting;
                    state
                        .rests
                        .push(Reverse((since_boot_ms + u64::from(live.retry_wait_ms), task)));
                    live.retry_wait_ms = next_wait(live.retry_wait_ms);
                }
                (live.waiting_at_ms, live.environment_at_ms, live.started_at_ms) = (0, 0, 0);
            }
            let rests = live.place == Stage::Resting;
            let Some(endpoint) = state.endpoints.get_mut(&id) else {
                return;
            };
            endpoint.held = endpoint.held.saturating_sub(1);
            if one.begun {
                endpoint.queue.record(tenant, one.took_us.saturating_mul(workers));
            }
            match decision {
                Decision::Keep => {
                    one.error = one.error.map(Failure::bounded);
                    last.push(one);
                }
                Decision::EndAs(code) => {
                    one.error = Some(instead(code, one.error.as_ref(), live.repeatable));
                    (one.answer, one.raised) = (Payload::default(), false);
                    last.push(one);
                }
                Decision::Requeue { .. } if rests => {}
                Decision::Requeue { .. } => endpoint.queue.put_back(tenant, priority, task),
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
            self.tell(id, ToDispatcher::OutcomesStored(attempts));
        }
    }

    /// A dispatcher says what it has. What it should have and has not may have been executed by an earlier process; by the same
    /// one it was never received.
    fn on_holds(&mut self, id: EndpointId, instance: u64, held: &[Attempt]) -> Vec<Ended> {
        for attempt in held {
            // That a repeatable task was sent is not always written down: a manager that was started again hears of it now.
            let live = self.live.get_mut(&attempt.task).filter(|live| live.endpoint == id);
            let adopts = |live: &&mut LiveTask| live.place == Stage::Queued && live.tries.attempts < attempt.number;
            if let Some(live) = live.filter(adopts) {
                live.place = Stage::Sent;
                live.waiting_at_ms = live.time_ms(since_boot_ms());
                live.tries.attempts = attempt.number;
            }
        }
        let held: HashSet<Attempt> = held.iter().copied().collect();
        let own = self
            .live
            .iter()
            .filter(|(_, live)| live.endpoint == id && live.is_out());
        let (kept, lost): (Vec<_>, Vec<_>) = own
            .map(|(task, live)| (live.attempt(*task), live.cancelled || live.late))
            .partition(|(attempt, _)| held.contains(attempt));
        // Those that are lost are taken off when they end.
        let count = u32::try_from(kept.len() + lost.len()).unwrap_or(u32::MAX);
        let mut received = true;
        if let Some(endpoint) = self.endpoints.get_mut(&id) {
            endpoint.held = count;
            received = endpoint.instance.replace(instance) != Some(instance);
        }
        // What ended meanwhile, or is to end, and was told to nobody.
        let wanted: HashSet<Attempt> = kept
            .into_iter()
            .filter(|(_, unwanted)| !unwanted)
            .map(|(attempt, _)| attempt)
            .collect();
        let unwanted: Vec<Attempt> = held.difference(&wanted).copied().collect();
        if !unwanted.is_empty() {
            self.tell(id, ToDispatcher::Cancel(unwanted));
        }
        let failure = match received {
            true => Failure::new(Code::MaybeExecuted, "its dispatcher ended while it had the task"),
            false => Failure::new(
                Code::NotExecuted,
                "the way to its dispatcher broke before it got the task",
            ),
        };
        let lost = lost.into_iter().map(|(attempt, _)| Ended {
            begun: received,
            ..Ended::unexecuted(attempt, Some(failure.clone()))
        });
        lost.collect()
    }

    /// What is at its dispatcher, in one of these places.
    fn at(&mut self, attempt: &Attempt, places: &[Stage]) -> Option<&mut LiveTask> {
        let live = self.live.get_mut(&attempt.task)?;
        (places.contains(&live.place) && live.tries.attempts == attempt.number).then_some(live)
    }

    fn on_building(&mut self, attempts: &[Attempt], how: String) {
        let since_boot_ms = since_boot_ms();
        let how: Arc<str> = how.chars().take(MAX_HOW_CHARS).collect::<String>().into();
        for attempt in attempts {
            if let Some(live) = self.at(attempt, &[Stage::Sent, Stage::Building]) {
                if live.place == Stage::Sent {
                    live.place = Stage::Building;
                    live.environment_at_ms = live.time_ms(since_boot_ms);
                }
                live.building = Some(Arc::clone(&how));
            }
        }
    }

    fn on_running(&mut self, attempts: &[Attempt]) {
        let since_boot_ms = since_boot_ms();
        for attempt in attempts {
            if let Some(live) = self.at(attempt, &[Stage::Sent, Stage::Building]) {
                live.place = Stage::Running;
                live.started_at_ms = live.time_ms(since_boot_ms);
            }
        }
    }
}

/// Of what an endpoint says about the build of an environment, so much is kept.
const MAX_HOW_CHARS: usize = 1_024;

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
        endpoint.trouble = None;
    }
}

/// Cuts texts of a site's that are longer than anybody reads: they are kept, and shown to others.
fn bound_texts(message: &mut FromDispatcher) {
    let cut = |text: &mut String| {
        if text.len() > MAX_MESSAGE_BYTES {
            *text = text::bounded(text, MAX_MESSAGE_BYTES);
        }
    };
    match message {
        FromDispatcher::Workers { trouble, .. } => trouble.iter_mut().for_each(cut),
        FromDispatcher::Blocks { blocks, trouble } => {
            trouble.iter_mut().for_each(cut);
            for block in blocks {
                [&mut block.name, &mut block.job, &mut block.words]
                    .into_iter()
                    .for_each(cut);
            }
        }
        FromDispatcher::Compatibility {
            refusal: Some(failure), ..
        }
        | FromDispatcher::Invited {
            answer: Err(failure), ..
        }
        | FromDispatcher::Unmapped { failure, .. }
        | FromDispatcher::Watching {
            trouble: Some(failure), ..
        } => cut(&mut failure.message),
        FromDispatcher::Ended(ended) => {
            let failures = ended.iter_mut().filter_map(|one| one.error.as_mut());
            failures.map(|failure| &mut failure.message).for_each(cut);
        }
        _ => {}
    }
}
