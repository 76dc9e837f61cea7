//! The first bytes of every connection between two ranks: both ranks, the run, and the route.

use crate::Route;

pub const HELLO_BYTES: usize = 64;
const MAGIC: [u8; 4] = *b"DFRK";
const VERSION: u8 = 1;

/// A hello. Both ends send one, and prove with the group's secret that they saw the same two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// How this end reached the connection, as far as it knows: [`Route::Direct`] states nothing about the other end's
    /// part.
    pub route: Route,
    /// Whether this end wants encryption. One end suffices.
    pub encrypt: bool,
    /// The random name that the rendezvous gave this run.
    pub run: [u8; 16],
    /// Rank of the sender.
    pub from: u32,
    /// Rank of the receiver.
    pub to: u32,
    /// Random bytes, so that no proof is valid for another connection.
    pub nonce: [u8; 32],
}

impl Hello {
    /// Encodes the hello.
    pub fn to_bytes(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = VERSION;
        bytes[5] = self.route as u8;
        bytes[6] = u8::from(self.encrypt);
        bytes[8..24].copy_from_slice(&self.run);
        bytes[24..28].copy_from_slice(&self.from.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.to.to_le_bytes());
        bytes[32..].copy_from_slice(&self.nonce);
        bytes
    }

    /// Decodes a stranger's bytes; `None` unless they are exactly as [`Self::to_bytes`] writes them.
    pub fn from_bytes(bytes: &[u8; HELLO_BYTES]) -> Option<Self> {
        let route = match bytes[5] {
            0 => Route::Local,
            1 => Route::Direct,
            2 => Route::Punched,
            3 => Route::Relay,
            4 => Route::Stored,
            _ => return None,
        };
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let mut hello = Self {
            route,
            encrypt: bytes[6] == 1,
            run: [0; 16],
            from: word(24),
            to: word(28),
            nonce: [0; 32],
        };
        hello.run.copy_from_slice(&bytes[8..24]);
        hello.nonce.copy_from_slice(&bytes[32..]);
        (hello.to_bytes() == *bytes).then_some(hello)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn encoding_round_trips_and_rejects_other_bytes(bytes in proptest::array::uniform32(any::<u8>()), at in 0..HELLO_BYTES, with: u8) {
            let hello = Hello {
                route: Route::Punched,
                encrypt: bytes[0] & 1 == 1,
                run: bytes[..16].try_into().unwrap(),
                from: u32::from(bytes[1]),
                to: u32::from(bytes[2]),
                nonce: bytes,
            };
            let mut sent = hello.to_bytes();
            prop_assert_eq!(Hello::from_bytes(&sent), Some(hello));
            sent[at] = with;
            if let Some(read) = Hello::from_bytes(&sent) {
                prop_assert_eq!(read.to_bytes(), sent);
            }
        }
    }
}
