//! Messages over a byte stream, in clear or through TLS: an envelope, then its bytes.
//!
//! Many short messages are received at a time into one buffer. The bytes of a long message are received directly into
//! the receive's memory.

use std::collections::VecDeque;
use std::net::TcpStream;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use dayfly_fabric::libfabric::Choice;
use dayfly_protocol::error::{Code, Failure};
use zerocopy::{FromBytes, IntoBytes};

use super::byte_stream::ByteStream;
use super::control::{self, ControlAction, retract, withdrawal};
use super::envelope::{ENVELOPE_BYTES, EXTRA_BYTES, Envelope, Offer, kind};
use super::{Outgoing, Payload};
use crate::connect::socket::is_near;
use crate::matching::{Match, Matching, RequestId, State, truncated};

/// Longest message without an offer.
const EAGER_BYTES: usize = 64 << 10;
/// The same through a store, where an offer and its response take the time of some megabytes.
const STORED_EAGER_BYTES: usize = 4 << 20;
/// Longest message that is sent without a request, since almost any socket takes it at once.
const IMMEDIATE_BYTES: usize = 16 << 10;
/// Bytes to receive at a time while no long message is arriving.
const BUFFER_BYTES: usize = 64 << 10;
/// Bytes to send, or to receive of a long message, before the other direction has its turn.
const TURN_BYTES: usize = 256 << 10;
/// The same while the other direction is idle: fewer turns cost less.
const ONE_WAY_TURN_BYTES: usize = 512 << 10;
/// Receive buffer of the kernel, within a host.
const NEAR_WINDOW_BYTES: usize = 1 << 20;
/// Buffer for bytes that are dropped.
const SINK_BYTES: usize = 64 << 10;

/// Target of the bytes of an arriving message.
#[derive(Debug)]
enum Target {
    /// This receive.
    Request(RequestId),
    /// Owned memory: no receive matches yet.
    Own(Vec<u8>),
    /// Dropped.
    Sink,
}

#[derive(Debug)]
struct Body {
    envelope: Envelope,
    target: Target,
    length: usize,
    filled: usize,
}

/// The connection to a rank over a stream.
#[derive(Debug)]
pub struct StreamTransport {
    peer: u32,
    /// Whether the other rank is on this host.
    near: bool,
    /// Longest message without an offer.
    eager: usize,
    bytes: ByteStream,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    body: Option<Body>,
    sink: Vec<u8>,
    outbox: VecDeque<Outgoing>,
    /// Bytes of the outbox's first message, with its envelope, that have left.
    sent: usize,
    /// The other side takes no more bytes; bytes from it may still be read.
    deaf: bool,
    closed: bool,
}

impl StreamTransport {
    /// Over TCP, in clear or through a session.
    pub fn new(peer: u32, socket: TcpStream, session: Option<Box<rustls::Connection>>) -> Result<Self, Failure> {
        let near = is_near(&socket);
        let socket = OwnedFd::from(socket);
        if near {
            // Within a host the automatic window is at times a fraction of the best one. Between hosts it is good. A
            // system with a lower bound gives that.
            let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, NEAR_WINDOW_BYTES);
        }
        Self::over(peer, socket, session, near, EAGER_BYTES)
    }

    /// Over a socket whose bytes go through a store.
    pub fn stored(peer: u32, socket: UnixStream, session: Box<rustls::Connection>) -> Result<Self, Failure> {
        Self::over(peer, socket.into(), Some(session), false, STORED_EAGER_BYTES)
    }

    /// Over a socket of the connector, which carries the bytes.
    pub fn carried(peer: u32, socket: UnixStream, near: bool) -> Result<Self, Failure> {
        Self::over(peer, socket.into(), None, near, EAGER_BYTES)
    }

    fn over(
        peer: u32,
        socket: OwnedFd,
        session: Option<Box<rustls::Connection>>,
        near: bool,
        eager: usize,
    ) -> Result<Self, Failure> {
        Ok(Self {
            peer,
            near,
            eager,
            bytes: ByteStream::socket(peer, socket, session)?,
            buffer: vec![0; BUFFER_BYTES],
            start: 0,
            end: 0,
            body: None,
            sink: Vec::new(),
            outbox: VecDeque::new(),
            sent: 0,
            deaf: false,
            closed: false,
        })
    }

    pub fn eager_bytes(&self) -> usize {
        self.eager
    }

    pub fn immediate_bytes(&self) -> usize {
        IMMEDIATE_BYTES
    }

    pub fn is_near(&self) -> bool {
        self.near
    }

    /// Writes the part of an envelope and its bytes that the socket takes; `sent` bytes have left. Returns the new
    /// count.
    #[inline]
    fn write(&mut self, envelope: &Envelope, bytes: &[u8], mut sent: usize) -> usize {
        let head = envelope.as_bytes();
        let all = ENVELOPE_BYTES + bytes.len();
        let turn = match self.body {
            None => ONE_WAY_TURN_BYTES,
            Some(_) => TURN_BYTES,
        };
        let until = all.min(sent + turn);
        while sent < until && !self.deaf {
            let rest = &bytes[sent.saturating_sub(ENVELOPE_BYTES)..until.saturating_sub(ENVELOPE_BYTES)];
            let taken = match sent < ENVELOPE_BYTES {
                true => self.bytes.send(&head[sent..], rest),
                false => self.bytes.send(rest, &[]),
            };
            match taken {
                Ok(taken) => sent += taken,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return sent,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => self.deaf = true,
            }
        }
        sent
    }

    /// Moves to libfabric, if both ends have it. The other end must request it too, before anything is sent.
    pub fn over_fabric(self, wanted: Choice) -> Result<Self, Failure> {
        let bytes = self.bytes.over_fabric(self.peer, wanted)?;
        Ok(Self { bytes, ..self })
    }

    /// The libfabric provider; `None` for a socket.
    pub fn fabric(&self) -> Option<Choice> {
        self.bytes.fabric()
    }

    /// Flushes held-back bytes.
    fn flush_bytes(&mut self) {
        if !self.deaf && self.bytes.flush().is_err() {
            self.deaf = true;
        }
    }

    #[inline]
    pub fn try_send(&mut self, envelope: Envelope, bytes: &[u8]) -> Result<bool, Failure> {
        if !self.outbox.is_empty() || self.deaf {
            return Ok(false);
        }
        let sent = self.write(&envelope, bytes, 0);
        if sent == 0 {
            return Ok(false);
        }
        if sent < ENVELOPE_BYTES + bytes.len() {
            self.sent = sent;
            self.outbox.push_back(Outgoing {
                envelope,
                payload: Payload::Owned(bytes.to_vec()),
                request: None,
            });
        }
        Ok(true)
    }

    pub fn send(&mut self, message: Outgoing, matching: &mut Matching) -> Result<(), Failure> {
        self.outbox.push_back(message);
        self.flush(matching);
        Ok(())
    }

    /// Sends queued messages. Returns whether any bytes left.
    fn flush(&mut self, matching: &mut Matching) -> bool {
        let mut moved = false;
        if self.deaf {
            // Waiting requests fail when the other side's bytes are read and its end is noticed.
            self.outbox.retain(|message| message.request.is_some());
            return false;
        }
        while let Some(message) = self.outbox.pop_front() {
            let bytes = message.payload.as_slice();
            let all = ENVELOPE_BYTES + bytes.len();
            let sent = self.write(&message.envelope, bytes, self.sent);
            moved |= sent > self.sent;
            if sent < all {
                self.sent = sent;
                self.outbox.push_front(message);
                return moved;
            }
            self.sent = 0;
            if let Some(request) = message.request {
                matching.complete(request);
            }
        }
        self.flush_bytes();
        moved
    }

    #[inline]
    pub fn progress(&mut self, matching: &mut Matching) -> Result<bool, Failure> {
        let mut moved = false;
        if !self.outbox.is_empty() {
            moved = self.flush(matching);
        } else {
            self.flush_bytes();
        }
        if self.start < self.end && self.body.is_none() && self.parse(matching)? {
            return Ok(true);
        }
        if self.closed || !self.receive(matching)? {
            return Ok(moved);
        }
        if self.body.is_none() {
            self.parse(matching)?;
        }
        Ok(true)
    }

    /// Receives arrived bytes. Returns whether there were any.
    fn receive(&mut self, matching: &mut Matching) -> Result<bool, Failure> {
        let came = match &mut self.body {
            None => {
                if self.start == self.end {
                    (self.start, self.end) = (0, 0);
                } else if self.start > 0 {
                    self.buffer.copy_within(self.start..self.end, 0);
                    (self.start, self.end) = (0, self.end - self.start);
                }
                if self.end == self.buffer.len() {
                    // A message waits for room; see `Matching::admits`.
                    return Ok(false);
                }
                self.bytes
                    .receive(&mut self.buffer[self.end..])
                    .inspect(|came| self.end += came)
            }
            Some(body) => {
                let rest = body.length - body.filled;
                let turn = match self.outbox.is_empty() {
                    true => ONE_WAY_TURN_BYTES,
                    false => TURN_BYTES,
                };
                let into = match &mut body.target {
                    Target::Request(id) => match matching.get(*id) {
                        Some(request) if request.length > body.filled => {
                            let room = rest.min(request.length - body.filled).min(turn);
                            // SAFETY: the request's memory stays until it is complete or cancelled, and has this room.
                            unsafe { std::slice::from_raw_parts_mut(request.start.add(body.filled), room) }
                        }
                        _ => sink(&mut self.sink, rest),
                    },
                    Target::Own(bytes) => &mut bytes[body.filled..],
                    Target::Sink => sink(&mut self.sink, rest),
                };
                self.bytes.receive(into).inspect(|came| body.filled += came)
            }
        };
        match came {
            Ok(1..) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => return Ok(false),
            Ok(0) | Err(_) => {
                self.closed = true;
                return Ok(false);
            }
        }
        self.end_body(matching);
        Ok(true)
    }

    /// Delivers the arriving message if it is complete.
    fn end_body(&mut self, matching: &mut Matching) {
        let Some(body) = self.body.take_if(|body| body.filled == body.length) else {
            return;
        };
        match body.target {
            Target::Request(id) => {
                if let Some(request) = matching.get_mut(id) {
                    if request.status.length > request.length as u64 {
                        request.failure = Some(truncated(request));
                    }
                    matching.complete(id);
                }
            }
            Target::Own(bytes) => matching.deliver_owned(self.peer, &body.envelope, bytes),
            Target::Sink => {}
        }
    }

    /// Takes one message out of the buffer. Returns whether there was one.
    #[inline]
    fn parse(&mut self, matching: &mut Matching) -> Result<bool, Failure> {
        let available = &self.buffer[self.start..self.end];
        let Ok((envelope, rest)) = Envelope::read_from_prefix(available) else {
            return Ok(false);
        };
        match envelope.kind {
            kind::EAGER => {
                let length = envelope.length as usize;
                if envelope.length > self.eager as u64 {
                    return Err(self.violation("a message longer than agreed"));
                }
                if !matching.admits(self.peer, &envelope) {
                    return Ok(false);
                }
                if rest.len() >= length {
                    matching.deliver(self.peer, &envelope, &rest[..length]);
                    self.start += ENVELOPE_BYTES + length;
                    return Ok(true);
                }
                let target = match matching.match_arrival(self.peer, &envelope) {
                    Match::Receive(id) => Target::Request(id),
                    Match::Unexpected => Target::Own(vec![0; length]),
                    Match::Refused => Target::Sink,
                };
                self.begin(envelope, target, matching);
            }
            kind::DATA => {
                let peer = self.peer;
                let length = envelope.length;
                let target = match matching.named(envelope.tag, State::Receiving, peer) {
                    Some((id, request)) if request.status.length == length => Target::Request(id),
                    Some(_) => return Err(self.violation("another length than was offered")),
                    None => Target::Sink,
                };
                self.begin(envelope, target, matching);
            }
            other => {
                let extra_bytes = control::extra_bytes(other);
                if rest.len() < extra_bytes {
                    return Ok(false);
                }
                let mut extra = [0; EXTRA_BYTES];
                extra[..extra_bytes].copy_from_slice(&rest[..extra_bytes]);
                self.start += ENVELOPE_BYTES + extra_bytes;
                match control::handle(self.peer, &envelope, extra, matching)? {
                    ControlAction::Accept(offer, id) => self.accept(offer, id, matching)?,
                    ControlAction::Data(message) | ControlAction::Respond(message) => self.send(message, matching)?,
                    ControlAction::Withdrawn(_)
                    | ControlAction::Nothing
                    | ControlAction::Taken(_)
                    | ControlAction::HelpCopy(..) => {}
                }
            }
        }
        Ok(true)
    }

    /// Begins a message that has not arrived completely; `target` receives its bytes.
    fn begin(&mut self, envelope: Envelope, mut target: Target, matching: &mut Matching) {
        self.start += ENVELOPE_BYTES;
        let length = usize::try_from(envelope.length).unwrap_or(usize::MAX);
        let here = &self.buffer[self.start..self.end];
        let here = &here[..here.len().min(length)];
        match &mut target {
            Target::Request(id) => {
                if let Some(request) = matching.get_mut(*id) {
                    let fits = here.len().min(request.length);
                    // SAFETY: the request's memory has this room, and stays until the request is complete or cancelled.
                    unsafe { std::ptr::copy_nonoverlapping(here.as_ptr(), request.start, fits) };
                }
            }
            Target::Own(bytes) => bytes[..here.len()].copy_from_slice(here),
            Target::Sink => {}
        }
        let filled = here.len();
        self.start += filled;
        self.body = Some(Body {
            envelope,
            target,
            length,
            filled,
        });
        self.end_body(matching);
    }

    fn violation(&self, what: &str) -> Failure {
        Failure::new(
            Code::ProtocolViolation,
            format!("rank {} broke the protocol of streams: {what}", self.peer),
        )
    }

    pub fn accept(&mut self, offer: Offer, id: RequestId, matching: &mut Matching) -> Result<(), Failure> {
        self.send(
            Outgoing::control(Envelope {
                kind: kind::ACCEPT,
                tag: offer.token as u32,
                context: id.to_wire(),
                ..Envelope::default()
            }),
            matching,
        )
    }

    pub fn cancel(&mut self, id: RequestId, matching: &Matching) {
        if let Some(body) = &mut self.body
            && matches!(body.target, Target::Request(target) if target == id)
        {
            body.target = Target::Sink;
        }
        let sending = matching.get(id).is_some_and(|request| request.state == State::Sending);
        if sending && retract(&mut self.outbox, id, self.sent > 0) {
            self.outbox.push_back(withdrawal(id));
        }
    }

    /// Whether nothing of a send has left.
    pub fn is_unsent(&self, id: RequestId) -> bool {
        control::is_unsent(&self.outbox, id, self.sent > 0)
    }

    pub fn is_flushed(&self) -> bool {
        self.outbox.is_empty()
    }

    /// Whether the other host has acknowledged all sent bytes. Closing earlier may discard them.
    pub fn is_acknowledged(&self) -> bool {
        self.deaf || self.outbox.is_empty() && self.bytes.is_delivered()
    }

    pub fn socket(&self) -> (BorrowedFd<'_>, bool) {
        (self.bytes.news(), !self.outbox.is_empty())
    }

    pub fn fall_asleep(&mut self) -> bool {
        self.bytes.may_sleep() || self.body.is_none() && self.end == self.buffer.len()
    }

    pub fn is_closed(&self) -> bool {
        self.closed
    }
}

fn sink(sink: &mut Vec<u8>, length: usize) -> &mut [u8] {
    if sink.is_empty() {
        sink.resize(SINK_BYTES, 0);
    }
    &mut sink[..length.min(SINK_BYTES)]
}
