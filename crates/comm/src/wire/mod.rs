//! Messages between two ranks: a link for each pair, over shared memory or a stream.
//!
//! Both kinds of link speak the same protocol. A short message is sent at once, with its bytes (*eager*); it waits at the
//! receiver if nobody wants it yet. A long one is only offered; the receiver accepts it when it knows where the bytes belong
//! (*rendezvous*), so that they go there without another copy and what waits unwanted stays small.

mod control;
pub mod envelope;
mod reach;
mod shm;
mod stream;
mod way;

use std::os::fd::BorrowedFd;

use dayfly_protocol::error::Failure;

use crate::book::{Book, RequestId};
use envelope::EXTRA_BYTES;
pub use envelope::{Dissent, Envelope, Offer};
pub use shm::{Greeting, ShmLink};
pub use stream::StreamLink;

/// A message on its way out: its envelope, and bytes of the user's or of its own.
#[derive(Debug)]
pub struct Outgoing {
    pub envelope: Envelope,
    pub payload: Payload,
    /// To be completed when all of it has left.
    pub request: Option<RequestId>,
}

/// Bytes behind an envelope.
#[derive(Debug)]
pub enum Payload {
    None,
    /// Of a control message.
    Extra([u8; EXTRA_BYTES]),
    /// Memory that stays until the message's request is complete or cancelled.
    Borrowed(*const u8, usize),
    /// What a cancelled message still owes the stream.
    Owned(Vec<u8>),
}

// SAFETY: borrowed memory is tied to no thread.
unsafe impl Send for Payload {}

impl Payload {
    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Self::None => &[],
            Self::Extra(extra) => extra,
            // SAFETY: whoever queued the message keeps the memory until its request is complete or cancelled.
            Self::Borrowed(start, length) => unsafe { std::slice::from_raw_parts(*start, *length) },
            Self::Owned(bytes) => bytes,
        }
    }
}

impl Outgoing {
    /// A control message of an envelope alone.
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
pub enum Link {
    Shm(ShmLink),
    Stream(StreamLink),
}

macro_rules! forward {
    ($self:ident, $link:ident => $call:expr) => {
        match $self {
            Self::Shm($link) => $call,
            Self::Stream($link) => $call,
        }
    };
}

impl Link {
    /// The longest message that is sent without being offered first.
    #[inline]
    pub fn eager_bytes(&self) -> usize {
        forward!(self, link => link.eager_bytes())
    }

    /// The longest message to try [`Link::try_send`] with.
    #[inline]
    pub fn immediate_bytes(&self) -> usize {
        forward!(self, link => link.immediate_bytes())
    }

    /// Whether the other rank is on this host, and competes for its cores.
    pub fn is_near(&self) -> bool {
        match self {
            Self::Shm(_) => true,
            Self::Stream(link) => link.is_near(),
        }
    }

    /// Whether a poller of sockets hears of what comes.
    pub fn is_told(&self) -> bool {
        match self {
            Self::Shm(_) => false,
            Self::Stream(link) => link.fabric().is_none(),
        }
    }

    /// Sends at once if there is room and nothing waits before it. Whether it went.
    #[inline]
    pub fn try_send(&mut self, envelope: Envelope, bytes: &[u8]) -> Result<bool, Failure> {
        forward!(self, link => link.try_send(envelope, bytes))
    }

    /// Sends as soon as there is room.
    pub fn send(&mut self, message: Outgoing, book: &mut Book) -> Result<(), Failure> {
        forward!(self, link => link.send(message, book))
    }

    /// Moves what can be moved, in both directions. Whether anything did.
    #[inline]
    pub fn progress(&mut self, book: &mut Book) -> Result<bool, Failure> {
        forward!(self, link => link.progress(book))
    }

    /// The bytes of an offered message may come: `request` has been matched with it.
    pub fn accept(&mut self, offer: Offer, request: RequestId, book: &mut Book) -> Result<(), Failure> {
        forward!(self, link => link.accept(offer, request, book))
    }

    /// Lets go of the memory of a request that will not be completed.
    pub fn cancel(&mut self, request: RequestId, book: &Book) {
        forward!(self, link => link.cancel(request, book))
    }

    /// Whether nothing waits to be sent.
    pub fn is_flushed(&self) -> bool {
        forward!(self, link => link.is_flushed())
    }

    /// Whether this end may be closed without losing anything that was sent.
    pub fn may_close(&self) -> bool {
        match self {
            Self::Shm(link) => link.is_flushed(),
            Self::Stream(link) => link.is_acknowledged(),
        }
    }

    /// What to poll for while asleep, and whether there is something to write.
    pub fn socket(&self) -> (BorrowedFd<'_>, bool) {
        forward!(self, link => link.socket())
    }

    /// Announces sleep. False if something has come meanwhile.
    pub fn fall_asleep(&mut self) -> bool {
        forward!(self, link => link.fall_asleep())
    }

    /// Takes the announcement back.
    pub fn wake_up(&mut self) {
        if let Self::Shm(link) = self {
            link.wake_up();
        }
    }

    /// Whether the other process is gone; what it sent before may still be on its way.
    pub fn is_closed(&self) -> bool {
        forward!(self, link => link.is_closed())
    }
}
