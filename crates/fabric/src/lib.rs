//! The contract between a client and a worker, and the transports that keep it.
//!
//! A channel has two ends; each end is a [`Link`]. Messages go both ways through rings of equal slots and are numbered
//! from 1 in each direction. A link promises:
//!
//! - **Order.** Message `n` of one side is the other side's `n`-th arrival, or the channel ends.
//! - **No copy.** What is written into [`Current::compose`] (small) or a [`Buffer`] from [`Link::allocate`] (large) is
//!   read by the peer where it landed, as far as the transport can: shared memory copies nothing, a stream receives
//!   straight into the memory that the receiver reads.
//! - **No trust.** Everything the peer wrote is copied once and then checked; a malformed message is an error of that
//!   message ([`LinkError::Malformed`]), or of the channel where the stream cannot be followed further.
//! - **No hang.** [`Link::poll`] never blocks, [`Link::wait`] blocks no longer than told, and both report the end of
//!   the peer.
//!
//! What a link does not do: count outstanding messages. The ring has room for `slots` messages; the client sends message
//! `n` only after it has taken response `n - slots`, and so owns the slot again. A worker answers in order.
//!
//! To add a transport: implement [`Link`] in a module of its own, add it to [`AnyLink`], and run
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

/// Which transport a link is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Shared memory of one host.
    Shm,
    /// A TCP connection in clear.
    Tcp,
    /// A TCP connection under TLS 1.3.
    Tls,
    /// Remote memory over libfabric: provider and domain.
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

/// A transport that nobody can ask for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransportError {
    /// No such name.
    #[error(
        "there is no transport `{0}`: ask for shm, tcp, tls, libfabric or libfabric:PROVIDER, such as libfabric:tcp"
    )]
    Unknown(String),
    /// The name of a provider makes no sense.
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

/// Why a link could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// One message contradicts the channel's geometry. The next one may be fine.
    #[error("a malformed message: {0}")]
    Malformed(&'static str),
    /// The node closed the channel and said why.
    #[error("the channel has ended: {0:?}")]
    Ended(End),
    /// The peer is gone, and nobody said why.
    #[error("the peer closed the channel")]
    PeerGone,
    /// The stream cannot be followed any further.
    #[error("the peer broke the protocol: {0}")]
    Violation(String),
    /// The payload is larger than the channel's bulk region or the stream's limit.
    #[error(
        "{length} bytes do not fit into this channel's bulk memory of {limit} bytes; ask for more when leasing, or free buffers"
    )]
    NoRoom {
        /// What was wanted.
        length: usize,
        /// What there is in all.
        limit: u64,
    },
    /// One end cannot, or will not, open the channel.
    #[error("{0}")]
    Refused(String),
    /// The operating system failed.
    #[error("the transport failed: {0}")]
    Io(#[from] std::io::Error),
}

/// What a header says beside its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Meta {
    /// Its number.
    pub sequence: u32,
    /// In a request the function index, in a response the status.
    pub function: u16,
    /// In a request the milliseconds of execution allowed, 0 for no limit.
    pub deadline_ms: u32,
    /// In a request whether a worker that finds no core free may reject it.
    pub rejectable: bool,
}

/// Room for the reply in the caller's own buffer, to be named in a request. The caller keeps the buffer until the
/// response has come or the channel has ended.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    start: *mut u8,
    offset: Option<u64>,
    length: usize,
    /// Of the whole buffer.
    capacity: usize,
}

// SAFETY: a room is an address and a length; only links write through it, under the contract of `Room::of`.
unsafe impl Send for Room {}

/// A large payload to send: either the caller's buffer, which must stay until the response has come, or plain bytes,
/// which are copied.
#[derive(Debug)]
pub enum Payload<'a> {
    /// Bytes anywhere.
    Bytes(&'a [u8]),
    /// The first so many bytes of a buffer of this link's, which the caller keeps.
    Buffer(&'a Buffer, usize),
    /// The first so many bytes of a buffer that the link keeps until the response is done with.
    Owned(Buffer, usize),
}

impl Payload<'_> {
    /// Its bytes.
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Buffer(buffer, length) => &buffer.as_slice()[..*length],
            Self::Owned(buffer, length) => &buffer.as_slice()[..*length],
        }
    }
}

/// The message that arrived last, and the place where the next one is composed.
#[derive(Debug)]
pub struct Current<'a> {
    /// Its payload, where it landed.
    pub input: &'a [u8],
    /// Where the caller wants the reply, if it said so.
    pub room: Option<&'a mut [u8]>,
    /// How large a reply the caller expects at most; 0 if it did not say. Larger than `room` where there is no shared
    /// memory to write into.
    pub room_length: usize,
    /// Inline area of the next message to be sent.
    pub compose: &'a mut [u8],
}

/// One end of a channel. See the crate's documentation for what it promises.
pub trait Link: Send {
    /// Which transport.
    fn transport(&self) -> Transport;
    /// Its size.
    fn geometry(&self) -> Geometry;
    /// The inline area of the next message to be sent.
    fn compose(&mut self) -> &mut [u8];
    /// Sends the first `length` composed bytes. Returns the message's number.
    fn post(&mut self, function: u16, deadline_ms: u32, length: usize) -> Result<u32, LinkError>;
    /// Sends a payload through bulk memory, and names room for the reply. Returns the message's number.
    fn post_bulk(
        &mut self,
        function: u16,
        deadline_ms: u32,
        payload: Payload<'_>,
        room: Option<Room>,
    ) -> Result<u32, LinkError>;
    /// Sends a reply that already lies in a buffer of this link's, which then belongs to the peer.
    fn post_lent(&mut self, function: u16, buffer: Buffer, length: usize) -> Result<u32, LinkError>;
    /// Sends a reply that was written into the room of the current message.
    fn post_in_room(&mut self, function: u16, length: usize) -> Result<u32, LinkError>;
    /// Whether the next message is here; if so it becomes the current one.
    fn poll(&mut self) -> Result<Option<Meta>, LinkError>;
    /// The current message. Only after [`Link::poll`] answered with one and before [`Link::done`].
    fn current(&mut self) -> Current<'_>;
    /// The payload of the current message.
    fn input(&self) -> &[u8];
    /// Whether the current message was written into the room that its request named; then its length.
    fn arrived_in_room(&self) -> Option<usize>;
    /// Says whether requests that are posted from now on may be rejected by a warm worker that finds no core free.
    fn set_rejectable(&mut self, rejectable: bool);
    /// Says in the next response that the current request's payload, taken along, is still in use.
    fn retain(&mut self);
    /// Takes the current payload along if it is not in the slot; none if it is, and must be copied.
    fn take(&mut self) -> Option<Received>;
    /// Done with the current message.
    fn done(&mut self);
    /// Blocks until the next message is here, the channel ended, or `limit` has passed, or for no reason.
    fn wait(&mut self, limit: Duration) -> Result<(), LinkError>;
    /// A buffer that can be sent without a copy.
    fn allocate(&mut self, length: usize) -> Result<Buffer, LinkError>;
    /// Names a buffer of this link's as room for a reply.
    fn room(&self, buffer: &mut Buffer) -> Room;
    /// Allocates from any thread, with the same result as [`Link::allocate`].
    fn allocator(&self) -> Allocator;
}

/// Allocates buffers for one link, from any thread.
#[derive(Debug, Clone)]
pub struct Allocator {
    arena: Option<std::sync::Arc<arena::Arena>>,
    limit: u64,
}

impl Allocator {
    /// Of memory of this process alone, up to `limit` bytes: what is sent from it is copied.
    pub fn heap(limit: u64) -> Self {
        Self { arena: None, limit }
    }

    /// A buffer of `length` bytes.
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

/// Any link, chosen at run time without an indirect call on the hot path.
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

/// Something to block on that borrows nothing of its link, so that others may send over the link meanwhile.
#[derive(Debug)]
pub enum Sleeper {
    /// A word of mapped memory, announced as asleep.
    Mapped(mapped::MappedSleeper),
    /// A socket.
    Stream(std::sync::Arc<std::os::fd::OwnedFd>),
    /// A completion queue and the connection beside it.
    Fabric(libfabric::FabricSleeper),
}

impl AnyLink {
    /// The connection whose end is the link's, if it has one.
    pub fn socket(&self) -> Option<&std::sync::Arc<std::os::fd::OwnedFd>> {
        match self {
            Self::Mapped(_) => None,
            Self::Stream(link) => Some(link.socket()),
            Self::Fabric(link) => Some(link.socket()),
        }
    }

    /// Announces that the caller will block in [`sleep_any`]; none if there is something to poll for already.
    pub fn prepare_sleep(&mut self) -> Option<Sleeper> {
        match self {
            Self::Mapped(link) => link.prepare_sleep().map(Sleeper::Mapped),
            Self::Stream(link) => link.prepare_sleep().map(Sleeper::Stream),
            Self::Fabric(link) => link.prepare_sleep().map(Sleeper::Fabric),
        }
    }
}

/// Blocks until one of several links may have something, or `limit` has passed.
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
                    None => limit = limit.min(libfabric::LONGEST_NAP),
                }
            }
        }
    }
    match (words.is_empty(), sockets.is_empty()) {
        (_, true) => futex::wait_any(&words, limit),
        (true, false) => stream::wait_any(&sockets, limit)?,
        (false, false) => {
            // Links of both kinds never share a lease today; should they, the words are looked at every millisecond.
            stream::wait_any(&sockets, limit.min(Duration::from_millis(1)))?;
        }
    }
    Ok(())
}
