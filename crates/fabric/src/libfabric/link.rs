//! The link over remote memory: each end writes its messages into a ring that the other end has registered.
//!
//! A small message is one write of its slot. A large one is a write of its payload into memory that the receiver has
//! granted, and a write of its slot. The writes may arrive in either order, and the message is complete when both have
//! arrived. Receivers grant in advance as much memory as they saw used, so most large messages need not wait. A message
//! without granted memory sends its slot first, which asks for a grant. Sending never blocks: writes that the provider
//! or the peer does not take yet are sent as the link is polled.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dayfly_protocol::fabric::{LOCATION_BYTES, PayloadLocation, max_grants};
use dayfly_protocol::slot::{Geometry, HEADER_BYTES, Header, flags};
use zerocopy::IntoBytes;

use super::choice::Choice;
use super::ffi::{Context, Endpoint, Entry, Region, Target};
use super::layout::Layout;
use super::receive::{Arrival, CurrentMessage, GrantTable};
use super::registration::RegisteredArena;
use super::send_queue::{LargeMessage, Write};
use super::{Control, FabricError, FabricSleeper};
use crate::memory::{Buffer, Mapping, Received};
use crate::{Allocator, Current, Link, LinkError, Meta, Payload, Room, Transport};

/// Most completions taken at a time.
const COMPLETION_BATCH: usize = 16;
/// A poller checks the control connection after every 1024 misses, about 0.3 ms.
pub(super) const CONTROL_CHECK_EVERY: u32 = 1024;
/// First pause of a waiter whose provider has nothing to block on. Pauses double up to [`MAX_PAUSE`].
const MIN_PAUSE: Duration = Duration::from_micros(50);
/// Longest such pause, which bounds the added latency.
pub(crate) const MAX_PAUSE: Duration = Duration::from_millis(1);
/// A sender that sees no progress for this long leaves the rest to later polls.
pub(super) const STALL_LIMIT: Duration = Duration::from_micros(200);
/// How long to wait for messages that the peer sent before it closed.
pub(super) const LAST_MESSAGES_LIMIT: Duration = Duration::from_millis(20);
/// Time limit for sending the last messages of a closed link.
pub(super) const CLOSE_LIMIT: Duration = Duration::from_millis(100);

/// One end of a channel over libfabric. Fields are dropped in this order: registrations before the endpoint, and the
/// endpoint before the memory.
pub struct FabricLink {
    /// Registrations of the ring and of the staging area.
    pub(super) fixed: [Region; 2],
    pub(super) outgoing: RegisteredArena,
    pub(super) incoming: RegisteredArena,
    pub(super) endpoint: Endpoint,
    pub(super) memory: Arc<Mapping>,
    pub(super) layout: Layout,
    pub(super) geometry: Geometry,
    choice: Choice,
    pub(super) control: Control,
    /// The peer's writable area, and most bytes of one write to it.
    pub(super) peer: Target,
    pub(super) largest_write: usize,
    pub(super) largest_inject: usize,
    /// Contexts of writes of slots and grants, then those of parts, by slot.
    pub(super) contexts: Box<[Context]>,
    entries: [Entry; COMPLETION_BATCH],
    pub(super) arrivals: Box<[Arrival]>,
    pub(super) granted: GrantTable,
    /// Large messages that have not been sent completely.
    pub(super) large: Box<[Option<LargeMessage>]>,
    pub(super) send_queue: VecDeque<Write>,
    /// Memory that the peer granted in advance.
    pub(super) grants: Vec<(u32, dayfly_protocol::fabric::MemoryGrant)>,
    /// Rooms for the replies to our own requests, by slot.
    pub(super) rooms: Box<[Option<Room>]>,
    pub(super) current: CurrentMessage,
    /// Whether the peer's greeting has arrived.
    pub(super) greeted: bool,
    /// Flags of every message that is sent.
    common_flags: u16,
    pub(super) next_out: u32,
    pub(super) next_in: u32,
    misses: u32,
}

impl std::fmt::Debug for FabricLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "FabricLink({}, next {} out, {} in)",
            self.choice, self.next_out, self.next_in
        )
    }
}

impl FabricLink {
    /// Assembles a link from an endpoint that knows its peer.
    pub(super) fn over(parts: super::handshake::Parts, peer: Target, largest_write: usize) -> Self {
        let super::handshake::Parts {
            fixed,
            endpoint,
            memory,
            geometry,
            choice,
            control,
        } = parts;
        let layout = Layout::new(geometry);
        let slots = geometry.slots as usize;
        let contexts = 2 * slots + max_grants(geometry.slots);
        let (outgoing, incoming) = (layout.outgoing(), layout.incoming());
        Self {
            fixed,
            outgoing: RegisteredArena::new(&memory, outgoing.0, outgoing.1),
            incoming: RegisteredArena::new(&memory, incoming.0, incoming.1),
            largest_inject: endpoint.provider().largest_inject(),
            endpoint,
            memory,
            layout,
            geometry,
            choice,
            control,
            peer,
            largest_write,
            contexts: (0..contexts).map(|_| Context([0; 8])).collect(),
            entries: [Entry::EMPTY; COMPLETION_BATCH],
            arrivals: (0..slots).map(|_| Arrival::default()).collect(),
            granted: GrantTable::new(geometry),
            large: (0..slots).map(|_| None).collect(),
            send_queue: VecDeque::new(),
            grants: Vec::new(),
            rooms: (0..slots).map(|_| None).collect(),
            current: CurrentMessage::default(),
            greeted: false,
            common_flags: 0,
            next_out: 1,
            next_in: 1,
            misses: 0,
        }
    }

    /// Starts numbering both directions after `sequence`, so that tests can cross the wrap. Both ends must do it.
    #[doc(hidden)]
    pub fn start_after(&mut self, sequence: u32) {
        self.next_out = sequence.wrapping_add(1);
        self.next_in = sequence.wrapping_add(1);
    }

    /// Number of registered blocks of large messages, in both directions.
    #[doc(hidden)]
    pub fn registered_blocks(&self) -> usize {
        self.outgoing.count() + self.incoming.count()
    }

    /// Whether waiting blocks on a descriptor instead of pausing repeatedly.
    pub fn blocks(&self) -> bool {
        self.endpoint.wait_descriptor().is_some()
    }

    pub(crate) fn is_home_of(&self, buffer: &Buffer) -> bool {
        buffer.offset_in(&self.outgoing.arena).is_some()
    }

    /// Returns the control connection, for a caller that must end the link from another thread.
    pub fn socket(&self) -> &Arc<OwnedFd> {
        self.control.socket()
    }

    /// Returns the first byte of a slot in the incoming ring.
    pub(super) fn incoming_slot(&self, sequence: u32) -> usize {
        self.layout.ring().0 + self.layout.slot(sequence)
    }

    /// Returns the first byte of a slot in the staging area.
    pub(super) fn staged_slot(&self, sequence: u32) -> usize {
        self.layout.staging().0 + self.layout.slot(sequence)
    }

    pub(super) fn composed(&mut self) -> &mut [u8] {
        let slot = self.staged_slot(self.next_out) + HEADER_BYTES;
        // SAFETY: inside the mapping; the slot is ours until the peer has responded, and `&mut self` is its only
        // writer.
        unsafe { std::slice::from_raw_parts_mut(self.memory.at(slot), self.geometry.inline_bytes()) }
    }

    /// Sends the composed slot.
    #[inline]
    pub(super) fn publish(
        &mut self,
        function: u16,
        set: u16,
        length: usize,
        deadline_ms: u32,
    ) -> Result<u32, LinkError> {
        let sequence = self.next_out;
        let header = Header {
            sequence,
            function,
            flags: set | self.common_flags,
            length: length as u32,
            deadline_ms,
        };
        let slot = self.staged_slot(sequence);
        // SAFETY: inside the mapping, and ours until sent.
        unsafe { std::ptr::copy_nonoverlapping(header.as_bytes().as_ptr(), self.memory.at(slot), HEADER_BYTES) };
        self.next_out = sequence.wrapping_add(1);
        let placed = if set & flags::DESCRIBED != 0 { LOCATION_BYTES } else { 0 };
        self.send(Write::Slot(sequence, HEADER_BYTES + placed + length))?;
        Ok(sequence)
    }

    pub(super) fn place(&mut self, location: PayloadLocation) {
        self.composed()[..LOCATION_BYTES].copy_from_slice(location.as_bytes());
    }

    /// Processes completions. Returns whether there were any.
    #[inline]
    pub(super) fn progress(&mut self) -> Result<bool, LinkError> {
        let read = self.endpoint.read(&mut self.entries);
        self.process(read)
    }

    #[inline]
    fn process(&mut self, read: Result<usize, FabricError>) -> Result<bool, LinkError> {
        let count = match read {
            Ok(count) => count,
            Err(error) => return Err(self.interpret_error(error)),
        };
        for at in 0..count {
            let entry = self.entries[at];
            self.completed(entry)?;
        }
        if !self.send_queue.is_empty() {
            self.flush()?;
        }
        Ok(count > 0)
    }

    /// Interprets an error of libfabric. Usually the peer has closed, which the control connection reports.
    #[cold]
    pub(super) fn interpret_error(&mut self, error: FabricError) -> LinkError {
        if self.control.wait(None, LAST_MESSAGES_LIMIT).is_err() {
            return LinkError::PeerGone;
        }
        LinkError::Io(std::io::Error::other(error))
    }

    /// Checks whether the peer is still connected, after repeated misses or before waiting.
    #[cold]
    fn check_control(&mut self) -> Result<(), LinkError> {
        if self.control.wait(None, Duration::ZERO).is_ok() {
            return Ok(());
        }
        // Messages that it sent before it closed may still arrive.
        let since = Instant::now();
        while since.elapsed() < LAST_MESSAGES_LIMIT {
            self.progress()?;
            if self.arrivals[self.layout.index(self.next_in)].is_complete() {
                return Ok(());
            }
        }
        Err(LinkError::PeerGone)
    }
}

impl Link for FabricLink {
    fn transport(&self) -> Transport {
        Transport::Libfabric(self.choice)
    }

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    #[inline]
    fn compose(&mut self) -> &mut [u8] {
        self.composed()
    }

    #[inline]
    fn post(&mut self, function: u16, deadline_ms: u32, length: usize) -> Result<u32, LinkError> {
        self.publish(function, 0, length.min(self.geometry.inline_bytes()), deadline_ms)
    }

    fn post_bulk(
        &mut self,
        function: u16,
        deadline_ms: u32,
        payload: Payload<'_>,
        room: Option<Room>,
    ) -> Result<u32, LinkError> {
        let source = self.place_payload(payload)?;
        let length = source.length;
        let mut location = PayloadLocation {
            length: length as u64,
            ..PayloadLocation::default()
        };
        let mut set = flags::BULK;
        if let Some(room) = room {
            set |= flags::ROOM;
            location.room_length = room.length as u64;
            if let Some(target) = self.offer(&room)? {
                (location.room_address, location.room_key) = (target.address, target.key);
            }
            let index = self.layout.index(self.next_out);
            self.rooms[index] = Some(room);
        }
        let grant = self.take_grant(length);
        if let Some((id, _)) = grant {
            location.grant = id;
        }
        let target = grant.map(|(_, target)| target);
        let large = LargeMessage::new(self.next_out, source, target);
        self.post_large(function, deadline_ms, large, location, set)
    }

    fn post_lent(&mut self, function: u16, buffer: Buffer, length: usize) -> Result<u32, LinkError> {
        if buffer.offset_in(&self.outgoing.arena).is_none() {
            return Err(LinkError::Malformed("a reply from foreign memory"));
        }
        let source = self.source_of(&buffer, length).with_buffer(buffer);
        let mut location = PayloadLocation {
            length: length as u64,
            ..PayloadLocation::default()
        };
        // A reply that fits into the room that its request named is written directly into it.
        let room = self.current.room.filter(|(_, room)| length <= *room);
        let (set, target) = match room {
            Some((target, _)) => (flags::IN_ROOM, Some(target)),
            None => {
                let grant = self.take_grant(length);
                location.grant = grant.map_or(0, |(id, _)| id);
                (flags::BULK, grant.map(|(_, target)| target))
            }
        };
        let large = LargeMessage::new(self.next_out, source, target);
        self.post_large(function, 0, large, location, set)
    }

    fn post_in_room(&mut self, _function: u16, _length: usize) -> Result<u32, LinkError> {
        Err(LinkError::Malformed(
            "a reply cannot be written in place over remote memory",
        ))
    }

    #[inline]
    fn poll(&mut self) -> Result<Option<Meta>, LinkError> {
        if let Some(meta) = self.deliver() {
            return meta.map(Some);
        }
        if self.progress()?
            && let Some(meta) = self.deliver()
        {
            return meta.map(Some);
        }
        self.misses = self.misses.wrapping_add(1);
        if self.misses.is_multiple_of(CONTROL_CHECK_EVERY) {
            self.check_control()?;
        }
        Ok(None)
    }

    #[inline]
    fn current(&mut self) -> Current<'_> {
        let compose = self.staged_slot(self.next_out) + HEADER_BYTES;
        let (input, length) = self.current.input(&self.granted, &self.memory);
        // SAFETY: both ranges were checked to lie in the mapping when the message came; the peer's ring and regions and
        // our staging area do not overlap.
        unsafe {
            Current {
                input: std::slice::from_raw_parts(input, length),
                room: None,
                room_length: self.current.room_length,
                compose: std::slice::from_raw_parts_mut(self.memory.at(compose), self.geometry.inline_bytes()),
            }
        }
    }

    #[inline]
    fn input(&self) -> &[u8] {
        let (input, length) = self.current.input(&self.granted, &self.memory);
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(input, length) }
    }

    #[inline]
    fn arrived_in_room(&self) -> Option<usize> {
        self.current.in_room
    }

    fn set_rejectable(&mut self, rejectable: bool) {
        self.common_flags = if rejectable { flags::REJECTABLE } else { 0 };
    }

    /// A payload that was taken already belongs to the receiver.
    fn retain(&mut self) {}

    fn take(&mut self) -> Option<Received> {
        let length = self.current.length;
        let mut buffer = self.granted.take(self.current.grant?)?;
        buffer.resize(length);
        Some(Received::Own(buffer))
    }

    #[inline]
    fn done(&mut self) {
        if self.current.grant.is_some() {
            self.regrant();
        }
        self.current = CurrentMessage::default();
    }

    fn wait(&mut self, limit: Duration) -> Result<(), LinkError> {
        let until = Instant::now() + limit;
        let mut pause = MIN_PAUSE;
        loop {
            self.progress()?;
            if self.arrivals[self.layout.index(self.next_in)].is_complete() {
                return Ok(());
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            let queue = self.endpoint.wait_descriptor().cloned();
            let (rest, may_sleep) = match &queue {
                Some(_) => (left, self.endpoint.may_sleep()),
                None => (pause.min(left), true),
            };
            pause = (2 * pause).min(MAX_PAUSE);
            if !may_sleep {
                continue;
            }
            match self.control.wait(queue.as_deref(), rest) {
                // The descriptor is readable. If nothing arrived, the event is an old one.
                Ok(true) if !self.progress()? => {
                    let read = self.endpoint.read_slowly(&mut self.entries);
                    self.process(read)?;
                }
                Ok(_) => {}
                Err(_) => return self.check_control(),
            }
        }
    }

    fn allocate(&mut self, length: usize) -> Result<Buffer, LinkError> {
        self.outgoing.arena.allocate(length).ok_or(LinkError::NoRoom {
            length,
            limit: self.geometry.bulk_bytes,
        })
    }

    fn room(&self, buffer: &mut Buffer) -> Room {
        Room {
            start: buffer.as_ptr(),
            offset: buffer.offset_in(&self.outgoing.arena),
            length: buffer.len(),
            capacity: buffer.capacity(),
        }
    }

    fn allocator(&self) -> Allocator {
        Allocator {
            arena: Some(self.outgoing.arena.clone()),
            limit: self.geometry.bulk_bytes,
        }
    }
}

impl Drop for FabricLink {
    fn drop(&mut self) {
        // Send a queued reply even if the link is dropped.
        if self.control.wait(None, Duration::ZERO).is_ok() {
            let _ = self.drive_sends(CLOSE_LIMIT);
        }
    }
}

impl FabricLink {
    pub(crate) fn prepare_sleep(&mut self) -> Option<FabricSleeper> {
        // An error stays pending, and the next poll returns it.
        let quiet = !matches!(self.progress(), Ok(true) | Err(_)) && self.send_queue.is_empty();
        let complete = self.arrivals[self.layout.index(self.next_in)].is_complete();
        let queue = self.endpoint.wait_descriptor().cloned();
        let may_sleep = queue.is_none() || self.endpoint.may_sleep();
        // A descriptor with an old event is not used for sleeping; the waiter pauses instead.
        let stale = matches!(self.control.wait(queue.as_deref(), Duration::ZERO), Ok(true));
        (quiet && !complete && may_sleep).then(|| FabricSleeper {
            queue: queue.filter(|_| !stale),
            control: self.control.socket().clone(),
        })
    }
}
