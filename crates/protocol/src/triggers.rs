//! Triggers: what starts a function when something happens. As the manager's HTTP API shows them, and as endpoints hear of them.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::error::Failure;
use crate::flows::{FlowRequest, FlowStep};
use crate::ids::{FlowId, FunctionId, TaskId, TriggerId};
use crate::tasks::{TaskOptions, TaskState};

/// Most bytes of one event: what a webhook is sent, and what its function gets.
pub const MOST_EVENT_BYTES: usize = 1 << 20;
/// Most triggers of one tenant.
pub const MOST_TRIGGERS: usize = 1_000;
/// Events that wait to become tasks; more are refused until some have.
pub const MOST_WAITING_EVENTS: u64 = 100_000;
/// Events of one trigger that are remembered, the latest.
pub const MOST_EVENTS: u64 = 100_000;
/// The same of triggers that wait for files, of which an endpoint tells again when it connects again.
pub const MOST_FILE_EVENTS: u64 = 2_000_000;
/// Most bytes of what a trigger is, in JSON.
pub const MOST_SPEC_BYTES: usize = 64 << 10;
/// Files in one message of an endpoint's.
pub const MOST_FILES: usize = 1_000;
/// The least and the most between two looks at a directory or bucket, in milliseconds.
pub const LOOKS_MS: std::ops::RangeInclusive<u32> = 100..=86_400_000;

/// What a trigger waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum EventSource {
    /// Times.
    Timer {
        /// When, in cron syntax: minute, hour, day of month, month, day of week; seconds may stand before them.
        #[schema(min_length = 1, max_length = 256)]
        cron: String,
        /// The time zone of that, such as `Europe/Berlin`.
        #[serde(default = "utc")]
        zone: String,
        /// Whether the last of the times that passed while the manager was away is made up for.
        #[serde(default = "yes")]
        catch_up: bool,
    },
    /// Requests of programs that know the trigger's token.
    Webhook {},
    /// Files that arrive in a directory, or objects in a bucket.
    Files {
        /// Whose nodes see the place: an endpoint of the trigger's owner; none for the one where its tasks run.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        endpoint: Option<String>,
        /// A directory's path from the root, or `s3://bucket/prefix`.
        #[schema(min_length = 1, max_length = 4096)]
        place: String,
        /// Which of them: a pattern of paths below the place, such as `*.tif`, or `**/*.tif` for those in directories below, too.
        #[serde(default = "every")]
        #[schema(min_length = 1, max_length = 1024)]
        pattern: String,
        /// Whether those count that were there before the trigger.
        #[serde(default)]
        existing: bool,
        /// Milliseconds between two looks; 0 for one second in a directory and ten in a bucket.
        #[serde(default)]
        every_ms: u32,
    },
}

fn utc() -> String {
    "UTC".into()
}

fn yes() -> bool {
    true
}

fn every() -> String {
    "*".into()
}

impl EventSource {
    /// Its name, as in JSON.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Timer { .. } => "timer",
            Self::Webhook {} => "webhook",
            Self::Files { .. } => "files",
        }
    }

    /// Whether it is files.
    pub fn is_files(&self) -> bool {
        matches!(self, Self::Files { .. })
    }
}

/// What a trigger is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TriggerSpec {
    /// What it is for, for people.
    #[serde(default)]
    pub description: String,
    /// What it waits for.
    pub source: EventSource,
    /// What it starts: a function whose only argument by place is the event.
    pub function: FunctionId,
    /// Where, by name or id; as for a task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// How its tasks are treated.
    #[serde(default)]
    pub options: TaskOptions,
    /// What is called with its result: further steps of a [flow](crate::flows) of which it is the first, named `event`, and whose
    /// input is the event.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 99)]
    pub then: Vec<FlowStep>,
    /// Arguments by name that go along with each event, for Python functions.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub keywords: Map<String, Value>,
    /// Whether it starts nothing for now: times pass, files wait, requests are refused.
    #[serde(default)]
    pub paused: bool,
}

impl TriggerSpec {
    /// The flow that an event starts.
    pub fn flow(&self, event: Value) -> FlowRequest {
        let first = FlowStep {
            name: "event".into(),
            function: self.function,
            from: None,
            map: false,
            endpoint: self.endpoint.clone(),
            options: self.options.clone(),
            keywords: self.keywords.clone(),
        };
        FlowRequest {
            id: None,
            name: String::new(),
            steps: std::iter::once(first).chain(self.then.iter().cloned()).collect(),
            input: event,
        }
    }
}

/// A trigger to make, or to change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TriggerRegistration {
    /// Its name among its owner's.
    #[schema(pattern = "^[A-Za-z][A-Za-z0-9._-]{0,127}$")]
    pub name: String,
    /// What it is.
    #[serde(flatten)]
    pub spec: TriggerSpec,
    /// For how long it is good, in milliseconds; 0 for as long as the token that it is made with, which it cannot outlive.
    #[serde(default)]
    pub valid_for_ms: u64,
}

/// How a trigger does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TriggerStatus {
    /// Which.
    pub id: TriggerId,
    /// Its name.
    pub name: String,
    /// Whose it is.
    pub owner: String,
    /// What it is.
    #[serde(flatten)]
    pub spec: TriggerSpec,
    /// The name of the endpoint that looks for the files it waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watched_at: Option<String>,
    /// `active`, `paused`, or `expired`.
    pub state: String,
    /// Why it cannot see, or start, what it should.
    pub trouble: Option<Failure>,
    /// Wall clock, milliseconds since the Unix epoch.
    pub created_at_ms: u64,
    /// When its token expires.
    pub expires_at_ms: u64,
    /// When it is due next, for timers; 0 for never.
    pub next_at_ms: u64,
    /// Events that are to become tasks.
    pub waiting: u64,
    /// Those that became tasks.
    pub started: u64,
    /// Those for which no task was accepted.
    pub refused: u64,
}

/// A trigger that was made, and its token: told this once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NewTrigger {
    /// What it takes to send the trigger an event, and nothing else. An earlier one of the same trigger is worth nothing any more.
    pub token: String,
    /// Where programs send events, which has the token in it.
    pub url: String,
    /// The manager's certificate authority, PEM.
    pub ca_pem: String,
    /// How it does.
    pub status: TriggerStatus,
}

/// Where an event is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EventState {
    /// It is written down, and to become a task.
    Waiting,
    /// It became a task.
    Started,
    /// No task was accepted for it.
    Refused,
}

impl EventState {
    /// All.
    pub const ALL: [Self; 3] = [Self::Waiting, Self::Started, Self::Refused];

    /// Its name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Started => "started",
            Self::Refused => "refused",
        }
    }
}

/// Something that happened, in a trigger's history.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EventStatus {
    /// Its place in the history, from 1.
    pub number: u64,
    /// What it is known by: what is told again with the same key is the same event.
    pub key: String,
    /// When it was heard of. Wall clock, milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// What the function is given.
    pub event: Value,
    /// Where it is in its life.
    pub state: EventState,
    /// The task that it became, or is to become.
    pub task: Option<TaskId>,
    /// The same of a trigger whose function others come after: the flow.
    pub flow: Option<FlowId>,
    /// Where that is, while it is remembered.
    pub task_state: Option<TaskState>,
    /// Why it was refused, or what it became did not end well.
    pub error: Option<Failure>,
}

/// An event that a trigger took: written to the disk, to start its function at least once whatever fails.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventTaken {
    /// Its place in the trigger's history.
    pub number: u64,
    /// The task that it becomes.
    pub task: Option<TaskId>,
    /// The same of a trigger whose function others come after: the flow.
    pub flow: Option<FlowId>,
    /// Whether it was known already.
    pub known: bool,
}

/// Files that an endpoint is to look for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watch {
    /// For whom.
    pub trigger: TriggerId,
    /// A directory's path, or `s3://bucket/prefix`.
    pub place: String,
    /// Which of them.
    pub pattern: String,
    /// Only those that came within so many milliseconds before this was said, or later: a length, for the clocks of two hosts
    /// differ. None for all.
    pub within_ms: Option<u64>,
    /// Milliseconds between two looks.
    pub every_ms: u32,
}

/// A file, or an object, as an endpoint sees it. One that changes is another.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FileSeen {
    /// Its path, or `s3://bucket/...`.
    pub path: String,
    /// How long it is.
    pub bytes: u64,
    /// When it was written last. Wall clock, milliseconds since the Unix epoch.
    pub modified_at_ms: u64,
    /// What tells this state of it from others.
    pub version: String,
}

impl FileSeen {
    /// What it is known by.
    pub fn key(&self) -> String {
        format!("{}@{}", self.path, self.version)
    }
}
