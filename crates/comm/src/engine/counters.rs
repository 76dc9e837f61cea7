//! What a rank's engine counts, and the settings that may change while it runs.

use std::time::Duration;

use dayfly_protocol::error::{Code, Failure};

use super::Engine;

/// Numbers of one rank at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages whose send has begun, those of collectives included.
    pub sends: u64,
    /// Operations that did not end at once and have ended since.
    pub completions: u64,
    /// Messages that wait for a receive.
    pub unexpected_messages: u64,
    /// Bytes of memory that they take up.
    pub unexpected_bytes: u64,
    /// Receives that no message has matched.
    pub posted_receives: u64,
    /// Ranks to which there is a connection.
    pub connected_ranks: u64,
    /// Ranks that are lost.
    pub lost_ranks: u64,
}

impl Engine {
    /// The numbers of this moment.
    pub fn counters(&self) -> Counters {
        let (unexpected_messages, unexpected_bytes) = self.matching.waiting();
        Counters {
            sends: self.sends,
            completions: self.matching.completions,
            unexpected_messages: unexpected_messages as u64,
            unexpected_bytes: unexpected_bytes as u64,
            posted_receives: self.matching.posted_receives() as u64,
            connected_ranks: self.transports.iter().flatten().count() as u64,
            lost_ranks: self.lost.count(),
        }
    }

    /// Changes how long a waiting rank polls before it sleeps.
    ///
    /// # Errors
    /// [`Code::InvalidRequest`] when this rank polls without end: the others do not expect that it sleeps.
    pub fn set_spin(&mut self, spin: Duration) -> Result<(), Failure> {
        match &mut self.options.spin {
            Some(own) => {
                *own = spin;
                Ok(())
            }
            None => Err(Failure::new(
                Code::InvalidRequest,
                "a rank that polls without end cannot begin to sleep; start the group with a limit",
            )),
        }
    }
}
