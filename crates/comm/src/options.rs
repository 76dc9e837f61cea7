//! Options of a communicator.

use std::time::Duration;

use dayfly_fabric::libfabric::Choice;

use crate::join::Channel;
use crate::table::Table;

/// Waiting, buffering and algorithms of a communicator.
#[derive(Debug, Clone)]
pub struct Options {
    /// Longest duration of one operation, including forming and shrinking the group; then it ends with
    /// [`dayfly_protocol::error::Code::TimedOut`].
    pub deadline: Duration,
    /// How long a waiting rank polls before it sleeps. `None` polls without end, which is fastest and occupies a core.
    pub spin: Option<Duration>,
    /// Bound on unexpected messages in bytes. Above it, a rank takes in short messages without a receive only while nothing
    /// else moves: a message that it waits for may come after them.
    pub unexpected_bytes: usize,
    /// Which algorithm for which size; equal on all ranks.
    pub table: Table,
    /// The libfabric provider between hosts, for pairs that both have it. Bytes are not encrypted. Equal on all ranks.
    pub fabric: Option<Choice>,
    /// For each rank the lowest rank on its host, so that bytes leave a host only once. Equal on all ranks; empty if
    /// unknown.
    pub hosts: Vec<u32>,
}

impl Options {
    /// Defaults for a channel. Through storage a waiting rank sleeps, since no message arrives within microseconds.
    pub fn of(channel: Channel) -> Self {
        match channel {
            Channel::Direct => Self::default(),
            Channel::Stored => Self {
                spin: Some(Duration::ZERO),
                table: Table::stored(),
                ..Self::default()
            },
        }
    }
}

impl Default for Options {
    /// An hour for one operation, polling without sleep, 256 MiB of unexpected messages.
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(3600),
            spin: None,
            unexpected_bytes: 256 << 20,
            table: Table::default(),
            fabric: None,
            hosts: Vec::new(),
        }
    }
}
