//! Records of one engine, from which its decisions can be repeated: lines of JSON, the first a [`Header`], each further
//! one an [`Entry`]. A node writes them, and the simulator writes and reads them.

use serde::{Deserialize, Serialize};

use crate::engine::{Action, Event};
use crate::profile::Trains;
use crate::rules::Rules;

/// The first line of a record.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// The rules that decided.
    pub rules: Rules,
    /// When its models were trained.
    #[serde(default)]
    pub trains: Trains,
}

/// One event, and the decisions that followed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// When it was handled, in microseconds of the node's clock.
    pub now_us: u64,
    /// What happened.
    pub event: Event,
    /// The decisions, in their order.
    pub actions: Vec<Action>,
}
