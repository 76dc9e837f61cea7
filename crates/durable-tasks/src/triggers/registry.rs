//! All triggers of a manager.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dayfly_protocol::ids::{EndpointId, FunctionId, TenantId, TriggerId};
use dayfly_protocol::triggers::Watch;
use dayfly_store::system::now_ms;
use dayfly_store::triggers::{NewEvent, TriggerRecord};
use tokio::sync::Notify;

use super::trigger::Trigger;

/// A time of a timer that has passed.
pub struct DueTime {
    pub trigger: TriggerId,
    pub event: Option<NewEvent>,
    /// Until when all was done before, and is done with this time. Milliseconds since the Unix epoch.
    pub before_ms: u64,
    pub until_ms: u64,
}

/// The triggers of one manager.
#[derive(Default)]
pub struct Triggers {
    all: HashMap<TriggerId, Trigger>,
    /// Held while a trigger is changed in the store and in memory.
    changing: Arc<tokio::sync::Mutex<()>>,
    /// Wakes the loop that submits events.
    wake: Arc<Notify>,
    /// Start of the manager, in milliseconds since the Unix epoch.
    started_at_ms: u64,
}

impl Triggers {
    /// The triggers that the store has, each with its number of waiting events.
    pub fn restored(records: Vec<(TriggerRecord, u64)>) -> Self {
        let all = records
            .into_iter()
            .map(|(record, waiting)| (record.id, Trigger::new(record, waiting)));
        Self {
            all: all.collect(),
            started_at_ms: now_ms(),
            ..Self::default()
        }
    }

    /// The lock that is held while a trigger is changed in the store and in memory.
    pub fn change_lock(&self) -> Arc<tokio::sync::Mutex<()>> {
        Arc::clone(&self.changing)
    }

    /// The notification that wakes the loop that submits events.
    pub fn waker(&self) -> Arc<Notify> {
        Arc::clone(&self.wake)
    }

    pub fn wake(&self) {
        self.wake.notify_one();
    }

    pub fn get(&self, id: TriggerId) -> Option<&Trigger> {
        self.all.get(&id)
    }

    pub fn get_mut(&mut self, id: TriggerId) -> Option<&mut Trigger> {
        self.all.get_mut(&id)
    }

    pub fn values(&self) -> impl Iterator<Item = &Trigger> {
        self.all.values()
    }

    pub fn of(&self, tenant: TenantId) -> impl Iterator<Item = &Trigger> {
        self.values().filter(move |trigger| trigger.record().tenant == tenant)
    }

    /// A tenant's trigger with this name or id.
    pub fn find(&self, tenant: TenantId, wanted: &str) -> Option<&Trigger> {
        let mut own = self.of(tenant);
        own.find(|trigger| trigger.record().name == wanted || trigger.record().id.to_string() == wanted)
    }

    /// Adds a trigger, or replaces its record. Returns the endpoint that watched for it before.
    pub fn set_record(&mut self, record: TriggerRecord) -> Option<EndpointId> {
        match self.all.get_mut(&record.id) {
            None => {
                self.all.insert(record.id, Trigger::new(record, 0));
                None
            }
            Some(known) => {
                let before = known.record().watched_at;
                known.set_record(record);
                before
            }
        }
    }

    pub fn remove(&mut self, id: TriggerId) -> Option<Trigger> {
        self.all.remove(&id)
    }

    /// Number of triggers, of tenants that `counts` accepts, that start one of these functions or call it afterwards.
    pub fn count_calling(&self, functions: &HashSet<FunctionId>, counts: impl Fn(TenantId) -> bool) -> usize {
        let calls = |trigger: &&Trigger| {
            let spec = &trigger.record().spec;
            counts(trigger.record().tenant)
                && (functions.contains(&spec.function)
                    || spec.then.iter().any(|step| functions.contains(&step.function)))
        };
        self.values().filter(calls).count()
    }

    /// The watches of an endpoint. Starts or ends them, by whether their triggers are active.
    pub fn set_watches(&mut self, endpoint: EndpointId, now_ms: u64) -> Vec<Watch> {
        let its = self.all.values_mut();
        let its = its.filter(|trigger| trigger.record().watched_at == Some(endpoint));
        its.filter_map(|trigger| trigger.set_watch(now_ms)).collect()
    }

    /// A trigger, if this endpoint watches for it.
    pub fn watched_by(&mut self, endpoint: EndpointId, trigger: TriggerId) -> Option<&mut Trigger> {
        let trigger = self.all.get_mut(&trigger)?;
        trigger.is_watched_by(endpoint).then_some(trigger)
    }

    /// Takes the times of timers that have passed.
    pub fn take_due(&mut self, now_ms: u64) -> Vec<DueTime> {
        let due = self.all.iter_mut().filter_map(|(id, trigger)| {
            let before_ms = trigger.record().done_until_ms;
            let (event, until_ms) = trigger.take_due(now_ms, self.started_at_ms)?;
            Some(DueTime {
                trigger: *id,
                event,
                before_ms,
                until_ms,
            })
        });
        due.collect()
    }

    /// Begins to submit the events of all triggers that have some. Returns these triggers.
    pub fn begin_submissions(&mut self, now: Instant) -> Vec<TriggerId> {
        let all = self.all.iter_mut();
        all.filter_map(|(id, trigger)| trigger.begin_submission(now).then_some(*id))
            .collect()
    }

    /// Time until the next timer is due, or `longest`.
    pub fn until_next_due(&self, now_ms: u64, longest: Duration) -> Duration {
        let active = self.values().filter(|trigger| trigger.is_active(now_ms));
        let first = active.map(Trigger::next_at_ms).filter(|at_ms| *at_ms > 0).min();
        first.map_or(longest, |at_ms| {
            Duration::from_millis(at_ms.saturating_sub(now_ms)).min(longest)
        })
    }
}
