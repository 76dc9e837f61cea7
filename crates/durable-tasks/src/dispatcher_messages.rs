//! The messages of dispatchers: what each of them changes.
//!
//! Adds to `State` the reports that concern an endpoint's tasks, and to `Tasks` the end of executions.

use std::collections::HashSet;
use std::sync::Arc;

use dayfly_protocol::bounds::MAX_MESSAGE_BYTES;
use dayfly_protocol::contents::Payload;
use dayfly_protocol::dispatch::{Attempt, Ended, FromDispatcher, ToDispatcher};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::EndpointId;
use dayfly_protocol::text;
use dayfly_scheduling::{Decision, decide};
use dayfly_store::system::{now_ms, since_boot_ms};

use crate::Tasks;
use crate::live_tasks::Stage;
use crate::outcomes::replaced_failure;
use crate::state::State;

/// Maximum length of the progress that is kept of the build of an environment.
const MAX_PROGRESS_CHARS: usize = 1_024;

impl Tasks {
    /// Handles messages of the connection with this number.
    pub(super) fn on_messages(self: &Arc<Self>, id: EndpointId, number: u64, messages: &mut Vec<FromDispatcher>) {
        let mut state = self.state();
        let mut ended = Vec::new();
        let mut new_instance = None;
        for mut message in messages.drain(..) {
            let endpoint = state.endpoints.get_mut(id);
            let Some(endpoint) = endpoint.filter(|endpoint| endpoint.is_current(number)) else {
                // The dispatcher repeats all of this on its newer connection.
                return;
            };
            bound_texts(&mut message);
            match message {
                FromDispatcher::Hello { instance, holds, .. } => {
                    new_instance = endpoint.is_new_instance(instance).then_some(instance);
                    ended.extend(state.on_holds(id, instance, &holds));
                    state.request_daemons(Some(id), &*self.tenants);
                }
                FromDispatcher::Spec(spec) => self.on_spec(&mut state, id, spec),
                FromDispatcher::Credit { tasks } => endpoint.set_room(tasks),
                FromDispatcher::Workers { count, trouble } => endpoint.set_workers(count, trouble),
                FromDispatcher::Blocks { blocks, trouble } => endpoint.set_blocks(blocks, trouble),
                FromDispatcher::Compatibility { function, refusal } => state.on_compatibility(id, function, refusal),
                FromDispatcher::Invited { number, answer } => state.on_invitation(id, number, answer),
                FromDispatcher::Withdrawn { number, attempts } => state.on_withdrawn(id, number, attempts),
                FromDispatcher::Building { attempts, how } => state.on_building(&attempts, how),
                FromDispatcher::Printed(mut printed) => {
                    state.on_loans(id, &mut printed);
                    state.on_printed(id, &printed);
                }
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
        if let Some(instance) = new_instance {
            // Written after the ends of the tasks that an earlier process had, and before the first task goes to this
            // one. So after a restart, the manager knows whether a task that this process does not have went to it.
            drop(self.store.instance(id, instance));
        }
    }

    /// Executions ended, with or without success.
    pub(super) fn on_ended(&self, state: &mut State, id: EndpointId, ended: Vec<Ended>) {
        let (now_ms, since_boot_ms) = (now_ms(), since_boot_ms());
        let mut charges = state.charges_at(id);
        let mut last = Vec::with_capacity(ended.len());
        let mut stale = Vec::new();
        for mut one in ended {
            let task = one.attempt.task;
            let live = state.tasks.get_mut(task);
            let Some(live) = live.filter(|live| live.is_executing(one.attempt)) else {
                stale.push(one.attempt);
                continue;
            };
            let code = one.error.as_ref().map(|failure| failure.code);
            let decision = decide(live.retry_state(), code, one.begun);
            let (tenant, priority) = (live.tenant(), live.priority());
            let resources = live.function().spec.resources;
            let workers = u64::from(resources.workers());
            if one.begun {
                // The endpoint's report is bounded by the task's age.
                let age_ms = live.time_ms(since_boot_ms).saturating_sub(live.submitted_at_ms());
                let max_us = age_ms.saturating_add(1_000).saturating_mul(1_000);
                let took_us = one.took_us.min(max_us);
                let cost = charges.cost(&*self.tenants, tenant, took_us, &resources);
                let used_us = took_us.saturating_mul(workers);
                state.usage.add_execution(live.usage_key(now_ms), used_us, cost);
            }
            let mut rests_until = None;
            if let Decision::Requeue { retry, fault } = decision {
                rests_until = live.retry(retry, fault, since_boot_ms);
            }
            let is_repeatable = live.is_repeatable();
            if let Some(until_ms) = rests_until {
                state.tasks.rest_until(task, until_ms);
            }
            let Some(endpoint) = state.endpoints.get_mut(id) else {
                return;
            };
            endpoint.release(1);
            if one.begun {
                endpoint.record_share(tenant, one.took_us.saturating_mul(workers));
            }
            match decision {
                Decision::Keep => {
                    one.error = one.error.map(Failure::bounded);
                    last.push(one);
                }
                Decision::EndAs(code) => {
                    one.error = Some(replaced_failure(code, one.error.as_ref(), is_repeatable));
                    (one.answer, one.raised) = (Payload::default(), false);
                    last.push(one);
                }
                Decision::Requeue { .. } if rests_until.is_some() => {}
                Decision::Requeue { .. } => endpoint.put_back(tenant, priority, task),
            }
        }
        if let Some(endpoint) = state.endpoints.get(id) {
            endpoint.wake();
        }
        state.confirm_outcomes(id, stale);
        self.end(state, last, Some(id));
    }
}

impl State {
    /// Confirms to a dispatcher that outcomes are written, if it keeps them until then.
    pub fn confirm_outcomes(&self, id: EndpointId, attempts: Vec<Attempt>) {
        if let Some(connection) = self.endpoints.connection(id)
            && connection.keeps_outcomes()
            && !attempts.is_empty()
        {
            connection.send(ToDispatcher::OutcomesStored(attempts));
        }
    }

    /// A dispatcher reports which attempts it has. Returns the ends of those that it should have and has not: an
    /// earlier process may have executed them; the same process never received them.
    pub fn on_holds(&mut self, id: EndpointId, instance: u64, held: &[Attempt]) -> Vec<Ended> {
        let since_boot_ms = since_boot_ms();
        for attempt in held {
            // A repeatable task may be sent without a record of that, so a restarted manager learns it here.
            let live = self.tasks.get_mut(attempt.task).filter(|live| live.endpoint() == id);
            if let Some(live) = live
                && live.stage() == Stage::Queued
                && live.tries().attempts < attempt.number
            {
                live.adopt(attempt.number, since_boot_ms);
            }
        }
        let held: HashSet<Attempt> = held.iter().copied().collect();
        let own = self
            .tasks
            .iter()
            .filter(|(_, live)| live.endpoint() == id && live.is_out());
        let (kept, lost): (Vec<_>, Vec<_>) = own
            .map(|(task, live)| (live.attempt(task), live.is_cancelled() || live.is_late()))
            .partition(|(attempt, _)| held.contains(attempt));
        // The end of each lost attempt takes one off again.
        let count = u32::try_from(kept.len() + lost.len()).unwrap_or(u32::MAX);
        let endpoint = self.endpoints.get_mut(id);
        let is_other_process = endpoint.is_none_or(|endpoint| endpoint.set_held(instance, count));
        // Some attempts ended, or were cancelled, while the dispatcher was away.
        let wanted: HashSet<Attempt> = kept
            .into_iter()
            .filter(|(_, is_unwanted)| !is_unwanted)
            .map(|(attempt, _)| attempt)
            .collect();
        let unwanted: Vec<Attempt> = held.difference(&wanted).copied().collect();
        if !unwanted.is_empty() {
            self.endpoints.send(id, ToDispatcher::Cancel(unwanted));
        }
        let failure = match is_other_process {
            true => Failure::new(Code::MaybeExecuted, "its dispatcher ended while it had the task"),
            false => Failure::new(
                Code::NotExecuted,
                "the connection to its dispatcher broke before the dispatcher received the task",
            ),
        };
        let lost = lost.into_iter().map(|(attempt, _)| Ended {
            begun: is_other_process,
            ..Ended::unexecuted(attempt, Some(failure.clone()))
        });
        lost.collect()
    }

    fn on_building(&mut self, attempts: &[Attempt], progress: String) {
        let since_boot_ms = since_boot_ms();
        let progress: Arc<str> = progress.chars().take(MAX_PROGRESS_CHARS).collect::<String>().into();
        for attempt in attempts {
            if let Some(live) = self.tasks.get_mut(attempt.task) {
                live.build(*attempt, &progress, since_boot_ms);
            }
        }
    }

    fn on_running(&mut self, attempts: &[Attempt]) {
        let since_boot_ms = since_boot_ms();
        for attempt in attempts {
            if let Some(live) = self.tasks.get_mut(attempt.task) {
                live.run(*attempt, since_boot_ms);
            }
        }
    }
}

/// Cuts a site's texts to the length that is kept and shown to others.
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
