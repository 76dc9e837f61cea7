//! The header of each object in a queue.

pub const HEADER_BYTES: usize = 24;
const MAGIC: [u8; 4] = *b"DFST";
const VERSION: u8 = 1;
const LAST: u8 = 1;

/// A header. It is neither secret nor signed: a forger can end a connection, and cannot change the bytes that pass it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectHeader {
    /// Number of the object in its queue, from 0.
    pub number: u64,
    /// Bytes of the opposite queue that the writer has read.
    pub read: u64,
    /// Whether it is the last object of its queue.
    pub last: bool,
}

impl ObjectHeader {
    /// Encodes the header.
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = VERSION;
        bytes[5] = if self.last { LAST } else { 0 };
        bytes[8..16].copy_from_slice(&self.number.to_le_bytes());
        bytes[16..].copy_from_slice(&self.read.to_le_bytes());
        bytes
    }

    /// Decodes the beginning of an object; `None` unless it is exactly as [`Self::to_bytes`] writes it.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; HEADER_BYTES] = bytes.first_chunk()?;
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let header = Self {
            number: word(8),
            read: word(16),
            last: bytes[5] == LAST,
        };
        (header.to_bytes() == *bytes).then_some(header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn encoding_round_trips_and_rejects_other_bytes(number: u64, read: u64, last: bool, at in 0..HEADER_BYTES, with: u8) {
            let header = ObjectHeader { number, read, last };
            let mut stored = header.to_bytes().to_vec();
            stored.push(7);
            prop_assert_eq!(ObjectHeader::from_bytes(&stored), Some(header));
            stored[at] = with;
            if let Some(found) = ObjectHeader::from_bytes(&stored) {
                prop_assert_eq!(&found.to_bytes()[..], &stored[..HEADER_BYTES]);
            }
            prop_assert_eq!(ObjectHeader::from_bytes(&stored[..HEADER_BYTES - 1]), None);
        }
    }
}
