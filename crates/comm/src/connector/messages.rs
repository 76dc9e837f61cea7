//! Messages between a rank in a sandbox and its connector: one JSON message in each packet of a Unix socket.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use dayfly_fabric::descriptors;
use dayfly_protocol::error::Failure;
use serde::{Deserialize, Serialize};

use crate::Route;
use crate::invitation::Invitation;

/// Protocol version; both sides must have the same.
pub const VERSION: u32 = 1;
/// Longest packet in bytes: a name and a run of 200 bytes, a secret, an address.
pub const MAX_BYTES: usize = 8 << 10;

/// Messages of a rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum ConnectorRequest {
    /// The first message: joins a group.
    Join {
        /// [`VERSION`].
        version: u32,
        /// The group.
        invitation: Box<Invitation>,
    },
    /// Shows that the rank is alive.
    Ping,
    /// The rank leaves in an orderly way. The response is [`ConnectorMessage::Left`].
    Leave,
}

/// Messages of a connector.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum ConnectorMessage {
    /// The group has formed. A [`ConnectorMessage::Connection`] to each other rank follows.
    Seat {
        /// This rank.
        rank: u32,
        /// Number of ranks.
        size: u32,
        /// Lowest rank on the same host.
        host: u32,
        /// How long connecting took, in microseconds.
        connecting_us: u64,
        /// A rank that is silent for this long is lost, in milliseconds.
        heartbeat_ms: u64,
    },
    /// A socket to another rank, attached to this packet.
    Connection {
        /// The other rank.
        rank: u32,
        /// Lowest rank on the other rank's host.
        host: u32,
        /// How the bytes travel.
        route: Route,
        /// Whether the socket leads to the other rank itself, to share memory with it, or to the connector.
        shares: bool,
        /// Whether the other rank is on this host.
        near: bool,
    },
    /// A rank is lost.
    Lost {
        /// The lost rank.
        rank: u32,
        /// Why.
        reason: String,
    },
    /// The other ranks know that this rank left.
    Left,
    /// The join failed, and the connection ends.
    Failed {
        /// Why.
        failure: Failure,
    },
}

/// Sends a message, with a descriptor if one is given.
pub fn send(socket: impl AsFd, message: &impl Serialize, descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let bytes = serde_json::to_vec(message).map_err(io::Error::other)?;
    descriptors::send(socket, &bytes, descriptor.as_slice()).map(drop)
}

/// Receives a message; `None` at the end of the connection. A malformed message is an error of kind `InvalidData`.
pub fn receive<T: for<'a> Deserialize<'a>>(socket: impl AsFd) -> io::Result<Option<(T, Option<OwnedFd>)>> {
    let mut bytes = [0; MAX_BYTES];
    let (length, descriptors) = descriptors::receive(socket, &mut bytes)?;
    if length == 0 {
        return Ok(None);
    }
    let message = serde_json::from_slice(&bytes[..length]);
    let message = message.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    Ok(Some((message, descriptors.into_iter().next())))
}

/// Whether the error is temporary: no data, no room, or an interrupted call.
pub fn is_for_now(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
