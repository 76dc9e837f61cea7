//! Durable state of triggers and their events. It is on the disk before it is confirmed.

use dayfly_protocol::error::Failure;
use dayfly_protocol::ids::{EndpointId, TenantId, TriggerId};
use dayfly_protocol::triggers::{EventState, TriggerSpec};

use super::Pending;

/// A stored trigger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TriggerRecord {
    /// Id of the trigger.
    pub id: TriggerId,
    /// Tenant that owns it.
    pub tenant: TenantId,
    /// Name, unique among its owner's triggers.
    pub name: String,
    /// Settings of the trigger.
    pub spec: TriggerSpec,
    /// The endpoint that watches for its files.
    pub watched_at: Option<EndpointId>,
    /// SHA-256 of its token.
    pub token: [u8; 32],
    /// Time of creation, in milliseconds since the Unix epoch.
    pub created_at_ms: u64,
    /// Expiry of its token, in milliseconds since the Unix epoch.
    pub expires_at_ms: u64,
    /// Scheduled times up to this one have been handled, and earlier files do not count. Milliseconds since the Unix
    /// epoch.
    pub done_until_ms: u64,
    /// Number of events that became tasks.
    pub started: u64,
    /// Number of events for which no task was accepted.
    pub refused: u64,
}

/// A new event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewEvent {
    /// Identifies the event.
    pub key: String,
    /// Time of the report, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// Description of the event: a JSON object.
    pub event: String,
}

/// A stored event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventRecord {
    /// Sequence number among the events of its trigger, from 1.
    pub number: u64,
    pub event: NewEvent,
    /// State of the event.
    pub state: EventState,
    /// Why no task was accepted for it.
    pub error: Option<Failure>,
}

/// An event's number, the time of its first report, and whether it is new.
pub type NumberedEvent = (u64, u64, bool);

/// Durable state of triggers. Writes take effect in the order of the calls. Each is kept completely or not at all.
pub trait TriggerStore {
    /// Returns all triggers, with the number of their waiting events.
    fn triggers(&self) -> Pending<Vec<(TriggerRecord, u64)>>;

    /// Stores a trigger. A trigger with the same owner and name keeps its id, creation time and history; the rest is
    /// replaced.
    fn trigger(&self, trigger: TriggerRecord) -> Pending<TriggerRecord>;

    /// Deletes a trigger and its history.
    fn remove_trigger(&self, trigger: TriggerId) -> Pending<()>;

    /// Stores events, each key once, and the time up to which a timer is handled. Ignores a deleted trigger. Keeps at
    /// most the latest `most` events that no longer wait.
    fn keep_events(
        &self,
        trigger: TriggerId,
        events: Vec<NewEvent>,
        done_until_ms: Option<u64>,
        most: u64,
    ) -> Pending<Vec<NumberedEvent>>;

    /// Returns the first waiting events, a limited number at a time.
    fn waiting_events(&self, trigger: TriggerId) -> Pending<Vec<EventRecord>>;

    /// Records that events became tasks, or with `refusal` that none was accepted for them.
    fn settle_events(&self, trigger: TriggerId, numbers: Vec<u64>, refusal: Option<Failure>) -> Pending<()>;

    /// Returns events with numbers below `before`, latest first: at most `limit`, and fewer if they are long.
    fn events(&self, trigger: TriggerId, before: u64, limit: u32) -> Pending<Vec<EventRecord>>;
}
