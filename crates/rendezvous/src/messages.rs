//! Messages between a rank and the rendezvous: frames of a length (u32, little endian) and that much JSON, inside TLS.

use std::net::{IpAddr, SocketAddr};

use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::PublicKey;
use serde::{Deserialize, Serialize};

/// Protocol version; both sides must have the same.
pub const VERSION: u32 = 2;
/// Longest frame from a rank, in bytes.
pub const MAX_FROM_RANK: usize = 16 << 10;
/// Longest frame from the rendezvous, in bytes: about 700 for each rank of the largest group.
pub(crate) const MAX_TO_RANK: usize = 64 << 20;
/// Most addresses of a rank.
pub const MAX_ADDRESSES: usize = 16;
/// Most missing ranks that are named.
pub const MAX_MISSING: usize = 16;
/// Longest name of a service, in bytes.
pub const MAX_SERVICE: usize = 256;
/// Longest text that is published under the name of a service, in bytes.
pub const MAX_PUBLISHED: usize = 1024;
/// Length of a relay ticket in bytes.
pub const TICKET_BYTES: usize = 64;
/// First bytes of a connection to the relay, before its ticket. The first byte distinguishes it from TLS.
pub const RELAY_MAGIC: [u8; 4] = *b"DFRL";
/// The relay's response when both halves have arrived.
pub const RELAY_JOINED: u8 = b'+';

/// Messages of a rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum FromRank {
    /// The first message.
    Join(Join),
    /// In place of [`Self::Join`]: a request about a name that ranks of a group publish. The response is
    /// [`ToRank::Published`], and the connection ends.
    Service(ServiceRequest),
    /// How others reach this rank; sent once it has a seat.
    Card(Sealed),
    /// Shows that the rank is alive. The response is [`ToRank::Pong`].
    Ping,
    /// Requests the connection to a rank, if ranks connect on demand. The response is [`ToRank::Called`] or
    /// [`ToRank::Left`].
    Call {
        /// The other rank.
        to: u32,
    },
    /// Requests a ticket for the relay.
    Relay {
        /// The other rank.
        to: u32,
    },
    /// Leaves in an orderly way.
    Leave {
        /// Why, if something is wrong.
        reason: Option<String>,
    },
}

/// The group to join. The rank's TLS key shows that it may.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    /// [`VERSION`].
    pub version: u32,
    /// The group's name.
    pub name: String,
    /// The run; empty if its starter names none.
    pub run: String,
    /// Number of ranks.
    pub size: u32,
    /// The rank to take; `None` takes any free one.
    pub rank: Option<u32>,
}

/// A request about a name that is published among those who have the secret of a group. The TLS key shows that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceRequest {
    /// [`VERSION`].
    pub version: u32,
    /// The group's name. It must have ranks; with its last one, all its names go.
    pub group: String,
    /// The name of the service.
    pub service: String,
    /// What to do.
    pub action: ServiceAction,
}

/// What to do with the name of a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum ServiceAction {
    /// Publishes a text. Responds with the one that is published already, and keeps that.
    Publish {
        /// The text.
        text: String,
    },
    /// Responds with the published text.
    LookUp,
    /// Removes the text, and responds with it.
    Withdraw,
}

/// How a NAT maps connections from one port to different destinations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Nat {
    /// No NAT: the rendezvous sees an address of the rank itself.
    None,
    /// All to one port, where others can reach it (endpoint-independent mapping, RFC 4787).
    Independent,
    /// Each to a different port, which is unpredictable (a symmetric NAT).
    Dependent,
    /// Unknown.
    Unknown,
}

/// A rank's description for the others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Card {
    /// Its TLS key.
    pub key: PublicKey,
    /// Name of its running system and network; ranks with the same name can reach each other's sockets.
    pub host: String,
    /// Its user id there.
    pub user: u32,
    /// Name of its abstract Unix socket.
    pub unix: Option<String>,
    /// Addresses at which it listens.
    pub locals: Vec<SocketAddr>,
    /// Address from which the rendezvous sees it.
    pub observed: SocketAddr,
    /// The NAT in between.
    pub nat: Nat,
    /// Digest of the settings that must be equal on all ranks.
    #[serde(default)]
    pub settings_digest: u64,
    /// Its store, and whether everything goes through it, as text that is equal on all ranks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
}

impl Card {
    /// Whether there is, or may be, a NAT.
    pub fn is_translated(&self) -> bool {
        self.nat != Nat::None
    }
}

/// A [`Card`] as text, with an HMAC that binds it to its rank and run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sealed {
    /// The card's JSON.
    pub card: String,
    /// The HMAC in hexadecimal.
    pub mac: String,
}

/// A rank's place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seat {
    /// The rank.
    pub rank: u32,
    /// Number of ranks.
    pub size: u32,
    /// Random name of this run: 16 bytes in hexadecimal.
    pub nonce: String,
}

/// Messages of the rendezvous.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum ToRank {
    /// Response to [`FromRank::Join`].
    Seat {
        /// The rank's place.
        seat: Seat,
        /// Address from which the rendezvous sees the rank.
        observed: SocketAddr,
        /// Port that sends each client the address from which it is seen.
        probe: u16,
        /// A rank that is silent for this long is lost, in milliseconds.
        heartbeat_ms: u64,
    },
    /// All ranks have arrived.
    World {
        /// Their cards, in the order of the ranks.
        cards: Vec<Sealed>,
    },
    /// Response to [`FromRank::Ping`].
    Pong {
        /// The first of the ranks that have not arrived.
        missing: Vec<u32>,
        /// Number of ranks that have not arrived.
        missing_count: u32,
    },
    /// A rank is lost.
    Lost {
        /// The lost rank.
        rank: u32,
        /// Why.
        reason: String,
    },
    /// One of the two has called the other: both begin to connect.
    Called {
        /// The other rank.
        rank: u32,
    },
    /// The called rank has left in an orderly way.
    Left {
        /// The called rank.
        rank: u32,
    },
    /// Response to [`FromRank::Relay`].
    Ticket {
        /// The other rank.
        to: u32,
        /// [`TICKET_BYTES`] in hexadecimal; `None` without a relay.
        ticket: Option<String>,
    },
    /// Response to [`FromRank::Service`].
    Published {
        /// The text, if there was one.
        text: Option<String>,
    },
    /// The request is refused, and the connection ends.
    Refused {
        /// Why.
        failure: Failure,
    },
}

fn broken(text: String) -> Failure {
    Failure::new(Code::ProtocolViolation, text)
}

/// Encodes a message as a frame.
pub(crate) fn to_frame(message: &impl Serialize) -> Vec<u8> {
    // These types always serialize: their keys are strings.
    let body = serde_json::to_vec(message).unwrap_or_default();
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    [&length.to_le_bytes()[..], &body].concat()
}

/// Takes the first complete message from the received bytes.
pub(crate) fn take_frame<T: for<'a> Deserialize<'a>>(
    received: &mut Vec<u8>,
    most: usize,
) -> Result<Option<T>, Failure> {
    let Some(length) = received.first_chunk().map(|bytes| u32::from_le_bytes(*bytes) as usize) else {
        return Ok(None);
    };
    if length > most {
        return Err(broken(format!(
            "a message of {length} bytes was announced; {most} are the most"
        )));
    }
    let Some(body) = received.get(4..4 + length) else {
        return Ok(None);
    };
    let message =
        serde_json::from_slice(body).map_err(|error| broken(format!("a message is not understood: {error}")))?;
    received.drain(..4 + length);
    Ok(Some(message))
}

/// An address as the probe port sends it: 19 bytes, inverted, so that no NAT recognizes and translates it.
#[cfg(feature = "server")]
pub(crate) fn probe_bytes(seen: SocketAddr) -> [u8; PROBE_BYTES] {
    let mut bytes = [0; PROBE_BYTES];
    match seen.ip().to_canonical() {
        IpAddr::V4(ip) => {
            bytes[0] = 4;
            bytes[1..5].copy_from_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            bytes[0] = 6;
            bytes[1..17].copy_from_slice(&ip.octets());
        }
    }
    bytes[17..].copy_from_slice(&seen.port().to_le_bytes());
    bytes.map(|byte| !byte)
}

/// Length of [`probe_bytes`].
pub(crate) const PROBE_BYTES: usize = 19;

/// Decodes [`probe_bytes`].
pub(crate) fn from_probe(bytes: &[u8; PROBE_BYTES]) -> Option<SocketAddr> {
    let bytes = bytes.map(|byte| !byte);
    let ip = match bytes[0] {
        4 => IpAddr::from(<[u8; 4]>::try_from(&bytes[1..5]).ok()?),
        6 => IpAddr::from(<[u8; 16]>::try_from(&bytes[1..17]).ok()?),
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_le_bytes([bytes[17], bytes[18]])))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn incomplete_frame_waits_and_two_frames_follow() {
        let frame = to_frame(&FromRank::Ping);
        let mut received = frame[..frame.len() - 1].to_vec();
        assert_eq!(take_frame::<FromRank>(&mut received, 100), Ok(None));
        received.push(frame[frame.len() - 1]);
        received.extend_from_slice(&frame);
        for _ in 0..2 {
            assert_eq!(take_frame(&mut received, 100), Ok(Some(FromRank::Ping)));
        }
        assert!(received.is_empty());
    }

    #[test]
    fn excessive_frame_length_is_refused_at_once() {
        let mut received = u32::MAX.to_le_bytes().to_vec();
        let failure = take_frame::<FromRank>(&mut received, MAX_FROM_RANK).unwrap_err();
        assert_eq!(failure.code, Code::ProtocolViolation);
    }

    proptest! {
        #[test]
        fn garbage_frames_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = take_frame::<FromRank>(&mut bytes, MAX_FROM_RANK);
        }

        #[test]
        fn probe_returns_the_observed_address(ip: IpAddr, port: u16) {
            let seen = SocketAddr::new(ip.to_canonical(), port);
            prop_assert_eq!(from_probe(&probe_bytes(seen)), Some(seen));
        }
    }
}
