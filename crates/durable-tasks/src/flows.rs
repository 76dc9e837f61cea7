//! Flows: a step's tasks are submitted when the results are known that they are called with.
//!
//! Of a flow its request alone is written down, and how it ended. A manager that is started again goes through it from the beginning:
//! the ids of its tasks come of its own, so that what was submitted before is not submitted again, and what ended answers at once.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use dayfly_protocol::blob::Blob;
use dayfly_protocol::contents::{Content, Payload};
use dayfly_protocol::encoding::JSON_RESULT;
use dayfly_protocol::error::{Code, Failure, Retry};
use dayfly_protocol::flows::{FlowRequest, FlowState, FlowStatus, FlowStep, MAX_FLOWS, MAX_RESULT_BYTES, StepStatus};
use dayfly_protocol::ids::{FlowId, FunctionId, TaskId, TenantId, time_first};
use dayfly_protocol::tasks::{Cancellation, JsonCall, MAX_TASKS, TaskInput, TaskOutcome, TaskSubmission};
use dayfly_store::flows::FlowRecord;
use dayfly_store::system::{now_ms, random};
use futures_util::future::try_join_all;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::sync::watch;

use crate::Tasks;
use crate::contents::told;
use crate::live_task::TaskScope;
use crate::submission::{Submitter, first_half};
use crate::triggers::to_its_end;

/// The longest that the end of a manager waits for those who wait for outcomes.
const A_WHILE: Duration = Duration::from_millis(500);
/// What all flows of one tenant that have not ended have in memory, in their own JSON.
const MAX_HELD_BYTES: usize = 256 << 20;
/// How long a store that does not answer is asked again.
const READING: Duration = Duration::from_secs(60);
/// Outcomes that are looked at together.
const AT_ONCE: u32 = 1_000;
/// What could not be submitted for now is submitted again.
const AGAIN: Duration = Duration::from_secs(2);

/// Flows that have not ended.
pub type Flows = HashMap<FlowId, Arc<Flow>>;

/// One that has not ended.
pub struct Flow {
    record: FlowRecord,
    /// Which steps give each step's arguments.
    arguments: Vec<Vec<Option<usize>>>,
    steps: Mutex<Vec<StepStatus>>,
    results: Vec<watch::Sender<Option<Arc<Value>>>>,
    /// How many bytes its input and its results have.
    bytes: AtomicUsize,
    cancelled: watch::Sender<bool>,
    over: watch::Sender<bool>,
}

impl Flow {
    fn new(record: FlowRecord) -> Result<Self, Failure> {
        let steps = record.request.steps.iter().map(|step| StepStatus {
            name: step.name.clone(),
            state: FlowState::Waiting,
            tasks: 0,
            done: 0,
        });
        Ok(Self {
            arguments: record.request.arguments()?,
            steps: Mutex::new(steps.collect()),
            results: record.request.steps.iter().map(|_| watch::channel(None).0).collect(),
            bytes: AtomicUsize::new(0),
            cancelled: watch::channel(false).0,
            over: watch::channel(false).0,
            record,
        })
    }

    /// Whose it is.
    pub(super) fn tenant(&self) -> TenantId {
        self.record.tenant
    }

    /// That of its tasks.
    pub(super) fn tag(&self) -> String {
        tag(self.record.id)
    }

    /// Whether one of its steps calls one of these.
    pub(super) fn calls(&self, functions: &HashSet<FunctionId>) -> bool {
        let mut steps = self.record.request.steps.iter();
        steps.any(|step| functions.contains(&step.function))
    }

    fn note(&self, step: usize, note: impl FnOnce(&mut StepStatus)) {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(step) = steps.get_mut(step) {
            note(step);
        }
    }

    fn steps(&self) -> Vec<StepStatus> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn by(&self, tasks: &Tasks) -> Submitter {
        tasks.submitter(self.record.tenant)
    }

    /// More of it is held in memory, until it ends.
    fn hold(&self, tasks: &Tasks, bytes: usize) -> Result<(), Failure> {
        let own = self.bytes.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let all = {
            let mut held = tasks.flow_bytes.lock().unwrap_or_else(PoisonError::into_inner);
            let all = held.entry(self.record.tenant).or_default();
            *all = all.saturating_add(bytes);
            *all
        };
        if own > MAX_RESULT_BYTES {
            let text = format!(
                "input and results of the flow have more than {MAX_RESULT_BYTES} bytes; have its functions answer where they are"
            );
            return Err(Failure::new(Code::TooLarge, text));
        }
        if all > MAX_HELD_BYTES {
            let text = format!(
                "flows of yours that have not ended have more than {MAX_HELD_BYTES} bytes; start fewer at a time"
            );
            return Err(Failure::new(Code::QuotaExceeded, text));
        }
        Ok(())
    }

    /// Nothing of it is held any more.
    fn let_go(&self, tasks: &Tasks) {
        let bytes = self.bytes.swap(0, Ordering::Relaxed);
        let mut held = tasks.flow_bytes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(all) = held.get_mut(&self.record.tenant) {
            *all = all.saturating_sub(bytes);
            if *all == 0 {
                held.remove(&self.record.tenant);
            }
        }
    }

    /// What a step's function is called with, once it is known.
    async fn arguments(&self, step: usize) -> Vec<Arc<Value>> {
        let mut found = Vec::new();
        for from in &self.arguments[step] {
            let Some(before) = from else {
                found.push(Arc::new(self.record.request.input.clone()));
                continue;
            };
            let mut seen = self.results[*before].subscribe();
            let known = seen.wait_for(Option::is_some).await;
            // Whoever says it lives as long as this.
            found.extend(known.ok().and_then(|known| known.clone()));
        }
        found
    }

    /// All steps, each as soon as those before it have ended.
    async fn run(&self, tasks: &Weak<Tasks>) -> Result<(), Failure> {
        let steps = self
            .record
            .request
            .steps
            .iter()
            .enumerate()
            .map(|(at, step)| async move {
                let arguments = self.arguments(at).await;
                let result = self.run_step(tasks, at, step, arguments).await;
                let state = if result.is_ok() {
                    FlowState::Done
                } else {
                    FlowState::Failed
                };
                self.note(at, |step| step.state = state);
                self.results[at].send_replace(Some(Arc::new(result?)));
                Ok::<(), Failure>(())
            });
        try_join_all(steps).await.map(drop)
    }

    async fn run_step(
        &self,
        tasks: &Weak<Tasks>,
        at: usize,
        step: &FlowStep,
        arguments: Vec<Arc<Value>>,
    ) -> Result<Value, Failure> {
        let calls = calls(step, &arguments)?;
        let ids: Vec<TaskId> = (0..calls.len()).map(|call| task_of(&self.record, at, call)).collect();
        self.note(at, |step| {
            (step.state, step.tasks) = (FlowState::Running, ids.len() as u64)
        });
        if !calls.is_empty() {
            self.submit(tasks, step, &ids, calls).await?;
        }
        self.gather(tasks, at, &ids).await
    }

    async fn submit(
        &self,
        tasks: &Weak<Tasks>,
        step: &FlowStep,
        ids: &[TaskId],
        calls: Vec<Vec<Value>>,
    ) -> Result<(), Failure> {
        let submission = {
            let tasks = tasks.upgrade().ok_or_else(stopping)?;
            let by = self.by(&tasks);
            let function = tasks.state().function_for(&by, step.function)?;
            let speaks_json = function.spec.form.speaks_json();
            let input = |(id, arguments): (&TaskId, Vec<Value>)| {
                let mut input = TaskInput {
                    id: Some(*id),
                    ..TaskInput::default()
                };
                let keywords = step.keywords.clone();
                match speaks_json {
                    true => input.call = Some(JsonCall { arguments, keywords }),
                    false => input.arguments = Value::from(arguments).to_string().into_bytes().into(),
                }
                input
            };
            TaskSubmission {
                function: step.function,
                endpoint: step.endpoint.clone(),
                tag: tag(self.record.id),
                options: step.options.clone(),
                tasks: ids.iter().zip(calls).map(input).collect(),
            }
        };
        loop {
            let tasks = tasks.upgrade().ok_or_else(stopping)?;
            match tasks.submit(self.by(&tasks), submission.clone()).await {
                Ok(_) => return Ok(()),
                Err(failure) if failure.code.retry() == Retry::Never => return Err(failure),
                Err(failure) => {
                    tracing::warn!(flow = %self.record.id, step = step.name, %failure, "a step cannot be submitted for now");
                }
            }
            drop(tasks);
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// How a task ended, as soon as it has.
    async fn outcome(&self, tasks: &Weak<Tasks>, id: TaskId) -> Result<TaskOutcome, Failure> {
        loop {
            let begun = Instant::now();
            let asked = tasks.upgrade().ok_or_else(stopping)?.outcome(id, A_WHILE).await;
            match asked {
                Ok(Some(outcome)) => return Ok(outcome),
                Ok(None) => tokio::time::sleep(A_WHILE.saturating_sub(begun.elapsed())).await,
                Err(failure) if failure.code.retry() == Retry::Never => return Err(failure),
                Err(_) => tokio::time::sleep(AGAIN).await,
            }
        }
    }

    /// Why one of its tasks failed, as soon as one has: others may be ahead of it for days.
    async fn failure(&self, tasks: &Weak<Tasks>) -> Failure {
        let tag = tag(self.record.id);
        let mut after = 0;
        loop {
            let Some(tasks) = tasks.upgrade() else {
                return stopping();
            };
            match tasks.outcomes(self.record.tenant, &tag, after, A_WHILE, AT_ONCE).await {
                Ok(found) => {
                    after = found.next;
                    let failed = found.outcomes.into_iter().find(|outcome| outcome.error.is_some());
                    if let Some(outcome) = failed
                        && let Some(step) = self.step_of(outcome.id)
                        && let Err(failure) = tasks.result(&self.record, step, outcome).await
                    {
                        return failure;
                    }
                }
                Err(_) => {
                    drop(tasks);
                    tokio::time::sleep(AGAIN).await;
                }
            }
        }
    }

    /// The step that a task is one of.
    fn step_of(&self, id: TaskId) -> Option<&FlowStep> {
        let counts = self.steps().into_iter().map(|step| step.tasks).enumerate();
        let is_its = |(at, count): &(usize, u64)| {
            let count = usize::try_from(*count).unwrap_or(0);
            (0..count).any(|call| task_of(&self.record, *at, call) == id)
        };
        let (at, _) = counts.into_iter().find(is_its)?;
        self.record.request.steps.get(at)
    }

    /// The results of a step, as soon as all of its tasks have ended well.
    async fn gather(&self, tasks: &Weak<Tasks>, at: usize, ids: &[TaskId]) -> Result<Value, Failure> {
        let step = &self.record.request.steps[at];
        let mut results = Vec::with_capacity(ids.len());
        for id in ids {
            let outcome = self.outcome(tasks, *id).await?;
            let tasks = tasks.upgrade().ok_or_else(stopping)?;
            self.hold(&tasks, bytes_of(&outcome))?;
            results.push(tasks.result(&self.record, step, outcome).await?);
            self.note(at, |step| step.done += 1);
        }
        Ok(whole(step, results))
    }
}

/// How long what a task answered is.
fn bytes_of(outcome: &TaskOutcome) -> usize {
    let payload = outcome.payload();
    payload.content().map_or(payload.inline_bytes(), |content| {
        usize::try_from(content.bytes).unwrap_or(usize::MAX)
    })
}

/// Of which a step's result is made.
fn whole(step: &FlowStep, mut results: Vec<Value>) -> Value {
    match step.map {
        true => Value::from(results),
        false => results.pop().unwrap_or_default(),
    }
}

/// What a step's function is called with, each time.
fn calls(step: &FlowStep, arguments: &[Arc<Value>]) -> Result<Vec<Vec<Value>>, Failure> {
    let all = || arguments.iter().map(|one| Value::clone(one));
    if !step.map {
        return Ok(vec![all().collect()]);
    }
    let Some(Value::Array(elements)) = arguments.first().map(|first| &**first) else {
        let text = format!(
            "the step `{}` calls its function for each element of a list, and was given something else",
            step.name
        );
        return Err(Failure::new(Code::FunctionError, text));
    };
    if elements.len() > MAX_TASKS {
        let text = format!(
            "the step `{}` was given a list of {} elements; {MAX_TASKS} are allowed",
            step.name,
            elements.len()
        );
        return Err(Failure::new(Code::TooLarge, text));
    }
    // What goes along with each of them is there as often.
    let along = arguments.iter().skip(1).map(|one| one.to_string().len()).sum::<usize>();
    let along = along + serde_json::to_string(&step.keywords).map_or(0, |keywords| keywords.len());
    if along.saturating_mul(elements.len()) > MAX_RESULT_BYTES {
        let text = format!(
            "the step `{}` is given {along} bytes beside each of {} elements, and {MAX_RESULT_BYTES} are allowed together; name \
             what is large, and have its function read it",
            step.name,
            elements.len()
        );
        return Err(Failure::new(Code::TooLarge, text));
    }
    let call = |element: &Value| std::iter::once(element.clone()).chain(all().skip(1)).collect();
    Ok(elements.iter().map(call).collect())
}

/// The task of a call of a step's.
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

fn stopping() -> Failure {
    Failure::new(
        Code::Unreachable,
        "the manager is stopping; the flow goes on when it is started again",
    )
}

fn shown(record: &FlowRecord, steps: Vec<StepStatus>) -> FlowStatus {
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
    /// Starts a flow: when this returns it is on the disk. One that was started with this id is answered as it is.
    pub async fn start_flow(self: &Arc<Self>, by: Submitter, mut request: FlowRequest) -> Result<FlowStatus, Failure> {
        self.tenants.may_spend(by.tenant)?;
        let id = request.id.take();
        {
            let state = self.state();
            for step in &request.steps {
                state.function_for(&by, step.function)?;
                state.endpoint_for(&by, step.endpoint.as_deref())?;
            }
            let known = id.is_some_and(|id| state.flows.contains_key(&id));
            let own = state.flows.values().filter(|flow| flow.record.tenant == by.tenant);
            if !known && own.count() >= MAX_FLOWS {
                let text = format!("{MAX_FLOWS} flows of yours have not ended; start more when some have");
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
        to_its_end(async move { tasks.begin_flow(Flow::new(record)?).await }).await
    }

    async fn begin_flow(self: &Arc<Self>, flow: Flow) -> Result<FlowStatus, Failure> {
        let (id, tenant) = (flow.record.id, flow.record.tenant);
        let kept = match self.hold_request(&flow) {
            Ok(()) => self
                .store
                .keep_flow(flow.record.clone())
                .wait()
                .await
                .map_err(Failure::from),
            Err(failure) => Err(failure),
        };
        if !matches!(kept, Ok((_, true))) {
            flow.let_go(self);
        }
        let (kept, new) = kept?;
        if kept.tenant != tenant {
            let text = format!("the id {id} is another flow's; make ids at random, or leave them out");
            return Err(Failure::new(Code::Forbidden, text));
        }
        if new {
            self.drive(flow);
        } else if !kept.state.is_over() {
            // It was written down for somebody who heard nothing of it.
            let flow = Flow::new(kept)?;
            let _ = self.hold_request(&flow);
            self.drive(flow);
        }
        let found = self.flow(id).await?;
        found.map(|(_, status)| status).ok_or_else(stopping)
    }

    /// What is written down must be read again, and counts as long as it is not over.
    fn hold_request(&self, flow: &Flow) -> Result<(), Failure> {
        let wrong = |error: serde_json::Error| {
            Failure::new(
                Code::InvalidRequest,
                format!("the flow cannot be written down: {error}"),
            )
        };
        let written = serde_json::to_string(&flow.record.request).map_err(wrong)?;
        serde_json::from_str::<FlowRequest>(&written).map_err(wrong)?;
        flow.hold(self, written.len())
    }

    /// Goes through a flow until it has ended.
    fn drive(self: &Arc<Self>, flow: Flow) {
        let flow = Arc::new(flow);
        let mut state = self.state();
        if state.flows.contains_key(&flow.record.id) {
            drop(state);
            flow.let_go(self);
            return;
        }
        state.flows.insert(flow.record.id, Arc::clone(&flow));
        tokio::spawn(drive(Arc::downgrade(self), flow));
    }

    /// Flows that had not ended when the manager did.
    pub(super) fn go_on_with_flows(self: &Arc<Self>, records: Vec<FlowRecord>) {
        for record in records {
            match Flow::new(record) {
                Ok(flow) => {
                    // It was not too much when it was started.
                    let _ = self.hold_request(&flow);
                    self.drive(flow);
                }
                Err(failure) => tracing::error!(%failure, "a flow is left alone"),
            }
        }
    }

    /// The result of one task of a flow's.
    async fn result(&self, flow: &FlowRecord, step: &FlowStep, outcome: TaskOutcome) -> Result<Value, Failure> {
        let failed = |code: Code, why: &str| {
            let text = format!("the step `{}` failed in its task {}: {why}", step.name, outcome.id);
            Failure::new(code, text)
        };
        if let Some(failure) = &outcome.error {
            return Err(failed(failure.code, &failure.message));
        }
        let payload = outcome.payload();
        let answer = match payload {
            Payload::Inline(answer) => answer,
            Payload::Stored(content) => self.read_patiently(flow.tenant, content).await?,
        };
        let text = match answer.split_last() {
            Some((&JSON_RESULT, text)) => text,
            _ => &answer[..],
        };
        serde_json::from_slice(text)
            .map_err(|error| failed(Code::FunctionError, &format!("its answer is not JSON ({error})")))
    }

    /// All bytes of a content, also where its store has to be asked again.
    async fn read_patiently(&self, tenant: TenantId, content: Content) -> Result<Blob, Failure> {
        let begun = Instant::now();
        loop {
            match self.contents.read_whole(tenant, content).await {
                Err(failure) if failure.code.retry() != Retry::Never && begun.elapsed() < READING => {
                    tracing::warn!(%failure, "a result cannot be read for now");
                    tokio::time::sleep(AGAIN).await;
                }
                read => return read,
            }
        }
    }

    /// Whose flow it is, and how it does.
    async fn flow(&self, id: FlowId) -> Result<Option<(TenantId, FlowStatus)>, Failure> {
        let live = self.state().flows.get(&id).cloned();
        if let Some(flow) = live {
            return Ok(Some((flow.record.tenant, shown(&flow.record, flow.steps()))));
        }
        let Some(record) = self.store.flow(id).wait().await? else {
            return Ok(None);
        };
        let mut status = shown(&record, record.steps.clone());
        if record.state == FlowState::Done {
            status.result = self.result_of(&record).await?;
        }
        Ok(Some((record.tenant, status)))
    }

    /// What a flow that is done answered; none where that is forgotten.
    async fn result_of(&self, record: &FlowRecord) -> Result<Option<Value>, Failure> {
        let (Some(step), Some(status)) = (record.request.steps.last(), record.steps.last()) else {
            return Ok(None);
        };
        let at = record.request.steps.len() - 1;
        let mut results = Vec::new();
        for call in 0..usize::try_from(status.tasks).unwrap_or(0) {
            let Some(outcome) = self.store.outcome(task_of(record, at, call)).wait().await? else {
                return Ok(None);
            };
            results.push(self.result(record, step, outcome).await?);
        }
        Ok(Some(whole(step, results)))
    }

    /// How a flow does, as soon as it has ended or the wait is over.
    pub async fn await_flow(&self, id: FlowId, wait: Duration) -> Result<Option<(TenantId, FlowStatus)>, Failure> {
        let over = self.state().flows.get(&id).map(|flow| flow.over.subscribe());
        if let Some(mut over) = over {
            let _ = tokio::time::timeout(wait, over.wait_for(|over| *over)).await;
        }
        self.flow(id).await
    }

    /// Flows of a tenant's, the latest first.
    pub async fn flows(&self, tenant: TenantId, limit: u32) -> Result<Vec<FlowStatus>, Failure> {
        let records = self.store.flows(tenant, limit).wait().await?;
        Ok(records.iter().map(|record| shown(record, Vec::new())).collect())
    }

    /// Has a flow end as cancelled, if it has not ended.
    pub fn cancel_flow(&self, id: FlowId) {
        if let Some(flow) = self.state().flows.get(&id) {
            flow.cancelled.send_replace(true);
        }
    }
}

async fn drive(tasks: Weak<Tasks>, flow: Arc<Flow>) {
    let record = &flow.record;
    // Its tasks' outcomes are kept so long.
    let Some(kept_ms) = tasks.upgrade().map(|tasks| tasks.kept_ms()) else {
        return;
    };
    let left = Duration::from_millis((record.started_at_ms + kept_ms).saturating_sub(now_ms()));
    let mut cancelled = flow.cancelled.subscribe();
    let ended = tokio::select! {
        ended = flow.run(&tasks) => ended.err(),
        failure = flow.failure(&tasks) => Some(failure),
        _ = cancelled.wait_for(|cancelled| *cancelled) => {
            Some(Failure::new(Code::Cancelled, "the flow was cancelled"))
        }
        () = tokio::time::sleep(left) => {
            let text = format!(
                "the flow did not end within {}, which is how long its tasks' results are kept",
                told(Duration::from_millis(kept_ms))
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
        let kept = tasks.store.end_flow(record.id, ended.clone(), steps.clone(), now_ms());
        if let Err(error) = kept.wait().await {
            tracing::warn!(flow = %record.id, %error, "the end of a flow cannot be written down for now");
            drop(tasks);
            tokio::time::sleep(AGAIN).await;
            continue;
        }
        tasks.state().flows.remove(&record.id);
        flow.let_go(&tasks);
        flow.over.send_replace(true);
        return;
    }
}
