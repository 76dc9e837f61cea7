//! Triggers: an event is written once under its key, and becomes a task of its trigger's function. The task's id is
//! derived from the event, so a repeated submission after a crash changes nothing.
//!
//! - [`trigger`]: one trigger; [`registry`]: all of them;
//! - [`management`]: registration, changes and status;
//! - [`timers`] and [`files`]: the sources of events inside the manager and at endpoints;
//! - [`submission`]: events become tasks.

mod files;
mod management;
mod registry;
mod submission;
mod timers;
mod trigger;

use std::sync::{Arc, Weak};
use std::time::Duration;

use dayfly_protocol::bounds::{self, MAX_TAG_BYTES};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{FlowId, TaskId, TriggerId, time_first};
use dayfly_protocol::triggers::{AcceptedEvent, MAX_EVENT_BYTES, MAX_EVENTS, MAX_FILE_EVENTS, MAX_WAITING_EVENTS};
use dayfly_store::system::{now_ms, random};
use dayfly_store::triggers::NewEvent;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::Tasks;
use crate::detached::run_detached;
use crate::submission::first_half;

pub use management::{TriggerAuthor, check_trigger_lengths};
pub use registry::Triggers;
use trigger::Trigger;

/// Longest interval between checks of the timers, since the wall clock may jump.
const CHECK: Duration = Duration::from_secs(1);
/// Delay before another attempt to submit events.
const RETRY_DELAY: Duration = Duration::from_secs(2);

/// An event, as its source reports it.
pub struct SourceEvent {
    /// Events with the same key are the same event; `None` for a new key.
    pub key: Option<String>,
    /// Kind of the source.
    pub kind: &'static str,
    /// Its fields, which the function gets.
    pub fields: Map<String, Value>,
}

impl SourceEvent {
    /// Encodes the event for the store.
    ///
    /// # Errors
    /// `PayloadTooLarge`.
    fn encode(mut self, at_ms: u64) -> Result<NewEvent, Failure> {
        let key = self.key.unwrap_or_else(|| hex::encode(random::<16>()));
        self.fields.insert("kind".into(), self.kind.into());
        let event =
            serde_json::to_string(&self.fields).map_err(|error| Failure::new(Code::Internal, error.to_string()))?;
        // Bytes that are not text are longer in JSON.
        if event.len() > 2 * MAX_EVENT_BYTES {
            let text = format!("an event of {} bytes; {MAX_EVENT_BYTES} are allowed", event.len());
            return Err(Failure::new(Code::PayloadTooLarge, text));
        }
        Ok(NewEvent { key, at_ms, event })
    }
}

/// The task that an event becomes.
fn task_of(trigger: TriggerId, number: u64, at_ms: u64) -> TaskId {
    let mut hash = Sha256::new();
    hash.update(b"dayfly event");
    hash.update(trigger.0);
    hash.update(number.to_le_bytes());
    TaskId(time_first(at_ms, first_half(hash)))
}

/// The flow that an event becomes if other functions follow the trigger's.
fn flow_of(trigger: TriggerId, number: u64, at_ms: u64) -> FlowId {
    FlowId(task_of(trigger, number, at_ms).0)
}

impl Tasks {
    /// Takes an event: when this returns it is on the disk, and its trigger's function will be called.
    ///
    /// # Errors
    /// `NotFound`, `Forbidden` for an inactive trigger, `QuotaExceeded` if too many events wait, and those of the
    /// store.
    pub async fn fire(self: &Arc<Self>, trigger: TriggerId, event: SourceEvent) -> Result<AcceptedEvent, Failure> {
        bounds::check(
            "the event's key",
            event.key.as_deref().unwrap_or_default(),
            MAX_TAG_BYTES,
        )?;
        let event = event.encode(now_ms())?;
        {
            let state = self.state();
            let trigger = state.triggers.get(trigger).ok_or_else(trigger_is_gone)?;
            if !trigger.is_active(now_ms()) {
                let text = format!(
                    "the trigger `{}` is {}; resume it, or set it again",
                    trigger.record().name,
                    trigger.state()
                );
                return Err(Failure::new(Code::Forbidden, text));
            }
            if trigger.waiting() >= MAX_WAITING_EVENTS {
                return Err(too_many_events(trigger));
            }
        }
        let taken = self.take_events(trigger, vec![event], None).await?;
        taken.into_iter().next().ok_or_else(trigger_is_gone)
    }

    /// Writes events and has them submitted, even if the caller goes away meanwhile. `done_until_ms` is written with
    /// them.
    async fn take_events(
        self: &Arc<Self>,
        trigger: TriggerId,
        events: Vec<NewEvent>,
        done_until_ms: Option<u64>,
    ) -> Result<Vec<AcceptedEvent>, Failure> {
        let tasks = Arc::clone(self);
        run_detached(async move { tasks.write_events(trigger, events, done_until_ms).await }).await
    }

    async fn write_events(
        &self,
        trigger: TriggerId,
        events: Vec<NewEvent>,
        done_until_ms: Option<u64>,
    ) -> Result<Vec<AcceptedEvent>, Failure> {
        let count = events.len() as u64;
        let mut max = MAX_EVENTS;
        if let Some(known) = self.state().triggers.get_mut(trigger) {
            known.expect(count);
            if known.record().spec.source.is_files() {
                max = MAX_FILE_EVENTS;
            }
        }
        let kept = self.store.keep_events(trigger, events, done_until_ms, max).wait().await;
        let new = kept.iter().flatten().filter(|(_, _, new)| *new).count() as u64;
        let mut is_flow = false;
        {
            let mut state = self.state();
            if let Some(known) = state.triggers.get_mut(trigger) {
                known.confirm(count, new);
                is_flow = !known.record().spec.then.is_empty();
            }
            state.triggers.wake();
        }
        let kept = kept?;
        let taken = kept.into_iter().map(|(number, at_ms, new)| AcceptedEvent {
            number,
            task: (!is_flow).then(|| task_of(trigger, number, at_ms)),
            flow: is_flow.then(|| flow_of(trigger, number, at_ms)),
            known: !new,
        });
        Ok(taken.collect())
    }
}

fn trigger_is_gone() -> Failure {
    Failure::new(Code::NotFound, "the trigger does not exist any more")
}

fn too_many_events(trigger: &Trigger) -> Failure {
    let text = format!(
        "{} events of the trigger `{}` wait already; send more when some have become tasks",
        trigger.waiting(),
        trigger.record().name
    );
    Failure::new(Code::QuotaExceeded, text)
}

/// Takes due times and submits waiting events, until the manager stops.
pub(super) async fn run(tasks: Weak<Tasks>) {
    let Some(wake) = tasks.upgrade().map(|tasks| tasks.state().triggers.waker()) else {
        return;
    };
    loop {
        let Some(tasks) = tasks.upgrade() else { return };
        let now_ms = now_ms();
        tasks.take_due_times(now_ms).await;
        tasks.end_expired_watches(now_ms);
        tasks.submit_waiting();
        let until = tasks.state().triggers.until_next_due(now_ms, CHECK);
        drop(tasks);
        let _ = tokio::time::timeout(until, wake.notified()).await;
    }
}
