//! What must survive of triggers: what they are, and what happened, before anybody hears that it is known.

use dayfly_protocol::error::Failure;
use dayfly_protocol::ids::{EndpointId, TenantId, TriggerId};
use dayfly_protocol::triggers::{EventState, TriggerSpec};

use super::Pending;

/// A trigger in the books.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TriggerRecord {
    /// Which.
    pub id: TriggerId,
    /// Whose.
    pub tenant: TenantId,
    /// Its name among its owner's.
    pub name: String,
    /// What it is.
    pub spec: TriggerSpec,
    /// The endpoint that looks for the files it waits for.
    pub watched_at: Option<EndpointId>,
    /// SHA-256 of its token.
    pub token: [u8; 32],
    /// Wall clock, milliseconds since the Unix epoch.
    pub created_at_ms: u64,
    /// Until when its token is good.
    pub expires_at_ms: u64,
    /// Its times up to this one are done with; files that came before do not count.
    pub done_until_ms: u64,
    /// Events that were counted: those that became tasks, and those for which none was accepted.
    pub started: u64,
    /// See `started`.
    pub refused: u64,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewEvent {
    /// What it is known by.
    pub key: String,
    /// When it was heard of.
    pub at_ms: u64,
    /// What is known of it: a JSON object.
    pub event: String,
}

/// Something that happened, in the books.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventRecord {
    /// Its place among those of its trigger, from 1.
    pub number: u64,
    /// What it is.
    pub event: NewEvent,
    /// Where it is in its life.
    pub state: EventState,
    /// Why no task was accepted for it.
    pub error: Option<Failure>,
}

/// An event's number, when it was heard of for the first time, and whether that is now.
pub type Numbered = (u64, u64, bool);

/// The manager's memory of triggers. Writes take effect in the order of the calls; each is kept entirely or not at all.
pub trait TriggerStore {
    /// Every trigger, and how many of its events wait.
    fn triggers(&self) -> Pending<Vec<(TriggerRecord, u64)>>;

    /// Keeps a trigger. One of this owner and name keeps its id, its age and its history, and is otherwise replaced.
    fn trigger(&self, trigger: TriggerRecord) -> Pending<TriggerRecord>;

    /// Forgets a trigger, and its history.
    fn remove_trigger(&self, trigger: TriggerId) -> Pending<()>;

    /// Keeps what happened, each by its key once, and up to when a timer's times are done with. Nothing of a trigger that is gone.
    /// Of those that do not wait, so many are remembered at most, the latest.
    fn keep_events(
        &self,
        trigger: TriggerId,
        events: Vec<NewEvent>,
        done_until_ms: Option<u64>,
        most: u64,
    ) -> Pending<Vec<Numbered>>;

    /// The first events that wait, some at a time.
    fn waiting_events(&self, trigger: TriggerId) -> Pending<Vec<EventRecord>>;

    /// Events are tasks now, or none was accepted for them, and why.
    fn settle_events(&self, trigger: TriggerId, numbers: Vec<u64>, refusal: Option<Failure>) -> Pending<()>;

    /// Events with smaller numbers than this, the latest first: fewer than so many where they are long.
    fn events(&self, trigger: TriggerId, before: u64, limit: u32) -> Pending<Vec<EventRecord>>;
}
