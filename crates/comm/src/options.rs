//! What a communicator may be told.

use std::time::Duration;

use dayfly_fabric::libfabric::Choice;

use crate::join::Channel;
use crate::table::Table;

/// How a communicator waits, what it keeps, and how it chooses algorithms.
#[derive(Debug, Clone)]
pub struct Options {
    /// How long one operation may take before it ends with [`dayfly_protocol::error::Code::TimedOut`]; forming and shrinking the
    /// group included.
    pub deadline: Duration,
    /// How long a rank that waits polls before it sleeps. `None` polls on, which answers fastest and keeps a core busy.
    pub spin: Option<Duration>,
    /// Bytes of messages that nobody has received yet, beyond which no more short messages are taken in until somebody does.
    pub unexpected_bytes: usize,
    /// Which algorithm for which size. The same on all ranks.
    pub table: Table,
    /// The provider of libfabric over which ranks on different hosts exchange, where both have it: in clear, as nobody listens there.
    /// The same on all ranks.
    pub fabric: Option<Choice>,
    /// For each rank the lowest one that shares its host, so that what leaves a host does so once; the same on all ranks, and empty
    /// where it is not known.
    pub hosts: Vec<u32>,
}

impl Options {
    /// As usual, for ranks that exchange this way. Where they do through storage, who waits sleeps, as nothing comes within
    /// microseconds.
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
    /// An hour at most for one operation, polling, 256 MiB of unexpected messages.
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
