//! The link over a byte stream: TCP in clear text or under TLS.
//!
//! A frame is a slot's header, then its descriptor if the flags announce one, then the payload. Small frames are
//! received many at a time into one buffer and read there. A large payload is received directly into the buffer that
//! its reader gets, or into the room that the caller named. While a sender waits for the socket to drain it continues
//! to receive, so two sides that both send large messages cannot block each other.

pub mod wire;

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dayfly_protocol::slot::{DESCRIPTOR_BYTES, Descriptor, Geometry, HEADER_BYTES, Header, flags};
use rustix::event::{PollFd, PollFlags, Timespec};
use zerocopy::{FromBytes, IntoBytes};

use crate::memory::{Buffer, Received};
use crate::{Allocator, Current, Link, LinkError, Meta, Payload, Room, Transport};
use wire::Wire;

/// Size of the receive buffer: a few hundred small frames per system call, and at least two of the largest slots.
const RECEIVE_BYTES: usize = 128 << 10;
/// Bytes received at a time while no large payload is in progress. The part of a payload that arrives with its header
/// is copied once more.
const RECEIVE_AT_ONCE_BYTES: usize = 32 << 10;
/// Attempts to send into a full socket before blocking. The peer is usually busy draining it, and blocking and waking
/// cost more than these attempts.
const TRIES_BEFORE_BLOCKING: u32 = 64;
/// Most spare buffers: a worker uses one input and one output.
const SPARES: usize = 2;
/// A peer that takes nothing for this long while we are sending counts as gone.
const STALL_LIMIT: Duration = Duration::from_secs(30);
/// Time limit of a TLS handshake.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug)]
enum Place {
    /// In the receive buffer, at this offset.
    Inline(usize),
    /// In a separate buffer.
    Own(Buffer),
    /// In the room that the request named.
    InRoom,
    /// Taken by the receiver.
    Nowhere,
}

#[derive(Debug)]
struct Message {
    meta: Meta,
    place: Place,
    length: usize,
    room_length: usize,
}

#[derive(Debug)]
struct Incoming {
    message: Message,
    target: *mut u8,
    filled: usize,
}

/// One end of a channel over a stream.
#[derive(Debug)]
pub struct StreamLink {
    wire: Wire,
    geometry: Geometry,
    receive: Vec<u8>,
    start: usize,
    end: usize,
    incoming: Option<Incoming>,
    queue: VecDeque<Message>,
    current: Option<Message>,
    /// Buffers of processed messages, for reuse: one input and one output.
    spares: Vec<Buffer>,
    compose: Vec<u8>,
    rooms: Vec<Option<Room>>,
    /// Flags of every message that is sent.
    marks: u16,
    next_out: u32,
    next_in: u32,
    gone: bool,
}

// SAFETY: the raw pointer of `incoming` points into the buffer that its message owns, or into a room that the caller
// keeps until the response (see `Room`); neither is tied to a thread.
unsafe impl Send for StreamLink {}

impl StreamLink {
    /// Returns a link over a connected TCP socket, in clear text.
    pub fn tcp(socket: OwnedFd, geometry: Geometry) -> Result<Self, LinkError> {
        Ok(Self::over(Wire::plain(socket)?, geometry))
    }

    /// Returns a link over a connected TCP socket under TLS, after the handshake.
    pub fn tls(socket: OwnedFd, session: impl Into<rustls::Connection>, geometry: Geometry) -> Result<Self, LinkError> {
        let mut wire = Wire::tls(socket, session.into())?;
        wire.handshake(Instant::now() + HANDSHAKE_LIMIT)?;
        Ok(Self::over(wire, geometry))
    }

    fn over(wire: Wire, geometry: Geometry) -> Self {
        let stride = geometry.stride_bytes as usize;
        Self {
            wire,
            geometry,
            receive: vec![0; RECEIVE_BYTES.max(2 * stride)],
            start: 0,
            end: 0,
            incoming: None,
            queue: VecDeque::new(),
            current: None,
            spares: Vec::new(),
            compose: vec![0; stride],
            rooms: vec![None; geometry.slots as usize],
            marks: 0,
            next_out: 1,
            next_in: 1,
            gone: false,
        }
    }

    /// Starts numbering both directions after `sequence`, so that tests can cross the wrap. Both ends must do it.
    #[doc(hidden)]
    pub fn start_after(&mut self, sequence: u32) {
        self.next_out = sequence.wrapping_add(1);
        self.next_in = sequence.wrapping_add(1);
    }

    fn slot_of(&self, sequence: u32) -> usize {
        sequence as usize & (self.geometry.slots as usize - 1)
    }

    /// Returns a buffer for an incoming payload. Reuses a spare one, because fresh memory costs as much as the copy.
    fn buffer_for(&mut self, length: usize) -> Result<Buffer, LinkError> {
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
    fn keep_spare(&mut self, buffer: Buffer) {
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
    fn parse(&mut self) -> Result<Option<Message>, LinkError> {
        if self.incoming.is_some() {
            return Ok(None);
        }
        let available = &self.receive[self.start..self.end];
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

    /// Like [`StreamLink::parse`], for messages with a descriptor and malformed ones.
    #[cold]
    fn parse_other(&mut self) -> Result<Option<Message>, LinkError> {
        let available = &self.receive[self.start..self.end];
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
        let here = (self.end - self.start).min(length);
        // SAFETY: `target` has `length` bytes (a buffer made for them, or a room checked above), `here` is no more.
        unsafe { std::ptr::copy_nonoverlapping(self.receive[self.start..].as_ptr(), target, here) };
        self.start += here;
        let message = Message {
            meta,
            place,
            length,
            room_length,
        };
        if here == length {
            return Ok(Some(message));
        }
        self.incoming = Some(Incoming {
            message,
            target,
            filled: here,
        });
        Ok(None)
    }

    /// Receives available bytes into the empty buffer, between messages. Returns whether any arrived.
    #[inline]
    fn fill_empty(&mut self) -> Result<bool, LinkError> {
        let until = self.at_once();
        let received = self.wire.receive(&mut self.receive[..until]);
        (self.start, self.end) = (0, 0);
        match received {
            Ok(received) if received > 0 => {
                self.end = received;
                Ok(true)
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(false),
            other => self.received(other),
        }
    }

    /// Bytes to receive at a time between messages.
    #[inline]
    fn at_once(&self) -> usize {
        let stride = self.geometry.stride_bytes as usize;
        RECEIVE_AT_ONCE_BYTES.max(stride).min(self.receive.len())
    }

    /// Receives available bytes without blocking. Returns whether any arrived.
    fn fill(&mut self) -> Result<bool, LinkError> {
        let result = match &mut self.incoming {
            Some(incoming) => {
                let rest = incoming.message.length - incoming.filled;
                // SAFETY: the target has `length` bytes, `filled` of them done; see `begin_incoming`.
                let target = unsafe { std::slice::from_raw_parts_mut(incoming.target.add(incoming.filled), rest) };
                self.wire.receive(target).inspect(|n| incoming.filled += n)
            }
            None => {
                if self.start == self.end {
                    (self.start, self.end) = (0, 0);
                } else if self.receive.len() - self.end < self.geometry.stride_bytes as usize {
                    self.receive.copy_within(self.start..self.end, 0);
                    (self.start, self.end) = (0, self.end - self.start);
                }
                let until = self.receive.len().min(self.end + self.at_once());
                self.wire
                    .receive(&mut self.receive[self.end..until])
                    .inspect(|n| self.end += n)
            }
        };
        self.received(result)
    }

    /// Interprets the result of a receive for the link.
    fn received(&mut self, result: std::io::Result<usize>) -> Result<bool, LinkError> {
        match result {
            Ok(0) => {
                self.gone = true;
                Err(LinkError::PeerGone)
            }
            Ok(_) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(false),
            Err(error) if is_disconnect(&error) => {
                self.gone = true;
                Err(LinkError::PeerGone)
            }
            Err(error) => Err(LinkError::Io(error)),
        }
    }

    fn next_message(&mut self) -> Result<Option<Message>, LinkError> {
        if let Some(message) = self.parse()? {
            return Ok(Some(message));
        }
        if !self.fill()? {
            return Ok(None);
        }
        match &self.incoming {
            Some(incoming) if incoming.filled == incoming.message.length => {
                Ok(self.incoming.take().map(|incoming| incoming.message))
            }
            Some(_) => Ok(None),
            None => self.parse(),
        }
    }

    /// Receives into the queue while a send is blocked. Payloads are copied out of the receive buffer, which is reused.
    fn receive_aside(&mut self) -> Result<(), LinkError> {
        while self.queue.len() < self.geometry.slots as usize {
            let Some(mut message) = self.next_message()? else {
                return Ok(());
            };
            if let Place::Inline(at) = message.place {
                let mut buffer = Buffer::heap(message.length).ok_or(LinkError::NoRoom {
                    length: message.length,
                    limit: self.geometry.bulk_bytes,
                })?;
                buffer
                    .as_mut_slice()
                    .copy_from_slice(&self.receive[at..at + message.length]);
                message.place = Place::Own(buffer);
            }
            self.queue.push_back(message);
        }
        Ok(())
    }

    /// Sends the rest of head and body, after a first attempt with the result `first`.
    fn send_on(&mut self, head: &[u8], body: &[u8], first: std::io::Result<usize>) -> Result<(), LinkError> {
        let total = head.len() + body.len();
        let mut sent = 0;
        let mut progress: Option<Instant> = None;
        let mut tries = 0;
        let mut result = first;
        loop {
            match result {
                Ok(n) => {
                    sent += n;
                    progress = None;
                    tries = 0;
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    // A partially received message keeps its memory while we receive into the queue: only complete ones
                    // are moved.
                    if self.current_is_inline() {
                        self.unpin_current()?;
                    }
                    self.receive_aside()?;
                    if progress.get_or_insert_with(Instant::now).elapsed() > STALL_LIMIT {
                        return Err(LinkError::PeerGone);
                    }
                    tries += 1;
                    if tries >= TRIES_BEFORE_BLOCKING {
                        let full = self.queue.len() >= self.geometry.slots as usize;
                        self.wire.block(
                            if full {
                                PollFlags::OUT
                            } else {
                                PollFlags::IN | PollFlags::OUT
                            },
                            Duration::from_secs(1),
                        )?;
                    }
                }
                Err(error) if is_disconnect(&error) => {
                    self.gone = true;
                    return Err(LinkError::PeerGone);
                }
                Err(error) => return Err(LinkError::Io(error)),
            }
            result = if sent < head.len() {
                self.wire.send(&head[sent..], body)
            } else if sent < total {
                self.wire.send(&body[sent - head.len()..], &[])
            } else if self.wire.flush()? {
                return Ok(());
            } else {
                Err(std::io::ErrorKind::WouldBlock.into())
            };
        }
    }

    fn current_is_inline(&self) -> bool {
        matches!(
            &self.current,
            Some(Message {
                place: Place::Inline(_),
                ..
            })
        )
    }

    /// Moves the current message out of the receive buffer, which is about to be reused.
    fn unpin_current(&mut self) -> Result<(), LinkError> {
        if let Some(message) = &mut self.current
            && let Place::Inline(at) = message.place
        {
            let mut buffer = Buffer::heap(message.length).ok_or(LinkError::NoRoom {
                length: message.length,
                limit: self.geometry.bulk_bytes,
            })?;
            buffer
                .as_mut_slice()
                .copy_from_slice(&self.receive[at..at + message.length]);
            message.place = Place::Own(buffer);
        }
        Ok(())
    }

    fn next_header(&mut self, function: u16, set: u16, length: u32, deadline_ms: u32) -> Header {
        let sequence = self.next_out;
        self.next_out = sequence.wrapping_add(1);
        Header {
            sequence,
            function,
            flags: set | self.marks,
            length,
            deadline_ms,
        }
    }

    fn send_described(&mut self, header: Header, descriptor: Descriptor, body: &[u8]) -> Result<u32, LinkError> {
        let mut head = [0; HEADER_BYTES + DESCRIPTOR_BYTES];
        head[..HEADER_BYTES].copy_from_slice(header.as_bytes());
        head[HEADER_BYTES..].copy_from_slice(descriptor.as_bytes());
        let first = self.wire.send(&head, body);
        self.send_on(&head, body, first)?;
        Ok(header.sequence)
    }
}

fn payload<'a>(current: &'a Option<Message>, receive: &'a [u8]) -> &'a [u8] {
    match current {
        Some(Message {
            place: Place::Inline(at),
            length,
            ..
        }) => &receive[*at..at + length],
        Some(Message {
            place: Place::Own(buffer),
            length,
            ..
        }) => &buffer.as_slice()[..*length],
        _ => &[],
    }
}

fn is_disconnect(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(
        error.kind(),
        BrokenPipe | ConnectionReset | ConnectionAborted | UnexpectedEof
    )
}

impl Link for StreamLink {
    fn transport(&self) -> Transport {
        if self.wire.is_encrypted() {
            Transport::Tls
        } else {
            Transport::Tcp
        }
    }

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    #[inline]
    fn compose(&mut self) -> &mut [u8] {
        &mut self.compose[HEADER_BYTES..]
    }

    fn post(&mut self, function: u16, deadline_ms: u32, length: usize) -> Result<u32, LinkError> {
        let header = self.next_header(function, 0, length as u32, deadline_ms);
        // The composed bytes follow the space for the header, so that one contiguous write sends both.
        let frame = &mut self.compose[..HEADER_BYTES + length];
        frame[..HEADER_BYTES].copy_from_slice(header.as_bytes());
        match self.wire.send(frame, &[]) {
            Ok(sent) if sent == HEADER_BYTES + length && !self.wire.is_encrypted() => {}
            first => {
                let frame = std::mem::take(&mut self.compose);
                let result = self.send_on(&frame[..HEADER_BYTES + length], &[], first);
                self.compose = frame;
                result?;
            }
        }
        Ok(header.sequence)
    }

    fn post_bulk(
        &mut self,
        function: u16,
        deadline_ms: u32,
        payload: Payload<'_>,
        room: Option<Room>,
    ) -> Result<u32, LinkError> {
        let body = payload.as_slice();
        if body.len() as u64 > self.geometry.bulk_bytes {
            return Err(LinkError::NoRoom {
                length: body.len(),
                limit: self.geometry.bulk_bytes,
            });
        }
        let mut descriptor = Descriptor {
            length: body.len() as u64,
            ..Descriptor::default()
        };
        let mut set = flags::BULK;
        let slot = self.slot_of(self.next_out);
        self.rooms[slot] = room;
        if let Some(room) = room {
            descriptor.room_length = room.length as u64;
            set |= flags::ROOM;
        }
        let header = self.next_header(function, set, 0, deadline_ms);
        self.send_described(header, descriptor, body)
    }

    fn post_lent(&mut self, function: u16, buffer: Buffer, length: usize) -> Result<u32, LinkError> {
        // A reply that fits into the room that its request named is received directly into it.
        let room_length = self.current.as_ref().map_or(0, |message| message.room_length);
        let set = if length <= room_length {
            flags::IN_ROOM
        } else {
            flags::BULK
        };
        let header = self.next_header(function, set, 0, 0);
        let descriptor = Descriptor {
            length: length as u64,
            ..Descriptor::default()
        };
        let result = self.send_described(header, descriptor, &buffer.as_slice()[..length]);
        self.keep_spare(buffer);
        result
    }

    fn post_in_room(&mut self, _function: u16, _length: usize) -> Result<u32, LinkError> {
        Err(LinkError::Malformed("a stream shares no room"))
    }

    fn poll(&mut self) -> Result<Option<Meta>, LinkError> {
        self.current = if self.gone || !self.queue.is_empty() {
            Some(self.queue.pop_front().ok_or(LinkError::PeerGone)?)
        } else if self.start == self.end && self.incoming.is_none() {
            match self.fill_empty()? {
                true => self.parse()?,
                false => None,
            }
        } else {
            self.next_message()?
        };
        Ok(self.current.as_ref().map(|message| message.meta))
    }

    fn current(&mut self) -> Current<'_> {
        let room_length = self.current.as_ref().map_or(0, |message| message.room_length);
        Current {
            input: payload(&self.current, &self.receive),
            room: None,
            room_length,
            compose: &mut self.compose[HEADER_BYTES..],
        }
    }

    fn input(&self) -> &[u8] {
        payload(&self.current, &self.receive)
    }

    fn arrived_in_room(&self) -> Option<usize> {
        match &self.current {
            Some(Message {
                place: Place::InRoom,
                length,
                ..
            }) => Some(*length),
            _ => None,
        }
    }

    fn set_rejectable(&mut self, rejectable: bool) {
        self.marks = if rejectable { flags::REJECTABLE } else { 0 };
    }

    fn retain(&mut self) {}

    fn take(&mut self) -> Option<Received> {
        let message = self.current.as_mut()?;
        match std::mem::replace(&mut message.place, Place::Nowhere) {
            Place::Own(mut buffer) => {
                buffer.resize(message.length);
                Some(Received::Own(buffer))
            }
            other => {
                message.place = other;
                None
            }
        }
    }

    fn done(&mut self) {
        if let Some(Message {
            place: Place::Own(buffer),
            ..
        }) = self.current.take()
        {
            self.keep_spare(buffer);
        }
    }

    fn wait(&mut self, limit: Duration) -> Result<(), LinkError> {
        if self.gone {
            return Err(LinkError::PeerGone);
        }
        if !self.queue.is_empty() || self.wire.has_plaintext() {
            return Ok(());
        }
        // In clear text and between messages, one system call waits for the frame and receives it.
        if self.wire.is_encrypted() || self.incoming.is_some() || self.start != self.end {
            self.wire.block(PollFlags::IN, limit)?;
            return Ok(());
        }
        (self.start, self.end) = (0, 0);
        let at_once = self.at_once();
        match self.wire.receive_blocking(&mut self.receive[..at_once], limit) {
            Ok(0) => {
                self.gone = true;
                Err(LinkError::PeerGone)
            }
            Ok(received) => {
                self.end = received;
                Ok(())
            }
            Err(error)
                if matches!(
                    error.kind(),
                    std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted
                ) =>
            {
                Ok(())
            }
            Err(error) if is_disconnect(&error) => {
                self.gone = true;
                Err(LinkError::PeerGone)
            }
            Err(error) => Err(LinkError::Io(error)),
        }
    }

    fn allocate(&mut self, length: usize) -> Result<Buffer, LinkError> {
        self.buffer_for(length)
    }

    fn room(&self, buffer: &mut Buffer) -> Room {
        Room {
            start: buffer.as_ptr(),
            offset: None,
            length: buffer.len(),
            capacity: buffer.capacity(),
        }
    }

    fn allocator(&self) -> Allocator {
        Allocator {
            arena: None,
            limit: self.geometry.bulk_bytes,
        }
    }
}

impl StreamLink {
    /// Returns the socket, for a caller that must end the link from another thread.
    pub fn socket(&self) -> &Arc<OwnedFd> {
        self.wire.socket()
    }

    pub(crate) fn prepare_sleep(&mut self) -> Option<Arc<OwnedFd>> {
        let idle = !self.gone && self.queue.is_empty() && !self.wire.has_plaintext();
        idle.then(|| self.wire.socket().clone())
    }
}

/// Blocks until one of the sockets is readable, or `limit` has passed.
pub(crate) fn wait_any(sockets: &[&OwnedFd], limit: Duration) -> Result<(), LinkError> {
    let mut waiting: Vec<PollFd<'_>> = sockets
        .iter()
        .map(|socket| PollFd::new(socket, PollFlags::IN))
        .collect();
    wire::poll(&mut waiting, limit)?;
    Ok(())
}

fn timespec(limit: Duration) -> Timespec {
    Timespec {
        tv_sec: limit.as_secs() as i64,
        tv_nsec: limit.subsec_nanos() as i64,
    }
}
