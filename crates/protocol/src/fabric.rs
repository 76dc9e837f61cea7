//! What the two ends of a channel over libfabric tell each other: over the connection on which the channel was opened, what
//! the client wants, the worker's [`Card`] and the client's; and then with every write.
//!
//! Each end registers one region that the other may write: a ring of slots, and behind it a table of [`Grant`]s. Every write
//! carries a [`notice`], which the receiver gets when the bytes have landed; nothing else is known about the order in which
//! writes land. So a message is there when its slot is and all of its parts are.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First bytes of every [`Card`].
pub const MAGIC: [u8; 8] = *b"MAYFABR\n";
/// Longest name of a provider or domain.
pub const NAME_BYTES: usize = 32;
/// Longest name of an endpoint.
pub const ENDPOINT_BYTES: usize = 256;
/// Bytes of a [`Card`].
pub const CARD_BYTES: usize = size_of::<Card>();
/// In [`Placement::grant`]: the sender has no memory to write to, and waits for a [`Grant`] for this very message.
pub const ASKS: u32 = u32::MAX;

/// How one end introduces itself. The client's first one says only what it wants, its second one the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Card {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// [`crate::WIRE_VERSION`].
    pub version: U16,
    /// 0, or that this end cannot; then `text` says why.
    pub refused: U16,
    /// Bytes in `endpoint`, or in `text`.
    pub length: U16,
    /// Nothing.
    pub reserved: U16,
    /// The provider's number for what it speaks on the wire; both must be the same.
    pub protocol: U32,
    /// The version of that.
    pub protocol_version: U32,
    /// From the client the provider that it wants, or nothing for any; from the worker the one that was chosen, as it is offered.
    pub wanted: [u8; NAME_BYTES],
    /// The provider that this end has.
    pub provider: [u8; NAME_BYTES],
    /// Its domain.
    pub domain: [u8; NAME_BYTES],
    /// Address of the region that the other may write.
    pub address: U64,
    /// Its key.
    pub key: U64,
    /// Most bytes that this end writes or takes in one piece.
    pub largest: U64,
    /// Name of the endpoint, or why there is none.
    pub endpoint: [u8; ENDPOINT_BYTES],
}

/// Where the payload of a message lies that is too large for its slot; it stands in the slot behind the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Placement {
    /// Bytes of payload.
    pub length: u64,
    /// Id of the grant that it was written to, or [`ASKS`]; without meaning for a reply in its caller's room.
    pub grant: u32,
    /// Nothing.
    pub reserved: u32,
    /// Bytes of room for the reply; how large an output the caller expects.
    pub room_length: u64,
    /// Where that is.
    pub room_address: u64,
    /// The key of that; with a length and without a key there is no room to write to.
    pub room_key: u64,
}

/// Bytes of a [`Placement`].
pub const PLACEMENT_BYTES: usize = size_of::<Placement>();

/// Memory of the receiver's for one large payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Grant {
    /// Where it is.
    pub address: u64,
    /// The key of that.
    pub key: u64,
    /// Bytes of it.
    pub capacity: u64,
    /// The message that asked for it; 0 for any.
    pub sequence: u32,
    /// Nothing.
    pub reserved: u32,
}

/// Bytes of a [`Grant`].
pub const GRANT_BYTES: usize = size_of::<Grant>();

/// Grants that may be open in one direction: one for each slot, and as many in advance.
pub const fn most_grants(slots: u16) -> usize {
    2 * slots as usize
}

/// What landed, in the 32 bits that every provider carries: a kind and a number.
pub mod notice {
    const NUMBER_BITS: u32 = 30;
    /// The largest number.
    pub const MASK: u32 = (1 << NUMBER_BITS) - 1;

    /// A slot: that of the message with this number, of which the lower bits are told.
    pub const SLOT: u32 = 0;
    /// A part of that message's payload.
    pub const PART: u32 = 1;
    /// The entry of the table of grants with this number.
    pub const GRANT: u32 = 2;
    /// The peer is reached: each end says so once, before anything else.
    pub const GREETING: u32 = 3;

    /// Puts both together.
    pub const fn of(kind: u32, number: u32) -> u32 {
        kind << NUMBER_BITS | number & MASK
    }

    /// Takes them apart.
    pub const fn read(notice: u32) -> (u32, u32) {
        (notice >> NUMBER_BITS, notice & MASK)
    }
}

/// A name in a field of fixed size; none if it is too long.
pub fn name(text: &str) -> Option<[u8; NAME_BYTES]> {
    let mut field = [0; NAME_BYTES];
    field.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
    Some(field)
}

/// The text of such a field, as far as it is UTF-8.
pub fn text(field: &[u8; NAME_BYTES]) -> String {
    let length = field.iter().position(|byte| *byte == 0).unwrap_or(NAME_BYTES);
    String::from_utf8_lossy(&field[..length]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_says_what_it_was_made_of() {
        for kind in [notice::SLOT, notice::PART, notice::GRANT, notice::GREETING] {
            for number in [0, 1, 77, notice::MASK] {
                assert_eq!(notice::read(notice::of(kind, number)), (kind, number));
            }
            assert_eq!(notice::read(notice::of(kind, u32::MAX)), (kind, notice::MASK));
        }
    }

    #[test]
    fn names_fit_or_are_refused() {
        assert_eq!(text(&name("verbs;ofi_rxm").unwrap()), "verbs;ofi_rxm");
        assert_eq!(text(&name(&"x".repeat(NAME_BYTES)).unwrap()).len(), NAME_BYTES);
        assert!(name(&"x".repeat(NAME_BYTES + 1)).is_none());
    }
}
