//! Dispatch: sends queued tasks to the dispatcher of an endpoint, as many as it has room for.
//!
//! Adds to `State` the steps that change an endpoint's queue together with the live tasks in it.

use std::sync::{Arc, Weak};
use std::time::Duration;

use dayfly_protocol::contents::Payload;
use dayfly_protocol::dispatch::{Program, ToDispatcher};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{EndpointId, TaskId, TenantId};
use dayfly_store::system::since_boot_ms;
use dayfly_store::tasks::{FunctionRecord, TaskInputs, Tries};
use tokio::sync::Notify;

use crate::dependencies::deleted_result;
use crate::endpoints::is_guest;
use crate::live_tasks::Stage;
use crate::outcomes::{cancelled_before, late};
use crate::state::State;
use crate::{Tasks, Tenants};

/// Maximum number of tasks that are sent at once.
const MAX_BATCH: usize = 1_024;
/// Maximum length of the inputs of one task in a message. Longer inputs go by reference, except for parts of at most
/// `MAX_PART_BYTES`.
const MAX_INPUT_BYTES: usize = 8 << 20;
const MAX_PART_BYTES: usize = 4 << 10;
/// Number of such parts that are stored concurrently.
const CONCURRENT_STORES: usize = 16;
/// Delay before another attempt if the store cannot write.
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// Tasks that are being sent.
#[derive(Default)]
struct Batch {
    connection: u64,
    tasks: Vec<TaskId>,
    /// Attempts to record before they are sent, and whether their inputs are to be read.
    writes: Vec<(TaskId, Tries, bool)>,
    /// Functions that the dispatcher does not have.
    functions: Vec<Arc<FunctionRecord>>,
}

impl State {
    /// Takes the next tasks from an endpoint's queue. Leaves those of tenants that may not spend.
    fn take_batch(&mut self, id: EndpointId, tenants: &dyn Tenants) -> Option<Batch> {
        let endpoint = self.endpoints.get_mut(id)?;
        let mut batch = Batch {
            connection: endpoint.connection()?.number(),
            ..Batch::default()
        };
        let may_not = |tenant: &TenantId| tenants.may_spend(*tenant).is_err();
        let held_up: Vec<TenantId> = endpoint.waiting_tenants().filter(may_not).collect();
        while batch.tasks.len() < MAX_BATCH.min(endpoint.free() + batch.tasks.len())
            && let Some(task) = endpoint.pop_except(&held_up)
        {
            // A cancelled or late task has ended already.
            let live = self.tasks.get_mut(task);
            let Some(live) = live.filter(|live| live.stage() == Stage::Queued) else {
                continue;
            };
            live.begin();
            endpoint.add_held(1);
            let is_read = !live.has_arguments();
            if !live.is_repeatable() || is_read {
                batch.writes.push((task, live.tries(), is_read));
            }
            let function = live.function();
            let is_known = endpoint
                .connection()
                .is_some_and(|connection| connection.has_program(function.id));
            if !is_known && !batch.functions.iter().any(|known| known.id == function.id) {
                batch.functions.push(Arc::clone(function));
            }
            batch.tasks.push(task);
        }
        (!batch.tasks.is_empty()).then_some(batch)
    }

    /// Puts tasks that could not be sent back to their positions in the queue.
    fn put_batch_back(&mut self, id: EndpointId, tasks: &[TaskId]) {
        let Some(endpoint) = self.endpoints.get_mut(id) else {
            return;
        };
        for task in tasks.iter().rev() {
            let live = self.tasks.get_mut(*task);
            if let Some(live) = live.filter(|live| live.stage() == Stage::Beginning) {
                live.undo_begin();
                endpoint.release(1);
                endpoint.put_back(live.tenant(), live.priority(), *task);
            }
        }
    }
}

impl Tasks {
    /// Sends one batch to an endpoint. Returns whether there was one.
    async fn send_batch(&self, id: EndpointId) -> Result<bool, Failure> {
        let Some(batch) = self.state().take_batch(id, &*self.tenants) else {
            return Ok(false);
        };
        match self.prepare(&batch).await {
            Ok((programs, read)) => {
                self.hand_over(id, &batch, programs, read);
                Ok(true)
            }
            Err(error) => {
                self.state().put_batch_back(id, &batch.tasks);
                Err(error)
            }
        }
    }

    /// Records the attempts, and reads functions and inputs.
    async fn prepare(&self, batch: &Batch) -> Result<(Vec<Program>, Vec<TaskInputs>), Failure> {
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
        let wanted = batch.writes.iter().filter(|(_, _, is_read)| *is_read);
        let mut inputs = Vec::with_capacity(read.len());
        for ((task, _, _), mut one) in wanted.zip(read) {
            self.add_makers(&mut one);
            inputs.push(match one.inline_bytes() > MAX_INPUT_BYTES {
                true => self.store_parts(*task, one).await?,
                false => one,
            });
        }
        Ok((programs, inputs))
    }

    /// Stores the longer parts of inputs that are too long for one message. Returns inputs with references to them.
    async fn store_parts(&self, task: TaskId, given: TaskInputs) -> Result<TaskInputs, Failure> {
        let tenant = self.state().tasks.get(task).map(|live| live.tenant());
        let Some(tenant) = tenant else { return Ok(given) };
        let store = async |part: Payload| match part {
            Payload::Inline(bytes) if bytes.len() > MAX_PART_BYTES => {
                self.contents.put_bytes(tenant, bytes.0).await.map(Payload::Stored)
            }
            other => Ok(other),
        };
        let mut results = Vec::with_capacity(given.answers.len());
        let stored = async {
            for some in given.answers.chunks(CONCURRENT_STORES) {
                // A deleted result stays `None`, and ends the task.
                let some = some.iter().map(|result| result.clone().map(&store));
                let some =
                    some.map(|result| async { futures_util::future::OptionFuture::from(result).await.transpose() });
                results.extend(futures_util::future::try_join_all(some).await?);
            }
            store(given.arguments.clone()).await
        };
        let stored = stored.await;
        match stored {
            Ok(arguments) => Ok(TaskInputs {
                arguments,
                answers: results,
                ..given
            }),
            // Only this task fails. Tasks of other tenants are sent.
            Err(failure) if failure.code == Code::QuotaExceeded => {
                if let Some(live) = self.state().tasks.get_mut(task) {
                    live.fail(failure);
                }
                Ok(TaskInputs::default())
            }
            Err(failure) => Err(failure),
        }
    }

    fn hand_over(&self, id: EndpointId, batch: &Batch, programs: Vec<Program>, read: Vec<TaskInputs>) {
        let mut state = self.state();
        let endpoint = state.endpoints.get(id);
        if !endpoint.is_some_and(|endpoint| endpoint.is_current(batch.connection)) {
            return state.put_batch_back(id, &batch.tasks);
        }
        let wanted = batch.writes.iter().filter(|(_, _, is_read)| *is_read);
        for ((task, _, _), TaskInputs { arguments, answers, .. }) in wanted.zip(read) {
            let count = answers.len();
            let results: Vec<_> = answers.into_iter().flatten().collect();
            if let Some(live) = state.tasks.get_mut(*task).filter(|_| results.len() < count) {
                live.fail(deleted_result());
            }
            state.tasks.set_inputs(*task, arguments, results);
        }
        self.assign(&mut state, id, &batch.tasks, programs);
    }

    /// Sends tasks whose attempts are recorded. Ends those that must not be executed any more.
    pub(super) fn assign(&self, state: &mut State, id: EndpointId, tasks: &[TaskId], programs: Vec<Program>) {
        let since_boot_ms = since_boot_ms();
        let mut ended = Vec::new();
        let mut assigned = Vec::with_capacity(tasks.len());
        let mut messages = Vec::new();
        let Some(endpoint) = state.endpoints.get_mut(id) else {
            return;
        };
        let (record, Some(connection)) = endpoint.record_and_connection() else {
            return;
        };
        for program in programs {
            messages.push(connection.add_program(program));
        }
        let mut skipped = 0;
        for task in tasks {
            let Some(live) = state.tasks.get_mut(*task) else {
                continue;
            };
            let failure = live.dependencies().failure();
            if live.is_cancelled() || live.is_late() || failure.is_some() {
                // The recorded attempt is not made.
                live.skip_attempt();
                skipped += 1;
                let unless = || if live.is_late() { late() } else { cancelled_before() };
                ended.push((*task, Some(failure.unwrap_or_else(unless))));
                continue;
            }
            if connection.add_tenant(live.tenant()) {
                messages.push(ToDispatcher::Tenant {
                    tenant: live.tenant(),
                    name: self.tenants.name(live.tenant()),
                    guest: is_guest(record, live.tenant()),
                });
            }
            let now_ms = live.time_ms(since_boot_ms);
            assigned.extend(state.tasks.send(*task, now_ms));
        }
        if !assigned.is_empty() {
            messages.push(ToDispatcher::Tasks(assigned));
        }
        for message in messages {
            connection.send(message);
        }
        endpoint.release(skipped);
        self.end_unexecuted(state, ended);
    }
}

/// Sends tasks to an endpoint whenever it is woken, until the endpoint is removed or the manager stops.
pub async fn run(tasks: Weak<Tasks>, id: EndpointId, wake: Arc<Notify>) {
    loop {
        wake.notified().await;
        loop {
            let Some(tasks) = tasks.upgrade() else { return };
            if !tasks.state().endpoints.contains(id) {
                return;
            }
            match tasks.send_batch(id).await {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    tracing::error!(%error, "tasks cannot be sent");
                    drop(tasks);
                    tokio::time::sleep(RETRY_DELAY).await;
                }
            }
        }
    }
}
