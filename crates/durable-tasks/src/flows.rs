//! Flows: the tasks of a step are submitted when the results that they are called with are known.
//!
//! The store has only the request of a flow, and its end. A restarted manager runs the flow from the beginning. The ids
//! of its tasks are derived from its own id, so no task is submitted twice, and those that have ended return at once.

mod flow;
mod memory;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use dayfly_protocol::blob::Blob;
use dayfly_protocol::contents::{Content, Payload};
use dayfly_protocol::encoding::JSON_RESULT;
use dayfly_protocol::error::{Code, Failure, Retry};
use dayfly_protocol::flows::{FlowRequest, FlowState, FlowStatus, FlowStep, MAX_FLOWS, StepStatus};
use dayfly_protocol::ids::{FlowId, FunctionId, TaskId, TenantId, time_first};
use dayfly_protocol::tasks::{Cancellation, TaskOutcome};
use dayfly_store::flows::FlowRecord;
use dayfly_store::system::{now_ms, random};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::Tasks;
use crate::cancellation::TaskScope;
use crate::contents::duration_text;
use crate::detached::run_detached;
use crate::submission::{Submitter, first_half};

use flow::Flow;
pub use memory::FlowMemory;

/// How long a read of a stored result is retried.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// Delay before another attempt after a failure that may pass.
const RETRY_DELAY: Duration = Duration::from_secs(2);

/// The unfinished flows of one manager.
#[derive(Default)]
pub struct Flows {
    all: HashMap<FlowId, Arc<Flow>>,
}

impl Flows {
    fn get(&self, id: FlowId) -> Option<&Arc<Flow>> {
        self.all.get(&id)
    }

    /// Adds a flow. Returns false if it is there already.
    fn insert(&mut self, flow: &Arc<Flow>) -> bool {
        let id = flow.record().id;
        let is_new = !self.all.contains_key(&id);
        if is_new {
            self.all.insert(id, Arc::clone(flow));
        }
        is_new
    }

    fn remove(&mut self, id: FlowId) {
        self.all.remove(&id);
    }

    fn of(&self, tenant: TenantId) -> impl Iterator<Item = &Arc<Flow>> {
        self.all.values().filter(move |flow| flow.record().tenant == tenant)
    }

    /// Tags of a tenant's unfinished flows.
    pub fn tags_of(&self, tenant: TenantId) -> Vec<String> {
        self.of(tenant).map(|flow| tag(flow.record().id)).collect()
    }

    /// Number of flows, of tenants that `counts` accepts, that call one of these functions.
    pub fn count_calling(&self, functions: &HashSet<FunctionId>, counts: impl Fn(TenantId) -> bool) -> usize {
        let calls = |flow: &&Arc<Flow>| counts(flow.record().tenant) && flow.calls(functions);
        self.all.values().filter(calls).count()
    }
}

/// The result of a step, by the results of its tasks.
fn step_result(step: &FlowStep, mut results: Vec<Value>) -> Value {
    match step.map {
        true => Value::from(results),
        false => results.pop().unwrap_or_default(),
    }
}

/// The id of a call's task.
fn task_of(flow: &FlowRecord, step: usize, call: usize) -> TaskId {
    let mut hash = Sha256::new();
    hash.update(b"dayfly flow");
    hash.update(flow.id.0);
    hash.update((step as u64).to_le_bytes());
    hash.update((call as u64).to_le_bytes());
    TaskId(time_first(flow.started_at_ms, first_half(hash)))
}

/// The tag of a flow's tasks.
fn tag(flow: FlowId) -> String {
    format!("flow:{flow}")
}

fn manager_stops() -> Failure {
    Failure::new(
        Code::Unreachable,
        "the manager is stopping; the flow continues when the manager is started again",
    )
}

fn status(record: &FlowRecord, steps: Vec<StepStatus>) -> FlowStatus {
    FlowStatus {
        id: record.id,
        name: record.request.name.clone(),
        state: record.state,
        error: record.error.clone(),
        tag: tag(record.id),
        steps,
        result: None,
        started_at_ms: record.started_at_ms,
        ended_at_ms: record.ended_at_ms,
    }
}

impl Tasks {
    /// Starts a flow: when this returns it is on the disk. Idempotent for a request with an id: returns the existing
    /// flow.
    ///
    /// # Errors
    /// `NotFound` for a function or endpoint, `QuotaExceeded`, `TooLarge`, `Forbidden` for another tenant's id, and
    /// those of the store.
    pub async fn start_flow(self: &Arc<Self>, by: Submitter, mut request: FlowRequest) -> Result<FlowStatus, Failure> {
        self.tenants.may_spend(by.tenant)?;
        let id = request.id.take();
        {
            let state = self.state();
            for step in &request.steps {
                state.functions.find_for(&by, step.function)?;
                state.endpoints.find_for(&by, step.endpoint.as_deref())?;
            }
            let is_known = id.is_some_and(|id| state.flows.get(id).is_some());
            if !is_known && state.flows.of(by.tenant).count() >= MAX_FLOWS {
                let text = format!("you have {MAX_FLOWS} unfinished flows already; start more when some have ended");
                return Err(Failure::new(Code::QuotaExceeded, text));
            }
        }
        let started_at_ms = now_ms();
        let record = FlowRecord {
            id: id.unwrap_or_else(|| FlowId(time_first(started_at_ms, random()))),
            tenant: by.tenant,
            request,
            state: FlowState::Running,
            error: None,
            steps: Vec::new(),
            started_at_ms,
            ended_at_ms: 0,
        };
        let tasks = Arc::clone(self);
        run_detached(async move { tasks.begin_flow(Flow::new(record)?).await }).await
    }

    async fn begin_flow(self: &Arc<Self>, flow: Flow) -> Result<FlowStatus, Failure> {
        let (id, tenant) = (flow.record().id, flow.record().tenant);
        let written = match self.hold_request(&flow) {
            Ok(()) => self
                .store
                .keep_flow(flow.record().clone())
                .wait()
                .await
                .map_err(Failure::from),
            Err(failure) => Err(failure),
        };
        if !matches!(written, Ok((_, true))) {
            flow.release(self);
        }
        let (kept, is_new) = written?;
        if kept.tenant != tenant {
            let text = format!("the id {id} belongs to another flow; choose ids at random, or leave them out");
            return Err(Failure::new(Code::Forbidden, text));
        }
        if is_new {
            self.drive(flow);
        } else if !kept.state.is_over() {
            // The earlier request may have ended before it started the flow.
            let flow = Flow::new(kept)?;
            let _ = self.hold_request(&flow);
            self.drive(flow);
        }
        let found = self.flow(id).await?;
        found.map(|(_, status)| status).ok_or_else(manager_stops)
    }

    /// Counts the bytes of a flow's request, and checks that it can be read again.
    fn hold_request(&self, flow: &Flow) -> Result<(), Failure> {
        let wrong = |error: serde_json::Error| {
            Failure::new(
                Code::InvalidRequest,
                format!("the flow cannot be stored as JSON: {error}"),
            )
        };
        let written = serde_json::to_string(&flow.record().request).map_err(wrong)?;
        serde_json::from_str::<FlowRequest>(&written).map_err(wrong)?;
        flow.hold(self, written.len())
    }

    /// Runs a flow in the background until its end, unless it runs already.
    fn drive(self: &Arc<Self>, flow: Flow) {
        let flow = Arc::new(flow);
        if self.state().flows.insert(&flow) {
            tokio::spawn(drive(Arc::downgrade(self), flow));
        } else {
            flow.release(self);
        }
    }

    /// Runs the flows that had not ended when the manager stopped.
    pub(super) fn resume_flows(self: &Arc<Self>, records: Vec<FlowRecord>) {
        for record in records {
            match Flow::new(record) {
                Ok(flow) => {
                    // The bounds held when it was started.
                    let _ = self.hold_request(&flow);
                    self.drive(flow);
                }
                Err(failure) => tracing::error!(%failure, "a flow is ignored"),
            }
        }
    }

    /// The result of one task of a flow.
    async fn task_result(&self, flow: &FlowRecord, step: &FlowStep, outcome: TaskOutcome) -> Result<Value, Failure> {
        let failed = |code: Code, why: &str| {
            let text = format!("the step `{}` failed in its task {}: {why}", step.name, outcome.id);
            Failure::new(code, text)
        };
        if let Some(failure) = &outcome.error {
            return Err(failed(failure.code, &failure.message));
        }
        let payload = outcome.payload();
        let result = match payload {
            Payload::Inline(result) => result,
            Payload::Stored(content) => self.read_with_retries(flow.tenant, content).await?,
        };
        let text = match result.split_last() {
            Some((&JSON_RESULT, text)) => text,
            _ => &result[..],
        };
        serde_json::from_slice(text)
            .map_err(|error| failed(Code::FunctionError, &format!("its result is not JSON ({error})")))
    }

    /// Reads a content. Retries failures that may pass, for `READ_TIMEOUT`.
    async fn read_with_retries(&self, tenant: TenantId, content: Content) -> Result<Blob, Failure> {
        let begun = Instant::now();
        loop {
            match self.contents.read_whole(tenant, content).await {
                Err(failure) if failure.code.retry() != Retry::Never && begun.elapsed() < READ_TIMEOUT => {
                    tracing::warn!(%failure, "a result cannot be read; retrying");
                    tokio::time::sleep(RETRY_DELAY).await;
                }
                read => return read,
            }
        }
    }

    /// The owner and the status of a flow.
    async fn flow(&self, id: FlowId) -> Result<Option<(TenantId, FlowStatus)>, Failure> {
        let live = self.state().flows.get(id).cloned();
        if let Some(flow) = live {
            return Ok(Some((flow.record().tenant, status(flow.record(), flow.steps()))));
        }
        let Some(record) = self.store.flow(id).wait().await? else {
            return Ok(None);
        };
        let mut status = status(&record, record.steps.clone());
        if record.state == FlowState::Done {
            status.result = self.flow_result(&record).await?;
        }
        Ok(Some((record.tenant, status)))
    }

    /// The result of a flow that succeeded; `None` if it was deleted.
    async fn flow_result(&self, record: &FlowRecord) -> Result<Option<Value>, Failure> {
        let (Some(step), Some(status)) = (record.request.steps.last(), record.steps.last()) else {
            return Ok(None);
        };
        let at = record.request.steps.len() - 1;
        let mut results = Vec::new();
        for call in 0..usize::try_from(status.tasks).unwrap_or(0) {
            let Some(outcome) = self.store.outcome(task_of(record, at, call)).wait().await? else {
                return Ok(None);
            };
            results.push(self.task_result(record, step, outcome).await?);
        }
        Ok(Some(step_result(step, results)))
    }

    /// The owner and the status of a flow, after its end or after a wait of `wait`. `None` for an unknown flow.
    pub async fn await_flow(&self, id: FlowId, wait: Duration) -> Result<Option<(TenantId, FlowStatus)>, Failure> {
        let completion = self.state().flows.get(id).map(|flow| flow.completion());
        if let Some(mut completion) = completion {
            let _ = tokio::time::timeout(wait, completion.wait_for(|is_over| *is_over)).await;
        }
        self.flow(id).await
    }

    /// A tenant's flows, the latest first.
    pub async fn flows(&self, tenant: TenantId, limit: u32) -> Result<Vec<FlowStatus>, Failure> {
        let records = self.store.flows(tenant, limit).wait().await?;
        Ok(records.iter().map(|record| status(record, Vec::new())).collect())
    }

    /// Cancels a flow that has not ended.
    pub fn cancel_flow(&self, id: FlowId) {
        if let Some(flow) = self.state().flows.get(id) {
            flow.cancel();
        }
    }
}

/// Runs a flow, and writes its end.
async fn drive(tasks: Weak<Tasks>, flow: Arc<Flow>) {
    let record = flow.record();
    // The outcomes of its tasks are kept for this time.
    let Some(retention_ms) = tasks.upgrade().map(|tasks| tasks.retention_ms()) else {
        return;
    };
    let left = Duration::from_millis((record.started_at_ms + retention_ms).saturating_sub(now_ms()));
    let mut cancellation = flow.cancellation();
    let ended = tokio::select! {
        ended = flow.run(&tasks) => ended.err(),
        failure = flow.failure(&tasks) => Some(failure),
        _ = cancellation.wait_for(|is_cancelled| *is_cancelled) => {
            Some(Failure::new(Code::Cancelled, "the flow was cancelled"))
        }
        () = tokio::time::sleep(left) => {
            let text = format!(
                "the flow did not end within {}, the time for which its tasks' results are kept",
                duration_text(Duration::from_millis(retention_ms))
            );
            Some(Failure::new(Code::DeadlineExceeded, text))
        }
    };
    let Some(tasks) = tasks.upgrade() else { return };
    let mut steps = flow.steps();
    if ended.is_some() {
        let rest = Cancellation {
            tasks: Vec::new(),
            tag: Some(tag(record.id)),
            ..Cancellation::default()
        };
        tasks.cancel(&TaskScope::of(record.tenant), rest).await;
    }
    for step in steps.iter_mut().filter(|step| !step.state.is_over()) {
        step.state = FlowState::Failed;
    }
    let tasks = Arc::downgrade(&tasks);
    loop {
        let Some(tasks) = tasks.upgrade() else { return };
        let written = tasks.store.end_flow(record.id, ended.clone(), steps.clone(), now_ms());
        if let Err(error) = written.wait().await {
            tracing::warn!(flow = %record.id, %error, "the end of a flow cannot be written; retrying");
            drop(tasks);
            tokio::time::sleep(RETRY_DELAY).await;
            continue;
        }
        tasks.state().flows.remove(record.id);
        flow.release(&tasks);
        flow.finish();
        return;
    }
}
