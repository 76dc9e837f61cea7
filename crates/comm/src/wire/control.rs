//! Handles control messages, for every kind of transport.

use dayfly_protocol::error::{Code, Failure};
use zerocopy::FromBytes;

use super::envelope::{EXTRA_BYTES, Envelope, Mismatch, Offer, kind};
use super::{Outgoing, Payload};
use crate::matching::{Body, GroupEvent, GroupEventKind, Match, Matching, Rendezvous, RequestId, State};

/// What the transport has to do after a control message.
#[derive(Debug)]
pub enum ControlAction {
    Nothing,
    /// A receive waits for the offered message.
    Accept(Offer, RequestId),
    /// The bytes of this message may be sent.
    Data(Outgoing),
    /// The receiver copies, and this side may help.
    HelpCopy(RequestId, Envelope),
    /// The receiver has taken the message.
    Taken(RequestId),
    /// The sender withdraws this message.
    Withdrawn(u32),
    /// The other side waits for this message.
    Respond(Outgoing),
}

/// `length` of a [`kind::WITHDRAWN`] that asks for the end of a message.
const ASKS: u64 = 1;

/// Bytes after the envelope of a control message; 0 for other kinds.
pub fn extra_bytes(kind: u32) -> usize {
    match kind {
        kind::OFFER | kind::MISMATCH => EXTRA_BYTES,
        _ => 0,
    }
}

/// Handles a control message.
pub fn handle(
    peer: u32,
    envelope: &Envelope,
    extra: [u8; EXTRA_BYTES],
    matching: &mut Matching,
) -> Result<ControlAction, Failure> {
    let event = |kind| GroupEvent::of(peer, kind, envelope);
    match envelope.kind {
        kind::OFFER => {
            let offer = Offer::read_from_bytes(&extra).unwrap_or_default();
            match matching.match_arrival(peer, envelope) {
                Match::Receive(id) => return Ok(ControlAction::Accept(offer, id)),
                Match::Unexpected => matching.keep(peer, *envelope, Body::Offer(offer)),
                Match::Refused => {}
            }
        }
        kind::ACCEPT => {
            if let Some((id, request)) = matching.named(envelope.tag, State::Sending, peer) {
                if request.rendezvous != Rendezvous::Offered {
                    return Err(violation(peer, "it accepted a message that is not offered"));
                }
                if envelope.length != 0 {
                    request.rendezvous = Rendezvous::Copied;
                    return Ok(ControlAction::HelpCopy(id, *envelope));
                }
                request.rendezvous = Rendezvous::Queued;
                return Ok(ControlAction::Data(Outgoing {
                    envelope: Envelope {
                        kind: kind::DATA,
                        tag: envelope.context,
                        length: request.length as u64,
                        ..Envelope::default()
                    },
                    payload: Payload::Borrowed(request.start, request.length),
                    request: Some(id),
                }));
            }
        }
        kind::TAKEN => {
            if let Some((id, request)) = matching.named(envelope.tag, State::Sending, peer) {
                // While the outbox has its bytes, only their departure ends it.
                if !matches!(request.rendezvous, Rendezvous::Offered | Rendezvous::Copied) {
                    return Err(violation(peer, "it took a message that it must receive"));
                }
                request.rendezvous = Rendezvous::None;
                if envelope.length == 0 {
                    matching.complete(id);
                } else {
                    let reason = format!("rank {peer} could not take a message, or gave it up");
                    matching.give_up(id, Failure::new(Code::Cancelled, reason));
                }
                return Ok(ControlAction::Taken(id));
            }
        }
        kind::WITHDRAWN if envelope.length == ASKS => {
            if matching.withdraw(peer, envelope.tag.into()) {
                return Ok(ControlAction::Respond(Outgoing::control(taken(envelope.tag, false))));
            }
        }
        kind::WITHDRAWN => {
            matching.withdraw(peer, envelope.tag.into());
            return Ok(ControlAction::Withdrawn(envelope.tag));
        }
        kind::CALLED => matching.events.push_back(event(GroupEventKind::Called)),
        kind::MISMATCH => {
            let mismatch = Mismatch::read_from_bytes(&extra).unwrap_or_default();
            matching.events.push_back(event(GroupEventKind::Mismatch(mismatch)));
        }
        kind::LEAVES => matching.events.push_back(event(GroupEventKind::Leaves)),
        other => {
            return Err(violation(peer, &format!("a message of unknown kind {other}")));
        }
    }
    Ok(ControlAction::Nothing)
}

fn violation(peer: u32, what: &str) -> Failure {
    Failure::new(
        Code::ProtocolViolation,
        format!("rank {peer} broke the protocol: {what}"),
    )
}

/// Removes a send from an outbox. Returns whether the other side may know of it. Bytes that the stream still owes
/// remain as a copy.
pub fn retract(outbox: &mut std::collections::VecDeque<Outgoing>, id: RequestId, begun: bool) -> bool {
    let mut heard = true;
    let mut front = true;
    outbox.retain_mut(|message| {
        let begun = std::mem::take(&mut front) && begun;
        let offer = message.envelope.kind == kind::OFFER && message.envelope.sequence == id.to_wire();
        if offer && !begun {
            heard = false;
            return false;
        }
        if message.request != Some(id) {
            return true;
        }
        heard = false;
        message.request = None;
        message.payload = Payload::Owned(message.payload.as_slice().to_vec());
        begun || message.envelope.kind == kind::DATA
    });
    heard
}

/// Whether no part of a send has left an outbox, and its bytes are not promised to the other side.
pub fn is_unsent(outbox: &std::collections::VecDeque<Outgoing>, id: RequestId, begun: bool) -> bool {
    let of_send = |message: &Outgoing| match message.envelope.kind {
        kind::OFFER => message.envelope.sequence == id.to_wire(),
        kind::EAGER => message.request == Some(id),
        _ => false,
    };
    let at = outbox.iter().position(of_send);
    at.is_some_and(|at| at > 0 || !begun)
}

/// The message by which a receiver ends a send: it has the bytes, or will not have them.
pub fn taken(token: u32, well: bool) -> Envelope {
    Envelope {
        kind: kind::TAKEN,
        tag: token,
        length: u64::from(!well),
        ..Envelope::default()
    }
}

/// The message that asks for the end of an offer, unless a receive has matched it.
pub fn cancellation(id: RequestId) -> Outgoing {
    let mut message = withdrawal(id);
    message.envelope.length = ASKS;
    message
}

/// The message that withdraws an offer.
pub fn withdrawal(id: RequestId) -> Outgoing {
    Outgoing::control(Envelope {
        kind: kind::WITHDRAWN,
        tag: id.to_wire(),
        ..Envelope::default()
    })
}

#[cfg(test)]
mod tests;
