//! The receiving part of [`FabricLink`]: incoming slots, parts of large payloads and grants, and the memory that large
//! payloads are written to.

use dayfly_protocol::fabric::{
    GRANT_BYTES, LOCATION_BYTES, MemoryGrant, NO_GRANT, PayloadLocation, max_grants, notice,
};
use dayfly_protocol::slot::{Geometry, HEADER_BYTES, Header, flags};
use zerocopy::{FromBytes, IntoBytes};

use super::ffi::{Entry, Target, is_from_peer};
use super::link::FabricLink;
use super::send_queue::{Write, parts};
use crate::memory::{Buffer, Mapping};
use crate::{LinkError, Meta};

/// Most bytes granted in advance, further limited to a quarter of the bulk region: 64 MiB, as much as an arena retains.
const MAX_IN_ADVANCE: usize = 64 << 20;

/// State of a message that has not been delivered.
#[derive(Default)]
pub(super) struct Arrival {
    /// Whether its slot has arrived. `header` is the only copy of its header.
    has_slot: bool,
    pub header: Header,
    location: PayloadLocation,
    /// Id of the memory for its payload.
    grant: Option<usize>,
    /// Number of parts that have arrived, and number expected.
    parts: u32,
    expected_parts: u32,
    /// Why the message is malformed, if it is.
    pub wrong: Option<&'static str>,
}

impl Arrival {
    #[inline]
    pub fn is_complete(&self) -> bool {
        self.has_slot && self.parts >= self.expected_parts
    }
}

/// The message that was delivered last.
#[derive(Default)]
pub(super) struct CurrentMessage {
    /// Offset of its inline payload in the ring.
    inline: usize,
    pub length: usize,
    pub grant: Option<usize>,
    pub in_room: Option<usize>,
    /// Where its reply may be written, and the reply's largest length.
    pub room: Option<(Target, usize)>,
    pub room_length: usize,
}

impl CurrentMessage {
    #[inline]
    pub fn of(arrival: &Arrival, inline: usize) -> Self {
        let header = &arrival.header;
        if header.flags & flags::DESCRIBED == 0 {
            return Self {
                inline,
                length: header.length as usize,
                grant: None,
                in_room: None,
                room: None,
                room_length: 0,
            };
        }
        let location = &arrival.location;
        let (length, room) = (location.length as usize, location.room_length as usize);
        let target = Target {
            address: location.room_address,
            key: location.room_key,
        };
        let is_room = header.flags & flags::IN_ROOM != 0;
        Self {
            inline,
            length: if arrival.grant.is_some() { length } else { 0 },
            grant: arrival.grant,
            in_room: is_room.then_some(length),
            room: (target != Target::default() && room > 0).then_some((target, room)),
            room_length: room,
        }
    }

    /// Returns start and length of its payload.
    #[inline]
    pub fn input(&self, granted: &GrantTable, memory: &Mapping) -> (*const u8, usize) {
        let Some(id) = self.grant else {
            return (memory.at(self.inline), self.length);
        };
        match granted.all[id].as_ref().and_then(|grant| grant.buffer.as_ref()) {
            Some(buffer) => (buffer.as_ptr(), self.length.min(buffer.capacity())),
            // The receiver has taken it.
            None => (memory.at(self.inline), 0),
        }
    }
}

struct GrantedBuffer {
    /// `None` after the receiver has taken its payload.
    buffer: Option<Buffer>,
    capacity: usize,
    /// Whether a message lies in it or is being written to it.
    used: bool,
}

/// Memory granted to the peer, by id.
pub(super) struct GrantTable {
    all: Box<[Option<GrantedBuffer>]>,
    free: Vec<usize>,
    /// Bytes granted and not in use, and their limit.
    in_advance: usize,
    max_in_advance: usize,
}

impl GrantTable {
    pub fn new(geometry: Geometry) -> Self {
        let most = max_grants(geometry.slots);
        Self {
            all: (0..most).map(|_| None).collect(),
            free: (0..most).rev().collect(),
            in_advance: 0,
            max_in_advance: MAX_IN_ADVANCE.min(geometry.bulk_bytes as usize / 4),
        }
    }

    /// Takes the memory of a message out of the table.
    pub fn take(&mut self, id: usize) -> Option<Buffer> {
        self.all.get_mut(id)?.as_mut()?.buffer.take()
    }

    fn add(&mut self, buffer: Buffer, used: bool) -> Option<usize> {
        let id = self.free.pop()?;
        let capacity = buffer.capacity();
        let buffer = Some(buffer);
        self.all[id] = Some(GrantedBuffer { buffer, capacity, used });
        Some(id)
    }

    /// Records that the peer uses a grant for `length` bytes. Returns false if it has no such grant.
    fn begin(&mut self, id: u32, length: u64) -> bool {
        let grant = self.all.get_mut(id as usize).and_then(Option::as_mut);
        let Some(grant) = grant.filter(|grant| !grant.used && length <= grant.capacity as u64) else {
            return false;
        };
        grant.used = true;
        self.in_advance = self.in_advance.saturating_sub(grant.capacity);
        true
    }

    /// Records that a message has released its memory. Returns whether the peer may use the memory again.
    fn end(&mut self, id: usize, fresh: impl FnOnce(usize) -> Option<Buffer>) -> bool {
        let Some(grant) = self.all.get_mut(id).and_then(Option::as_mut) else {
            return false;
        };
        let fits = self.in_advance + grant.capacity <= self.max_in_advance;
        if fits && grant.buffer.is_none() {
            grant.buffer = fresh(grant.capacity);
        }
        if fits && grant.buffer.is_some() {
            grant.used = false;
            self.in_advance += grant.capacity;
            return true;
        }
        self.all[id] = None;
        self.free.push(id);
        false
    }
}

impl FabricLink {
    /// Processes a completion: a write of ours was sent, or one of the peer's arrived.
    #[inline]
    pub(super) fn completed(&mut self, entry: Entry) -> Result<(), LinkError> {
        if !is_from_peer(&entry) {
            self.write_completed(entry.context.cast())?;
            return Ok(());
        }
        let (kind, number) = notice::read(entry.data as u32);
        match kind {
            notice::SLOT => {
                let (sequence, index) = self.awaited(number)?;
                self.slot_arrived(sequence, index)
            }
            notice::PART => {
                let (_, index) = self.awaited(number)?;
                self.arrivals[index].parts = self.arrivals[index].parts.saturating_add(1);
                Ok(())
            }
            notice::GRANT if (number as usize) < max_grants(self.geometry.slots) => self.grant_arrived(number),
            notice::GREETING if !self.greeted => {
                self.greeted = true;
                Ok(())
            }
            _ => Err(LinkError::Violation(format!("a notice of kind {kind} about {number}"))),
        }
    }

    /// Returns the full number of a message from its low bits, and its slot index.
    #[inline]
    fn awaited(&self, number: u32) -> Result<(u32, usize), LinkError> {
        let ahead = number.wrapping_sub(self.next_in) & notice::MASK;
        if ahead >= u32::from(self.geometry.slots) {
            return Err(LinkError::Violation(format!(
                "message {number} where {} was due",
                self.next_in
            )));
        }
        let sequence = self.next_in.wrapping_add(ahead);
        Ok((sequence, self.layout.index(sequence)))
    }

    #[inline]
    fn slot_arrived(&mut self, sequence: u32, index: usize) -> Result<(), LinkError> {
        let slot = self.incoming_slot(sequence);
        // SAFETY: inside the mapping. The peer may write at the same time, which tears values but not memory.
        let header: Header = unsafe { std::ptr::read_volatile(self.memory.at(slot).cast()) };
        let inline = self.geometry.inline_bytes();
        let arrival = &mut self.arrivals[index];
        if arrival.has_slot || header.sequence != sequence {
            return Err(LinkError::Violation(format!(
                "message {} in the slot of {sequence}",
                header.sequence
            )));
        }
        arrival.has_slot = true;
        arrival.header = header;
        if header.flags & flags::DESCRIBED == 0 {
            if header.flags & !flags::KNOWN != 0 {
                arrival.wrong = Some("unknown flags");
            } else if header.length as usize > inline {
                arrival.wrong = Some("the length exceeds the slot");
            }
            return Ok(());
        }
        self.described(sequence, index, slot)
    }

    /// Reads the location of a large payload once, checks the copy, and allocates memory if the peer has none.
    fn described(&mut self, sequence: u32, index: usize, slot: usize) -> Result<(), LinkError> {
        // SAFETY: as for the header; every slot has room for both.
        let bytes: [u8; LOCATION_BYTES] =
            unsafe { std::ptr::read_volatile(self.memory.at(slot + HEADER_BYTES).cast()) };
        let location = PayloadLocation::read_from_bytes(&bytes).unwrap_or_default();
        let set = self.arrivals[index].header.flags;
        let (limit, length) = (self.geometry.bulk_bytes, location.length);
        let mut grant = None;
        let mut asks = false;
        let wrong = if set & !flags::KNOWN != 0 {
            Some("unknown flags")
        } else if length > limit || location.room_length > limit {
            Some("the payload or the reply's room exceeds the bulk region")
        } else if set & flags::IN_ROOM != 0 {
            let offered = self.rooms[index].as_ref().map_or(0, |room| room.length as u64);
            (length > offered).then_some("a reply into room that was not offered")
        } else if set & flags::BULK == 0 || length == 0 {
            None
        } else if location.grant == NO_GRANT {
            asks = true;
            grant = self
                .incoming
                .arena
                .allocate(length as usize)
                .and_then(|buffer| self.granted.add(buffer, true));
            grant
                .is_none()
                .then_some("there is no memory left to receive it; free what was received before")
        } else if self.granted.begin(location.grant, length) {
            grant = Some(location.grant as usize);
            None
        } else {
            Some("the payload lies in memory that was not granted")
        };
        let arrival = &mut self.arrivals[index];
        arrival.wrong = wrong;
        arrival.location = location;
        arrival.grant = grant;
        arrival.expected_parts = if wrong.is_some() {
            0
        } else {
            parts(length as usize, self.largest_write)
        };
        match grant {
            Some(id) if asks => self.grant(id, sequence),
            _ => Ok(()),
        }
    }

    /// Returns the next message once it has arrived completely, and makes it the current one.
    #[inline]
    pub(super) fn deliver(&mut self) -> Option<Result<Meta, LinkError>> {
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
        self.current = CurrentMessage::of(&arrival, slot + HEADER_BYTES);
        self.rooms[index] = None;
        Some(match arrival.wrong {
            None => Ok(meta),
            Some(why) => {
                self.regrant();
                Err(LinkError::Malformed(why))
            }
        })
    }

    /// Grants memory to the peer, for this message or for any (0).
    fn grant(&mut self, id: usize, sequence: u32) -> Result<(), LinkError> {
        let Some(GrantedBuffer {
            buffer: Some(buffer),
            capacity,
            ..
        }) = &self.granted.all[id]
        else {
            return Ok(());
        };
        let region = self.incoming.region(&mut self.endpoint, buffer);
        let target = region.map_err(|error| LinkError::Io(std::io::Error::other(error)))?;
        let grant = MemoryGrant {
            address: target.address,
            key: target.key,
            capacity: *capacity as u64,
            sequence,
            reserved: 0,
        };
        let at = self.layout.staging().0 + self.layout.grant(id);
        // SAFETY: inside the staging area, which only we write; the peer has used the last grant of this id.
        unsafe { std::ptr::copy_nonoverlapping(grant.as_bytes().as_ptr(), self.memory.at(at), GRANT_BYTES) };
        self.send(Write::Grant(id))
    }

    fn grant_arrived(&mut self, id: u32) -> Result<(), LinkError> {
        let at = self.layout.ring().0 + self.layout.grant(id as usize);
        // SAFETY: inside the mapping; the peer may write at the same time.
        let bytes: [u8; GRANT_BYTES] = unsafe { std::ptr::read_volatile(self.memory.at(at).cast()) };
        self.process_grant(id, MemoryGrant::read_from_bytes(&bytes).unwrap_or_default())
    }

    /// Releases the memory of the current message, and grants it again if the limit allows.
    #[cold]
    pub(super) fn regrant(&mut self) {
        let Some(id) = self.current.grant.take() else { return };
        let arena = &self.incoming.arena;
        let fresh = |capacity| arena.allocate(capacity);
        if self.granted.end(id, fresh) && self.grant(id, 0).is_err() {
            // The next poll meets the same error and returns it.
            self.granted.all[id] = None;
        }
    }
}
