//! Messages between two ranks: a transport for each pair, over shared memory or a stream.
//!
//! Both kinds of transport speak the same protocol. A short message is sent at once, with its bytes (*eager*). It waits
//! at the receiver until a receive matches it. A long message is offered first, and the receiver accepts it when it
//! knows where the bytes belong (*rendezvous*). So its bytes need no further copy, and unexpected messages stay small.

mod byte_stream;
mod control;
mod cross_memory;
pub mod envelope;
mod shm;
mod stream;

use std::os::fd::BorrowedFd;

use dayfly_protocol::error::Failure;

use crate::matching::{Matching, RequestId};
use envelope::EXTRA_BYTES;
pub use envelope::{Envelope, Mismatch, Offer};
pub use shm::{ShmHandshake, ShmTransport};
pub use stream::StreamTransport;

/// A message to send: its envelope, and borrowed or owned bytes.
#[derive(Debug)]
pub struct Outgoing {
    pub envelope: Envelope,
    pub payload: Payload,
    /// The request to complete when the whole message has left.
    pub request: Option<RequestId>,
}

/// Bytes after an envelope.
#[derive(Debug)]
pub enum Payload {
    None,
    /// Data of a control message.
    Extra([u8; EXTRA_BYTES]),
    /// Memory that stays until the message's request is complete or cancelled.
    Borrowed(*const u8, usize),
    /// Bytes that a cancelled message still owes the stream.
    Owned(Vec<u8>),
}

// SAFETY: borrowed memory is bound to no thread.
unsafe impl Send for Payload {}

impl Payload {
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Self::None => &[],
            Self::Extra(extra) => extra,
            // SAFETY: the creator of the message keeps the memory until its request is complete or cancelled.
            Self::Borrowed(start, length) => unsafe { std::slice::from_raw_parts(*start, *length) },
            Self::Owned(bytes) => bytes,
        }
    }
}

impl Outgoing {
    /// A control message without data.
    pub fn control(envelope: Envelope) -> Self {
        Self {
            envelope,
            payload: Payload::None,
            request: None,
        }
    }
}

/// The connection to one other rank.
#[derive(Debug)]
pub enum PeerTransport {
    Shm(ShmTransport),
    Stream(StreamTransport),
}

macro_rules! forward {
    ($self:ident, $transport:ident => $call:expr) => {
        match $self {
            Self::Shm($transport) => $call,
            Self::Stream($transport) => $call,
        }
    };
}

impl PeerTransport {
    /// Longest message that is sent without an offer, in bytes.
    #[inline]
    pub fn eager_bytes(&self) -> usize {
        forward!(self, transport => transport.eager_bytes())
    }

    /// Longest message that [`PeerTransport::try_send`] may be called with, in bytes.
    #[inline]
    pub fn immediate_bytes(&self) -> usize {
        forward!(self, transport => transport.immediate_bytes())
    }

    /// Whether the other rank is on this host, and competes for its cores.
    pub fn is_near(&self) -> bool {
        match self {
            Self::Shm(_) => true,
            Self::Stream(transport) => transport.is_near(),
        }
    }

    /// Whether a poller of sockets notices arrivals.
    pub fn is_event_driven(&self) -> bool {
        match self {
            Self::Shm(_) => false,
            Self::Stream(transport) => transport.fabric().is_none(),
        }
    }

    /// Sends at once if there is room and no earlier message waits. Returns whether it was sent.
    #[inline]
    pub fn try_send(&mut self, envelope: Envelope, bytes: &[u8]) -> Result<bool, Failure> {
        forward!(self, transport => transport.try_send(envelope, bytes))
    }

    /// Queues a message, to be sent as soon as there is room.
    pub fn send(&mut self, message: Outgoing, matching: &mut Matching) -> Result<(), Failure> {
        forward!(self, transport => transport.send(message, matching))
    }

    /// Moves bytes in both directions. Returns whether any moved.
    #[inline]
    pub fn progress(&mut self, matching: &mut Matching) -> Result<bool, Failure> {
        forward!(self, transport => transport.progress(matching))
    }

    /// Accepts an offer: `request` is its receive.
    pub fn accept(&mut self, offer: Offer, request: RequestId, matching: &mut Matching) -> Result<(), Failure> {
        forward!(self, transport => transport.accept(offer, request, matching))
    }

    /// Releases the memory of a request that will not be completed.
    pub fn cancel(&mut self, request: RequestId, matching: &Matching) {
        forward!(self, transport => transport.cancel(request, matching))
    }

    /// Whether nothing of a send has left, so that the other side need not know of its end.
    pub fn is_unsent(&self, request: RequestId) -> bool {
        forward!(self, transport => transport.is_unsent(request))
    }

    /// Asks the other side for the end of an offered send. It ends with an error if no receive has matched it.
    pub fn ask_back(&mut self, request: RequestId, matching: &mut Matching) -> Result<(), Failure> {
        self.send(control::cancellation(request), matching)
    }

    /// Whether the outbox is empty.
    pub fn is_flushed(&self) -> bool {
        forward!(self, transport => transport.is_flushed())
    }

    /// Whether this end may be closed without losing sent bytes.
    pub fn may_close(&self) -> bool {
        match self {
            Self::Shm(transport) => transport.is_flushed(),
            Self::Stream(transport) => transport.is_acknowledged(),
        }
    }

    /// The socket to poll during a sleep, and whether to poll for writing.
    pub fn socket(&self) -> (BorrowedFd<'_>, bool) {
        forward!(self, transport => transport.socket())
    }

    /// Announces a sleep to the other side. Returns false if something has arrived meanwhile.
    pub fn fall_asleep(&mut self) -> bool {
        forward!(self, transport => transport.fall_asleep())
    }

    /// Withdraws the announcement.
    pub fn wake_up(&mut self) {
        if let Self::Shm(transport) = self {
            transport.wake_up();
        }
    }

    /// Has doorbells wait until [`PeerTransport::ring_held_doorbell`].
    pub fn hold_doorbell(&mut self) {
        if let Self::Shm(transport) = self {
            transport.hold_doorbell();
        }
    }

    /// Wakes the other side if it sleeps and something was sent since doorbells wait.
    pub fn ring_held_doorbell(&mut self) {
        if let Self::Shm(transport) = self {
            transport.ring_held_doorbell();
        }
    }

    /// Whether the other process is gone. Bytes that it sent before may still arrive.
    pub fn is_closed(&self) -> bool {
        forward!(self, transport => transport.is_closed())
    }
}
