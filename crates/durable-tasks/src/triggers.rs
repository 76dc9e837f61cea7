//! Triggers: what happens is written down by its key once, and becomes a task of its trigger's function at least once, whatever
//! dies meanwhile. A task's id comes of its event, so that one that is submitted again is the same.
//!
//! - [`management`]: triggers are made, changed and shown;
//! - [`timers`]: timers are due;
//! - [`files`]: endpoints look for files;
//! - [`submission`]: events become tasks.

mod files;
mod management;
mod submission;
mod timers;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use dayfly_protocol::bounds::{self, MAX_TAG_BYTES};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{FlowId, FunctionId, TaskId, TenantId, TriggerId, time_first};
use dayfly_protocol::triggers::{AcceptedEvent, MAX_EVENT_BYTES, MAX_EVENTS, MAX_FILE_EVENTS, MAX_WAITING_EVENTS};
use dayfly_scheduling::Timer;
use dayfly_store::system::{now_ms, random};
use dayfly_store::triggers::{NewEvent, TriggerRecord};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use tokio::sync::Notify;

use crate::Tasks;
use crate::state::State;
use crate::submission::first_half;

pub use management::{TriggerAuthor, check_trigger_lengths};

/// Timers are looked at as often at least: the wall clock may jump.
const LOOK: Duration = Duration::from_secs(1);
/// What could not be started for now is tried again.
const AGAIN: Duration = Duration::from_secs(2);

/// The triggers of one manager.
#[derive(Default)]
pub struct Triggers {
    all: HashMap<TriggerId, Trigger>,
    /// Held while one is changed in the books and here.
    changing: Arc<tokio::sync::Mutex<()>>,
    /// Wakes whoever starts what waits.
    wake: Arc<Notify>,
}

struct Trigger {
    record: TriggerRecord,
    timer: Option<Timer>,
    /// When it is due next; 0 for never.
    next_at_ms: u64,
    waiting: u64,
    started: u64,
    refused: u64,
    /// Why its endpoint does not see its files, and why its events do not become tasks.
    unseen: Option<Failure>,
    unstarted: Option<Failure>,
    /// Whether its endpoint looks for its files.
    watched: bool,
    /// Whether something waits that nobody has looked at, whether somebody does, and when to look again at the earliest.
    ready: bool,
    busy: bool,
    rests_until: Option<Instant>,
}

impl Trigger {
    fn new(record: TriggerRecord, waiting: u64) -> Self {
        let mut trigger = Self {
            timer: None,
            next_at_ms: 0,
            waiting,
            started: record.started,
            refused: record.refused,
            unseen: None,
            unstarted: None,
            watched: false,
            ready: waiting > 0,
            busy: false,
            rests_until: None,
            record,
        };
        trigger.set_timer();
        trigger
    }

    /// Whether what happens now counts.
    fn is_active(&self, now_ms: u64) -> bool {
        !self.record.spec.paused && now_ms < self.record.expires_at_ms
    }
}

impl Triggers {
    /// Those that the store remembers.
    pub fn remembered(records: Vec<(TriggerRecord, u64)>) -> Self {
        let all = records
            .into_iter()
            .map(|(record, waiting)| (record.id, Trigger::new(record, waiting)));
        Self {
            all: all.collect(),
            changing: Arc::default(),
            wake: Arc::default(),
        }
    }

    /// How many of those whose tenants count start one of these functions, or call it with what it answers.
    pub(super) fn calling(&self, functions: &HashSet<FunctionId>, counts: impl Fn(TenantId) -> bool) -> usize {
        let calls = |trigger: &&Trigger| {
            let spec = &trigger.record.spec;
            counts(trigger.record.tenant)
                && (functions.contains(&spec.function)
                    || spec.then.iter().any(|step| functions.contains(&step.function)))
        };
        self.all.values().filter(calls).count()
    }

    /// Whether somebody has this one, by its name or its id.
    fn find(&self, tenant: TenantId, wanted: &str) -> Option<&Trigger> {
        let mut own = self.all.values().filter(|trigger| trigger.record.tenant == tenant);
        own.find(|trigger| trigger.record.name == wanted || trigger.record.id.to_string() == wanted)
    }
}

/// What was heard of one that happened.
pub struct SourceEvent {
    /// What it is known by; none for one of its own.
    pub key: Option<String>,
    /// What kind of source told of it.
    pub kind: &'static str,
    /// What is known of it.
    pub of: Map<String, Value>,
}

impl SourceEvent {
    fn written(mut self, at_ms: u64) -> Result<NewEvent, Failure> {
        let key = self.key.unwrap_or_else(|| hex::encode(random::<16>()));
        self.of.insert("kind".into(), self.kind.into());
        let event = serde_json::to_string(&self.of).map_err(|error| Failure::new(Code::Internal, error.to_string()))?;
        // What is not text is longer in JSON.
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

/// The flow that it becomes, where others come after its function.
fn flow_of(trigger: TriggerId, number: u64, at_ms: u64) -> FlowId {
    FlowId(task_of(trigger, number, at_ms).0)
}

impl Tasks {
    /// Something happened that its trigger's function is to hear of. When this returns, it is on the disk.
    pub async fn fire(self: &Arc<Self>, trigger: TriggerId, heard: SourceEvent) -> Result<AcceptedEvent, Failure> {
        bounds::check(
            "the event's key",
            heard.key.as_deref().unwrap_or_default(),
            MAX_TAG_BYTES,
        )?;
        let event = heard.written(now_ms())?;
        {
            let state = self.state();
            let trigger = state.triggers.all.get(&trigger).ok_or_else(gone)?;
            if !trigger.is_active(now_ms()) {
                let text = format!(
                    "the trigger `{}` is {}; resume it, or set it anew",
                    trigger.record.name,
                    trigger.state()
                );
                return Err(Failure::new(Code::Forbidden, text));
            }
            if trigger.waiting >= MAX_WAITING_EVENTS {
                return Err(too_many(trigger));
            }
        }
        let taken = self.take_events(trigger, vec![event], None).await?;
        taken.into_iter().next().ok_or_else(gone)
    }

    /// Writes down what happened, and has it started: to its end, also when whoever asked goes away meanwhile.
    async fn take_events(
        self: &Arc<Self>,
        trigger: TriggerId,
        events: Vec<NewEvent>,
        done_until_ms: Option<u64>,
    ) -> Result<Vec<AcceptedEvent>, Failure> {
        let tasks = Arc::clone(self);
        to_its_end(async move { tasks.take_these(trigger, events, done_until_ms).await }).await
    }

    async fn take_these(
        &self,
        trigger: TriggerId,
        events: Vec<NewEvent>,
        done_until_ms: Option<u64>,
    ) -> Result<Vec<AcceptedEvent>, Failure> {
        let count = events.len() as u64;
        let mut most = MAX_EVENTS;
        // Before they can be settled.
        if let Some(known) = self.state().triggers.all.get_mut(&trigger) {
            known.waiting += count;
            if known.record.spec.source.is_files() {
                most = MAX_FILE_EVENTS;
            }
        }
        let kept = self
            .store
            .keep_events(trigger, events, done_until_ms, most)
            .wait()
            .await;
        let new = kept.iter().flatten().filter(|(_, _, new)| *new).count() as u64;
        let mut is_flow = false;
        {
            let mut state = self.state();
            if let Some(known) = state.triggers.all.get_mut(&trigger) {
                known.waiting = known.waiting.saturating_sub(count - new);
                // Also what is only thought not to be written, or was written for somebody who went away.
                known.ready = true;
                is_flow = !known.record.spec.then.is_empty();
            }
            state.triggers.wake.notify_one();
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

/// Does this to its end, also when whoever waits for it goes away.
pub(crate) async fn to_its_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, Failure>> + Send + 'static,
) -> Result<T, Failure> {
    let done = tokio::spawn(work).await;
    done.map_err(|error| Failure::new(Code::Internal, format!("this was cut off: {error}")))?
}

fn gone() -> Failure {
    Failure::new(Code::NotFound, "the trigger is gone")
}

fn too_many(trigger: &Trigger) -> Failure {
    let text = format!(
        "{} events of the trigger `{}` wait already; send more when some have become tasks",
        trigger.waiting, trigger.record.name
    );
    Failure::new(Code::QuotaExceeded, text)
}

/// Timers are due, and what waits becomes tasks, until the manager ends.
pub(super) async fn run(tasks: Weak<Tasks>) {
    let Some(wake) = tasks.upgrade().map(|tasks| Arc::clone(&tasks.state().triggers.wake)) else {
        return;
    };
    loop {
        let Some(tasks) = tasks.upgrade() else { return };
        let now_ms = now_ms();
        tasks.look_at_times(now_ms).await;
        tasks.look_at_expiries(now_ms);
        tasks.start_waiting();
        let until = tasks.state().next_look(now_ms);
        drop(tasks);
        let _ = tokio::time::timeout(until, wake.notified()).await;
    }
}

impl State {
    /// How long until something is to be done that nobody wakes anybody for.
    fn next_look(&self, now_ms: u64) -> Duration {
        let due = self.triggers.all.values().filter(|trigger| trigger.is_active(now_ms));
        let first = due.map(|trigger| trigger.next_at_ms).filter(|at_ms| *at_ms > 0).min();
        first.map_or(LOOK, |at_ms| {
            Duration::from_millis(at_ms.saturating_sub(now_ms)).min(LOOK)
        })
    }
}
