//! The link over a byte stream: TCP in clear text or under TLS.
//!
//! A frame is a slot's header, then its descriptor if the flags announce one, then the payload. Small frames are
//! received many at a time into one buffer and read there. A large payload is received directly into the buffer that
//! its reader gets, or into the room that the caller named. While a sender waits for the socket to drain it continues
//! to receive, so two sides that both send large messages cannot block each other.

mod framing;
pub mod wire;

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dayfly_protocol::slot::{DESCRIPTOR_BYTES, Descriptor, Geometry, HEADER_BYTES, Header, flags};
use rustix::event::{PollFd, PollFlags, Timespec};
use zerocopy::IntoBytes;

use crate::memory::{Buffer, Received};
use crate::{Allocator, Current, Link, LinkError, Meta, Payload, Room, Transport};
use framing::{FrameReader, Message, Place};
use wire::Wire;

/// Attempts to send into a full socket before blocking. The peer is usually busy draining it, and blocking and waking
/// cost more than these attempts.
const TRIES_BEFORE_BLOCKING: u32 = 64;
/// A peer that takes nothing for this long while we are sending counts as gone.
const STALL_LIMIT: Duration = Duration::from_secs(30);
/// Time limit of a TLS handshake.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);

/// One end of a channel over a stream.
#[derive(Debug)]
pub struct StreamLink {
    wire: Wire,
    geometry: Geometry,
    reader: FrameReader,
    /// Messages that arrived while a send was blocked.
    queue: VecDeque<Message>,
    current: Option<Message>,
    compose: Vec<u8>,
    /// Flags of every message that is sent.
    common_flags: u16,
    next_out: u32,
    gone: bool,
}

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
        Self {
            wire,
            geometry,
            reader: FrameReader::new(geometry),
            queue: VecDeque::new(),
            current: None,
            compose: vec![0; geometry.stride_bytes as usize],
            common_flags: 0,
            next_out: 1,
            gone: false,
        }
    }

    /// Starts numbering both directions after `sequence`, so that tests can cross the wrap. Both ends must do it.
    #[doc(hidden)]
    pub fn start_after(&mut self, sequence: u32) {
        self.next_out = sequence.wrapping_add(1);
        self.reader.start_after(sequence);
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
        if let Some(message) = self.reader.parse()? {
            return Ok(Some(message));
        }
        let filled = self.reader.fill(&mut self.wire);
        match self.received(filled)? {
            true => self.reader.after_fill(),
            false => Ok(None),
        }
    }

    /// Receives into the queue while a send is blocked. Payloads are copied out of the receive buffer, which is reused.
    fn receive_aside(&mut self) -> Result<(), LinkError> {
        // A partially received message keeps its memory: only complete ones are moved.
        if let Some(message) = &mut self.current {
            self.reader.detach(message)?;
        }
        while self.queue.len() < self.geometry.slots as usize {
            let Some(mut message) = self.next_message()? else {
                return Ok(());
            };
            self.reader.detach(&mut message)?;
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

    fn next_header(&mut self, function: u16, set: u16, length: u32, deadline_ms: u32) -> Header {
        let sequence = self.next_out;
        self.next_out = sequence.wrapping_add(1);
        Header {
            sequence,
            function,
            flags: set | self.common_flags,
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

/// Returns the payload of the current message.
fn input<'a>(current: &'a Option<Message>, reader: &'a FrameReader) -> &'a [u8] {
    current.as_ref().map_or(&[], |message| reader.payload(message))
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
        self.reader.set_room(self.next_out, room);
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
        self.reader.keep_spare(buffer);
        result
    }

    fn post_in_room(&mut self, _function: u16, _length: usize) -> Result<u32, LinkError> {
        Err(LinkError::Malformed("a reply cannot be written in place over a stream"))
    }

    fn poll(&mut self) -> Result<Option<Meta>, LinkError> {
        self.current = if self.gone || !self.queue.is_empty() {
            Some(self.queue.pop_front().ok_or(LinkError::PeerGone)?)
        } else if self.reader.is_empty() {
            match self.reader.fill_empty(&mut self.wire) {
                Ok(received) if received > 0 => self.reader.parse()?,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => None,
                other => {
                    self.received(other)?;
                    None
                }
            }
        } else {
            self.next_message()?
        };
        Ok(self.current.as_ref().map(|message| message.meta))
    }

    fn current(&mut self) -> Current<'_> {
        let room_length = self.current.as_ref().map_or(0, |message| message.room_length);
        Current {
            input: input(&self.current, &self.reader),
            room: None,
            room_length,
            compose: &mut self.compose[HEADER_BYTES..],
        }
    }

    fn input(&self) -> &[u8] {
        input(&self.current, &self.reader)
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
        self.common_flags = if rejectable { flags::REJECTABLE } else { 0 };
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
            self.reader.keep_spare(buffer);
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
        if self.wire.is_encrypted() || !self.reader.is_empty() {
            self.wire.block(PollFlags::IN, limit)?;
            return Ok(());
        }
        match self.reader.fill_empty_blocking(&mut self.wire, limit) {
            Ok(0) => {
                self.gone = true;
                Err(LinkError::PeerGone)
            }
            Ok(_) => Ok(()),
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
        self.reader.buffer_for(length)
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
