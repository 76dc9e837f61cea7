//! The words that posts exchange: heads of messages, credits, and the end.
//!
//! A word is a prefix of 16 bytes and what its kind has after it, in the order of bytes of the host, as envelopes are.
//! A short message is one word with its bytes. The bytes of a longer one follow under a tag of their own.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::MAX_PARTS;
use super::layout::{INLINE_BYTES, Layout};

/// Tag of words.
pub const WORD_TAG: u32 = 0;
/// Longest word in bytes.
pub const MAX_WORD_BYTES: u64 = (PREFIX_BYTES + MAX_PARTS * 8 + INLINE_BYTES as usize) as u64;
/// Most credits in one word.
pub const MAX_CREDITS: usize = 1024;

const PREFIX_BYTES: usize = size_of::<Prefix>();

mod kind {
    /// `count` lengths of parts follow, then the bytes of a short message.
    pub const MESSAGE: u32 = 0x6466_0001;
    /// `count` credits follow.
    pub const CREDIT: u32 = 0x6466_0002;
    /// `number` is the rank that revoked.
    pub const REVOKE: u32 = 0x6466_0003;
    /// Nothing follows, ever.
    pub const CLOSE: u32 = 0x6466_0004;
    /// A lane waits for credit.
    pub const WANT: u32 = 0x6466_0005;
}

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Prefix {
    kind: u32,
    lane: u32,
    /// Number of the message, or a rank.
    number: u32,
    count: u32,
}

/// Room that a receiver returns to the sender of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Credit {
    /// Sum of [`charge`] over the consumed messages.
    pub charge: u64,
    /// The lane.
    pub lane: u32,
    /// Zero.
    pub reserved: u32,
}

/// A checked word.
#[derive(Debug)]
pub enum Word<'a> {
    /// The head of a message.
    Message {
        /// Lane of the message.
        lane: u32,
        /// Its number among the messages of this pair.
        number: u32,
        /// Places of its parts.
        layout: Layout,
        /// The bytes of a short message, part after part; `None` if they follow under [`body_tag`].
        bytes: Option<&'a [u8]>,
    },
    /// Returned credits.
    Credit(Vec<Credit>),
    /// This rank revoked the post.
    Revoke(u32),
    /// The other rank closed its post.
    Close,
    /// A lane of the other rank waits for credit.
    Want,
}

/// Tag of the bytes of a message.
pub fn body_tag(number: u32) -> u32 {
    1 + (number & (u32::MAX >> 1))
}

/// What a message counts for, in bytes: its bytes and what each end keeps beside them.
pub fn charge(bytes: u64, parts: usize) -> u64 {
    const MESSAGE: u64 = 256;
    const PART: u64 = 32;
    bytes.saturating_add(MESSAGE + PART * parts as u64)
}

fn word(kind: u32, lane: u32, number: u32, count: usize) -> Vec<u8> {
    let prefix = Prefix {
        kind,
        lane,
        number,
        count: count as u32,
    };
    prefix.as_bytes().to_vec()
}

/// The head of a message, with its bytes if it is short.
pub fn message(lane: u32, number: u32, parts: &[bytes::Bytes], layout: &Layout) -> Vec<u8> {
    let mut head = word(kind::MESSAGE, lane, number, parts.len());
    let short = if layout.is_inline() { layout.bytes() as usize } else { 0 };
    head.reserve(parts.len() * 8 + short);
    for part in parts {
        head.extend_from_slice(&(part.len() as u64).to_ne_bytes());
    }
    if layout.is_inline() {
        for part in parts {
            head.extend_from_slice(part);
        }
    }
    head
}

/// Returned credits.
pub fn credit(credits: &[Credit]) -> Vec<u8> {
    let mut bytes = word(kind::CREDIT, 0, 0, credits.len());
    bytes.extend_from_slice(credits.as_bytes());
    bytes
}

/// Reports that a rank revoked the post.
pub fn revoke(by: u32) -> Vec<u8> {
    word(kind::REVOKE, 0, by, 0)
}

/// Reports that this rank closed its post.
pub fn close() -> Vec<u8> {
    word(kind::CLOSE, 0, 0, 0)
}

/// Asks for credit.
pub fn want() -> Vec<u8> {
    word(kind::WANT, 0, 0, 0)
}

impl<'a> Word<'a> {
    /// Reads a word. `limit` bounds the bytes of a message.
    ///
    /// # Errors
    /// The reason, when the bytes are no word.
    pub fn read(bytes: &'a [u8], limit: u64) -> Result<Self, &'static str> {
        let (prefix, rest) = Prefix::read_from_prefix(bytes).map_err(|_| "a word without a beginning")?;
        let count = prefix.count as usize;
        match prefix.kind {
            kind::MESSAGE => {
                if count > MAX_PARTS {
                    return Err("a message of too many parts");
                }
                let (lengths, rest) = rest
                    .split_at_checked(count * 8)
                    .ok_or("a message without its lengths")?;
                let lengths = lengths.as_chunks::<8>().0;
                let lengths = lengths.iter().map(|length| u64::from_ne_bytes(*length));
                let layout = Layout::of(lengths, limit).ok_or("a message longer than agreed")?;
                let expected = if layout.is_inline() { layout.bytes() } else { 0 };
                if rest.len() as u64 != expected {
                    return Err("a message whose lengths are not those of its bytes");
                }
                Ok(Self::Message {
                    lane: prefix.lane,
                    number: prefix.number,
                    bytes: layout.is_inline().then_some(rest),
                    layout,
                })
            }
            kind::CREDIT => {
                if count > MAX_CREDITS || rest.len() != count * size_of::<Credit>() {
                    return Err("credits of a wrong length");
                }
                let credits = rest.chunks_exact(size_of::<Credit>());
                Ok(Self::Credit(
                    credits
                        .filter_map(|bytes| Credit::read_from_bytes(bytes).ok())
                        .collect(),
                ))
            }
            kind::REVOKE if rest.is_empty() => Ok(Self::Revoke(prefix.number)),
            kind::CLOSE if rest.is_empty() => Ok(Self::Close),
            kind::WANT if rest.is_empty() => Ok(Self::Want),
            kind::REVOKE | kind::CLOSE | kind::WANT => Err("a word with something after it"),
            _ => Err("a word of unknown kind"),
        }
    }
}

/// The error of a rank that broke the protocol.
pub fn violation(what: &str) -> String {
    format!("it broke the protocol of posts: {what}")
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;

    const LIMIT: u64 = 1 << 40;

    fn head(lengths: &[usize]) -> (Vec<Bytes>, Vec<u8>) {
        let parts: Vec<Bytes> = lengths.iter().map(|length| Bytes::from(vec![7; *length])).collect();
        let layout = Layout::of(parts.iter().map(|part| part.len() as u64), LIMIT).unwrap();
        let word = message(3, 9, &parts, &layout);
        (parts, word)
    }

    #[test]
    fn message_of_most_parts_is_read() {
        let (_, word) = head(&vec![0; MAX_PARTS]);
        assert!(word.len() as u64 <= MAX_WORD_BYTES);
        assert!(Word::read(&word, LIMIT).is_ok());
        let mut longer = word;
        longer[12..16].copy_from_slice(&(MAX_PARTS as u32 + 1).to_ne_bytes());
        longer.extend_from_slice(&[0; 8]);
        assert!(Word::read(&longer, LIMIT).is_err());
    }

    #[test]
    fn lengths_that_overflow_are_refused() {
        let (_, mut word) = head(&[100_000, 100_000]);
        word[16..24].copy_from_slice(&u64::MAX.to_ne_bytes());
        assert!(Word::read(&word, u64::MAX).is_err());
        assert!(Word::read(&word, LIMIT).is_err());
    }

    proptest! {
        #[test]
        fn written_words_are_read_back(lengths in proptest::collection::vec(0usize..5000, 0..20)) {
            let (parts, word) = head(&lengths);
            let total: usize = lengths.iter().sum();
            match Word::read(&word, LIMIT).unwrap() {
                Word::Message { lane, number, layout, bytes } => {
                    prop_assert_eq!((lane, number, layout.bytes()), (3, 9, total as u64));
                    prop_assert_eq!(layout.offsets().len(), parts.len());
                    prop_assert_eq!(bytes.map(<[u8]>::len), layout.is_inline().then_some(total));
                }
                other => prop_assert!(false, "{:?}", other),
            }
        }

        #[test]
        fn damaged_words_are_refused_or_bounded(
            lengths in proptest::collection::vec(0usize..3000, 0..8),
            damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
            cut in any::<prop::sample::Index>(),
        ) {
            let (_, mut word) = head(&lengths);
            for (at, value) in damage {
                let at = at.index(word.len());
                word[at] = value;
            }
            word.truncate(cut.index(word.len() + 1));
            if let Ok(Word::Message { layout, bytes, .. }) = Word::read(&word, 1 << 20) {
                prop_assert!(layout.bytes() <= 1 << 20);
                if let Some(bytes) = bytes {
                    prop_assert_eq!(bytes.len() as u64, layout.bytes());
                }
            }
        }

        #[test]
        fn garbage_is_no_reason_to_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), kind in 0u32..7) {
            let mut word = bytes;
            if word.len() >= 4 {
                word[..4].copy_from_slice(&(0x6466_0000 + kind).to_ne_bytes());
            }
            let _ = Word::read(&word, LIMIT);
        }
    }
}
