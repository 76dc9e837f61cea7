//! The link over memory that both ends map: shared memory between processes, and its in-process variant.
//!
//! Layout of the memory:
//!
//! ```text
//! 0      magic and version (for debugging only; not trusted)
//! 128    closed: 0, or why the node ended the channel
//! 256    asleep of the worker, 384 asleep of the client: a line each, so that no poller shares one with a writer
//! 4096   ring of request slots, ring of response slots
//! then   the client's bulk region, the worker's bulk region
//! ```

mod receive;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dayfly_protocol::node_api::End;
use dayfly_protocol::slot::{DESCRIPTOR_BYTES, Descriptor, Geometry, HEADER_BYTES, Header, flags};
use zerocopy::IntoBytes;

use receive::CurrentMessage;

use crate::arena::Arena;
use crate::memory::{Buffer, Mapping, Received};
use crate::{Allocator, Current, Link, LinkError, Meta, Payload, Room, Transport, futex, ring};

pub(crate) const CLOSED: usize = 128;
const WORKER_ASLEEP: usize = 256;
const CLIENT_ASLEEP: usize = 384;
const RINGS: usize = 4096;

/// A poller checks after every 256 misses, about 1 us, whether the channel was closed.
const CLOSED_CHECK_EVERY: u32 = 256;

/// Returns the bytes of memory that a channel of this geometry needs.
pub fn memory_bytes(geometry: Geometry) -> usize {
    bulk_start(geometry) + 2 * geometry.bulk_bytes as usize
}

fn bulk_start(geometry: Geometry) -> usize {
    (RINGS + 2 * geometry.ring_bytes()).next_multiple_of(4096)
}

/// The two ends of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Sends requests.
    Client,
    /// Sends responses.
    Worker,
}

/// One end of a channel in mapped memory.
#[derive(Debug)]
pub struct MappedLink {
    memory: Arc<Mapping>,
    in_process: bool,
    geometry: Geometry,
    mask: usize,
    stride: usize,
    /// First byte of the ring that this end writes, then of the ring that it reads.
    outgoing: usize,
    incoming: usize,
    own_asleep: usize,
    peer_asleep: usize,
    peer_never_sleeps: bool,
    arena: Arc<Arena>,
    peer_bulk: usize,
    next_out: u32,
    next_in: u32,
    misses: u32,
    /// Flags of every message that is sent.
    common_flags: u16,
    /// Whether the next response states that its request's block is still in use.
    retaining: bool,
    /// Request blocks that this link keeps until their response has been processed, by slot.
    kept: Vec<Option<Buffer>>,
    kept_count: usize,
    current: CurrentMessage,
}

impl MappedLink {
    /// Joins a channel. `peer_never_sleeps` omits the fence that waking a sleeper needs. Both sides must have agreed.
    pub fn new(
        memory: Arc<Mapping>,
        transport: Transport,
        geometry: Geometry,
        side: Side,
        peer_never_sleeps: bool,
    ) -> Self {
        let requests = RINGS;
        let responses = RINGS + geometry.ring_bytes();
        let client_bulk = bulk_start(geometry);
        let worker_bulk = client_bulk + geometry.bulk_bytes as usize;
        let (outgoing, incoming, own_asleep, peer_asleep, own_bulk, peer_bulk) = match side {
            Side::Client => (
                requests,
                responses,
                CLIENT_ASLEEP,
                WORKER_ASLEEP,
                client_bulk,
                worker_bulk,
            ),
            Side::Worker => (
                responses,
                requests,
                WORKER_ASLEEP,
                CLIENT_ASLEEP,
                worker_bulk,
                client_bulk,
            ),
        };
        let arena = Arc::new(Arena::new(memory.clone(), own_bulk, geometry.bulk_bytes as usize));
        Self {
            in_process: transport == Transport::Inproc,
            geometry,
            mask: geometry.slots as usize - 1,
            stride: geometry.stride_bytes as usize,
            outgoing,
            incoming,
            own_asleep,
            peer_asleep,
            peer_never_sleeps,
            arena,
            peer_bulk,
            next_out: 1,
            next_in: 1,
            misses: 0,
            common_flags: 0,
            retaining: false,
            kept: (0..geometry.slots).map(|_| None).collect(),
            kept_count: 0,
            current: CurrentMessage::NONE,
            memory,
        }
    }

    #[inline(always)]
    fn slot(&self, ring: usize, sequence: u32) -> usize {
        ring + (sequence as usize & self.mask) * self.stride
    }

    /// Returns why the node closed the channel, if it did.
    pub fn end(&self) -> Option<End> {
        End::from_word(self.memory.word(CLOSED).load(Ordering::Acquire))
    }

    /// Starts numbering both directions after `sequence`, so that tests can cross the wrap. Both ends must do it.
    #[doc(hidden)]
    pub fn start_after(&mut self, sequence: u32) {
        self.next_out = sequence.wrapping_add(1);
        self.next_in = sequence.wrapping_add(1);
    }

    #[inline(always)]
    fn publish(&mut self, function: u16, set: u16, length: u32, deadline_ms: u32) -> u32 {
        let sequence = self.next_out;
        let slot = self.slot(self.outgoing, sequence);
        let set = set | self.common_flags;
        let set = if self.retaining { set | flags::RETAINED } else { set };
        self.retaining = false;
        let header = Header {
            sequence: 0,
            function,
            flags: set,
            length,
            deadline_ms,
        };
        // SAFETY: the slot lies inside the mapping and the peer does not read it before the sequence word below says
        // so. Everything but that word is written here.
        unsafe {
            std::ptr::copy_nonoverlapping(
                header.as_bytes()[4..].as_ptr(),
                self.memory.at(slot + 4),
                HEADER_BYTES - 4,
            );
        }
        ring::publish(self.memory.word(slot), sequence);
        self.next_out = sequence.wrapping_add(1);
        if !self.peer_never_sleeps {
            let asleep = self.memory.word(self.peer_asleep);
            if ring::must_wake(asleep) {
                futex::wake(asleep);
            }
        }
        sequence
    }

    /// Withdraws the other side's promise never to sleep: from now on it is woken when it does.
    pub fn wake_peer_from_now_on(&mut self) {
        self.peer_never_sleeps = false;
    }

    fn write_descriptor(&mut self, descriptor: Descriptor) {
        let slot = self.slot(self.outgoing, self.next_out);
        // SAFETY: every slot has room for a header and a descriptor; not yet published.
        unsafe {
            std::ptr::copy_nonoverlapping(
                descriptor.as_bytes().as_ptr(),
                self.memory.at(slot + HEADER_BYTES),
                DESCRIPTOR_BYTES,
            );
        }
    }

    /// Returns the offset of a payload in our region and the buffer to keep for it. Copies foreign memory into the
    /// region.
    fn place(&mut self, payload: Payload<'_>) -> Result<(u64, Option<Buffer>), LinkError> {
        match payload {
            Payload::Buffer(buffer, _) if let Some(offset) = buffer.offset_in(&self.arena) => Ok((offset, None)),
            Payload::Owned(buffer, _) if let Some(offset) = buffer.offset_in(&self.arena) => Ok((offset, Some(buffer))),
            other => {
                let bytes = other.as_slice();
                let mut buffer = self.allocate(bytes.len())?;
                buffer.as_mut_slice().copy_from_slice(bytes);
                Ok((buffer.offset_in(&self.arena).unwrap_or_default(), Some(buffer)))
            }
        }
    }
}

impl Link for MappedLink {
    fn transport(&self) -> Transport {
        if self.in_process {
            Transport::Inproc
        } else {
            Transport::Shm
        }
    }

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    #[inline(always)]
    fn compose(&mut self) -> &mut [u8] {
        let slot = self.slot(self.outgoing, self.next_out);
        // SAFETY: inside the mapping; the slot is ours until published, and `&mut self` is the only writer on this
        // side.
        unsafe { std::slice::from_raw_parts_mut(self.memory.at(slot + HEADER_BYTES), self.stride - HEADER_BYTES) }
    }

    #[inline(always)]
    fn post(&mut self, function: u16, deadline_ms: u32, length: usize) -> Result<u32, LinkError> {
        debug_assert!(length <= self.stride - HEADER_BYTES);
        Ok(self.publish(function, 0, length as u32, deadline_ms))
    }

    fn post_bulk(
        &mut self,
        function: u16,
        deadline_ms: u32,
        payload: Payload<'_>,
        room: Option<Room>,
    ) -> Result<u32, LinkError> {
        let length = payload.as_slice().len();
        let (offset, kept) = self.place(payload)?;
        let mut descriptor = Descriptor {
            offset,
            length: length as u64,
            ..Descriptor::default()
        };
        let mut set = flags::BULK;
        if let Some(Room {
            offset: Some(offset),
            length,
            ..
        }) = room
        {
            descriptor.room_offset = offset;
            descriptor.room_length = length as u64;
            set |= flags::ROOM;
        }
        if let Some(buffer) = kept {
            let slot = self.next_out as usize & self.mask;
            self.kept[slot] = Some(buffer);
            self.kept_count += 1;
        }
        self.write_descriptor(descriptor);
        Ok(self.publish(function, set, 0, deadline_ms))
    }

    fn post_lent(&mut self, function: u16, buffer: Buffer, length: usize) -> Result<u32, LinkError> {
        let Some(offset) = buffer.offset_in(&self.arena) else {
            return Err(LinkError::Malformed("a reply from foreign memory"));
        };
        self.write_descriptor(Descriptor {
            offset,
            length: length as u64,
            ..Descriptor::default()
        });
        buffer.lend();
        Ok(self.publish(function, flags::BULK, 0, 0))
    }

    fn post_in_room(&mut self, function: u16, length: usize) -> Result<u32, LinkError> {
        self.write_descriptor(Descriptor {
            length: length as u64,
            ..Descriptor::default()
        });
        Ok(self.publish(function, flags::IN_ROOM, 0, 0))
    }

    #[inline(always)]
    fn poll(&mut self) -> Result<Option<Meta>, LinkError> {
        let slot = self.slot(self.incoming, self.next_in);
        if ring::has_arrived(self.memory.word(slot), self.next_in) {
            let meta = self.read(slot);
            self.next_in = self.next_in.wrapping_add(1);
            return meta.map(Some);
        }
        self.misses = self.misses.wrapping_add(1);
        if self.misses.is_multiple_of(CLOSED_CHECK_EVERY)
            && let Some(end) = self.end()
        {
            return Err(LinkError::Ended(end));
        }
        Ok(None)
    }

    #[inline(always)]
    fn current(&mut self) -> Current<'_> {
        let compose = self.slot(self.outgoing, self.next_out) + HEADER_BYTES;
        let CurrentMessage {
            input,
            length,
            room,
            room_length,
            in_room,
            ..
        } = self.current;
        let length = if in_room { 0 } else { length };
        // SAFETY: every range was checked to lie in the mapping. Input, room and compose lie in the peer's ring or
        // region, the peer's region and our ring; input and room overlap only if the caller named one block for both,
        // whose bytes are plain data either way.
        unsafe {
            Current {
                input: std::slice::from_raw_parts(self.memory.at(input), length),
                room: (room != 0).then(|| std::slice::from_raw_parts_mut(self.memory.at(room), room_length)),
                room_length,
                compose: std::slice::from_raw_parts_mut(self.memory.at(compose), self.stride - HEADER_BYTES),
            }
        }
    }

    #[inline(always)]
    fn input(&self) -> &[u8] {
        let length = if self.current.in_room { 0 } else { self.current.length };
        // SAFETY: the range was checked to lie in the mapping when the message came.
        unsafe { std::slice::from_raw_parts(self.memory.at(self.current.input), length) }
    }

    #[inline(always)]
    fn arrived_in_room(&self) -> Option<usize> {
        self.current.in_room.then_some(self.current.length)
    }

    fn set_rejectable(&mut self, rejectable: bool) {
        self.common_flags = if rejectable { flags::REJECTABLE } else { 0 };
    }

    fn retain(&mut self) {
        self.retaining = true;
    }

    fn take(&mut self) -> Option<Received> {
        let CurrentMessage {
            input, length, bulk, ..
        } = self.current;
        bulk.then(|| {
            self.current.bulk = false;
            Received::Peer {
                memory: self.memory.clone(),
                offset: input,
                length,
            }
        })
    }

    #[inline(always)]
    fn done(&mut self) {
        if self.kept_count > 0 {
            let slot = self.next_in.wrapping_sub(1) as usize & self.mask;
            if let Some(buffer) = self.kept[slot].take() {
                self.kept_count -= 1;
                if self.current.retained {
                    buffer.lend();
                }
            }
        }
    }

    fn wait(&mut self, limit: Duration) -> Result<(), LinkError> {
        let slot = self.slot(self.incoming, self.next_in);
        let asleep = self.memory.word(self.own_asleep);
        if ring::fall_asleep(asleep, self.memory.word(slot), self.next_in) {
            // The node closes before it wakes, so checking here misses no end.
            if self.end().is_none() {
                futex::wait(asleep, 1, limit);
            }
            ring::wake_up(asleep);
        }
        match self.end() {
            // Deliver messages that arrived before the end.
            Some(end) if !ring::has_arrived(self.memory.word(slot), self.next_in) => Err(LinkError::Ended(end)),
            _ => Ok(()),
        }
    }

    fn allocate(&mut self, length: usize) -> Result<Buffer, LinkError> {
        self.arena.allocate(length).ok_or(LinkError::NoRoom {
            length,
            limit: self.geometry.bulk_bytes,
        })
    }

    fn room(&self, buffer: &mut Buffer) -> Room {
        Room {
            start: buffer.as_ptr(),
            offset: buffer.offset_in(&self.arena),
            length: buffer.len(),
            capacity: buffer.capacity(),
        }
    }

    fn allocator(&self) -> Allocator {
        Allocator {
            arena: Some(self.arena.clone()),
            limit: self.geometry.bulk_bytes,
        }
    }
}

/// Ends a channel: writes the reason and wakes both ends. Called by the node, which maps only the first page.
pub(crate) fn close(memory: &Mapping, end: End) {
    memory.word(CLOSED).store(end.to_word(), Ordering::Release);
    std::sync::atomic::fence(Ordering::SeqCst);
    for asleep in [WORKER_ASLEEP, CLIENT_ASLEEP] {
        memory.word(asleep).store(0, Ordering::Release);
        futex::wake(memory.word(asleep));
    }
}

/// The word on which one end of a channel sleeps. Dropping it withdraws the announcement.
#[derive(Debug)]
pub struct MappedSleeper {
    memory: Arc<Mapping>,
    asleep: usize,
}

impl MappedSleeper {
    pub(crate) fn word(&self) -> &std::sync::atomic::AtomicU32 {
        self.memory.word(self.asleep)
    }
}

impl Drop for MappedSleeper {
    fn drop(&mut self) {
        ring::wake_up(self.word());
    }
}

impl MappedLink {
    pub(crate) fn is_home_of(&self, buffer: &Buffer) -> bool {
        buffer.offset_in(&self.arena).is_some()
    }

    pub(crate) fn prepare_sleep(&mut self) -> Option<MappedSleeper> {
        let slot = self.slot(self.incoming, self.next_in);
        let asleep = self.memory.word(self.own_asleep);
        if !ring::fall_asleep(asleep, self.memory.word(slot), self.next_in) {
            return None;
        }
        let sleeper = MappedSleeper {
            memory: self.memory.clone(),
            asleep: self.own_asleep,
        };
        // Make the next poll find the end at once instead of after the usual number of misses.
        if self.end().is_some() {
            self.misses = CLOSED_CHECK_EVERY - 1;
            return None;
        }
        Some(sleeper)
    }
}
