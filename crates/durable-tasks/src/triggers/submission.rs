//! Events become tasks.

use std::sync::Arc;
use std::time::Instant;

use dayfly_protocol::error::{Failure, Retry};
use dayfly_protocol::flows::FlowRequest;
use dayfly_protocol::ids::TriggerId;
use dayfly_protocol::tasks::{JsonCall, TaskInput, TaskSubmission};
use dayfly_store::triggers::{EventRecord, TriggerRecord};
use serde_json::{Map, Value};

use super::{AGAIN, flow_of, gone, task_of};

use crate::Tasks;

/// What a trigger's function is given: what is known of an event, with its place and whose it is.
pub(super) fn argument(trigger: &TriggerRecord, event: &EventRecord) -> Value {
    let mut whole: Map<String, Value> = serde_json::from_str(&event.event.event).unwrap_or_default();
    whole.insert("trigger".into(), trigger.name.clone().into());
    whole.insert("number".into(), event.number.into());
    whole.insert("at_ms".into(), event.event.at_ms.into());
    whole.into()
}

/// What an event becomes, where others come after its trigger's function.
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
    /// Starts what waits, of each trigger apart.
    pub(super) fn start_waiting(self: &Arc<Self>) {
        let now = Instant::now();
        let mut state = self.state();
        for (id, trigger) in &mut state.triggers.all {
            let rests = trigger.rests_until.is_some_and(|until| until > now);
            if trigger.ready && !trigger.busy && !rests {
                (trigger.ready, trigger.busy) = (false, true);
                tokio::spawn(start(Arc::clone(self), *id));
            }
        }
    }

    /// Starts some of what waits; how many, or why not.
    async fn start_some(self: &Arc<Self>, id: TriggerId) -> Result<usize, Failure> {
        let events = self.store.waiting_events(id).wait().await?;
        if events.is_empty() {
            return Ok(0);
        }
        let record = self.state().triggers.all.get(&id).map(|trigger| trigger.record.clone());
        let record = record.ok_or_else(gone)?;
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

    /// Events became tasks, or never will. An error if they may later.
    async fn settle(&self, id: TriggerId, numbers: Vec<u64>, done: Result<(), Failure>) -> Result<(), Failure> {
        let count = numbers.len() as u64;
        let refusal = match done {
            Ok(()) => None,
            Err(failure) if failure.code.retry() == Retry::Never => Some(failure),
            Err(failure) => return Err(failure),
        };
        self.store.settle_events(id, numbers, refusal.clone()).wait().await?;
        let mut state = self.state();
        if let Some(trigger) = state.triggers.all.get_mut(&id) {
            trigger.waiting = trigger.waiting.saturating_sub(count);
            match refusal.is_none() {
                true => trigger.started += count,
                false => trigger.refused += count,
            }
            trigger.unstarted = refusal;
        }
        Ok(())
    }

    async fn submit_events(self: &Arc<Self>, record: &TriggerRecord, events: &[EventRecord]) -> Result<(), Failure> {
        let spec = &record.spec;
        let by = self.submitter(record.tenant);
        let function = self.state().function_for(&by, spec.function)?;
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

/// Starts what waits of one trigger, until nothing does or it has to rest.
async fn start(tasks: Arc<Tasks>, id: TriggerId) {
    let rests = loop {
        match tasks.start_some(id).await {
            Ok(0) => break None,
            Ok(_) => {}
            Err(failure) => {
                tracing::warn!(trigger = %id, %failure, "what waits cannot be started for now");
                break Some(failure);
            }
        }
    };
    let mut state = tasks.state();
    let Some(trigger) = state.triggers.all.get_mut(&id) else {
        return;
    };
    if rests.is_none() && !trigger.ready {
        // Nothing of it is left in the books.
        trigger.waiting = 0;
    }
    trigger.busy = false;
    trigger.rests_until = rests.is_some().then(|| Instant::now() + AGAIN);
    if rests.is_some() {
        (trigger.ready, trigger.unstarted) = (true, rests);
    } else if trigger.ready {
        // What came since the last look.
        state.triggers.wake.notify_one();
    }
}
