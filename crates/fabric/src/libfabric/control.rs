//! The connection on which a channel was opened: it carries the cards, stays open as long as the channel, and its end
//! is the channel's end.

use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dayfly_protocol::WIRE_VERSION;
use dayfly_protocol::fabric::{CARD_BYTES, Card, MAGIC};
use rustix::event::{PollFd, PollFlags};
use zerocopy::{FromBytes, IntoBytes};

use super::handshake::{LIMIT, refused};
use crate::LinkError;
use crate::stream::wire::{self, Wire};

/// The connection. It may be in clear text between ranks that trust their network.
pub(super) struct Control(pub Wire);

/// The descriptors that a waiter for several links blocks on.
#[derive(Debug)]
pub struct FabricSleeper {
    pub(crate) queue: Option<Arc<OwnedFd>>,
    pub(crate) control: Arc<OwnedFd>,
}

impl Control {
    pub(super) fn new(socket: OwnedFd, session: rustls::Connection, until: Instant) -> Result<Self, LinkError> {
        let mut wire = Wire::tls(socket, session)?;
        wire.handshake(until)?;
        Ok(Self(wire))
    }

    /// Returns this end's address in the network that connects both ends.
    pub(super) fn address(&self) -> Option<IpAddr> {
        let own = rustix::net::getsockname(self.socket().as_fd()).ok()?;
        std::net::SocketAddr::try_from(own).ok().map(|address| address.ip())
    }

    pub(super) fn socket(&self) -> &Arc<OwnedFd> {
        self.0.socket()
    }

    pub(super) fn send(&mut self, card: &Card, until: Instant) -> Result<(), LinkError> {
        let bytes = card.as_bytes();
        let mut sent = 0;
        while sent < bytes.len() || !self.0.flush()? {
            match self.0.send(&bytes[sent..], &[]) {
                Ok(more) => sent += more,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => self.block(PollFlags::OUT, until)?,
                Err(error) => return Err(LinkError::Io(error)),
            }
        }
        Ok(())
    }

    pub(super) fn receive(&mut self, until: Instant) -> Result<Card, LinkError> {
        let mut bytes = [0; CARD_BYTES];
        let mut filled = 0;
        while filled < bytes.len() {
            match self.0.receive(&mut bytes[filled..]) {
                Ok(0) => return Err(LinkError::PeerGone),
                Ok(more) => filled += more,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => self.block(PollFlags::IN, until)?,
                Err(error) => return Err(LinkError::Io(error)),
            }
        }
        match Card::read_from_bytes(&bytes) {
            Ok(card) if card.magic == MAGIC && card.version.get() == WIRE_VERSION => Ok(card),
            _ => Err(LinkError::Violation(
                "a malformed card, or one of another version".into(),
            )),
        }
    }

    fn block(&self, events: PollFlags, until: Instant) -> Result<(), LinkError> {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(refused(format!(
                "the other end of the channel did not send its endpoint within {} s",
                LIMIT.as_secs()
            )));
        }
        Ok(self.0.block(events, left)?)
    }

    /// Checks the connection, on which the peer sends nothing more. Returns an error once it has ended.
    pub(super) fn check_open(&mut self) -> std::io::Result<()> {
        let mut bytes = [0; 64];
        match self.0.receive(&mut bytes) {
            Ok(0) => Err(std::io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => Err(std::io::ErrorKind::InvalidData.into()),
            // Such as a ticket of the TLS session.
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Blocks until the connection or the descriptor `beside` is readable, or `limit` has passed. Returns whether the
    /// descriptor is readable, and an error once the peer has closed.
    pub(super) fn wait(&mut self, beside: Option<&OwnedFd>, limit: Duration) -> std::io::Result<bool> {
        let socket = self.socket().clone();
        let mut waiting = vec![PollFd::new(&socket, PollFlags::IN | PollFlags::RDHUP)];
        waiting.extend(beside.map(|queue| PollFd::new(queue, PollFlags::IN)));
        wire::poll(&mut waiting, limit)?;
        let is_readable = waiting.get(1).is_some_and(|queue| !queue.revents().is_empty());
        if !waiting[0].revents().is_empty() {
            self.check_open()?;
        }
        Ok(is_readable)
    }
}
