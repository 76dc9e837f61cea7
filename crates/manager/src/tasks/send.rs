//! Tasks go to a dispatcher, as many as it has room for.

use std::sync::{Arc, Weak};
use std::time::Duration;

use mayfly_protocol::blob::Blob;
use mayfly_protocol::dispatch::{Assigned, Program, ToDispatcher};
use mayfly_protocol::error::Failure;
use mayfly_protocol::ids::{EndpointId, FunctionId, TaskId};
use tokio::sync::Notify;

use super::{Endpoint, Live, Place, State, Tasks, late};
use crate::control::now_ms;
use crate::store::tasks::{FunctionRecord, Tries};

/// Most tasks that are sent at once.
const AT_ONCE: usize = 1_024;
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
    pub(super) fn takes_at_once(
        &self,
        tenant: mayfly_protocol::ids::TenantId,
        function: FunctionId,
        count: usize,
    ) -> bool {
        let Some(link) = &self.link else { return false };
        self.queue.is_empty()
            && self.free() >= count
            && link.tenants.contains(&tenant)
            && link.programs.contains(&function)
    }
}

impl State {
    /// Takes the next tasks out of an endpoint's queue.
    fn take(&mut self, id: EndpointId) -> Option<Batch> {
        let endpoint = self.endpoints.get_mut(&id)?;
        let link = endpoint.link.as_ref()?;
        let mut batch = Batch {
            link: link.number,
            ..Batch::default()
        };
        while batch.tasks.len() < AT_ONCE.min(endpoint.free() + batch.tasks.len())
            && let Some(task) = endpoint.queue.pop()
        {
            // One that was cancelled, or is late, has its outcome already.
            let Some(live) = self.live.get_mut(&task).filter(|live| live.place == Place::Queued) else {
                continue;
            };
            live.place = Place::Beginning;
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
            if let Some(live) = self.live.get_mut(task).filter(|live| live.place == Place::Beginning) {
                live.place = Place::Queued;
                live.tries.attempts -= 1;
                endpoint.held = endpoint.held.saturating_sub(1);
                endpoint.queue.push_back(live.tenant, live.priority, *task);
            }
        }
    }
}

impl Tasks {
    /// Sends what there is room for.
    async fn send(&self, id: EndpointId) -> Result<bool, Failure> {
        let Some(batch) = self.state().take(id) else {
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

    async fn prepare(&self, batch: &Batch) -> Result<(Vec<Program>, Vec<Blob>), Failure> {
        let mut programs = Vec::with_capacity(batch.functions.len());
        for function in &batch.functions {
            programs.push(Program {
                id: function.id,
                hash: function.hash,
                form: function.spec.form.clone(),
                runtime: function.spec.runtime.clone(),
                resources: function.spec.resources,
                code: self.code(function.id).await?,
            });
        }
        let read = match batch.writes.is_empty() {
            true => Vec::new(),
            false => self.store.begin(batch.writes.clone()).wait().await?,
        };
        Ok((programs, read))
    }

    fn hand_over(&self, id: EndpointId, batch: &Batch, programs: Vec<Program>, read: Vec<Blob>) {
        let mut state = self.state();
        let link = state.endpoints.get(&id).and_then(|endpoint| endpoint.link.as_ref());
        if link.is_none_or(|link| link.number != batch.link) {
            return state.put_back(id, &batch.tasks);
        }
        let wanted = batch.writes.iter().filter(|(_, _, wanted)| *wanted);
        for ((task, _, _), arguments) in wanted.zip(read) {
            let length = arguments.len();
            if let Some(live) = state.live.get_mut(task) {
                live.arguments = Some(arguments);
                state.cached_bytes += length;
            }
        }
        self.assign(&mut state, id, &batch.tasks, programs);
    }

    /// Sends tasks that are written down as sent; those that must not run any more end instead.
    pub(super) fn assign(&self, state: &mut State, id: EndpointId, tasks: &[TaskId], programs: Vec<Program>) {
        let now_ms = now_ms();
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
            if live.cancelled || live.late {
                // It was not executed, whatever was written down in case that it would be.
                live.tries.attempts -= 1;
                endpoint.held = endpoint.held.saturating_sub(1);
                let cancelled = || {
                    Failure::new(
                        mayfly_protocol::error::Code::Cancelled,
                        "the task was cancelled before it began",
                    )
                };
                ended.push((*task, Some(if live.late { late() } else { cancelled() })));
                continue;
            }
            if link.tenants.insert(live.tenant) {
                let token = (self.tokens)(live.tenant);
                messages.push(ToDispatcher::Tenant {
                    tenant: live.tenant,
                    token,
                });
            }
            live.place = Place::Sent;
            assigned.push(assignment(*task, live, now_ms));
            let arguments = live.arguments.take();
            state.cached_bytes -= arguments.map_or(0, |arguments| arguments.len());
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

fn assignment(task: TaskId, live: &Live, now_ms: u64) -> Assigned {
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
