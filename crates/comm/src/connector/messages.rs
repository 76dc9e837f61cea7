//! What a rank in a sandbox and its connector say to each other: one JSON message for each packet of a Unix socket.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use dayfly_fabric::descriptors;
use dayfly_protocol::error::Failure;
use serde::{Deserialize, Serialize};

use crate::invitation::Invitation;
use crate::road::Via;

/// What both sides must agree on.
pub const VERSION: u32 = 1;
/// No packet is longer: a name and a run of 200 bytes, a secret, an address.
pub const MOST_BYTES: usize = 8 << 10;

/// What a rank says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum FromRank {
    /// The first word: a group to join in its place.
    Join {
        /// [`VERSION`].
        version: u32,
        /// Which group.
        invitation: Box<Invitation>,
    },
    /// It lives.
    Ping,
    /// It goes of its own will; answered by [`ToRank::Left`].
    Leave,
}

/// What its connector says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum ToRank {
    /// The group has formed. A [`ToRank::Road`] to each other rank follows.
    Seat {
        /// Which rank it is.
        rank: u32,
        /// Of how many.
        size: u32,
        /// The lowest rank on its host.
        host: u32,
        /// How long connecting took.
        connecting_us: u64,
        /// A rank that says nothing for so long is lost.
        heartbeat_ms: u64,
    },
    /// A socket to another rank, beside this packet.
    Road {
        /// To which.
        rank: u32,
        /// The lowest rank on that one's host.
        host: u32,
        /// How its bytes travel.
        via: Via,
        /// Whether it leads to the other rank itself, with which memory is to be shared, or to the connector.
        shares: bool,
        /// Whether the other rank is on this host.
        near: bool,
    },
    /// A rank is lost.
    Lost {
        /// Which.
        rank: u32,
        /// Why.
        reason: String,
    },
    /// The others have heard that it left.
    Left,
    /// No, and the connection ends.
    Failed {
        /// Why.
        failure: Failure,
    },
}

/// Sends a message.
pub fn send(socket: impl AsFd, message: &impl Serialize, descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let bytes = serde_json::to_vec(message).map_err(io::Error::other)?;
    descriptors::send(socket, &bytes, descriptor.as_slice()).map(drop)
}

/// Receives a message; none at the end. What makes no sense is an error of kind `InvalidData`.
pub fn receive<T: for<'a> Deserialize<'a>>(socket: impl AsFd) -> io::Result<Option<(T, Option<OwnedFd>)>> {
    let mut bytes = [0; MOST_BYTES];
    let (length, descriptors) = descriptors::receive(socket, &mut bytes)?;
    if length == 0 {
        return Ok(None);
    }
    let message = serde_json::from_slice(&bytes[..length]);
    let message = message.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    Ok(Some((message, descriptors.into_iter().next())))
}

/// Whether a socket only had nothing to give or no room just now.
pub fn is_for_now(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
