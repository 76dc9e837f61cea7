//! The sending part of [`FabricLink`]: slots, parts of large payloads, and grants of memory, queued until the provider
//! and the peer take them.

use std::time::{Duration, Instant};

use dayfly_protocol::fabric::{GRANT_BYTES, MemoryGrant, NO_GRANT, PayloadLocation, notice};
use dayfly_protocol::slot::{Geometry, HEADER_BYTES};

use super::ffi::{Context, Target};
use super::link::{CLOSE_LIMIT, FabricLink, STALL_LIMIT};
use crate::arena::BLOCK_HEADER_BYTES;
use crate::memory::Buffer;
use crate::{Link, LinkError, Payload, Room};

/// One write.
#[derive(Debug, Clone, Copy)]
pub(super) enum Write {
    /// The slot of this message, with the number of bytes to write.
    Slot(u32, usize),
    /// The next part of this message's payload.
    Part(u32),
    /// This grant, from the staging area.
    Grant(usize),
    /// An empty write that shows that the peer is reachable.
    Greeting,
}

/// A large payload that is being sent.
pub(super) struct LargeMessage {
    sequence: u32,
    source: PayloadSource,
    /// Where it goes; `None` until the peer has granted memory.
    pub target: Option<Target>,
    /// Bytes already sent.
    sent: usize,
}

/// Position of a payload in the region for outgoing data.
pub(super) struct PayloadSource {
    offset: usize,
    /// Capacity of its block.
    capacity: usize,
    pub length: usize,
    /// Its buffer, if the link keeps it until it has been sent.
    _kept: Option<Buffer>,
}

impl PayloadSource {
    pub fn with_buffer(self, buffer: Buffer) -> Self {
        Self {
            _kept: Some(buffer),
            ..self
        }
    }
}

impl LargeMessage {
    pub fn new(sequence: u32, source: PayloadSource, target: Option<Target>) -> Self {
        Self {
            sequence,
            source,
            target,
            sent: 0,
        }
    }

    /// Bytes of the payload.
    pub fn length(&self) -> usize {
        self.source.length
    }

    /// Bytes that the provider still has to send.
    pub fn in_flight(&self) -> usize {
        self.target.map_or(0, |_| self.length() - self.sent)
    }
}

/// Returns the number of writes for a payload.
pub(super) fn parts(length: usize, largest: usize) -> u32 {
    u32::try_from(length.div_ceil(largest)).unwrap_or(u32::MAX)
}

impl FabricLink {
    /// Sends a write, or queues it.
    #[inline]
    pub(super) fn send(&mut self, item: Write) -> Result<(), LinkError> {
        if !self.send_queue.is_empty() || !self.try_send(item)? {
            self.send_queue.push_back(item);
        }
        Ok(())
    }

    /// Sends queued writes, as many as the provider takes.
    pub(super) fn flush(&mut self) -> Result<(), LinkError> {
        while let Some(item) = self.send_queue.front().copied() {
            if !self.try_send(item)? {
                break;
            }
            self.send_queue.pop_front();
        }
        Ok(())
    }

    #[inline]
    fn try_send(&mut self, item: Write) -> Result<bool, LinkError> {
        match item {
            Write::Slot(sequence, length) => {
                let index = self.layout.index(sequence);
                let at = self.layout.slot(sequence);
                self.write_staged(at, length, notice::of(notice::SLOT, sequence), index)
            }
            Write::Grant(id) => {
                let at = self.layout.grant(id);
                let context = self.geometry.slots as usize + id;
                self.write_staged(at, GRANT_BYTES, notice::of(notice::GRANT, id as u32), context)
            }
            Write::Part(sequence) => self.send_part(sequence),
            // Uses the header of a slot that the peer does not read before it is written again.
            Write::Greeting => self.write_staged(0, HEADER_BYTES, notice::of(notice::GREETING, 0), 0),
        }
    }

    /// Writes from the staging area to the same place in the peer's ring and table.
    #[inline]
    fn write_staged(&mut self, at: usize, length: usize, notice: u32, context: usize) -> Result<bool, LinkError> {
        let start = self.memory.at(self.layout.staging().0 + at);
        // SAFETY: inside the staging area, which only we write.
        let bytes = unsafe { std::slice::from_raw_parts(start, length) };
        let to = self.peer.plus(at as u64);
        let sent = if length <= self.largest_inject {
            self.endpoint.inject(bytes, to, notice)
        } else {
            let context: *mut Context = &mut self.contexts[context];
            // SAFETY: a slot is composed again only after the peer has responded to it or sent a new request, and a
            // grant only after its last one was used: so the peer has the bytes. The contexts live as long as the
            // endpoint.
            unsafe { self.endpoint.write(bytes, Some(&self.fixed[1]), to, notice, context) }
        };
        sent.map_err(|error| self.interpret_error(error))
    }

    /// Returns the index of the context for the part of a large message that is being sent.
    fn part_context(&self, index: usize) -> usize {
        self.contexts.len() - self.geometry.slots as usize + index
    }

    fn send_part(&mut self, sequence: u32) -> Result<bool, LinkError> {
        let index = self.layout.index(sequence);
        let context = self.part_context(index);
        let Some(large) = self.large[index].as_ref().filter(|large| large.sequence == sequence) else {
            return Ok(true);
        };
        let Some(target) = large.target else { return Ok(true) };
        let (begin, length) = (large.sent, self.largest_write.min(large.length() - large.sent));
        let PayloadSource { offset, capacity, .. } = large.source;
        let at = self.layout.outgoing().0 + offset + begin;
        let region = if self.endpoint.sends_registered() {
            let block = self.outgoing.of(&mut self.endpoint, offset, capacity);
            Some(block.map_err(|error| LinkError::Io(std::io::Error::other(error)))?)
        } else {
            None
        };
        // SAFETY: the payload lies in the mapping, in a block that the link or its caller keeps until it has left.
        let bytes = unsafe { std::slice::from_raw_parts(self.memory.at(at), length) };
        let context: *mut Context = &mut self.contexts[context];
        let notice = notice::of(notice::PART, sequence);
        // SAFETY: as above; the contexts live as long as the endpoint, and one part of a message is under way at a
        // time.
        let sent = unsafe {
            self.endpoint
                .write_and_tell(bytes, region, target.plus(begin as u64), notice, context)
        };
        sent.map_err(|error| self.interpret_error(error))
    }

    /// Processes the completion of a write with this context. Returns whether the write was one of ours.
    pub(super) fn write_completed(&mut self, context: *const Context) -> Result<bool, LinkError> {
        let first = self.contexts.as_ptr();
        let range = first as usize..first as usize + size_of_val(&*self.contexts);
        if !range.contains(&(context as usize)) {
            return Ok(false);
        }
        let at = (context as usize - range.start) / size_of::<Context>();
        let Some(index) = at.checked_sub(self.part_context(0)) else {
            return Ok(true);
        };
        let Some(large) = &mut self.large[index] else {
            return Ok(true);
        };
        large.sent += self.largest_write.min(large.length() - large.sent);
        let sequence = large.sequence;
        if large.sent == large.length() {
            self.large[index] = None;
        } else {
            self.send(Write::Part(sequence))?;
        }
        Ok(true)
    }

    /// Sends a payload and its slot. The slot goes first if it must ask for memory.
    pub(super) fn post_large(
        &mut self,
        function: u16,
        deadline_ms: u32,
        large: LargeMessage,
        mut location: PayloadLocation,
        set: u16,
    ) -> Result<u32, LinkError> {
        let (sequence, empty) = (self.next_out, large.length() == 0);
        if large.target.is_none() && !empty {
            location.grant = NO_GRANT;
        }
        let sends = large.target.is_some() && !empty;
        self.place(location);
        if !empty {
            let index = self.layout.index(sequence);
            self.wait_until_sent(index)?;
            self.large[index] = Some(large);
        }
        if sends {
            self.send(Write::Part(sequence))?;
        }
        let sequence = self.publish(function, set, 0, deadline_ms)?;
        self.drive_sends(STALL_LIMIT)?;
        Ok(sequence)
    }

    /// Drives the provider until everything has been sent, or there was no progress for `patience`.
    pub(super) fn drive_sends(&mut self, patience: Duration) -> Result<(), LinkError> {
        let mut since = Instant::now();
        loop {
            let in_flight: usize = self.large.iter().flatten().map(LargeMessage::in_flight).sum();
            if self.send_queue.is_empty() && in_flight == 0 {
                return Ok(());
            }
            if self.progress()? {
                since = Instant::now();
            }
            // A large write shows no progress before it completes: allow 2 ns for each byte, 500 MB/s.
            if since.elapsed() > patience + Duration::from_nanos(2 * in_flight as u64) {
                return Ok(());
            }
        }
    }

    /// Waits until the last large message in this slot has been sent. The peer has responded to it, so it is about to
    /// be.
    fn wait_until_sent(&mut self, index: usize) -> Result<(), LinkError> {
        let until = Instant::now() + CLOSE_LIMIT;
        while self.large[index].as_ref().is_some_and(|large| large.target.is_some()) {
            self.progress()?;
            if Instant::now() >= until {
                return Err(LinkError::Violation(
                    "a response arrived before its request was sent".into(),
                ));
            }
        }
        Ok(())
    }

    /// Returns the position of a payload. Copies foreign memory.
    pub(super) fn place_payload(&mut self, payload: Payload<'_>) -> Result<PayloadSource, LinkError> {
        match payload {
            Payload::Buffer(buffer, length) if buffer.offset_in(&self.outgoing.arena).is_some() => {
                Ok(self.source_of(buffer, length))
            }
            Payload::Owned(buffer, length) if buffer.offset_in(&self.outgoing.arena).is_some() => {
                Ok(self.source_of(&buffer, length).with_buffer(buffer))
            }
            other => {
                let bytes = other.as_slice();
                let mut buffer = self.allocate(bytes.len())?;
                buffer.as_mut_slice().copy_from_slice(bytes);
                Ok(self.source_of(&buffer, bytes.len()).with_buffer(buffer))
            }
        }
    }

    /// Returns the position of a buffer of this link.
    pub(super) fn source_of(&self, buffer: &Buffer, length: usize) -> PayloadSource {
        PayloadSource {
            offset: buffer.offset_in(&self.outgoing.arena).unwrap_or_default() as usize,
            capacity: buffer.capacity(),
            length,
            _kept: None,
        }
    }

    /// Registers a caller's buffer for its reply. Returns `None` if the buffer does not belong to this link.
    pub(super) fn offer(&mut self, room: &Room) -> Result<Option<Target>, LinkError> {
        let Some(offset) = room.offset else { return Ok(None) };
        let region = self.outgoing.of(&mut self.endpoint, offset as usize, room.capacity);
        let region = region.map_err(|error| LinkError::Io(std::io::Error::other(error)))?;
        Ok(Some(region.target().plus(BLOCK_HEADER_BYTES as u64)))
    }

    /// Returns the smallest memory granted in advance that is large enough.
    pub(super) fn take_grant(&mut self, length: usize) -> Option<(u32, Target)> {
        if length == 0 {
            return None;
        }
        let fitting = self.grants.iter().enumerate();
        let (at, _) = fitting
            .filter(|(_, (_, grant))| grant.capacity >= length as u64)
            .min_by_key(|(_, (_, grant))| grant.capacity)?;
        let (id, grant) = self.grants.swap_remove(at);
        let MemoryGrant { address, key, .. } = grant;
        Some((id, Target { address, key }))
    }

    /// Processes a grant from the peer, for a message that waits for it or in advance.
    pub(super) fn process_grant(&mut self, id: u32, grant: MemoryGrant) -> Result<(), LinkError> {
        let Geometry { bulk_bytes, .. } = self.geometry;
        if grant.sequence == 0 {
            self.grants.retain(|(known, _)| *known != id);
            self.grants.push((id, grant));
            return Ok(());
        }
        let waits = |large: &&mut LargeMessage| large.sequence == grant.sequence && large.target.is_none();
        let Some(large) = self.large[self.layout.index(grant.sequence)].as_mut().filter(waits) else {
            return Ok(());
        };
        if grant.capacity < large.length() as u64 || grant.capacity > 2 * bulk_bytes.max(4096) {
            return Err(LinkError::Violation(format!(
                "{} bytes granted for a payload of {}",
                grant.capacity,
                large.length()
            )));
        }
        large.target = Some(Target {
            address: grant.address,
            key: grant.key,
        });
        self.send(Write::Part(grant.sequence))
    }
}
