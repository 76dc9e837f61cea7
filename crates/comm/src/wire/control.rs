//! Handles control messages, for every kind of link.

use dayfly_protocol::error::{Code, Failure};
use zerocopy::FromBytes;

use super::envelope::{Dissent, EXTRA_BYTES, Envelope, Offer, kind};
use super::{Outgoing, Payload};
use crate::book::{Body, Book, Match, Note, NoteKind, RequestId, State};

/// What the link has to do after a control message.
#[derive(Debug)]
pub enum Answer {
    Nothing,
    /// A receive waits for the offered message.
    Accept(Offer, RequestId),
    /// The bytes of this message may be sent.
    Data(Outgoing),
    /// The receiver copies, and this side may help.
    Help(RequestId, Envelope),
    /// The receiver has taken the message.
    Taken(RequestId),
    /// The sender withdraws this message.
    Withdrawn(u32),
}

/// Bytes after the envelope of a control message; 0 for other kinds.
pub fn extra_bytes(kind: u32) -> usize {
    match kind {
        kind::OFFER | kind::DISSENT => EXTRA_BYTES,
        _ => 0,
    }
}

/// Handles a control message.
pub fn follow(peer: u32, envelope: &Envelope, extra: [u8; EXTRA_BYTES], book: &mut Book) -> Result<Answer, Failure> {
    let note = |kind| Note::of(peer, kind, envelope);
    match envelope.kind {
        kind::OFFER => {
            let offer = Offer::read_from_bytes(&extra).unwrap_or_default();
            match book.match_arrival(peer, envelope) {
                Match::Wanted(id) => return Ok(Answer::Accept(offer, id)),
                Match::Unwanted => book.keep(peer, *envelope, Body::Offer(offer)),
                Match::Refused => {}
            }
        }
        kind::ACCEPT => {
            if let Some((id, request)) = book.named(envelope.tag, State::Sending, peer) {
                return Ok(match envelope.length {
                    0 => Answer::Data(Outgoing {
                        envelope: Envelope {
                            kind: kind::DATA,
                            tag: envelope.context,
                            length: request.length as u64,
                            ..Envelope::default()
                        },
                        payload: Payload::Borrowed(request.start, request.length),
                        request: Some(id),
                    }),
                    _ => Answer::Help(id, *envelope),
                });
            }
        }
        kind::TAKEN => {
            if let Some((id, _)) = book.named(envelope.tag, State::Sending, peer) {
                if envelope.length == 0 {
                    book.complete(id);
                } else {
                    let reason = format!("rank {peer} could not take a message, or gave it up");
                    book.give_up(id, Failure::new(Code::Cancelled, reason));
                }
                return Ok(Answer::Taken(id));
            }
        }
        kind::WITHDRAWN => {
            book.withdraw(peer, envelope.tag.into());
            return Ok(Answer::Withdrawn(envelope.tag));
        }
        kind::CALLED => book.notes.push_back(note(NoteKind::Called)),
        kind::DISSENT => {
            let dissent = Dissent::read_from_bytes(&extra).unwrap_or_default();
            book.notes.push_back(note(NoteKind::Dissent(dissent)));
        }
        kind::LEAVES => book.notes.push_back(note(NoteKind::Leaves)),
        other => {
            return Err(Failure::new(
                Code::ProtocolViolation,
                format!("rank {peer} broke the protocol: a message of unknown kind {other}"),
            ));
        }
    }
    Ok(Answer::Nothing)
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

/// The message that withdraws an offer.
pub fn withdrawal(id: RequestId) -> Outgoing {
    Outgoing::control(Envelope {
        kind: kind::WITHDRAWN,
        tag: id.to_wire(),
        ..Envelope::default()
    })
}
