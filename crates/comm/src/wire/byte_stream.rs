//! The bytes of a stream: through a socket, or through remote memory.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use dayfly_fabric::libfabric::{Choice, OpenResult, Pipe};
use dayfly_fabric::stream::wire::{Wire, unacknowledged_bytes};
use dayfly_protocol::error::{Code, Failure};

/// Transport of a stream.
#[derive(Debug)]
pub enum ByteStream {
    Socket(Wire),
    /// The socket stays open, to show the other end's death.
    Fabric(Box<Pipe>),
}

impl ByteStream {
    /// Through a socket, and through the TLS session if there is one.
    pub fn socket(peer: u32, socket: OwnedFd, session: Option<Box<rustls::Connection>>) -> Result<Self, Failure> {
        Wire::over(socket, session).map(Self::Socket).map_err(|error| {
            Failure::new(
                Code::Unreachable,
                format!("preparing the connection to rank {peer} failed: {error}"),
            )
        })
    }

    /// Moves to remote memory, if both ends have such a fabric. The other end must request it too.
    pub fn over_fabric(self, peer: u32, wanted: Choice) -> Result<Self, Failure> {
        let Self::Socket(wire) = self else {
            return Ok(self);
        };
        match Pipe::open(wire, wanted) {
            Ok(OpenResult::Pipe(pipe)) => Ok(Self::Fabric(pipe)),
            Ok(OpenResult::Refused(wire, _)) => Ok(Self::Socket(wire)),
            Err(error) => Err(Failure::new(
                Code::Unreachable,
                format!("rank {peer} was lost while the connection was moved to libfabric: {error}"),
            )),
        }
    }

    #[inline]
    pub fn send(&mut self, first: &[u8], second: &[u8]) -> std::io::Result<usize> {
        match self {
            Self::Socket(wire) => wire.send(first, second),
            Self::Fabric(pipe) => pipe.send(first, second),
        }
    }

    #[inline]
    pub fn receive(&mut self, target: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Socket(wire) => wire.receive(target),
            Self::Fabric(pipe) => pipe.receive(target),
        }
    }

    /// Flushes held-back bytes. Returns an error once no more bytes can be sent.
    #[inline]
    pub fn flush(&mut self) -> std::io::Result<()> {
        match self {
            Self::Socket(wire) if wire.is_encrypted() => wire.flush().map(drop),
            Self::Socket(_) => Ok(()),
            Self::Fabric(pipe) => pipe.flush().map(drop),
        }
    }

    /// Whether the other side has all sent bytes. Closing earlier may discard them.
    pub fn is_delivered(&self) -> bool {
        match self {
            Self::Socket(wire) => unacknowledged_bytes(wire.socket()) == 0,
            Self::Fabric(pipe) => pipe.is_read(),
        }
    }

    /// The descriptor to poll during a sleep.
    pub fn news(&self) -> BorrowedFd<'_> {
        match self {
            Self::Socket(wire) => wire.socket().as_fd(),
            Self::Fabric(pipe) => pipe.event_descriptor(),
        }
    }

    /// Whether to sleep until there is an event, without missing anything.
    pub fn may_sleep(&mut self) -> bool {
        match self {
            Self::Socket(wire) => !wire.has_plaintext(),
            Self::Fabric(pipe) => pipe.may_sleep(),
        }
    }

    /// The libfabric provider; `None` for a socket.
    pub fn fabric(&self) -> Option<Choice> {
        match self {
            Self::Socket(_) => None,
            Self::Fabric(pipe) => Some(pipe.choice()),
        }
    }
}
