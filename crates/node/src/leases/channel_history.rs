//! The final states of a lease's ended channels.

use std::collections::VecDeque;

use dayfly_protocol::ids::ChannelId;
use dayfly_protocol::node_api::ChannelStatus;

/// Most ended channels that are kept for each lease: a client asks at once or never.
const MAX_ENDED: usize = 256;

/// The latest ended channels.
#[derive(Debug, Default)]
pub(super) struct ChannelHistory {
    latest: VecDeque<(ChannelId, ChannelStatus)>,
}

impl ChannelHistory {
    /// Adds an ended channel. Drops the oldest one if there are too many.
    pub fn add(&mut self, channel: ChannelId, status: ChannelStatus) {
        self.latest.push_back((channel, status));
        if self.latest.len() > MAX_ENDED {
            self.latest.pop_front();
        }
    }

    /// The final state of a channel, if it is known.
    pub fn find(&self, channel: ChannelId) -> Option<&ChannelStatus> {
        let known = self.latest.iter().rev().find(|(ended, _)| *ended == channel);
        known.map(|(_, status)| status)
    }
}
