//! Triggers, which start functions on events: as in the manager's HTTP API, and in messages to endpoints.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::error::Failure;
use crate::flows::{FlowRequest, FlowStep};
use crate::ids::{FlowId, FunctionId, TaskId, TriggerId};
use crate::named::named_enum;
use crate::tasks::{TaskOptions, TaskState};

/// Most bytes of one event: the body of a webhook request, and the argument of its function.
pub const MAX_EVENT_BYTES: usize = 1 << 20;
/// Most triggers of a tenant.
pub const MAX_TRIGGERS: usize = 1_000;
/// Most events that wait to become tasks. Further events are refused until the number falls.
pub const MAX_WAITING_EVENTS: u64 = 100_000;
/// Most events that a trigger's history keeps. The oldest are discarded first.
pub const MAX_EVENTS: u64 = 100_000;
/// Most events in the history of a trigger that waits for files. An endpoint reports all files again when it
/// reconnects.
pub const MAX_FILE_EVENTS: u64 = 2_000_000;
/// Most bytes of a trigger's settings, in JSON.
pub const MAX_SPEC_BYTES: usize = 64 << 10;
/// Most files in one message from an endpoint.
pub const MAX_FILES: usize = 1_000;
/// Bounds of the polling interval of a directory or bucket, in milliseconds.
pub const POLL_INTERVAL_MS: std::ops::RangeInclusive<u32> = 100..=86_400_000;

/// The events that a trigger waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum EventSource {
    /// Times of a schedule.
    Timer {
        /// Schedule in cron syntax: minute, hour, day of month, month, day of week. Seconds may precede them.
        #[schema(min_length = 1, max_length = 256)]
        cron: String,
        /// Time zone of the schedule, such as `Europe/Berlin`.
        #[serde(default = "utc")]
        zone: String,
        /// Whether to make up for the last of the times that passed while the manager was down.
        #[serde(default = "yes")]
        catch_up: bool,
    },
    /// HTTP requests that carry the trigger's token.
    Webhook {},
    /// Files that arrive in a directory, or objects that arrive in a bucket.
    Files {
        /// Endpoint whose nodes see the place. It must belong to the trigger's owner; if absent, the endpoint where the
        /// tasks run.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        endpoint: Option<String>,
        /// Absolute path of a directory, or `s3://bucket/prefix`.
        #[schema(min_length = 1, max_length = 4096)]
        place: String,
        /// Pattern of paths below the place, such as `*.tif`, or `**/*.tif` to include subdirectories.
        #[serde(default = "every")]
        #[schema(min_length = 1, max_length = 1024)]
        pattern: String,
        /// Whether files that existed before the trigger count.
        #[serde(default)]
        existing: bool,
        /// Polling interval in milliseconds; 0 for one second in a directory and ten seconds in a bucket.
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
    /// The source's name in JSON.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Timer { .. } => "timer",
            Self::Webhook {} => "webhook",
            Self::Files { .. } => "files",
        }
    }

    /// Whether the source is [`EventSource::Files`].
    pub fn is_files(&self) -> bool {
        matches!(self, Self::Files { .. })
    }
}

/// Settings of a trigger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TriggerSpec {
    /// Description, for display.
    #[serde(default)]
    pub description: String,
    /// Events that it waits for.
    pub source: EventSource,
    /// The function to start. Its only positional argument is the event.
    pub function: FunctionId,
    /// Endpoint by name or id, as for a task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Options of its tasks.
    #[serde(default)]
    pub options: TaskOptions,
    /// Further steps of a flow. Its first step, named `event`, is the trigger's function, and its input is the event.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 99)]
    pub then: Vec<FlowStep>,
    /// Keyword arguments that are passed with each event, for Python functions.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub keywords: Map<String, Value>,
    /// Whether it starts nothing for now. Times are skipped, files wait, and requests are refused.
    #[serde(default)]
    pub paused: bool,
}

impl TriggerSpec {
    /// Returns the flow that an event starts.
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

/// A trigger to create or to change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TriggerRegistration {
    /// Name, unique among its owner's triggers.
    #[schema(pattern = "^[A-Za-z][A-Za-z0-9._-]{0,127}$")]
    pub name: String,
    /// Settings of the trigger.
    #[serde(flatten)]
    pub spec: TriggerSpec,
    /// Validity in milliseconds; 0 for that of the token that creates it. A trigger never outlives that token.
    #[serde(default)]
    pub valid_for_ms: u64,
}

named_enum! {
    /// State of a trigger.
    TriggerState, "a trigger state" {
        /// Starts functions.
        Active = "active",
        /// Starts nothing for now.
        Paused = "paused",
        /// Its token has expired.
        Expired = "expired",
    }
}

/// Status of a trigger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TriggerStatus {
    /// Id of the trigger.
    pub id: TriggerId,
    pub name: String,
    /// Name of the owner.
    pub owner: String,
    /// Settings of the trigger.
    #[serde(flatten)]
    pub spec: TriggerSpec,
    /// Name of the endpoint that watches for the files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watched_at: Option<String>,
    /// State of the trigger.
    pub state: TriggerState,
    /// Why it cannot watch or start its function; absent if it can.
    pub trouble: Option<Failure>,
    /// Time of creation, in milliseconds since the Unix epoch.
    pub created_at_ms: u64,
    /// Expiry of its token, in milliseconds since the Unix epoch.
    pub expires_at_ms: u64,
    /// For timers, the next scheduled time; 0 for never.
    pub next_at_ms: u64,
    /// Events that wait to become tasks.
    pub waiting: u64,
    /// Events that became tasks.
    pub started: u64,
    /// Events for which no task was accepted.
    pub refused: u64,
}

/// A created trigger and its token. The token is shown only once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NewTrigger {
    /// Token that authorises sending events to the trigger, and nothing else. Invalidates earlier tokens of the same
    /// trigger.
    pub token: String,
    /// URL to which programs send events. It contains the token.
    pub url: String,
    /// The manager's certificate authority, as PEM.
    pub ca_pem: String,
    /// Status of the trigger.
    pub status: TriggerStatus,
}

named_enum! {
    /// State of an event.
    EventState, "an event state" {
        /// Stored, and waiting to become a task.
        Waiting = "waiting",
        /// It became a task.
        Started = "started",
        /// No task was accepted for it.
        Refused = "refused",
    }
}

/// An event in a trigger's history.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EventStatus {
    /// Sequence number in the history, from 1.
    pub number: u64,
    /// Identifies the event. A report with a known key is the same event.
    pub key: String,
    /// Time of the report, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// Argument of the function.
    pub event: Value,
    /// State of the event.
    pub state: EventState,
    /// The task that it became or will become.
    pub task: Option<TaskId>,
    /// The flow that it became, for a trigger with further steps.
    pub flow: Option<FlowId>,
    /// State of the task, while the task is kept.
    pub task_state: Option<TaskState>,
    /// Why it was refused, or why its task or flow failed.
    pub error: Option<Failure>,
}

/// An accepted event. It is stored durably and starts its function at least once whatever fails.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AcceptedEvent {
    /// Sequence number in the trigger's history.
    pub number: u64,
    /// The task that it becomes.
    pub task: Option<TaskId>,
    /// The flow that it becomes, for a trigger with further steps.
    pub flow: Option<FlowId>,
    /// Whether the event was already known.
    pub known: bool,
}

/// Files that an endpoint must watch for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watch {
    /// The trigger that waits for them.
    pub trigger: TriggerId,
    /// Absolute path of a directory, or `s3://bucket/prefix`.
    pub place: String,
    /// Pattern of paths below the place.
    pub pattern: String,
    /// Only files modified within this many milliseconds before this message was sent, or later. A length, because the
    /// clocks of two hosts differ. Absent for all files.
    pub within_ms: Option<u64>,
    /// Polling interval in milliseconds.
    pub every_ms: u32,
}

/// A file or an object, as an endpoint sees it. A modified file is a different one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ObservedFile {
    /// Absolute path, or `s3://bucket/...`.
    pub path: String,
    /// Length in bytes.
    pub bytes: u64,
    /// Time of the last modification, in milliseconds since the Unix epoch.
    pub modified_at_ms: u64,
    /// Distinguishes this state of the file from others.
    pub version: String,
}

impl ObservedFile {
    /// Returns the key that identifies the file in this version.
    pub fn key(&self) -> String {
        format!("{}@{}", self.path, self.version)
    }
}
