//! One unfinished flow: its steps, their results, and its execution.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use dayfly_protocol::error::{Code, Failure, Retry};
use dayfly_protocol::flows::{FlowState, FlowStep, MAX_RESULT_BYTES, StepStatus};
use dayfly_protocol::ids::{FunctionId, TaskId};
use dayfly_protocol::tasks::{JsonCall, MAX_TASKS, TaskInput, TaskOutcome, TaskSubmission};
use dayfly_store::flows::FlowRecord;
use futures_util::future::try_join_all;
use serde_json::Value;
use tokio::sync::watch;

use super::{RETRY_DELAY, manager_stops, step_result, tag, task_of};

use crate::Tasks;
use crate::submission::Submitter;

/// Longest single wait for an outcome. The manager's stop waits for it.
const OUTCOME_WAIT: Duration = Duration::from_millis(500);
/// Number of outcomes that are searched for a failure at once.
const MAX_BATCH: u32 = 1_000;

/// A flow that has not ended.
pub struct Flow {
    record: FlowRecord,
    /// For each step, the steps whose results are its arguments. `None` stands for the flow's input.
    arguments: Vec<Vec<Option<usize>>>,
    steps: Mutex<Vec<StepStatus>>,
    results: Vec<watch::Sender<Option<Arc<Value>>>>,
    /// Bytes of its input and its results.
    bytes: AtomicUsize,
    is_cancelled: watch::Sender<bool>,
    is_over: watch::Sender<bool>,
}

impl Flow {
    /// # Errors
    /// `InvalidRequest` if a step's arguments are not the results of others.
    pub fn new(record: FlowRecord) -> Result<Self, Failure> {
        let steps = record.request.steps.iter().map(|step| StepStatus {
            name: step.name.clone(),
            state: FlowState::Waiting,
            tasks: 0,
            done: 0,
            function: Some(step.function),
            from: step.from.clone(),
            map: step.map,
        });
        Ok(Self {
            arguments: record.request.arguments()?,
            steps: Mutex::new(steps.collect()),
            results: record.request.steps.iter().map(|_| watch::channel(None).0).collect(),
            bytes: AtomicUsize::new(0),
            is_cancelled: watch::channel(false).0,
            is_over: watch::channel(false).0,
            record,
        })
    }

    pub fn record(&self) -> &FlowRecord {
        &self.record
    }

    /// Whether a step calls one of these functions.
    pub fn calls(&self, functions: &HashSet<FunctionId>) -> bool {
        let mut steps = self.record.request.steps.iter();
        steps.any(|step| functions.contains(&step.function))
    }

    /// Status of its steps.
    pub fn steps(&self) -> Vec<StepStatus> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn update_step(&self, step: usize, update: impl FnOnce(&mut StepStatus)) {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(step) = steps.get_mut(step) {
            update(step);
        }
    }

    pub fn cancel(&self) {
        self.is_cancelled.send_replace(true);
    }

    /// Becomes true when the flow is cancelled.
    pub fn cancellation(&self) -> watch::Receiver<bool> {
        self.is_cancelled.subscribe()
    }

    /// Reports that the flow's end is written.
    pub fn finish(&self) {
        self.is_over.send_replace(true);
    }

    /// Becomes true when the flow's end is written.
    pub fn completion(&self) -> watch::Receiver<bool> {
        self.is_over.subscribe()
    }

    /// Counts more bytes of its input or its results in memory.
    ///
    /// # Errors
    /// `TooLarge` or `QuotaExceeded`.
    pub fn hold(&self, tasks: &Tasks, bytes: usize) -> Result<(), Failure> {
        let own = self.bytes.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        tasks.flow_memory.add(self.record.tenant, bytes, own)
    }

    /// Counts its bytes no more.
    pub fn release(&self, tasks: &Tasks) {
        let bytes = self.bytes.swap(0, Ordering::Relaxed);
        tasks.flow_memory.release(self.record.tenant, bytes);
    }

    fn submitter(&self, tasks: &Tasks) -> Submitter {
        tasks.submitter(self.record.tenant)
    }

    /// Waits for the arguments of a step.
    async fn arguments(&self, step: usize) -> Vec<Arc<Value>> {
        let mut found = Vec::new();
        for from in &self.arguments[step] {
            let Some(before) = from else {
                found.push(Arc::new(self.record.request.input.clone()));
                continue;
            };
            let mut seen = self.results[*before].subscribe();
            let known = seen.wait_for(Option::is_some).await;
            // The sender lives as long as the flow.
            found.extend(known.ok().and_then(|known| known.clone()));
        }
        found
    }

    /// Runs all steps, each when those before it have ended.
    ///
    /// # Errors
    /// The first failure of a step.
    pub async fn run(&self, tasks: &Weak<Tasks>) -> Result<(), Failure> {
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
                self.update_step(at, |step| step.state = state);
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
        self.update_step(at, |step| {
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
            let tasks = tasks.upgrade().ok_or_else(manager_stops)?;
            let by = self.submitter(&tasks);
            let function = tasks.state().functions.find_for(&by, step.function)?;
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
            let tasks = tasks.upgrade().ok_or_else(manager_stops)?;
            match tasks.submit(self.submitter(&tasks), submission.clone()).await {
                Ok(_) => return Ok(()),
                Err(failure) if failure.code.retry() == Retry::Never => return Err(failure),
                Err(failure) => {
                    tracing::warn!(flow = %self.record.id, step = step.name, %failure, "a step was not submitted; retrying");
                }
            }
            drop(tasks);
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }

    /// Waits for the outcome of a task.
    async fn outcome(&self, tasks: &Weak<Tasks>, id: TaskId) -> Result<TaskOutcome, Failure> {
        loop {
            let begun = Instant::now();
            let asked = tasks
                .upgrade()
                .ok_or_else(manager_stops)?
                .outcome(id, OUTCOME_WAIT)
                .await;
            match asked {
                Ok(Some(outcome)) => return Ok(outcome),
                Ok(None) => tokio::time::sleep(OUTCOME_WAIT.saturating_sub(begun.elapsed())).await,
                Err(failure) if failure.code.retry() == Retry::Never => return Err(failure),
                Err(_) => tokio::time::sleep(RETRY_DELAY).await,
            }
        }
    }

    /// Waits for the first failure among all its tasks. The order of their steps does not matter: an earlier task may
    /// run for days.
    pub async fn failure(&self, tasks: &Weak<Tasks>) -> Failure {
        let tag = tag(self.record.id);
        let mut after = 0;
        loop {
            let Some(tasks) = tasks.upgrade() else {
                return manager_stops();
            };
            match tasks
                .outcomes(self.record.tenant, &tag, after, OUTCOME_WAIT, MAX_BATCH)
                .await
            {
                Ok(found) => {
                    after = found.next;
                    let failed = found.outcomes.into_iter().find(|outcome| outcome.error.is_some());
                    if let Some(outcome) = failed
                        && let Some(step) = self.step_of(outcome.id)
                        && let Err(failure) = tasks.task_result(&self.record, step, outcome).await
                    {
                        return failure;
                    }
                }
                Err(_) => {
                    drop(tasks);
                    tokio::time::sleep(RETRY_DELAY).await;
                }
            }
        }
    }

    /// The step that a task belongs to.
    fn step_of(&self, id: TaskId) -> Option<&FlowStep> {
        let counts = self.steps().into_iter().map(|step| step.tasks).enumerate();
        let is_its = |(at, count): &(usize, u64)| {
            let count = usize::try_from(*count).unwrap_or(0);
            (0..count).any(|call| task_of(&self.record, *at, call) == id)
        };
        let (at, _) = counts.into_iter().find(is_its)?;
        self.record.request.steps.get(at)
    }

    /// Waits for the result of a step.
    async fn gather(&self, tasks: &Weak<Tasks>, at: usize, ids: &[TaskId]) -> Result<Value, Failure> {
        let step = &self.record.request.steps[at];
        let mut results = Vec::with_capacity(ids.len());
        for id in ids {
            let outcome = self.outcome(tasks, *id).await?;
            let tasks = tasks.upgrade().ok_or_else(manager_stops)?;
            self.hold(&tasks, bytes_of(&outcome))?;
            results.push(tasks.task_result(&self.record, step, outcome).await?);
            self.update_step(at, |step| step.done += 1);
        }
        Ok(step_result(step, results))
    }
}

/// Length of a task's result in bytes.
fn bytes_of(outcome: &TaskOutcome) -> usize {
    let payload = outcome.payload();
    payload.content().map_or(payload.inline_bytes(), |content| {
        usize::try_from(content.bytes).unwrap_or(usize::MAX)
    })
}

/// The arguments of each call of a step's function.
fn calls(step: &FlowStep, arguments: &[Arc<Value>]) -> Result<Vec<Vec<Value>>, Failure> {
    let all = || arguments.iter().map(|one| Value::clone(one));
    if !step.map {
        return Ok(vec![all().collect()]);
    }
    let Some(Value::Array(elements)) = arguments.first().map(|first| &**first) else {
        let text = format!(
            "the step `{}` calls its function for each element of a list, and its argument is no list",
            step.name
        );
        return Err(Failure::new(Code::FunctionError, text));
    };
    if elements.len() > MAX_TASKS {
        let text = format!(
            "the step `{}` got a list of {} elements; {MAX_TASKS} are allowed",
            step.name,
            elements.len()
        );
        return Err(Failure::new(Code::TooLarge, text));
    }
    // Each call gets a copy of the other arguments.
    let others = arguments.iter().skip(1).map(|one| one.to_string().len()).sum::<usize>();
    let others = others + serde_json::to_string(&step.keywords).map_or(0, |keywords| keywords.len());
    if others.saturating_mul(elements.len()) > MAX_RESULT_BYTES {
        let text = format!(
            "the step `{}` passes {others} bytes with each of {} elements, and {MAX_RESULT_BYTES} are allowed \
             together; pass the names of large arguments, and have the function read them",
            step.name,
            elements.len()
        );
        return Err(Failure::new(Code::TooLarge, text));
    }
    let call = |element: &Value| std::iter::once(element.clone()).chain(all().skip(1)).collect();
    Ok(elements.iter().map(call).collect())
}
