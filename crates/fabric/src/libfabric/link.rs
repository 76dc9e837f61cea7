//! The link over remote memory: each end writes its messages into a ring that the other end has registered.
//!
//! A small message is one write of its slot. A large one is a write of its payload into memory that the receiver has
//! granted, and a write of its slot. The writes may arrive in either order, and the message is complete when both have
//! arrived. Receivers grant in advance as much memory as they saw used, so most large messages need not wait. A message
//! without granted memory sends its slot first, which asks for a grant. Sending never blocks: writes that the provider
//! or the peer does not take yet are sent as the link is polled.
//!
//! Layout of an end's memory:
//!
//! ```text
//! 0      ring that the peer writes, table of grants that the peer writes
//! then   the same, for composing what is written to the peer
//! then   region for what is sent, region for what is received: blocks, each registered when it is first used
//! ```

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dayfly_protocol::fabric::{GRANT_BYTES, LOCATION_BYTES, PayloadLocation, max_grants};
use dayfly_protocol::slot::{Geometry, HEADER_BYTES, Header, flags};
use rustix::event::{PollFd, PollFlags};
use zerocopy::IntoBytes;

use super::choice::Choice;
use super::ffi::{Context, Endpoint, Entry, Region, Target};
use super::landing::{Arrival, Landings, Now};
use super::opening::remove_name;
use super::registration::Registered;
use super::sending::{Item, Large};
use super::{Control, FabricError};
use crate::memory::{Buffer, Mapping, Received};
use crate::stream::wire;
use crate::{Allocator, Current, Link, LinkError, Meta, Payload, Room, Transport};

/// Pause between two checks for the peer's greeting. Connecting takes tens of these.
pub(super) const GREETING_NAP: Duration = Duration::from_micros(20);
/// Time limit for the greeting. Both ends are already open, and connecting takes milliseconds.
pub(super) const GREETING_LIMIT: Duration = Duration::from_secs(3);
/// Most completions taken at a time.
const AT_A_TIME: usize = 16;
/// A poller checks the control connection after every 1024 misses, about 0.3 ms.
pub(super) const LOOK_EVERY: u32 = 1024;
/// First pause of a waiter whose provider has nothing to block on. Pauses double up to [`LONGEST_NAP`].
const SHORTEST_NAP: Duration = Duration::from_micros(50);
/// Longest such pause, which bounds the added latency.
pub(crate) const LONGEST_NAP: Duration = Duration::from_millis(1);
/// A sender that sees no progress for this long leaves the rest to later polls.
const PATIENCE: Duration = Duration::from_micros(200);
/// How long to wait for messages that the peer sent before it closed.
pub(super) const AFTERMATH: Duration = Duration::from_millis(20);
/// Time limit for sending the last messages of a closed link.
const LINGER: Duration = Duration::from_millis(100);

/// Offsets in an end's memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    geometry: Geometry,
}

impl Layout {
    pub fn new(geometry: Geometry) -> Self {
        Self { geometry }
    }
    fn shared(self) -> usize {
        (self.geometry.ring_bytes() + max_grants(self.geometry.slots) * GRANT_BYTES).next_multiple_of(4096)
    }
    fn bulk(self) -> usize {
        self.geometry.bulk_bytes as usize
    }
    pub fn bytes(self) -> usize {
        2 * self.shared() + 2 * self.bulk()
    }
    /// The area that the peer writes: offset and length.
    pub fn ring(self) -> (usize, usize) {
        (0, self.shared())
    }
    /// The area for composing writes to the peer's ring: offset and length.
    pub fn staging(self) -> (usize, usize) {
        (self.shared(), self.shared())
    }
    pub fn outgoing(self) -> (usize, usize) {
        (2 * self.shared(), self.bulk())
    }
    pub fn incoming(self) -> (usize, usize) {
        (2 * self.shared() + self.bulk(), self.bulk())
    }
    /// Offset of a slot in its ring.
    pub fn slot(self, sequence: u32) -> usize {
        self.index(sequence) * self.geometry.stride_bytes as usize
    }
    /// Offset of a grant in the area of its ring.
    pub fn grant(self, id: usize) -> usize {
        self.geometry.ring_bytes() + id * GRANT_BYTES
    }
    pub fn index(self, sequence: u32) -> usize {
        sequence as usize & (self.geometry.slots as usize - 1)
    }
}

/// One end of a channel over libfabric. Fields are dropped in this order: registrations before the endpoint, and the
/// endpoint before the memory.
pub struct FabricLink {
    /// Registrations of the ring and of the staging area.
    pub(super) fixed: [Region; 2],
    pub(super) outgoing: Registered,
    pub(super) incoming: Registered,
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
    entries: [Entry; AT_A_TIME],
    pub(super) arrivals: Box<[Arrival]>,
    pub(super) landings: Landings,
    /// Large messages that have not been sent completely.
    pub(super) large: Box<[Option<Large>]>,
    pub(super) unsent: VecDeque<Item>,
    /// Memory that the peer granted in advance.
    pub(super) grants: Vec<(u32, dayfly_protocol::fabric::MemoryGrant)>,
    /// Rooms for the replies to our own requests, by slot.
    pub(super) rooms: Box<[Option<Room>]>,
    pub(super) current: Now,
    /// Whether the peer's greeting has arrived.
    pub(super) greeted: bool,
    /// Flags of every message that is sent.
    marks: u16,
    next_out: u32,
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
    pub(super) fn over(parts: super::opening::Parts, peer: Target, largest_write: usize) -> Self {
        let super::opening::Parts {
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
            outgoing: Registered::new(&memory, outgoing.0, outgoing.1),
            incoming: Registered::new(&memory, incoming.0, incoming.1),
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
            entries: [Entry::EMPTY; AT_A_TIME],
            arrivals: (0..slots).map(|_| Arrival::default()).collect(),
            landings: Landings::new(geometry),
            large: (0..slots).map(|_| None).collect(),
            unsent: VecDeque::new(),
            grants: Vec::new(),
            rooms: (0..slots).map(|_| None).collect(),
            current: Now::default(),
            greeted: false,
            marks: 0,
            next_out: 1,
            next_in: 1,
            misses: 0,
        }
    }

    /// Waits until both ends have received a write, so that an unconnected fabric is reported now instead of by a later
    /// hang.
    pub(super) fn greet(mut self) -> Result<Self, LinkError> {
        let until = Instant::now() + GREETING_LIMIT;
        self.send(Item::Greeting)?;
        while !self.greeted || !self.unsent.is_empty() {
            self.progress()?;
            if self.control.wait(None, GREETING_NAP).is_err() {
                return Err(LinkError::PeerGone);
            }
            if Instant::now() >= until {
                return Err(LinkError::Refused(format!(
                    "the two ends of the channel do not reach each other over {}; use another provider or domain, or another \
                     transport",
                    self.transport()
                )));
            }
        }
        remove_name(&self.endpoint);
        Ok(self)
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

    fn composed(&mut self) -> &mut [u8] {
        let slot = self.staged_slot(self.next_out) + HEADER_BYTES;
        // SAFETY: inside the mapping; the slot is ours until the peer has responded, and `&mut self` is its only
        // writer.
        unsafe { std::slice::from_raw_parts_mut(self.memory.at(slot), self.geometry.inline_bytes()) }
    }

    /// Sends the composed slot.
    #[inline]
    fn publish(&mut self, function: u16, set: u16, length: usize, deadline_ms: u32) -> Result<u32, LinkError> {
        let sequence = self.next_out;
        let header = Header {
            sequence,
            function,
            flags: set | self.marks,
            length: length as u32,
            deadline_ms,
        };
        let slot = self.staged_slot(sequence);
        // SAFETY: inside the mapping, and ours until sent.
        unsafe { std::ptr::copy_nonoverlapping(header.as_bytes().as_ptr(), self.memory.at(slot), HEADER_BYTES) };
        self.next_out = sequence.wrapping_add(1);
        let placed = if set & flags::DESCRIBED != 0 { LOCATION_BYTES } else { 0 };
        self.send(Item::Slot(sequence, HEADER_BYTES + placed + length))?;
        Ok(sequence)
    }

    fn place(&mut self, location: PayloadLocation) {
        self.composed()[..LOCATION_BYTES].copy_from_slice(location.as_bytes());
    }

    /// Sends a payload and its slot. The slot goes first if it must ask for memory.
    fn post_large(
        &mut self,
        function: u16,
        deadline_ms: u32,
        large: Large,
        mut location: PayloadLocation,
        set: u16,
    ) -> Result<u32, LinkError> {
        let (sequence, empty) = (self.next_out, large.length() == 0);
        if large.target.is_none() && !empty {
            location.grant = dayfly_protocol::fabric::NO_GRANT;
        }
        let sends = large.target.is_some() && !empty;
        self.place(location);
        if !empty {
            let index = self.layout.index(sequence);
            self.settle(index)?;
            self.large[index] = Some(large);
        }
        if sends {
            self.send(Item::Part(sequence))?;
        }
        let sequence = self.publish(function, set, 0, deadline_ms)?;
        self.push_out(PATIENCE)?;
        Ok(sequence)
    }

    /// Processes completions. Returns whether there were any.
    #[inline]
    fn progress(&mut self) -> Result<bool, LinkError> {
        let read = self.endpoint.read(&mut self.entries);
        self.took(read)
    }

    #[inline]
    fn took(&mut self, read: Result<usize, FabricError>) -> Result<bool, LinkError> {
        let count = match read {
            Ok(count) => count,
            Err(error) => return Err(self.broken(error)),
        };
        for at in 0..count {
            let entry = self.entries[at];
            self.completed(entry)?;
        }
        if !self.unsent.is_empty() {
            self.flush()?;
        }
        Ok(count > 0)
    }

    /// Drives the provider until everything has been sent, or there was no progress for `patience`.
    fn push_out(&mut self, patience: Duration) -> Result<(), LinkError> {
        let mut since = Instant::now();
        loop {
            let under_way: usize = self.large.iter().flatten().map(Large::under_way).sum();
            if self.unsent.is_empty() && under_way == 0 {
                return Ok(());
            }
            if self.progress()? {
                since = Instant::now();
            }
            // A large write shows no progress before it completes: allow 2 ns for each byte, 500 MB/s.
            if since.elapsed() > patience + Duration::from_nanos(2 * under_way as u64) {
                return Ok(());
            }
        }
    }

    /// Waits until the last large message in this slot has been sent. The peer has responded to it, so it is about to
    /// be.
    fn settle(&mut self, index: usize) -> Result<(), LinkError> {
        let until = Instant::now() + LINGER;
        while self.large[index].as_ref().is_some_and(|large| large.target.is_some()) {
            self.progress()?;
            if Instant::now() >= until {
                return Err(LinkError::Violation("a message was answered that had not left".into()));
            }
        }
        Ok(())
    }

    /// Interprets an error of libfabric. Usually the peer has closed, which the control connection reports.
    #[cold]
    pub(super) fn broken(&mut self, error: FabricError) -> LinkError {
        if self.control.wait(None, AFTERMATH).is_err() {
            return LinkError::PeerGone;
        }
        LinkError::Io(std::io::Error::other(error))
    }

    #[inline]
    fn deliver(&mut self) -> Option<Result<Meta, LinkError>> {
        let index = self.layout.index(self.next_in);
        let arrival = &self.arrivals[index];
        if !arrival.is_complete() {
            return None;
        }
        let slot = self.incoming_slot(self.next_in);
        let arrival = std::mem::take(&mut self.arrivals[index]);
        let meta = Meta {
            sequence: self.next_in,
            function: arrival.header.function,
            deadline_ms: arrival.header.deadline_ms,
            rejectable: arrival.header.flags & flags::REJECTABLE != 0,
        };
        self.next_in = self.next_in.wrapping_add(1);
        self.current = Now::of(&arrival, slot + HEADER_BYTES);
        self.rooms[index] = None;
        Some(match arrival.wrong {
            None => Ok(meta),
            Some(why) => {
                self.renew();
                Err(LinkError::Malformed(why))
            }
        })
    }

    /// Checks whether the peer is still connected, after repeated misses or before waiting.
    #[cold]
    fn look_around(&mut self) -> Result<(), LinkError> {
        if self.control.wait(None, Duration::ZERO).is_ok() {
            return Ok(());
        }
        // Messages that it sent before it closed may still arrive.
        let since = Instant::now();
        while since.elapsed() < AFTERMATH {
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
        let lying = self.lay_down(payload)?;
        let length = lying.length;
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
        let large = Large::new(self.next_out, lying, target);
        self.post_large(function, deadline_ms, large, location, set)
    }

    fn post_lent(&mut self, function: u16, buffer: Buffer, length: usize) -> Result<u32, LinkError> {
        if buffer.offset_in(&self.outgoing.arena).is_none() {
            return Err(LinkError::Malformed("a reply from foreign memory"));
        }
        let lying = self.lying(&buffer, length).keeping(buffer);
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
        let large = Large::new(self.next_out, lying, target);
        self.post_large(function, 0, large, location, set)
    }

    fn post_in_room(&mut self, _function: u16, _length: usize) -> Result<u32, LinkError> {
        Err(LinkError::Malformed(
            "remote memory is no room to write a reply in place",
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
        if self.misses.is_multiple_of(LOOK_EVERY) {
            self.look_around()?;
        }
        Ok(None)
    }

    #[inline]
    fn current(&mut self) -> Current<'_> {
        let compose = self.staged_slot(self.next_out) + HEADER_BYTES;
        let (input, length) = self.current.input(&self.landings, &self.memory);
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
        let (input, length) = self.current.input(&self.landings, &self.memory);
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(input, length) }
    }

    #[inline]
    fn arrived_in_room(&self) -> Option<usize> {
        self.current.in_room
    }

    fn set_rejectable(&mut self, rejectable: bool) {
        self.marks = if rejectable { flags::REJECTABLE } else { 0 };
    }

    /// A payload that was taken already belongs to the receiver.
    fn retain(&mut self) {}

    fn take(&mut self) -> Option<Received> {
        let length = self.current.length;
        let mut buffer = self.landings.take(self.current.landing?)?;
        buffer.resize(length);
        Some(Received::Own(buffer))
    }

    #[inline]
    fn done(&mut self) {
        if self.current.landing.is_some() {
            self.renew();
        }
        self.current = Now::default();
    }

    fn wait(&mut self, limit: Duration) -> Result<(), LinkError> {
        let until = Instant::now() + limit;
        let mut nap = SHORTEST_NAP;
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
                None => (nap.min(left), true),
            };
            nap = (2 * nap).min(LONGEST_NAP);
            if !may_sleep {
                continue;
            }
            match self.control.wait(queue.as_deref(), rest) {
                // The descriptor is readable. If nothing arrived, the event is an old one.
                Ok(true) if !self.progress()? => {
                    let read = self.endpoint.read_slowly(&mut self.entries);
                    self.took(read)?;
                }
                Ok(_) => {}
                Err(_) => return self.look_around(),
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
            let _ = self.push_out(LINGER);
        }
    }
}

/// The descriptors that a waiter for several links blocks on.
#[derive(Debug)]
pub struct FabricSleeper {
    pub(crate) queue: Option<Arc<OwnedFd>>,
    pub(crate) control: Arc<OwnedFd>,
}

impl FabricLink {
    pub(crate) fn prepare_sleep(&mut self) -> Option<FabricSleeper> {
        // An error stays pending, and the next poll returns it.
        let quiet = !matches!(self.progress(), Ok(true) | Err(_)) && self.unsent.is_empty();
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

impl Control {
    /// Blocks until the connection or the descriptor `beside` is readable, or `limit` has passed. Returns whether the
    /// descriptor is readable, and an error once the peer has closed.
    pub(super) fn wait(&mut self, beside: Option<&OwnedFd>, limit: Duration) -> std::io::Result<bool> {
        let socket = self.socket().clone();
        let mut waiting = vec![PollFd::new(&socket, PollFlags::IN | PollFlags::RDHUP)];
        waiting.extend(beside.map(|queue| PollFd::new(queue, PollFlags::IN)));
        wire::poll(&mut waiting, limit)?;
        let news = waiting.get(1).is_some_and(|queue| !queue.revents().is_empty());
        if !waiting[0].revents().is_empty() {
            self.listen()?;
        }
        Ok(news)
    }
}
