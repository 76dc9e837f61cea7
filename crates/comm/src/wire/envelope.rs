//! The envelope of every message between two ranks.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Size of an envelope in bytes.
pub const ENVELOPE_BYTES: usize = size_of::<Envelope>();

/// Set in the context of messages of collectives, which never match receives of users.
pub const COLLECTIVE: u32 = 1 << 31;

/// Kinds of messages.
pub mod kind {
    /// A whole message, with its bytes after the envelope.
    pub const EAGER: u32 = 1;
    /// Offers a message: `length` is the message's; an [`super::Offer`] follows the envelope.
    pub const OFFER: u32 = 2;
    /// Accepts an offer: `tag` names the sender's request, `context` the receiver's. `call` is the address of the
    /// receiver's memory. `length` is 0 if the bytes must be sent. Otherwise the bits below 48 are the wanted bytes,
    /// and those above are one more than the number of the board on which pieces are claimed.
    pub const ACCEPT: u32 = 3;
    /// Bytes of an accepted message, in order: `tag` names the receiver's request, `length` bytes follow.
    pub const DATA: u32 = 4;
    /// The receiver has all of a message: `tag` names the sender's request. `length` is 0 on success.
    pub const TAKEN: u32 = 5;
    /// The sender withdraws an offered message: `tag` names the sender's request. If `length` is 1, only a message that no
    /// receive has matched; then the receiver sends a [`TAKEN`] that is no success.
    pub const WITHDRAWN: u32 = 6;
    /// A waiting rank sends its call: `tag` is the number of the collective, `call` the call.
    pub const CALLED: u32 = 7;
    /// A collective has failed: `tag` is its number; a [`super::Mismatch`] follows the envelope.
    pub const MISMATCH: u32 = 8;
    /// The rank leaves the group in an orderly way; nothing follows.
    pub const LEAVES: u32 = 9;
}

/// The envelope of every message. In messages of users and collectives the fields mean what their names state; in
/// others it depends on the kind.
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Envelope {
    /// In shared memory, stored last. Zero on streams.
    pub sequence: u32,
    /// One of [`kind`].
    pub kind: u32,
    /// Context of the communicator.
    pub context: u32,
    /// The user's tag, or the number of the collective on its communicator.
    pub tag: u32,
    /// Length of the message in bytes.
    pub length: u64,
    /// The collective's call, see [`crate::collective::Call`]; 0 in messages of users.
    pub call: u64,
}

/// Follows the envelope of an offer.
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Offer {
    /// The sender's request.
    pub token: u64,
    /// Address of the message in the sender's memory.
    pub address: u64,
}

/// Follows the envelope of a mismatch: two ranks of the whole group that made different calls, and the second call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Mismatch {
    pub ranks: [u32; 2],
    /// Call of the second rank; the first one's is in the envelope.
    pub other: u64,
}

/// Bytes after the envelope of control messages with data.
pub const EXTRA_BYTES: usize = 16;

const _: () =
    assert!(ENVELOPE_BYTES == 32 && size_of::<Offer>() == EXTRA_BYTES && size_of::<Mismatch>() == EXTRA_BYTES);
