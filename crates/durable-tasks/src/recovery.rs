//! Recovery: loads what the store has about tasks when a manager starts.
//!
//! Adds to `State` its construction from the store.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use dayfly_protocol::error::Failure;
use dayfly_protocol::ids::TenantId;
use dayfly_store::LOAD_DEADLINE;
use dayfly_store::tasks::{TaskRecord, TaskSnapshot, TaskStore};
use tokio::sync::{RwLock, mpsc};

use crate::contents::{ContentOptions, Contents};
use crate::endpoints::Endpoints;
use crate::flows::FlowMemory;
use crate::functions::Functions;
use crate::live_tasks::{LiveTask, Stage};
use crate::outcomes::{OutcomeLog, StoreHealth};
use crate::state::State;
use crate::teams::Teams;
use crate::triggers::Triggers;
use crate::usage::UsageTotals;
use crate::{Tasks, Tenants, contents, maintenance, outcomes, output, triggers};

impl Tasks {
    /// Starts the tasks of a manager with what the store has.
    ///
    /// # Errors
    /// Those of the store, and of the place for contents.
    pub async fn start(
        store: Arc<dyn TaskStore>,
        contents: &ContentOptions,
        tenants: Box<dyn Tenants>,
    ) -> Result<Arc<Self>, Failure> {
        let mut snapshot = store.load().within(LOAD_DEADLINE).await?;
        let mut used: HashMap<TenantId, u64> = std::mem::take(&mut snapshot.contents).into_iter().collect();
        let inline = snapshot.tasks.iter().map(|task| (task.spec.tenant, task.inline_bytes));
        for (tenant, bytes) in inline.chain(snapshot.kept_bytes.iter().copied()) {
            let used = used.entry(tenant).or_default();
            *used = used.saturating_add(bytes);
        }
        tenants.charge(snapshot.costs.clone());
        let retention = contents.retention;
        let contents = Arc::new(Contents::open(contents, Arc::clone(&store), used)?);
        let (unwritten, queue) = mpsc::unbounded_channel();
        let parts = State {
            triggers: Triggers::restored(store.triggers().within(LOAD_DEADLINE).await?),
            teams: Teams::restored(store.teams().within(LOAD_DEADLINE).await?),
            ..State::default()
        };
        let state = parts.with_tasks(snapshot, &contents);
        let flows = store.live_flows().within(LOAD_DEADLINE).await?;
        let tasks = Arc::new(Self {
            state: Mutex::new(state),
            store,
            contents,
            unwritten,
            health: StoreHealth::default(),
            flow_memory: FlowMemory::default(),
            changing_functions: RwLock::default(),
            writing_output: tokio::sync::Mutex::default(),
            tenants,
            retention,
        });
        tasks.load_memo().await?;
        tasks.end_failed_dependents();
        tasks.enqueue_memoized();
        tokio::spawn(outcomes::run(Arc::downgrade(&tasks), queue));
        tokio::spawn(maintenance::run(Arc::downgrade(&tasks)));
        tokio::spawn(output::run(Arc::downgrade(&tasks)));
        tokio::spawn(contents::run(Arc::downgrade(&tasks)));
        tokio::spawn(triggers::run(Arc::downgrade(&tasks)));
        tasks.resume_flows(flows);
        Ok(tasks)
    }
}

impl State {
    /// Adds the tasks, functions and endpoints of the store.
    fn with_tasks(self, snapshot: TaskSnapshot, contents: &Arc<Contents>) -> Self {
        let mut state = Self {
            functions: Functions::restored(snapshot.functions),
            endpoints: Endpoints::restored(snapshot.endpoints, snapshot.instances),
            outcomes: OutcomeLog::restored(snapshot.last_number),
            usage: UsageTotals::restored(snapshot.costs),
            ..self
        };
        let dependencies: Vec<_> = snapshot
            .tasks
            .iter()
            .filter(|record| !record.spec.after.is_empty() && record.tries.attempts == 0)
            .map(|record| (record.spec.id, record.spec.after.clone()))
            .collect();
        for record in snapshot.tasks {
            state.restore_task(record, contents);
        }
        let endings = snapshot.endings.into_iter().collect();
        for (task, after) in dependencies {
            state.set_dependencies(task, &after, &endings);
        }
        state
    }

    /// Restores a task that has not ended.
    fn restore_task(&mut self, record: TaskRecord, contents: &Arc<Contents>) {
        let inline = contents.held(record.spec.tenant, record.inline_bytes);
        let TaskRecord { spec, tries, .. } = record;
        let Some(function) = self.functions.get(spec.function).cloned() else {
            tracing::error!(task = %spec.id, function = %spec.function, "a task without its function is ignored");
            return;
        };
        let tag = self.tag(spec.tenant, &spec.tag);
        let Some(endpoint) = self.endpoints.get_mut(spec.endpoint) else {
            tracing::error!(task = %spec.id, endpoint = %spec.endpoint, "a task without its endpoint is ignored");
            return;
        };
        let stage = match (tries.attempts, spec.memo) {
            (0, None) => Stage::Queued,
            // Queued when all identical tasks are known.
            (0, Some(_)) => Stage::Depending,
            // The dispatcher may still have it, and reports that.
            _ => Stage::Sent,
        };
        if stage == Stage::Queued {
            endpoint.push(spec.tenant, spec.priority, spec.id);
        }
        let id = spec.id;
        let live = LiveTask::restored(spec, function, tag, tries, stage, Some(inline));
        self.tasks.insert(id, live);
    }
}
