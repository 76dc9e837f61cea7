//! Tasks go to a dispatcher, as many as it has room for.

use std::sync::{Arc, Weak};
use std::time::Duration;

use dayfly_protocol::contents::Payload;
use dayfly_protocol::dispatch::{Assigned, Program, ToDispatcher};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{EndpointId, FunctionId, TaskId, TenantId};
use dayfly_store::system::since_boot_ms;
use dayfly_store::tasks::{FunctionRecord, Given, Tries};
use tokio::sync::Notify;

use crate::dependencies::forgotten;
use crate::endpoints::{Endpoint, is_guest};
use crate::live_task::{LiveTask, Stage};
use crate::outcomes::{cancelled_before, late};
use crate::state::State;
use crate::{Tasks, Tenants};

/// Most tasks that are sent at once.
const AT_ONCE: usize = 1_024;
/// What a task is given has so many bytes in a message, or else its parts have so many each.
const MAX_HERE: usize = 8 << 20;
const MAX_EACH: usize = 4 << 10;
/// Such parts that are stored at the same time.
const STORED_AT_ONCE: usize = 16;
/// Between two attempts on a store that cannot write.
const RETRY: Duration = Duration::from_millis(500);

/// Tasks that are being sent.
#[derive(Default)]
struct Batch {
    link: u64,
    tasks: Vec<TaskId>,
    /// What has to be written down or read first, and whether the arguments are to be read.
    writes: Vec<(TaskId, Tries, bool)>,
    /// Functions that the dispatcher does not know.
    functions: Vec<Arc<FunctionRecord>>,
}

impl Endpoint {
    fn free(&self) -> usize {
        self.room.saturating_sub(self.held) as usize
    }

    /// Whether tasks of this tenant and function can be sent as soon as they are accepted.
    pub(super) fn takes_at_once(&self, tenant: TenantId, function: FunctionId, count: usize) -> bool {
        let Some(link) = &self.link else { return false };
        self.queue.is_empty()
            && self.free() >= count
            && link.tenants.contains(&tenant)
            && link.programs.contains(&function)
    }
}

impl State {
    /// Takes the next tasks out of an endpoint's queue. Those of tenants that may not spend stay there until they may.
    fn take(&mut self, id: EndpointId, tenants: &dyn Tenants) -> Option<Batch> {
        let endpoint = self.endpoints.get_mut(&id)?;
        let link = endpoint.link.as_ref()?;
        let mut batch = Batch {
            link: link.number,
            ..Batch::default()
        };
        let may_not = |tenant: &TenantId| tenants.may_spend(*tenant).is_err();
        let held_up: Vec<TenantId> = endpoint.queue.tenants().filter(may_not).collect();
        while batch.tasks.len() < AT_ONCE.min(endpoint.free() + batch.tasks.len())
            && let Some(task) = endpoint.queue.pop_except(&held_up)
        {
            // One that was cancelled, or is late, has its outcome already.
            let Some(live) = self.live.get_mut(&task).filter(|live| live.place == Stage::Queued) else {
                continue;
            };
            live.place = Stage::Beginning;
            live.tries.attempts = live.tries.attempts.saturating_add(1);
            endpoint.held += 1;
            if !live.repeatable || live.arguments.is_none() {
                batch.writes.push((task, live.tries, live.arguments.is_none()));
            }
            let known = link.programs.contains(&live.function.id);
            if !known && !batch.functions.iter().any(|function| function.id == live.function.id) {
                batch.functions.push(Arc::clone(&live.function));
            }
            batch.tasks.push(task);
        }
        (!batch.tasks.is_empty()).then_some(batch)
    }

    /// Puts tasks that could not be sent back where they were.
    fn put_back(&mut self, id: EndpointId, tasks: &[TaskId]) {
        let Some(endpoint) = self.endpoints.get_mut(&id) else {
            return;
        };
        for task in tasks.iter().rev() {
            if let Some(live) = self.live.get_mut(task).filter(|live| live.place == Stage::Beginning) {
                live.place = Stage::Queued;
                live.tries.attempts -= 1;
                endpoint.held = endpoint.held.saturating_sub(1);
                endpoint.queue.put_back(live.tenant, live.priority, *task);
            }
        }
    }
}

impl Tasks {
    /// Sends what there is room for.
    async fn send(&self, id: EndpointId) -> Result<bool, Failure> {
        let Some(batch) = self.state().take(id, &*self.tenants) else {
            return Ok(false);
        };
        match self.prepare(&batch).await {
            Ok((programs, read)) => {
                self.hand_over(id, &batch, programs, read);
                Ok(true)
            }
            Err(error) => {
                self.state().put_back(id, &batch.tasks);
                Err(error)
            }
        }
    }

    async fn prepare(&self, batch: &Batch) -> Result<(Vec<Program>, Vec<Given>), Failure> {
        let mut programs = Vec::with_capacity(batch.functions.len());
        for function in &batch.functions {
            programs.push(Program {
                id: function.id,
                owner: Some(function.tenant),
                hash: function.hash,
                form: function.spec.form.clone(),
                runtime: function.spec.runtime.clone(),
                image: function.spec.image.clone(),
                resources: function.spec.resources,
                code: self.code(function.id).await?,
            });
        }
        let read = match batch.writes.is_empty() {
            true => Vec::new(),
            false => self.store.begin(batch.writes.clone()).wait().await?,
        };
        let wanted = batch.writes.iter().filter(|(_, _, wanted)| *wanted);
        let mut given = Vec::with_capacity(read.len());
        for ((task, _, _), mut one) in wanted.zip(read) {
            self.mark(&mut one);
            given.push(match one.inline_bytes() > MAX_HERE {
                true => self.set_apart(*task, one).await?,
                false => one,
            });
        }
        Ok((programs, given))
    }

    /// What is too much for one message goes by reference, as if its parts were long.
    async fn set_apart(&self, task: TaskId, given: Given) -> Result<Given, Failure> {
        let tenant = self.state().live.get(&task).map(|live| live.tenant);
        let Some(tenant) = tenant else { return Ok(given) };
        let apart = async |part: Payload| match part {
            Payload::Inline(bytes) if bytes.len() > MAX_EACH => {
                self.contents.put_bytes(tenant, bytes.0).await.map(Payload::Stored)
            }
            other => Ok(other),
        };
        let mut answers = Vec::with_capacity(given.answers.len());
        let whole = async {
            for some in given.answers.chunks(STORED_AT_ONCE) {
                // One that is forgotten ends the task, whatever stands in its place.
                let some = some.iter().map(|answer| answer.clone().map(&apart));
                let some =
                    some.map(|answer| async { futures_util::future::OptionFuture::from(answer).await.transpose() });
                answers.extend(futures_util::future::try_join_all(some).await?);
            }
            apart(given.arguments.clone()).await
        };
        let whole = whole.await;
        match whole {
            Ok(arguments) => Ok(Given {
                arguments,
                answers,
                ..given
            }),
            // Others need not wait until its owner has room.
            Err(failure) if failure.code == Code::QuotaExceeded => {
                if let Some(live) = self.state().live.get_mut(&task) {
                    live.before.fails(failure);
                }
                Ok(Given::default())
            }
            Err(failure) => Err(failure),
        }
    }

    fn hand_over(&self, id: EndpointId, batch: &Batch, programs: Vec<Program>, read: Vec<Given>) {
        let mut state = self.state();
        let link = state.endpoints.get(&id).and_then(|endpoint| endpoint.link.as_ref());
        if link.is_none_or(|link| link.number != batch.link) {
            return state.put_back(id, &batch.tasks);
        }
        let wanted = batch.writes.iter().filter(|(_, _, wanted)| *wanted);
        for ((task, _, _), Given { arguments, answers, .. }) in wanted.zip(read) {
            let length = arguments.inline_bytes();
            let count = answers.len();
            let answers: Vec<_> = answers.into_iter().flatten().collect();
            if let Some(live) = state.live.get_mut(task) {
                if answers.len() < count {
                    live.before.fails(forgotten());
                }
                live.arguments = Some(arguments);
                live.answers = answers;
                state.cached_bytes += length;
            }
        }
        self.assign(&mut state, id, &batch.tasks, programs);
    }

    /// Sends tasks that are written down as sent; those that must not run any more end instead.
    pub(super) fn assign(&self, state: &mut State, id: EndpointId, tasks: &[TaskId], programs: Vec<Program>) {
        let since_boot_ms = since_boot_ms();
        let mut ended = Vec::new();
        let mut assigned = Vec::with_capacity(tasks.len());
        let mut messages = Vec::new();
        let Some(endpoint) = state.endpoints.get_mut(&id) else {
            return;
        };
        let Some(link) = endpoint.link.as_mut() else { return };
        for program in programs {
            link.programs.insert(program.id);
            messages.push(ToDispatcher::Program(Box::new(program)));
        }
        for task in tasks {
            let Some(live) = state.live.get_mut(task) else { continue };
            let broken = live.before.failure();
            if live.cancelled || live.late || broken.is_some() {
                // It was not executed, whatever was written down in case that it would be.
                live.tries.attempts -= 1;
                endpoint.held = endpoint.held.saturating_sub(1);
                let unless = || if live.late { late() } else { cancelled_before() };
                ended.push((*task, Some(broken.unwrap_or_else(unless))));
                continue;
            }
            if link.tenants.insert(live.tenant) {
                messages.push(ToDispatcher::Tenant {
                    tenant: live.tenant,
                    name: self.tenants.name(live.tenant),
                    guest: is_guest(&endpoint.record, live.tenant),
                });
            }
            let now_ms = live.time_ms(since_boot_ms);
            live.place = Stage::Sent;
            (live.waiting_at_ms, live.environment_at_ms) = (now_ms, 0);
            assigned.push(assignment(*task, live, now_ms));
            live.answers = Vec::new();
            let arguments = live.arguments.take();
            state.cached_bytes -= arguments.map_or(0, |arguments| arguments.inline_bytes());
        }
        if !assigned.is_empty() {
            messages.push(ToDispatcher::Tasks(assigned));
        }
        for message in messages {
            // Its end is noticed by whoever listens to it.
            let _ = link.outgoing.send(message);
        }
        self.end_unexecuted(state, ended);
    }
}

fn assignment(task: TaskId, live: &LiveTask, now_ms: u64) -> Assigned {
    let left = |at_ms: u64| u32::try_from(at_ms.saturating_sub(now_ms).max(1)).unwrap_or(u32::MAX);
    let walltime_ms = match (live.walltime_ms, live.deadline_at_ms) {
        (walltime_ms, 0) => walltime_ms,
        (0, at_ms) => left(at_ms),
        (walltime_ms, at_ms) => walltime_ms.min(left(at_ms)),
    };
    Assigned {
        attempt: live.attempt(task),
        function: live.function.id,
        tenant: live.tenant,
        arguments: live.arguments.clone().unwrap_or_default(),
        answers: live.answers.clone(),
        walltime_ms,
        repeatable: live.repeatable,
    }
}

/// Sends whenever there may be room, or something to send.
pub async fn run(tasks: Weak<Tasks>, id: EndpointId, wake: Arc<Notify>) {
    loop {
        wake.notified().await;
        loop {
            let Some(tasks) = tasks.upgrade() else { return };
            if !tasks.state().endpoints.contains_key(&id) {
                return;
            }
            match tasks.send(id).await {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    tracing::error!(%error, "tasks cannot be sent");
                    drop(tasks);
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }
}
