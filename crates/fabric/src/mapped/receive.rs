//! The receiving part of [`MappedLink`]: reads each incoming message once, and checks the copy.

use dayfly_protocol::slot::{DESCRIPTOR_BYTES, Descriptor, HEADER_BYTES, Header, flags};
use zerocopy::FromBytes;

use super::MappedLink;
use crate::arena::BLOCK_HEADER_BYTES;
use crate::{LinkError, Meta};

/// The message that was received last. Positions are offsets in the mapping.
#[derive(Debug, Clone, Copy)]
pub(super) struct CurrentMessage {
    pub input: usize,
    pub length: usize,
    /// Whether the payload lies in the bulk region.
    pub bulk: bool,
    pub room: usize,
    pub room_length: usize,
    /// Whether the payload lies in the room that its request named.
    pub in_room: bool,
    /// Whether the worker still uses the request's block.
    pub retained: bool,
}

impl CurrentMessage {
    pub const NONE: Self = Self {
        input: 0,
        length: 0,
        bulk: false,
        room: 0,
        room_length: 0,
        in_room: false,
        retained: false,
    };
}

impl MappedLink {
    /// Reads header and descriptor once and checks the copy.
    #[inline(always)]
    pub(super) fn read(&mut self, slot: usize) -> Result<Meta, LinkError> {
        // SAFETY: inside the mapping. The peer may write at the same time, which tears values but not memory.
        let header: Header = unsafe { std::ptr::read_volatile(self.memory.at(slot).cast()) };
        let meta = Meta {
            sequence: self.next_in,
            function: header.function,
            deadline_ms: header.deadline_ms,
            rejectable: header.flags & flags::REJECTABLE != 0,
        };
        let inline = slot + HEADER_BYTES;
        if header.flags == 0 {
            if header.length as usize > self.stride - HEADER_BYTES {
                return Err(LinkError::Malformed("the length exceeds the slot"));
            }
            self.current = CurrentMessage {
                input: inline,
                length: header.length as usize,
                ..CurrentMessage::NONE
            };
            return Ok(meta);
        }
        self.read_described(header, inline)?;
        Ok(meta)
    }

    fn read_described(&mut self, header: Header, inline: usize) -> Result<(), LinkError> {
        if header.flags & !flags::KNOWN != 0 {
            return Err(LinkError::Malformed("unknown flags"));
        }
        // SAFETY: as for the header.
        let bytes: [u8; DESCRIPTOR_BYTES] = unsafe { std::ptr::read_volatile(self.memory.at(inline).cast()) };
        let descriptor = Descriptor::read_from_bytes(&bytes).map_err(|_| LinkError::Malformed("no descriptor"))?;
        let limit = self.geometry.bulk_bytes;
        let inside = |offset: u64, length: u64| {
            offset >= BLOCK_HEADER_BYTES as u64
                && offset.is_multiple_of(4)
                && offset.checked_add(length).is_some_and(|end| end <= limit)
        };
        let retained = header.flags & flags::RETAINED != 0;
        if header.flags & flags::DESCRIBED == 0 {
            if header.length as usize > self.stride - HEADER_BYTES {
                return Err(LinkError::Malformed("the length exceeds the slot"));
            }
            let length = header.length as usize;
            self.current = CurrentMessage {
                input: inline,
                length,
                retained,
                ..CurrentMessage::NONE
            };
            return Ok(());
        }
        let (input, length) = (inline + DESCRIPTOR_BYTES, header.length as usize);
        let mut current = CurrentMessage {
            input,
            length,
            retained,
            ..CurrentMessage::NONE
        };
        if header.flags & flags::BULK != 0 {
            if !inside(descriptor.offset, descriptor.length) {
                return Err(LinkError::Malformed("the payload lies outside the bulk region"));
            }
            current.input = self.peer_bulk + descriptor.offset as usize;
            current.length = descriptor.length as usize;
            current.bulk = true;
        } else if header.length as usize > self.stride - HEADER_BYTES - DESCRIPTOR_BYTES {
            return Err(LinkError::Malformed("the length exceeds the slot"));
        }
        if header.flags & flags::IN_ROOM != 0 {
            current.in_room = true;
            current.length = descriptor.length as usize;
        }
        if header.flags & flags::ROOM != 0 {
            if !inside(descriptor.room_offset, descriptor.room_length) {
                return Err(LinkError::Malformed("the reply's room lies outside the bulk region"));
            }
            current.room = self.peer_bulk + descriptor.room_offset as usize;
            current.room_length = descriptor.room_length as usize;
        }
        self.current = current;
        Ok(())
    }
}
