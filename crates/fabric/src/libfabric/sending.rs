//! Outgoing writes: slots, parts of large payloads, and grants of memory. They are queued until the provider and the
//! peer take them.

use dayfly_protocol::fabric::{GRANT_BYTES, MemoryGrant, notice};
use dayfly_protocol::slot::{Geometry, HEADER_BYTES};

use super::ffi::{Context, Target};
use super::link::FabricLink;
use crate::arena::BLOCK_HEADER_BYTES;
use crate::memory::Buffer;
use crate::{Link, LinkError, Payload, Room};

/// One write.
#[derive(Debug, Clone, Copy)]
pub(super) enum Item {
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
pub(super) struct Large {
    sequence: u32,
    lying: Lying,
    /// Where it goes; `None` until the peer has granted memory.
    pub target: Option<Target>,
    /// Bytes already sent.
    left: usize,
}

/// Position of a payload in the region for outgoing data.
pub(super) struct Lying {
    offset: usize,
    /// Capacity of its block.
    capacity: usize,
    pub length: usize,
    /// Its buffer, if the link keeps it until it has been sent.
    _kept: Option<Buffer>,
}

impl Lying {
    pub fn keeping(self, buffer: Buffer) -> Self {
        Self {
            _kept: Some(buffer),
            ..self
        }
    }
}

impl Large {
    pub fn new(sequence: u32, lying: Lying, target: Option<Target>) -> Self {
        Self {
            sequence,
            lying,
            target,
            left: 0,
        }
    }

    /// Bytes of the payload.
    pub fn length(&self) -> usize {
        self.lying.length
    }

    /// Bytes that the provider still has to send.
    pub fn under_way(&self) -> usize {
        self.target.map_or(0, |_| self.length() - self.left)
    }
}

/// Returns the number of writes for a payload.
pub(super) fn parts(length: usize, largest: usize) -> u32 {
    u32::try_from(length.div_ceil(largest)).unwrap_or(u32::MAX)
}

impl FabricLink {
    /// Sends a write, or queues it.
    #[inline]
    pub(super) fn send(&mut self, item: Item) -> Result<(), LinkError> {
        if !self.unsent.is_empty() || !self.try_send(item)? {
            self.unsent.push_back(item);
        }
        Ok(())
    }

    /// Sends queued writes, as many as the provider takes.
    pub(super) fn flush(&mut self) -> Result<(), LinkError> {
        while let Some(item) = self.unsent.front().copied() {
            if !self.try_send(item)? {
                break;
            }
            self.unsent.pop_front();
        }
        Ok(())
    }

    #[inline]
    fn try_send(&mut self, item: Item) -> Result<bool, LinkError> {
        match item {
            Item::Slot(sequence, length) => {
                let index = self.layout.index(sequence);
                let at = self.layout.slot(sequence);
                self.write_staged(at, length, notice::of(notice::SLOT, sequence), index)
            }
            Item::Grant(id) => {
                let at = self.layout.grant(id);
                let context = self.geometry.slots as usize + id;
                self.write_staged(at, GRANT_BYTES, notice::of(notice::GRANT, id as u32), context)
            }
            Item::Part(sequence) => self.send_part(sequence),
            // Uses the header of a slot that the peer does not read before it is written again.
            Item::Greeting => self.write_staged(0, HEADER_BYTES, notice::of(notice::GREETING, 0), 0),
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
        sent.map_err(|error| self.broken(error))
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
        let (begin, length) = (large.left, self.largest_write.min(large.length() - large.left));
        let Lying { offset, capacity, .. } = large.lying;
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
        sent.map_err(|error| self.broken(error))
    }

    /// Processes the completion of a write with this context. Returns whether the write was one of ours.
    pub(super) fn part_left(&mut self, context: *const Context) -> Result<bool, LinkError> {
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
        large.left += self.largest_write.min(large.length() - large.left);
        let sequence = large.sequence;
        if large.left == large.length() {
            self.large[index] = None;
        } else {
            self.send(Item::Part(sequence))?;
        }
        Ok(true)
    }

    /// Returns the position of a payload. Copies foreign memory.
    pub(super) fn lay_down(&mut self, payload: Payload<'_>) -> Result<Lying, LinkError> {
        match payload {
            Payload::Buffer(buffer, length) if buffer.offset_in(&self.outgoing.arena).is_some() => {
                Ok(self.lying(buffer, length))
            }
            Payload::Owned(buffer, length) if buffer.offset_in(&self.outgoing.arena).is_some() => {
                Ok(self.lying(&buffer, length).keeping(buffer))
            }
            other => {
                let bytes = other.as_slice();
                let mut buffer = self.allocate(bytes.len())?;
                buffer.as_mut_slice().copy_from_slice(bytes);
                Ok(self.lying(&buffer, bytes.len()).keeping(buffer))
            }
        }
    }

    /// Returns the position of a buffer of this link.
    pub(super) fn lying(&self, buffer: &Buffer, length: usize) -> Lying {
        Lying {
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
    pub(super) fn granted(&mut self, id: u32, grant: MemoryGrant) -> Result<(), LinkError> {
        let Geometry { bulk_bytes, .. } = self.geometry;
        if grant.sequence == 0 {
            self.grants.retain(|(known, _)| *known != id);
            self.grants.push((id, grant));
            return Ok(());
        }
        let waits = |large: &&mut Large| large.sequence == grant.sequence && large.target.is_none();
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
        self.send(Item::Part(grant.sequence))
    }
}
