//! The interface of a channel between a client and a worker, and the transports that implement it.
//!
//! A channel has two ends; each end is a [`Link`]. Messages travel in both directions through rings of equal slots and
//! are numbered from 1 in each direction. A link guarantees:
//!
//! - **Order.** Message `n` of one side is the other side's `n`-th arrival, or the channel ends.
//! - **No copy.** The peer reads bytes written into [`Current::compose`] (small) or a [`Buffer`] from
//!   [`Link::allocate`] (large) where they arrived, as far as the transport allows: shared memory copies nothing, and a
//!   stream receives directly into the memory that the receiver reads.
//! - **No trust.** Everything that the peer wrote is copied once and then checked. A malformed message is an error of
//!   that message ([`LinkError::Malformed`]), or of the channel if the stream cannot be parsed further.
//! - **No hang.** [`Link::poll`] never blocks, [`Link::wait`] blocks no longer than its limit, and both report the end
//!   of the peer.
//!
//! A link does not count outstanding messages. The ring has room for `slots` messages. The client sends message `n`
//! only after it has received response `n - slots`, which frees the slot. A worker responds in order.
//!
//! To add a transport, implement [`Link`] in a separate module, add it to [`AnyLink`], and run
//! `tests/conformance.rs` over it.

mod arena;
pub mod clock;
pub mod descriptors;
pub mod fence;
pub mod futex;
pub mod inproc;
pub mod libfabric;
mod mapped;
pub mod memory;
pub mod ring;
pub mod shm;
pub mod stream;
pub mod tls;

use std::time::Duration;

use dayfly_protocol::node_api::End;
use dayfly_protocol::slot::Geometry;

pub use libfabric::{Choice, ChoiceError, FabricLink};
pub use mapped::MappedLink;
pub use memory::{Buffer, Received};
pub use stream::StreamLink;

/// The transport of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Shared memory of one host.
    Shm,
    /// A TCP connection in clear text.
    Tcp,
    /// A TCP connection under TLS 1.3.
    Tls,
    /// Remote memory access over libfabric, with provider and domain.
    Libfabric(Choice),
    /// Memory of one process, for tests.
    Inproc,
}

impl std::fmt::Display for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Tls => "tls",
            Self::Inproc => "inproc",
            Self::Libfabric(choice) if *choice == Choice::ANY => "libfabric",
            Self::Libfabric(choice) => return write!(f, "libfabric:{choice}"),
        })
    }
}

/// A text is not a transport.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransportError {
    /// The name is unknown.
    #[error("unknown transport `{0}`: use shm, tcp, tls, libfabric or libfabric:PROVIDER, such as libfabric:tcp")]
    Unknown(String),
    /// The name of the provider is malformed.
    #[error(transparent)]
    Choice(#[from] ChoiceError),
}

impl std::str::FromStr for Transport {
    type Err = TransportError;

    fn from_str(name: &str) -> Result<Self, TransportError> {
        Ok(match name {
            "shm" => Self::Shm,
            "tcp" => Self::Tcp,
            "tls" => Self::Tls,
            "libfabric" => Self::Libfabric(Choice::ANY),
            other => match other.strip_prefix("libfabric:") {
                Some(choice) => Self::Libfabric(choice.parse()?),
                None => return Err(TransportError::Unknown(other.into())),
            },
        })
    }
}

/// Why an operation on a link failed.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// One message contradicts the channel's geometry. The next one may be valid.
    #[error("a malformed message: {0}")]
    Malformed(&'static str),
    /// The node closed the channel and gave the reason.
    #[error("the channel has ended: {0:?}")]
    Ended(End),
    /// The peer is gone for an unknown reason.
    #[error("the peer closed the channel")]
    PeerGone,
    /// The peer violated the protocol. The stream cannot be parsed further.
    #[error("the peer broke the protocol: {0}")]
    Violation(String),
    /// The payload is larger than the channel's bulk region or the stream's limit.
    #[error(
        "{length} bytes do not fit into this channel's bulk memory of {limit} bytes; ask for more when leasing, or free buffers"
    )]
    NoRoom {
        /// Requested bytes.
        length: usize,
        /// Total bytes.
        limit: u64,
    },
    /// One end cannot or will not open the channel.
    #[error("{0}")]
    Refused(String),
    /// The operating system reported an error.
    #[error("the transport failed: {0}")]
    Io(#[from] std::io::Error),
}

/// The fields of a header besides its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Meta {
    /// Number of the message.
    pub sequence: u32,
    /// In a request the function index, in a response the status.
    pub function: u16,
    /// In a request the execution's time limit in milliseconds, 0 for no limit.
    pub deadline_ms: u32,
    /// In a request, whether a worker that finds no free core may reject it.
    pub rejectable: bool,
}

/// Room for the reply in the caller's own buffer, named in a request. The caller keeps the buffer until the response
/// arrives or the channel ends.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    start: *mut u8,
    offset: Option<u64>,
    length: usize,
    /// Bytes of the whole buffer.
    capacity: usize,
}

// SAFETY: a room is an address and a length; only links write through it, under the contract of `Room::of`.
unsafe impl Send for Room {}

/// A large payload to send: a buffer, which is sent without a copy, or plain bytes, which are copied.
#[derive(Debug)]
pub enum Payload<'a> {
    /// Any bytes.
    Bytes(&'a [u8]),
    /// The first bytes of a buffer of this link. The caller keeps it until the response arrives.
    Buffer(&'a Buffer, usize),
    /// The first bytes of a buffer, which the link keeps until the response has been processed.
    Owned(Buffer, usize),
}

impl Payload<'_> {
    /// The bytes to send.
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Buffer(buffer, length) => &buffer.as_slice()[..*length],
            Self::Owned(buffer, length) => &buffer.as_slice()[..*length],
        }
    }
}

/// The message that arrived last, and the space for composing the next one.
#[derive(Debug)]
pub struct Current<'a> {
    /// Payload of the message, where it arrived.
    pub input: &'a [u8],
    /// The caller's room for the reply, if it named one.
    pub room: Option<&'a mut [u8]>,
    /// Largest reply that the caller expects, in bytes; 0 if it did not state one. Exceeds `room` if there is no shared
    /// memory to write into.
    pub room_length: usize,
    /// Inline area of the next message to send.
    pub compose: &'a mut [u8],
}

/// One end of a channel. The crate's documentation lists its guarantees.
pub trait Link: Send {
    /// The link's transport.
    fn transport(&self) -> Transport;
    /// Size of the channel.
    fn geometry(&self) -> Geometry;
    /// Returns the inline area of the next message to send.
    fn compose(&mut self) -> &mut [u8];
    /// Sends the first `length` composed bytes. Returns the message's number.
    fn post(&mut self, function: u16, deadline_ms: u32, length: usize) -> Result<u32, LinkError>;
    /// Sends a payload through bulk memory and names room for the reply. Returns the message's number.
    fn post_bulk(
        &mut self,
        function: u16,
        deadline_ms: u32,
        payload: Payload<'_>,
        room: Option<Room>,
    ) -> Result<u32, LinkError>;
    /// Sends a reply that already lies in a buffer of this link. The buffer then belongs to the peer.
    fn post_lent(&mut self, function: u16, buffer: Buffer, length: usize) -> Result<u32, LinkError>;
    /// Sends a reply that was written into the room of the current message.
    fn post_in_room(&mut self, function: u16, length: usize) -> Result<u32, LinkError>;
    /// Returns the next message if it has arrived, and makes it the current one. Never blocks.
    fn poll(&mut self) -> Result<Option<Meta>, LinkError>;
    /// Returns the current message. Valid after [`Link::poll`] returned one and before [`Link::done`].
    fn current(&mut self) -> Current<'_>;
    /// Returns the payload of the current message.
    fn input(&self) -> &[u8];
    /// Returns the length of the current message if it was written into the room that its request named.
    fn arrived_in_room(&self) -> Option<usize>;
    /// Sets whether a warm worker that finds no free core may reject requests that are posted from now on.
    fn set_rejectable(&mut self, rejectable: bool);
    /// Marks in the next response that the current request's payload, which was taken, is still in use.
    fn retain(&mut self);
    /// Takes ownership of the current payload. Returns `None` if it lies in the slot and must be copied.
    fn take(&mut self) -> Option<Received>;
    /// Releases the current message.
    fn done(&mut self);
    /// Blocks until the next message arrives, the channel ends or `limit` has passed. May return early without a
    /// reason.
    fn wait(&mut self, limit: Duration) -> Result<(), LinkError>;
    /// Returns a buffer that can be sent without a copy.
    fn allocate(&mut self, length: usize) -> Result<Buffer, LinkError>;
    /// Describes a buffer of this link as room for a reply.
    fn room(&self, buffer: &mut Buffer) -> Room;
    /// Returns an allocator that allocates from any thread with the same result as [`Link::allocate`].
    fn allocator(&self) -> Allocator;
}

/// Allocates buffers for one link, from any thread.
#[derive(Debug, Clone)]
pub struct Allocator {
    arena: Option<std::sync::Arc<arena::Arena>>,
    limit: u64,
}

impl Allocator {
    /// Returns an allocator of this process's private memory, up to `limit` bytes. Sending from it copies.
    pub fn heap(limit: u64) -> Self {
        Self { arena: None, limit }
    }

    /// Returns a buffer of `length` bytes, or [`LinkError::NoRoom`].
    pub fn allocate(&self, length: usize) -> Result<Buffer, LinkError> {
        let buffer = match &self.arena {
            Some(arena) => arena.allocate(length),
            None if length as u64 <= self.limit => Buffer::heap(length),
            None => None,
        };
        buffer.ok_or(LinkError::NoRoom {
            length,
            limit: self.limit,
        })
    }
}

/// Any link. Chosen at run time without an indirect call on the hot path.
#[derive(Debug)]
pub enum AnyLink {
    /// shm and inproc.
    Mapped(MappedLink),
    /// tcp and tls.
    Stream(Box<StreamLink>),
    /// libfabric.
    Fabric(Box<FabricLink>),
}

macro_rules! each {
    ($self:ident, $link:ident => $call:expr) => {
        match $self {
            AnyLink::Mapped($link) => $call,
            AnyLink::Stream($link) => $call,
            AnyLink::Fabric($link) => $call,
        }
    };
}

impl AnyLink {
    /// Wakes the other side when it sleeps, even if it had promised never to.
    pub fn wake_peer_from_now_on(&mut self) {
        if let Self::Mapped(link) = self {
            link.wake_peer_from_now_on();
        }
    }
}

impl Link for AnyLink {
    #[inline]
    fn transport(&self) -> Transport {
        each!(self, link => link.transport())
    }
    #[inline]
    fn geometry(&self) -> Geometry {
        each!(self, link => link.geometry())
    }
    #[inline]
    fn compose(&mut self) -> &mut [u8] {
        each!(self, link => link.compose())
    }
    #[inline]
    fn post(&mut self, function: u16, deadline_ms: u32, length: usize) -> Result<u32, LinkError> {
        each!(self, link => link.post(function, deadline_ms, length))
    }
    fn post_bulk(
        &mut self,
        function: u16,
        deadline_ms: u32,
        payload: Payload<'_>,
        room: Option<Room>,
    ) -> Result<u32, LinkError> {
        each!(self, link => link.post_bulk(function, deadline_ms, payload, room))
    }
    fn post_lent(&mut self, function: u16, buffer: Buffer, length: usize) -> Result<u32, LinkError> {
        each!(self, link => link.post_lent(function, buffer, length))
    }
    fn post_in_room(&mut self, function: u16, length: usize) -> Result<u32, LinkError> {
        each!(self, link => link.post_in_room(function, length))
    }
    #[inline]
    fn poll(&mut self) -> Result<Option<Meta>, LinkError> {
        each!(self, link => link.poll())
    }
    #[inline]
    fn current(&mut self) -> Current<'_> {
        each!(self, link => link.current())
    }
    #[inline]
    fn input(&self) -> &[u8] {
        each!(self, link => link.input())
    }
    #[inline]
    fn arrived_in_room(&self) -> Option<usize> {
        each!(self, link => link.arrived_in_room())
    }
    fn set_rejectable(&mut self, rejectable: bool) {
        each!(self, link => link.set_rejectable(rejectable));
    }
    fn retain(&mut self) {
        each!(self, link => link.retain());
    }
    fn take(&mut self) -> Option<Received> {
        each!(self, link => link.take())
    }
    #[inline]
    fn done(&mut self) {
        each!(self, link => link.done());
    }
    fn wait(&mut self, limit: Duration) -> Result<(), LinkError> {
        each!(self, link => link.wait(limit))
    }
    fn allocate(&mut self, length: usize) -> Result<Buffer, LinkError> {
        each!(self, link => link.allocate(length))
    }
    fn room(&self, buffer: &mut Buffer) -> Room {
        each!(self, link => link.room(buffer))
    }
    fn allocator(&self) -> Allocator {
        each!(self, link => link.allocator())
    }
}

/// Something to block on that borrows nothing from its link, so that other code may send over the link meanwhile.
#[derive(Debug)]
pub enum Sleeper {
    /// A word of mapped memory, with sleep announced.
    Mapped(mapped::MappedSleeper),
    /// A socket.
    Stream(std::sync::Arc<std::os::fd::OwnedFd>),
    /// A completion queue and the channel's connection.
    Fabric(libfabric::FabricSleeper),
}

impl AnyLink {
    /// Returns the connection whose end ends the link, if there is one.
    pub fn socket(&self) -> Option<&std::sync::Arc<std::os::fd::OwnedFd>> {
        match self {
            Self::Mapped(_) => None,
            Self::Stream(link) => Some(link.socket()),
            Self::Fabric(link) => Some(link.socket()),
        }
    }

    /// Whether a buffer lies in memory that this link shares with its peer.
    pub fn is_home_of(&self, buffer: &Buffer) -> bool {
        match self {
            Self::Mapped(link) => link.is_home_of(buffer),
            Self::Stream(_) => false,
            Self::Fabric(link) => link.is_home_of(buffer),
        }
    }

    /// Whether a large payload from other memory is copied before it is sent. A stream sends from any memory.
    pub fn copies_foreign_memory(&self) -> bool {
        !matches!(self, Self::Stream(_))
    }

    /// Announces that the caller will block in [`sleep_any`]. Returns `None` if there is already something to poll.
    pub fn prepare_sleep(&mut self) -> Option<Sleeper> {
        match self {
            Self::Mapped(link) => link.prepare_sleep().map(Sleeper::Mapped),
            Self::Stream(link) => link.prepare_sleep().map(Sleeper::Stream),
            Self::Fabric(link) => link.prepare_sleep().map(Sleeper::Fabric),
        }
    }
}

/// Blocks until one of several links may have a message, or `limit` has passed.
pub fn sleep_any(sleepers: &[Sleeper], limit: Duration) -> Result<(), LinkError> {
    let mut words = Vec::new();
    let mut sockets = Vec::new();
    let mut limit = limit;
    for sleeper in sleepers {
        match sleeper {
            Sleeper::Mapped(mapped) => words.push(mapped.word()),
            Sleeper::Stream(socket) => sockets.push(&**socket),
            Sleeper::Fabric(fabric) => {
                sockets.push(&*fabric.control);
                match &fabric.queue {
                    Some(queue) => sockets.push(&**queue),
                    None => limit = limit.min(libfabric::MAX_PAUSE),
                }
            }
        }
    }
    match (words.is_empty(), sockets.is_empty()) {
        (_, true) => futex::wait_any(&words, limit),
        (true, false) => stream::wait_any(&sockets, limit)?,
        (false, false) => {
            // Only a fleet has links of both kinds. Check the words every millisecond.
            stream::wait_any(&sockets, limit.min(Duration::from_millis(1)))?;
        }
    }
    Ok(())
}
