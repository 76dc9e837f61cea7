//! Wire structs of a channel over libfabric. On the connection that opened the channel, the client first sends what it
//! wants, then the worker sends its [`Card`] and the client sends its own. After that, every write carries a notice.
//!
//! Each end registers one region that the other may write: a ring of slots, followed by a table of [`MemoryGrant`]s.
//! Every write carries a [`notice`], which the receiver gets when the bytes have arrived. Nothing else is known about
//! the order of arrival. A message is therefore complete when its slot and all its parts have arrived.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub const MAGIC: [u8; 8] = *b"DAYFABR\n";
/// Longest name of a provider or domain, in bytes.
pub const NAME_BYTES: usize = 32;
/// Longest name of an endpoint, in bytes.
pub const ENDPOINT_BYTES: usize = 256;
pub const CARD_BYTES: usize = size_of::<Card>();
/// Value of [`PayloadLocation::grant`] when the sender has no memory to write to and waits for a [`MemoryGrant`] for
/// this message.
pub const NO_GRANT: u32 = u32::MAX;

/// Introduces one end of a channel. The client's first card contains only what it wants, its second card the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Card {
    /// Always [`MAGIC`].
    pub magic: [u8; 8],
    /// [`crate::WIRE_VERSION`].
    pub version: U16,
    /// 0, or nonzero if this end refuses. `endpoint` then contains the reason.
    pub refused: U16,
    /// Bytes used in `endpoint`.
    pub length: U16,
    /// Always 0.
    pub reserved: U16,
    /// The provider's number of its wire protocol. Both ends must use the same.
    pub protocol: U32,
    /// Version of the wire protocol.
    pub protocol_version: U32,
    /// From the client, the wanted provider, or empty for any. From the worker, the chosen provider, as it is offered.
    pub wanted: [u8; NAME_BYTES],
    /// Provider of this end.
    pub provider: [u8; NAME_BYTES],
    /// Domain of this end.
    pub domain: [u8; NAME_BYTES],
    /// Address of the region that the other end may write.
    pub address: U64,
    /// Key of that region.
    pub key: U64,
    /// Most bytes that this end writes or accepts in one piece.
    pub largest: U64,
    /// Name of the endpoint, or the reason for a refusal.
    pub endpoint: [u8; ENDPOINT_BYTES],
}

/// Where the payload of a message lies that does not fit into its slot. Follows the header in the slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PayloadLocation {
    /// Length of the payload in bytes.
    pub length: u64,
    /// Id of the grant that the payload was written to, or [`NO_GRANT`]. No meaning for a reply in its caller's room.
    pub grant: u32,
    /// Always 0.
    pub reserved: u32,
    /// Bytes of room for the reply: the largest output that the caller expects.
    pub room_length: u64,
    /// Address of the room.
    pub room_address: u64,
    /// Key of the room. A length without a key means that there is no room to write to.
    pub room_key: u64,
}

pub const LOCATION_BYTES: usize = size_of::<PayloadLocation>();

/// Memory of the receiver for one large payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MemoryGrant {
    /// Address of the memory.
    pub address: u64,
    /// Key of the memory.
    pub key: u64,
    /// Size in bytes.
    pub capacity: u64,
    /// Sequence number of the message that asked for it; 0 for any message.
    pub sequence: u32,
    /// Always 0.
    pub reserved: u32,
}

pub const GRANT_BYTES: usize = size_of::<MemoryGrant>();

/// Most open grants in one direction: one for each slot, and as many in advance.
pub const fn max_grants(slots: u16) -> usize {
    2 * slots as usize
}

/// What a write delivered, in the 32 bits of immediate data that every provider carries: a kind and a number.
pub mod notice {
    const NUMBER_BITS: u32 = 30;
    /// Largest number.
    pub const MASK: u32 = (1 << NUMBER_BITS) - 1;

    /// A slot. The number is the low bits of its message's sequence number.
    pub const SLOT: u32 = 0;
    /// A part of the payload of the message with this number.
    pub const PART: u32 = 1;
    /// The entry with this number in the table of grants.
    pub const GRANT: u32 = 2;
    /// First write of each end: shows that the peer is reachable.
    pub const GREETING: u32 = 3;

    /// Packs kind and number into a notice.
    pub const fn of(kind: u32, number: u32) -> u32 {
        kind << NUMBER_BITS | number & MASK
    }

    /// Unpacks a notice into kind and number.
    pub const fn read(notice: u32) -> (u32, u32) {
        (notice >> NUMBER_BITS, notice & MASK)
    }
}

/// Returns the name in a field of fixed size, or `None` if it is too long.
pub fn name(text: &str) -> Option<[u8; NAME_BYTES]> {
    let mut field = [0; NAME_BYTES];
    field.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
    Some(field)
}

/// Returns the text of a name field. Invalid UTF-8 is replaced.
pub fn text(field: &[u8; NAME_BYTES]) -> String {
    let length = field.iter().position(|byte| *byte == 0).unwrap_or(NAME_BYTES);
    String::from_utf8_lossy(&field[..length]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notice_unpacks_to_kind_and_number() {
        for kind in [notice::SLOT, notice::PART, notice::GRANT, notice::GREETING] {
            for number in [0, 1, 77, notice::MASK] {
                assert_eq!(notice::read(notice::of(kind, number)), (kind, number));
            }
            assert_eq!(notice::read(notice::of(kind, u32::MAX)), (kind, notice::MASK));
        }
    }

    #[test]
    fn too_long_name_is_refused() {
        assert_eq!(text(&name("verbs;ofi_rxm").unwrap()), "verbs;ofi_rxm");
        assert_eq!(text(&name(&"x".repeat(NAME_BYTES)).unwrap()).len(), NAME_BYTES);
        assert!(name(&"x".repeat(NAME_BYTES + 1)).is_none());
    }
}
