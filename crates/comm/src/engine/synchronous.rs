//! Sends that wait for their receive or are cancelled, and receives of messages that a probe took.

use dayfly_protocol::error::Failure;

use super::{Engine, Started};
use crate::matching::{Body, Match, MatchKey, Rendezvous, RequestId, Unexpected};
use crate::wire::envelope::{Envelope, kind};

impl Engine {
    /// Starts a send that completes only when a receive has matched it.
    ///
    /// # Safety
    /// As [`Engine::send`].
    pub unsafe fn send_synchronously(
        &mut self,
        peer: u32,
        key: MatchKey,
        start: *const u8,
        length: usize,
    ) -> Result<Started, Failure> {
        self.check_progress();
        if self.has_failures {
            self.check(peer, &key)?;
        }
        let MatchKey { context, tag, call } = key;
        let envelope = Envelope {
            sequence: 0,
            kind: kind::EAGER,
            context,
            tag,
            length: length as u64,
            call,
        };
        let id = self.matching.add_send(peer, &envelope, start, length)?;
        if let Some(request) = self.matching.get_mut(id) {
            request.synchronous = true;
        }
        if peer == self.rank {
            match self.matching.match_arrival(peer, &envelope) {
                Match::Receive(receive) => self.matching.fill_from_own(receive, id),
                Match::Unexpected => self.matching.keep(peer, envelope, Body::Own(id)),
                Match::Refused => {}
            }
        } else if self.has_transport(peer) {
            self.send_as(id, peer, envelope, start, length)?;
        } else {
            self.queue_until_connected(id, peer, envelope, start, length)?;
        }
        Ok(Started::Pending(id))
    }

    /// Cancels a send if nothing of it has left. Otherwise asks for it back if it was offered: it then ends with
    /// [`Code::Cancelled`](dayfly_protocol::error::Code::Cancelled), unless a receive has matched it. Returns whether it
    /// was cancelled at once.
    pub fn cancel_send(&mut self, id: RequestId) -> bool {
        let Some((peer, rendezvous)) = self.matching.get(id).map(|send| (send.peer, send.rendezvous)) else {
            return false;
        };
        let Some(Some(transport)) = self.transports.get_mut(peer as usize) else {
            // To this rank itself, or to one without a connection yet.
            self.cancel(id);
            return true;
        };
        if transport.is_unsent(id) {
            self.cancel(id);
            return true;
        }
        if rendezvous == Rendezvous::Offered
            && let Err(failure) = transport.ask_back(id, &mut self.matching)
        {
            self.lose(peer, failure.message);
        }
        false
    }

    fn has_transport(&self, peer: u32) -> bool {
        matches!(self.transports.get(peer as usize), Some(Some(_)))
    }

    /// Starts the receive of a message that a matching probe took.
    ///
    /// # Safety
    /// As [`Engine::receive`].
    pub unsafe fn receive_matched(
        &mut self,
        source: u32,
        message: Unexpected,
        start: *mut u8,
        length: usize,
    ) -> Result<Started, Failure> {
        let key = MatchKey {
            context: message.envelope.context,
            tag: message.envelope.tag,
            call: message.envelope.call,
        };
        let id = self.matching.post(source, key, start, length)?;
        self.take_waiting(id, source, message)?;
        Ok(Started::Pending(id))
    }
}
