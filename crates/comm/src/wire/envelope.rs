//! What stands in front of every message between two ranks.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of an envelope.
pub const ENVELOPE_BYTES: usize = size_of::<Envelope>();

/// Set in the context of messages that belong to collective operations, which match nothing that users send.
pub const COLLECTIVE: u32 = 1 << 31;

/// What a message is.
pub mod kind {
    /// A whole message, its bytes behind the envelope.
    pub const EAGER: u32 = 1;
    /// A message announces itself: `length` is its own; behind the envelope stands an [`super::Offer`].
    pub const OFFER: u32 = 2;
    /// An answer to an offer: `tag` names the sender's request, `context` the receiver's; the bytes may come. `call` is the
    /// address of the receiver's memory; `length` is 0 where the bytes must be sent, and else tells how many are wanted, below
    /// bit 48, and above one more than the number of the board on which pieces are claimed.
    pub const ACCEPT: u32 = 3;
    /// Bytes of an accepted message, in order: `tag` names the receiver's request, `length` bytes follow.
    pub const DATA: u32 = 4;
    /// The receiver has all of it: `tag` names the sender's request. `length` is 0 if all went well.
    pub const TAKEN: u32 = 5;
    /// The sender gives up a message that it offered: `tag` names the sender's request.
    pub const WITHDRAWN: u32 = 6;
    /// A rank that waits tells what it called: `tag` is the number of the collective, `call` what was called.
    pub const CALLED: u32 = 7;
    /// A collective has failed: `tag` is its number; behind the envelope stands a [`super::Dissent`].
    pub const DISSENT: u32 = 8;
    /// The rank leaves the group in an orderly way; nothing comes after this.
    pub const LEAVES: u32 = 9;
}

/// What stands in front of every message. What the fields mean depends on the kind; in messages that users or collectives
/// send, they mean what their names say.
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Envelope {
    /// In shared memory, published last. Zero on streams.
    pub sequence: u32,
    /// One of [`kind`].
    pub kind: u32,
    /// Of which communicator.
    pub context: u32,
    /// The user's tag, or the number of the collective on its communicator.
    pub tag: u32,
    /// Bytes of the message.
    pub length: u64,
    /// What collective it belongs to, see [`crate::collective::Call`]; 0 in messages of users.
    pub call: u64,
}

/// Behind the envelope of an offer.
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Offer {
    /// The sender's request.
    pub token: u64,
    /// Where the message lies in the sender's memory.
    pub address: u64,
}

/// Behind the envelope of a dissent: two ranks (of the whole group) that called different things, and what.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Dissent {
    /// Two ranks.
    pub ranks: [u32; 2],
    /// What the second called; the first's is in the envelope.
    pub other: u64,
}

/// Bytes behind the envelope of control messages.
pub const EXTRA_BYTES: usize = 16;

const _: () = assert!(ENVELOPE_BYTES == 32 && size_of::<Offer>() == EXTRA_BYTES && size_of::<Dissent>() == EXTRA_BYTES);
