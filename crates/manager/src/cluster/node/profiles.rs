//! Requests for profiles that a node has not responded to.

use std::collections::HashMap;

use dayfly_protocol::api::{HarvestMode, LearntProfile, MAX_PROFILES};
use dayfly_protocol::node_messages::ManagerMessage;
use tokio::sync::oneshot;

use super::Node;

/// Most such requests to one node. Each keeps it busy for some milliseconds.
const MAX_REQUESTS: usize = 32;

/// Where the responses go, by the number of the request.
#[derive(Default)]
pub(super) struct ProfileRequests(HashMap<u64, oneshot::Sender<Vec<LearntProfile>>>);

impl Node {
    /// What it does with idle resources, if it can measure calls.
    pub fn harvests(&self) -> Option<HarvestMode> {
        let status = self.harvest.as_ref().filter(|status| status.why.is_none())?;
        (status.mode != HarvestMode::Off).then_some(status.mode)
    }

    /// Queues a request for profiles. Returns where the response arrives, or `None` if the node is not connected, does
    /// not measure calls, or has too many such requests.
    pub(in crate::cluster) fn ask_profiles(
        &mut self,
        number: u64,
        message: ManagerMessage,
    ) -> Option<oneshot::Receiver<Vec<LearntProfile>>> {
        self.harvests()?;
        let session = self.session.as_mut()?;
        // Those whose requester has gone.
        session.profiles.0.retain(|_, reply| !reply.is_closed());
        if session.profiles.0.len() >= MAX_REQUESTS {
            return None;
        }
        session.outgoing.try_send(message).ok()?;
        let (reply, response) = oneshot::channel();
        session.profiles.0.insert(number, reply);
        Some(response)
    }

    /// Passes profiles to the request that waits for them. The node may have sent anything.
    pub fn on_profiles(&mut self, number: u64, mut profiles: Vec<LearntProfile>) {
        let reply = self
            .session
            .as_mut()
            .and_then(|session| session.profiles.0.remove(&number));
        if let Some(reply) = reply {
            profiles.truncate(MAX_PROFILES);
            let sane = profiles.into_iter().map(LearntProfile::sanitized).collect();
            // The request may have been given up.
            let _ = reply.send(sane);
        }
    }
}
