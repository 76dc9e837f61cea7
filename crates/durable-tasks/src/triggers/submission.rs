//! Submission: events become tasks, or flows if other functions follow the trigger's.

use std::sync::Arc;
use std::time::Instant;

use dayfly_protocol::error::{Failure, Retry};
use dayfly_protocol::flows::FlowRequest;
use dayfly_protocol::ids::TriggerId;
use dayfly_protocol::tasks::{JsonCall, TaskInput, TaskSubmission};
use dayfly_store::triggers::{EventRecord, TriggerRecord};
use serde_json::{Map, Value};

use super::{flow_of, task_of, trigger_is_gone};

use crate::Tasks;

/// The argument of a trigger's function: the event's fields, with the trigger's name, the event's number and its time.
pub(super) fn argument(trigger: &TriggerRecord, event: &EventRecord) -> Value {
    let mut whole: Map<String, Value> = serde_json::from_str(&event.event.event).unwrap_or_default();
    whole.insert("trigger".into(), trigger.name.clone().into());
    whole.insert("number".into(), event.number.into());
    whole.insert("at_ms".into(), event.event.at_ms.into());
    whole.into()
}

/// The flow that an event becomes.
fn flow(trigger: &TriggerRecord, event: &EventRecord) -> FlowRequest {
    FlowRequest {
        id: Some(flow_of(trigger.id, event.number, event.event.at_ms)),
        name: tag(trigger),
        ..trigger.spec.flow(argument(trigger, event))
    }
}

/// The tag of a trigger's tasks.
fn tag(trigger: &TriggerRecord) -> String {
    format!("trigger:{}", trigger.name)
}

impl Tasks {
    /// Begins to submit the waiting events of each trigger.
    pub(super) fn submit_waiting(self: &Arc<Self>) {
        let ready = self.state().triggers.begin_submissions(Instant::now());
        for trigger in ready {
            tokio::spawn(submit_all(Arc::clone(self), trigger));
        }
    }

    /// Submits some waiting events of a trigger. Returns their number.
    ///
    /// # Errors
    /// A failure after which another attempt may succeed.
    async fn submit_some(self: &Arc<Self>, id: TriggerId) -> Result<usize, Failure> {
        let events = self.store.waiting_events(id).wait().await?;
        if events.is_empty() {
            return Ok(0);
        }
        let record = self.trigger_record(id)?;
        let count = events.len();
        if !record.spec.then.is_empty() {
            let by = self.submitter(record.tenant);
            for event in &events {
                let started = self.start_flow(by.clone(), flow(&record, event)).await;
                self.settle(id, vec![event.number], started.map(drop)).await?;
            }
            return Ok(count);
        }
        let numbers = events.iter().map(|event| event.number).collect();
        let submitted = self.submit_events(&record, &events).await;
        self.settle(id, numbers, submitted).await?;
        Ok(count)
    }

    pub(super) fn trigger_record(&self, id: TriggerId) -> Result<TriggerRecord, Failure> {
        let record = self.state().triggers.get(id).map(|trigger| trigger.record().clone());
        record.ok_or_else(trigger_is_gone)
    }

    /// Records that events became tasks, or were refused for good. Returns a failure after which another attempt may
    /// succeed.
    async fn settle(&self, id: TriggerId, numbers: Vec<u64>, submitted: Result<(), Failure>) -> Result<(), Failure> {
        let count = numbers.len() as u64;
        let refusal = match submitted {
            Ok(()) => None,
            Err(failure) if failure.code.retry() == Retry::Never => Some(failure),
            Err(failure) => return Err(failure),
        };
        self.store.settle_events(id, numbers, refusal.clone()).wait().await?;
        if let Some(trigger) = self.state().triggers.get_mut(id) {
            trigger.settle(count, refusal);
        }
        Ok(())
    }

    async fn submit_events(self: &Arc<Self>, record: &TriggerRecord, events: &[EventRecord]) -> Result<(), Failure> {
        let spec = &record.spec;
        let by = self.submitter(record.tenant);
        let function = self.state().functions.find_for(&by, spec.function)?;
        let speaks_json = function.spec.form.speaks_json();
        let input = |event: &EventRecord| {
            let argument = argument(record, event);
            let mut input = TaskInput {
                id: Some(task_of(record.id, event.number, event.event.at_ms)),
                ..TaskInput::default()
            };
            match speaks_json {
                true => {
                    input.call = Some(JsonCall {
                        arguments: vec![argument],
                        keywords: spec.keywords.clone(),
                    });
                }
                false => input.arguments = argument.to_string().into_bytes().into(),
            }
            input
        };
        let submission = TaskSubmission {
            function: spec.function,
            endpoint: spec.endpoint.clone(),
            tag: tag(record),
            options: spec.options.clone(),
            tasks: events.iter().map(input).collect(),
        };
        self.submit(by, submission).await.map(drop)
    }
}

/// Submits the waiting events of one trigger, until none waits or the trigger has to rest after a failure.
async fn submit_all(tasks: Arc<Tasks>, id: TriggerId) {
    let failure = loop {
        match tasks.submit_some(id).await {
            Ok(0) => break None,
            Ok(_) => {}
            Err(failure) => {
                tracing::warn!(trigger = %id, %failure, "the events of a trigger cannot be submitted; retrying");
                break Some(failure);
            }
        }
    };
    let mut state = tasks.state();
    let Some(trigger) = state.triggers.get_mut(id) else {
        return;
    };
    if trigger.end_submission(failure) {
        state.triggers.wake();
    }
}
