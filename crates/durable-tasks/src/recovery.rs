//! The tasks of a manager that starts: what the store has of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use dayfly_protocol::error::Failure;
use dayfly_protocol::ids::TenantId;
use dayfly_store::LOAD_DEADLINE;
use dayfly_store::system::now_ms;
use dayfly_store::tasks::{TaskRecord, TaskSnapshot, TaskStore};
use tokio::sync::{RwLock, mpsc};

use crate::contents::{ContentOptions, Contents};
use crate::endpoints::Endpoint;
use crate::live_task::{LiveTask, Stage};
use crate::state::State;
use crate::{Tasks, Tenants, contents, maintenance, outcomes, output, teams, triggers};

impl Tasks {
    /// All of it, over what the store remembers.
    pub async fn start(
        store: Arc<dyn TaskStore>,
        contents: &ContentOptions,
        tenants: Box<dyn Tenants>,
    ) -> Result<Arc<Self>, Failure> {
        let mut snapshot = store.load().within(LOAD_DEADLINE).await?;
        let mut used: HashMap<TenantId, u64> = std::mem::take(&mut snapshot.contents).into_iter().collect();
        let inline = snapshot.tasks.iter().map(|task| (task.spec.tenant, task.inline_bytes));
        for (tenant, bytes) in inline.chain(snapshot.printed.iter().copied()) {
            let used = used.entry(tenant).or_default();
            *used = used.saturating_add(bytes);
        }
        tenants.charge(snapshot.costs.clone());
        let kept = contents.kept;
        let contents = Arc::new(Contents::open(contents, Arc::clone(&store), used)?);
        let (finishing, finished) = mpsc::unbounded_channel();
        let mut state = State::remembered(snapshot, &contents);
        state.triggers = triggers::Triggers::remembered(store.triggers().within(LOAD_DEADLINE).await?);
        let flows = store.live_flows().within(LOAD_DEADLINE).await?;
        state.teams = teams::Teams::remembered(store.teams().within(LOAD_DEADLINE).await?);
        let tasks = Arc::new(Self {
            state: Mutex::new(state),
            store,
            contents,
            finishing,
            trouble: Mutex::default(),
            flow_bytes: Mutex::default(),
            changing_functions: RwLock::default(),
            keeping_printed: tokio::sync::Mutex::default(),
            tenants,
            kept,
        });
        tasks.recall().await?;
        tasks.end_those_that_cannot_be();
        tasks.line_up_those_that_may_follow();
        tokio::spawn(outcomes::run(Arc::downgrade(&tasks), finished));
        tokio::spawn(maintenance::keep_time(Arc::downgrade(&tasks)));
        tokio::spawn(output::keep(Arc::downgrade(&tasks)));
        tokio::spawn(contents::keep_swept(Arc::downgrade(&tasks)));
        tokio::spawn(triggers::run(Arc::downgrade(&tasks)));
        tasks.go_on_with_flows(flows);
        Ok(tasks)
    }
}

impl State {
    fn remembered(snapshot: TaskSnapshot, contents: &Arc<Contents>) -> Self {
        let mut state = Self {
            last_number: snapshot.last_number,
            published: snapshot.last_number,
            started_at_ms: now_ms(),
            costs: snapshot.costs.into_iter().collect(),
            ..Self::default()
        };
        let functions = snapshot.functions.into_iter();
        state.functions = functions.map(|function| (function.id, Arc::new(function))).collect();
        let endpoints = snapshot.endpoints.into_iter();
        state.endpoints = endpoints.map(|record| (record.id, Endpoint::new(record))).collect();
        for (id, instance) in snapshot.instances {
            if let Some(endpoint) = state.endpoints.get_mut(&id) {
                endpoint.instance = Some(instance);
            }
        }
        let after: Vec<_> = snapshot
            .tasks
            .iter()
            .filter(|record| !record.spec.after.is_empty() && record.tries.attempts == 0)
            .map(|record| (record.spec.id, record.spec.after.clone()))
            .collect();
        for record in snapshot.tasks {
            state.remember(record, contents);
        }
        let endings = snapshot.endings.into_iter().collect();
        for (task, before) in after {
            state.wait_for(task, &before, &endings);
        }
        state
    }

    /// A task that had not ended when the manager did.
    fn remember(&mut self, record: TaskRecord, contents: &Arc<Contents>) {
        let inline = contents.held(record.spec.tenant, record.inline_bytes);
        let TaskRecord { spec, tries, .. } = record;
        let Some(function) = self.functions.get(&spec.function).cloned() else {
            tracing::error!(task = %spec.id, function = %spec.function, "a task without its function is left alone");
            return;
        };
        let tag = self.tag(spec.tenant, &spec.tag);
        let Some(endpoint) = self.endpoints.get_mut(&spec.endpoint) else {
            tracing::error!(task = %spec.id, endpoint = %spec.endpoint, "a task without its endpoint is left alone");
            return;
        };
        // What was sent may be with its dispatcher still, which will say so.
        let place = match (tries.attempts, spec.memo) {
            (0, None) => Stage::Queued,
            // It lines up once it is known which others are the same.
            (0, Some(_)) => Stage::Depending,
            _ => Stage::Sent,
        };
        if place == Stage::Queued {
            endpoint.queue.push(spec.tenant, spec.priority, spec.id);
        }
        let id = spec.id;
        let live = LiveTask::new(spec, function, tag, tries, place, None);
        self.live_on(
            id,
            LiveTask {
                inline: Some(inline),
                ..live
            },
        );
    }
}
