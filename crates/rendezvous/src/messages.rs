//! What a rank and the rendezvous say to each other: frames of a length (u32, little endian) and that much JSON, inside TLS.

use std::net::{IpAddr, SocketAddr};

use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::PublicKey;
use serde::{Deserialize, Serialize};

/// What both sides must agree on.
pub const VERSION: u32 = 2;
/// A longer frame from a rank is none of ours.
pub const MOST_FROM_RANK: usize = 16 << 10;
/// A longer frame from the rendezvous is none of ours: some 700 bytes for each of the largest group.
pub(crate) const MOST_TO_RANK: usize = 64 << 20;
/// Addresses that a rank may say it has.
pub const MOST_ADDRESSES: usize = 16;
/// Ranks of those missing that are named.
pub const MOST_MISSING: usize = 16;
/// Bytes of a ticket for the relay.
pub const TICKET_BYTES: usize = 64;
/// What a connection to the relay begins with, before its ticket; by its first byte it is told from TLS.
pub const RELAY_MAGIC: [u8; 4] = *b"DFRL";
/// The relay's answer once both halves are there.
pub const RELAY_JOINED: u8 = b'+';

/// What a rank says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum FromRank {
    /// The first word.
    Join(Join),
    /// What others need to find this rank, once it has a seat.
    Card(Sealed),
    /// It lives; answered by [`ToRank::Pong`].
    Ping,
    /// It wants to be connected with a rank now, where ranks connect when they first need each other; answered by
    /// [`ToRank::Called`] or [`ToRank::Left`].
    Call {
        /// With this one.
        to: u32,
    },
    /// It wants a ticket for the relay.
    Relay {
        /// To this rank.
        to: u32,
    },
    /// It goes of its own will.
    Leave {
        /// Why, unless all is well.
        reason: Option<String>,
    },
}

/// Which group it wants to be of. Its key in TLS shows that it may.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    /// [`VERSION`].
    pub version: u32,
    /// The group's name.
    pub name: String,
    /// Which run of it, where whoever starts it says so; else empty.
    pub run: String,
    /// How many ranks it has.
    pub size: u32,
    /// Which rank this one is; any that is free if it does not say.
    pub rank: Option<u32>,
}

/// How a NAT maps connections of one port to different destinations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Nat {
    /// The rendezvous sees an address that the rank has itself.
    None,
    /// All to one port: others can find it there (RFC 4787's endpoint-independent mapping).
    Independent,
    /// Each to a port of its own (a symmetric NAT): nobody can tell beforehand.
    Dependent,
    /// It could not be found out.
    Unknown,
}

/// What a rank says of itself to the others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Card {
    /// Its key in TLS with the others.
    pub key: PublicKey,
    /// Names the running system and network that it sees; who sees the same can use the same sockets.
    pub host: String,
    /// Its user there.
    pub user: u32,
    /// Name of its abstract Unix socket.
    pub unix: Option<String>,
    /// Where it listens.
    pub locals: Vec<SocketAddr>,
    /// Where the rendezvous saw it.
    pub observed: SocketAddr,
    /// What lies in between.
    pub nat: Nat,
    /// A number that all ranks of a group must have in common.
    #[serde(default)]
    pub alike: u64,
    /// Its store, and whether all goes through it, as text that ranks with the same have in common.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
}

impl Card {
    /// Whether the rendezvous saw another address than it has.
    pub fn is_translated(&self) -> bool {
        self.nat != Nat::None
    }
}

/// A [`Card`] as text, with an HMAC that binds it to its rank and run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sealed {
    /// The card's JSON.
    pub card: String,
    /// In hexadecimal.
    pub mac: String,
}

/// A rank's place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seat {
    /// Which rank it is.
    pub rank: u32,
    /// Of how many.
    pub size: u32,
    /// Random name of this very run, 16 bytes in hexadecimal.
    pub nonce: String,
}

/// What the rendezvous says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum ToRank {
    /// Answers [`FromRank::Join`].
    Seat {
        /// Which it is.
        seat: Seat,
        /// Where the rendezvous sees the rank.
        observed: SocketAddr,
        /// A port that says where it sees whoever connects to it.
        probe: u16,
        /// A rank that says nothing for so long is lost.
        heartbeat_ms: u64,
    },
    /// All are there: their cards in order.
    World {
        /// One for each rank.
        cards: Vec<Sealed>,
    },
    /// Answers [`FromRank::Ping`].
    Pong {
        /// Ranks that have not come yet, the first of them.
        missing: Vec<u32>,
        /// How many have not.
        missing_count: u32,
    },
    /// A rank is lost.
    Lost {
        /// Which.
        rank: u32,
        /// Why.
        reason: String,
    },
    /// One of the two has called the other: both begin to connect.
    Called {
        /// The other one.
        rank: u32,
    },
    /// A rank that was called has ended, and all is well.
    Left {
        /// Which.
        rank: u32,
    },
    /// Answers [`FromRank::Relay`].
    Ticket {
        /// To which rank.
        to: u32,
        /// [`TICKET_BYTES`] in hexadecimal; none if there is no relay.
        ticket: Option<String>,
    },
    /// No, and the connection ends.
    Refused {
        /// Why.
        failure: Failure,
    },
}

fn broken(text: String) -> Failure {
    Failure::new(Code::ProtocolViolation, text)
}

/// A message as a frame.
pub(crate) fn to_frame(message: &impl Serialize) -> Vec<u8> {
    // Of these types none fails: their keys are strings.
    let body = serde_json::to_vec(message).unwrap_or_default();
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    [&length.to_le_bytes()[..], &body].concat()
}

/// Takes the first whole message off what has come so far.
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

/// An address as the probe's port sends it: 19 bytes, inverted, so that no NAT takes it for one and translates it.
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

/// Bytes of [`probe_bytes`].
pub(crate) const PROBE_BYTES: usize = 19;

/// Reads [`probe_bytes`].
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
    fn half_a_frame_is_none_and_two_are_two() {
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
    fn an_announced_length_beyond_the_limit_is_refused_before_it_comes() {
        let mut received = u32::MAX.to_le_bytes().to_vec();
        let failure = take_frame::<FromRank>(&mut received, MOST_FROM_RANK).unwrap_err();
        assert_eq!(failure.code, Code::ProtocolViolation);
    }

    proptest! {
        #[test]
        fn garbage_is_an_error_or_nothing_and_never_a_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = take_frame::<FromRank>(&mut bytes, MOST_FROM_RANK);
        }

        #[test]
        fn a_probe_says_the_address_that_was_seen(ip: IpAddr, port: u16) {
            let seen = SocketAddr::new(ip.to_canonical(), port);
            prop_assert_eq!(from_probe(&probe_bytes(seen)), Some(seen));
        }
    }
}
