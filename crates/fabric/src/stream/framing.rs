//! Incoming frames of a stream: parses them, and holds the memory that their payloads arrive in.

use std::time::Duration;

use dayfly_protocol::slot::{DESCRIPTOR_BYTES, Descriptor, Geometry, HEADER_BYTES, Header, flags};
use zerocopy::FromBytes;

use super::wire::Wire;
use crate::memory::Buffer;
use crate::{LinkError, Meta, Room};

/// Size of the receive buffer: a few hundred small frames per system call, and at least two of the largest slots.
const RECEIVE_BYTES: usize = 128 << 10;
/// Bytes received at a time while no large payload is in progress. The part of a payload that arrives with its header
/// is copied once more.
const RECEIVE_AT_ONCE_BYTES: usize = 32 << 10;
/// Most spare buffers: a worker uses one input and one output.
const SPARES: usize = 2;

/// Where the payload of a message lies.
#[derive(Debug)]
pub(super) enum Place {
    /// In the receive buffer, at this offset.
    Inline(usize),
    /// In a separate buffer.
    Own(Buffer),
    /// In the room that the request named.
    InRoom,
    /// Taken by the receiver.
    Nowhere,
}

/// A message that has arrived completely.
#[derive(Debug)]
pub(super) struct Message {
    pub meta: Meta,
    pub place: Place,
    pub length: usize,
    pub room_length: usize,
}

/// A large message whose payload is arriving.
#[derive(Debug)]
struct Incoming {
    message: Message,
    target: *mut u8,
    /// Bytes that have arrived.
    filled: usize,
}

/// Receives frames from a wire.
#[derive(Debug)]
pub(super) struct FrameReader {
    geometry: Geometry,
    buffer: Vec<u8>,
    /// The bytes of `buffer` that have arrived and are not parsed.
    start: usize,
    end: usize,
    incoming: Option<Incoming>,
    /// Buffers of processed messages, for reuse: one input and one output.
    spares: Vec<Buffer>,
    /// Rooms for the replies to our own requests, by slot.
    rooms: Vec<Option<Room>>,
    next_in: u32,
}

// SAFETY: the raw pointer of `incoming` points into the buffer that its message owns, or into a room that the caller
// keeps until the response (see `Room`); neither is tied to a thread.
unsafe impl Send for FrameReader {}

impl FrameReader {
    pub fn new(geometry: Geometry) -> Self {
        Self {
            geometry,
            buffer: vec![0; RECEIVE_BYTES.max(2 * geometry.stride_bytes as usize)],
            start: 0,
            end: 0,
            incoming: None,
            spares: Vec::new(),
            rooms: vec![None; geometry.slots as usize],
            next_in: 1,
        }
    }

    /// Starts numbering after `sequence`.
    pub fn start_after(&mut self, sequence: u32) {
        self.next_in = sequence.wrapping_add(1);
    }

    /// Sets the room for the reply to message `sequence`.
    pub fn set_room(&mut self, sequence: u32, room: Option<Room>) {
        let slot = self.slot_of(sequence);
        self.rooms[slot] = room;
    }

    /// Whether no part of a message has arrived.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.start == self.end && self.incoming.is_none()
    }

    /// Returns the payload of a message, where it arrived.
    pub fn payload<'a>(&'a self, message: &'a Message) -> &'a [u8] {
        match &message.place {
            Place::Inline(at) => &self.buffer[*at..at + message.length],
            Place::Own(buffer) => &buffer.as_slice()[..message.length],
            Place::InRoom | Place::Nowhere => &[],
        }
    }

    /// Copies the payload of a message out of the receive buffer, which is about to be reused.
    pub fn detach(&self, message: &mut Message) -> Result<(), LinkError> {
        if let Place::Inline(at) = message.place {
            let mut buffer = Buffer::heap(message.length).ok_or(LinkError::NoRoom {
                length: message.length,
                limit: self.geometry.bulk_bytes,
            })?;
            buffer
                .as_mut_slice()
                .copy_from_slice(&self.buffer[at..at + message.length]);
            message.place = Place::Own(buffer);
        }
        Ok(())
    }

    fn slot_of(&self, sequence: u32) -> usize {
        sequence as usize & (self.geometry.slots as usize - 1)
    }

    /// Returns a buffer for an incoming payload. Reuses a spare one, because fresh memory costs as much as the copy.
    pub(super) fn buffer_for(&mut self, length: usize) -> Result<Buffer, LinkError> {
        if let Some(at) = self.spares.iter().position(|spare| spare.capacity() >= length) {
            let mut spare = self.spares.swap_remove(at);
            spare.resize(length);
            return Ok(spare);
        }
        let buffer = if length as u64 <= self.geometry.bulk_bytes {
            Buffer::heap(length)
        } else {
            None
        };
        buffer.ok_or(LinkError::NoRoom {
            length,
            limit: self.geometry.bulk_bytes,
        })
    }

    /// Keeps a buffer for reuse. Prefers larger ones.
    pub(super) fn keep_spare(&mut self, buffer: Buffer) {
        if self.spares.len() < SPARES {
            return self.spares.push(buffer);
        }
        if let Some(smallest) = self.spares.iter_mut().min_by_key(|spare| spare.capacity())
            && smallest.capacity() < buffer.capacity()
        {
            *smallest = buffer;
        }
    }

    /// Returns the next complete message among the bytes already received. Handles only the common small messages,
    /// because after a system call every branch is expensive.
    #[inline]
    pub(super) fn parse(&mut self) -> Result<Option<Message>, LinkError> {
        if self.incoming.is_some() {
            return Ok(None);
        }
        let available = &self.buffer[self.start..self.end];
        let Ok((header, rest)) = Header::read_from_prefix(available) else {
            return Ok(None);
        };
        let length = header.length as usize;
        if header.sequence != self.next_in || header.flags != 0 || length > self.geometry.inline_bytes() {
            return self.parse_other();
        }
        if rest.len() < length {
            return Ok(None);
        }
        let message = Message {
            meta: Meta {
                sequence: header.sequence,
                function: header.function,
                deadline_ms: header.deadline_ms,
                rejectable: false,
            },
            place: Place::Inline(self.start + HEADER_BYTES),
            length,
            room_length: 0,
        };
        self.start += HEADER_BYTES + length;
        self.next_in = self.next_in.wrapping_add(1);
        Ok(Some(message))
    }

    /// Like [`FrameReader::parse`], for messages with a descriptor and malformed ones.
    #[cold]
    fn parse_other(&mut self) -> Result<Option<Message>, LinkError> {
        let available = &self.buffer[self.start..self.end];
        let Ok((header, rest)) = Header::read_from_prefix(available) else {
            return Ok(None);
        };
        if header.sequence != self.next_in {
            return Err(LinkError::Violation(format!(
                "message {} where {} was due",
                header.sequence, self.next_in
            )));
        }
        if header.flags & !flags::KNOWN != 0 {
            return Err(LinkError::Violation(format!("unknown flags {:#x}", header.flags)));
        }
        let meta = Meta {
            sequence: header.sequence,
            function: header.function,
            deadline_ms: header.deadline_ms,
            rejectable: header.flags & flags::REJECTABLE != 0,
        };
        let mut descriptor = Descriptor::default();
        let mut head = HEADER_BYTES;
        if header.flags & flags::DESCRIBED != 0 {
            let Ok((found, _)) = Descriptor::read_from_prefix(rest) else {
                return Ok(None);
            };
            descriptor = found;
            head += DESCRIPTOR_BYTES;
        }
        let room_length = descriptor.room_length.min(self.geometry.bulk_bytes) as usize;
        if header.flags & (flags::BULK | flags::IN_ROOM) == 0 {
            let length = header.length as usize;
            if length > self.geometry.inline_bytes() {
                return Err(LinkError::Violation(format!(
                    "{length} bytes inline in slots of {}",
                    self.geometry.stride_bytes
                )));
            }
            if available.len() < head + length {
                return Ok(None);
            }
            let place = Place::Inline(self.start + head);
            self.start += head + length;
            self.next_in = self.next_in.wrapping_add(1);
            return Ok(Some(Message {
                meta,
                place,
                length,
                room_length,
            }));
        }
        let length = usize::try_from(descriptor.length).unwrap_or(usize::MAX);
        if length as u64 > self.geometry.bulk_bytes {
            return Err(LinkError::Violation(format!(
                "a payload of {length} bytes on a channel for {}",
                self.geometry.bulk_bytes
            )));
        }
        self.start += head;
        self.next_in = self.next_in.wrapping_add(1);
        self.begin_incoming(meta, header.flags, length, room_length)
    }

    fn begin_incoming(
        &mut self,
        meta: Meta,
        set: u16,
        length: usize,
        room_length: usize,
    ) -> Result<Option<Message>, LinkError> {
        let (place, target) = if set & flags::IN_ROOM != 0 {
            let slot = self.slot_of(meta.sequence);
            match self.rooms[slot].take() {
                Some(room) if length <= room.length => (Place::InRoom, room.start),
                _ => return Err(LinkError::Violation("a reply into room that was not offered".into())),
            }
        } else {
            let buffer = self.buffer_for(length)?;
            let target = buffer.as_ptr();
            (Place::Own(buffer), target)
        };
        let arrived = (self.end - self.start).min(length);
        // SAFETY: `target` has `length` bytes (a buffer made for them, or a room checked above), `arrived` is no more.
        unsafe { std::ptr::copy_nonoverlapping(self.buffer[self.start..].as_ptr(), target, arrived) };
        self.start += arrived;
        let message = Message {
            meta,
            place,
            length,
            room_length,
        };
        if arrived == length {
            return Ok(Some(message));
        }
        self.incoming = Some(Incoming {
            message,
            target,
            filled: arrived,
        });
        Ok(None)
    }

    /// Bytes to receive at a time between messages.
    #[inline]
    fn at_once(&self) -> usize {
        let stride = self.geometry.stride_bytes as usize;
        RECEIVE_AT_ONCE_BYTES.max(stride).min(self.buffer.len())
    }

    /// Receives available bytes into the empty buffer, between messages. Returns their number; 0 if the peer has
    /// closed.
    #[inline]
    pub fn fill_empty(&mut self, wire: &mut Wire) -> std::io::Result<usize> {
        let until = self.at_once();
        let received = wire.receive(&mut self.buffer[..until]);
        self.start = 0;
        self.end = *received.as_ref().unwrap_or(&0);
        received
    }

    /// Like [`FrameReader::fill_empty`], but blocks for at most `limit`. In clear text only.
    pub fn fill_empty_blocking(&mut self, wire: &mut Wire, limit: Duration) -> std::io::Result<usize> {
        (self.start, self.end) = (0, 0);
        let until = self.at_once();
        let received = wire.receive_blocking(&mut self.buffer[..until], limit)?;
        self.end = received;
        Ok(received)
    }

    /// Receives available bytes without blocking. Returns their number; 0 if the peer has closed.
    pub fn fill(&mut self, wire: &mut Wire) -> std::io::Result<usize> {
        match &mut self.incoming {
            Some(incoming) => {
                let rest = incoming.message.length - incoming.filled;
                // SAFETY: the target has `length` bytes, `filled` of them done; see `begin_incoming`.
                let target = unsafe { std::slice::from_raw_parts_mut(incoming.target.add(incoming.filled), rest) };
                wire.receive(target).inspect(|n| incoming.filled += n)
            }
            None => {
                if self.start == self.end {
                    (self.start, self.end) = (0, 0);
                } else if self.buffer.len() - self.end < self.geometry.stride_bytes as usize {
                    self.buffer.copy_within(self.start..self.end, 0);
                    (self.start, self.end) = (0, self.end - self.start);
                }
                let until = self.buffer.len().min(self.end + self.at_once());
                wire.receive(&mut self.buffer[self.end..until])
                    .inspect(|n| self.end += n)
            }
        }
    }

    /// Returns the next message after [`FrameReader::fill`] has received bytes.
    pub fn after_fill(&mut self) -> Result<Option<Message>, LinkError> {
        match &self.incoming {
            Some(incoming) if incoming.filled == incoming.message.length => {
                Ok(self.incoming.take().map(|incoming| incoming.message))
            }
            Some(_) => Ok(None),
            None => self.parse(),
        }
    }
}
