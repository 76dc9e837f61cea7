//! A byte stream in each direction over remote memory, between two ranks of a group.
//!
//! Each end registers a ring of slots that the other end writes. Each piece of the stream is one write, whose notice
//! contains its number and arrives in any order. A slot is reused after the reader has acknowledged it (its *credit*,
//! also a notice). The connection on which both ends exchanged their cards stays open, and its end is the stream's end.
//!
//! Layout of an end's memory:
//!
//! ```text
//! 0      slots that the peer writes; behind them where its credits and its greeting land
//! then   the same, from which ours are written
//! ```

mod handshake;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dayfly_protocol::fabric::notice;

pub use handshake::OpenResult;

use super::choice::Choice;
use super::ffi::{Context, Endpoint, Entry, Region, Target, is_from_peer};
use super::link::{CONTROL_CHECK_EVERY, LAST_MESSAGES_LIMIT};
use super::{Control, FabricError};
use crate::LinkError;
use crate::memory::Mapping;

/// Most pieces in flight.
const SLOTS: u32 = 64;
/// Bytes of a slot: the length of a piece, then the piece.
const SLOT_BYTES: usize = 32 << 10;
const HEAD_BYTES: usize = 8;
const PIECE_BYTES: usize = SLOT_BYTES - HEAD_BYTES;
/// Offset of the area behind the slots.
const TAIL: usize = SLOTS as usize * SLOT_BYTES;
const TAIL_BYTES: usize = 8;
const RING_BYTES: usize = TAIL + 4096;
/// Most pieces read before a credit is sent.
const MAX_UNSENT_CREDIT: u32 = SLOTS / 4;
/// Most completions taken at a time.
const COMPLETION_BATCH: usize = 16;

/// One end of a stream. Fields are dropped in this order: registrations before the endpoint, and the endpoint before
/// the memory.
pub struct Pipe {
    _incoming: Region,
    outgoing: Region,
    endpoint: Endpoint,
    memory: Arc<Mapping>,
    control: Control,
    /// Readable when the endpoint or the control connection has an event.
    events: OwnedFd,
    choice: Choice,
    peer: Target,
    largest_inject: usize,
    /// One context for each slot, and one for writes without content.
    contexts: Box<[Context]>,
    entries: [Entry; COMPLETION_BATCH],
    greeted: bool,
    /// Which slots contain an unread piece.
    arrived: [bool; SLOTS as usize],
    /// The number of the current piece, its length once known, and the bytes read of it.
    next_in: u32,
    length: usize,
    read: usize,
    /// Number of pieces acknowledged to the writer.
    credit_sent: u32,
    /// Bytes of each composed piece.
    lengths: [usize; SLOTS as usize],
    /// Numbers of pieces that were composed, handed to the provider, and acknowledged by the other end.
    composed: u32,
    posted: u32,
    acknowledged: u32,
    misses: u32,
    is_closed: bool,
}

impl std::fmt::Debug for Pipe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pipe({}, {} out, {} in)", self.choice, self.composed, self.next_in)
    }
}

fn slot(number: u32) -> usize {
    (number % SLOTS) as usize
}

fn broken_pipe(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::BrokenPipe, error)
}

impl Pipe {
    /// Provider and domain of the stream.
    pub fn choice(&self) -> Choice {
        self.choice
    }

    /// Writes a notice without content. Returns false if the provider cannot take it now.
    fn write_notice(&mut self, notice: u32) -> Result<bool, LinkError> {
        self.write(TAIL, TAIL_BYTES, notice, SLOTS as usize)
    }

    /// Writes from the outgoing ring to the same place in the peer's ring.
    #[inline]
    fn write(&mut self, at: usize, length: usize, notice: u32, context: usize) -> Result<bool, LinkError> {
        // SAFETY: inside the outgoing ring, which only we write.
        let bytes = unsafe { std::slice::from_raw_parts(self.memory.at(RING_BYTES + at), length) };
        let to = self.peer.plus(at as u64);
        let sent = if length <= self.largest_inject {
            self.endpoint.inject(bytes, to, notice)
        } else {
            let context: *mut Context = &mut self.contexts[context];
            // SAFETY: a slot is composed anew only after the peer has read it, and what lies behind the slots never
            // changes. The contexts live as long as the endpoint.
            unsafe { self.endpoint.write(bytes, Some(&self.outgoing), to, notice, context) }
        };
        sent.map_err(|error| self.interpret_error(&error))
    }

    /// Writes arbitrary bytes at an arbitrary place.
    #[cfg(test)]
    pub(super) fn attack(&mut self, at: usize, bytes: &[u8], notice: u32) {
        let until = Instant::now() + Duration::from_secs(10);
        while !self.endpoint.inject(bytes, self.peer.plus(at as u64), notice).unwrap() {
            assert!(Instant::now() < until, "the provider takes no write");
            let _ = self.progress();
        }
    }

    #[cold]
    fn interpret_error(&mut self, error: &FabricError) -> LinkError {
        if self.control.wait(None, LAST_MESSAGES_LIMIT).is_err() {
            return LinkError::PeerGone;
        }
        LinkError::Io(broken_pipe(error.to_string()))
    }

    /// Hands composed pieces to the provider, as many as it takes.
    fn push(&mut self) -> Result<(), LinkError> {
        while self.posted != self.composed {
            let (number, at) = (self.posted, slot(self.posted));
            let length = HEAD_BYTES + self.lengths[at];
            if !self.write(at * SLOT_BYTES, length, notice::of(notice::SLOT, number), at)? {
                break;
            }
            self.posted = number.wrapping_add(1);
        }
        Ok(())
    }

    fn send_credit(&mut self) -> Result<(), LinkError> {
        if self.credit_sent != self.next_in && self.write_notice(notice::of(notice::GRANT, self.next_in))? {
            self.credit_sent = self.next_in;
        }
        Ok(())
    }

    /// Processes completions. Returns whether there were any.
    fn progress(&mut self) -> Result<bool, LinkError> {
        let read = self.endpoint.read(&mut self.entries);
        self.process(read)
    }

    fn process(&mut self, read: Result<usize, FabricError>) -> Result<bool, LinkError> {
        let count = read.map_err(|error| self.interpret_error(&error))?;
        for at in 0..count {
            let entry = self.entries[at];
            if is_from_peer(&entry) {
                self.process_notice(entry.data as u32)?;
            }
        }
        if self.posted != self.composed {
            self.push()?;
        }
        Ok(count > 0)
    }

    /// Processes the notice of a write by the other end.
    fn process_notice(&mut self, data: u32) -> Result<(), LinkError> {
        let violation = |what: &str| LinkError::Violation(format!("{what}, over libfabric"));
        let (kind, number) = notice::read(data);
        match kind {
            notice::SLOT => {
                let ahead = number.wrapping_sub(self.next_in) & notice::MASK;
                let at = slot(self.next_in.wrapping_add(ahead));
                if ahead >= SLOTS || self.arrived[at] {
                    return Err(violation("an unexpected piece"));
                }
                self.arrived[at] = true;
            }
            notice::GRANT => {
                let more = number.wrapping_sub(self.acknowledged) & notice::MASK;
                // Ignore a credit that a later one has overtaken.
                if more <= self.posted.wrapping_sub(self.acknowledged) {
                    self.acknowledged = self.acknowledged.wrapping_add(more);
                } else if notice::MASK + 1 - more > SLOTS {
                    return Err(violation("credit for what was not sent"));
                }
            }
            notice::GREETING if !self.greeted => self.greeted = true,
            _ => return Err(violation("an unknown notice")),
        }
        Ok(())
    }

    /// Receives into `target`. Returns 0 when the peer has closed and everything that it sent has been read.
    pub fn receive(&mut self, target: &mut [u8]) -> std::io::Result<usize> {
        if target.is_empty() {
            return Ok(0);
        }
        if !self.has_piece().map_err(into_io)? {
            self.progress().map_err(into_io)?;
            if !self.has_piece().map_err(into_io)? {
                self.misses = self.misses.wrapping_add(1);
                if self.misses.is_multiple_of(CONTROL_CHECK_EVERY) {
                    self.send_credit().map_err(into_io)?;
                    self.check_control().map_err(into_io)?;
                }
                return match self.is_closed {
                    true => Ok(0),
                    false => Err(std::io::ErrorKind::WouldBlock.into()),
                };
            }
        }
        let count = target.len().min(self.length - self.read);
        let start = self.memory.at(slot(self.next_in) * SLOT_BYTES + HEAD_BYTES + self.read);
        // SAFETY: inside the slot, as its length was checked; the peer may write at the same time, which tears bytes
        // and nothing else.
        unsafe { std::ptr::copy_nonoverlapping(start, target.as_mut_ptr(), count) };
        self.read += count;
        if self.read == self.length {
            self.arrived[slot(self.next_in)] = false;
            self.next_in = self.next_in.wrapping_add(1);
            (self.length, self.read) = (0, 0);
            if self.next_in.wrapping_sub(self.credit_sent) >= MAX_UNSENT_CREDIT {
                self.send_credit().map_err(into_io)?;
            }
        }
        Ok(count)
    }

    /// Whether there is a piece to read.
    #[inline]
    fn has_piece(&mut self) -> Result<bool, LinkError> {
        if self.length > 0 {
            return Ok(true);
        }
        let at = slot(self.next_in);
        if !self.arrived[at] {
            return Ok(false);
        }
        // SAFETY: inside the mapping. The peer may write at the same time, which tears the value but not memory.
        let length = unsafe { std::ptr::read_volatile(self.memory.at(at * SLOT_BYTES).cast::<u32>()) } as usize;
        if length == 0 || length > PIECE_BYTES {
            return Err(LinkError::Violation(format!(
                "a piece of {length} bytes, over libfabric"
            )));
        }
        self.length = length;
        Ok(true)
    }

    /// Checks whether the peer is still connected. Pieces that it sent before it closed may still arrive.
    #[cold]
    fn check_control(&mut self) -> Result<(), LinkError> {
        if self.is_closed || self.control.wait(None, Duration::ZERO).is_ok() {
            return Ok(());
        }
        let since = Instant::now();
        while since.elapsed() < LAST_MESSAGES_LIMIT {
            self.progress()?;
            if self.has_piece()? {
                return Ok(());
            }
        }
        self.is_closed = true;
        Ok(())
    }

    /// Sends from `first`, then `second`. Returns the number of bytes taken.
    pub fn send(&mut self, first: &[u8], second: &[u8]) -> std::io::Result<usize> {
        if self.composed.wrapping_sub(self.acknowledged) >= SLOTS {
            self.progress().map_err(into_io)?;
            if self.composed.wrapping_sub(self.acknowledged) >= SLOTS {
                return Err(std::io::ErrorKind::WouldBlock.into());
            }
        }
        let at = slot(self.composed);
        let start = self.memory.at(RING_BYTES + at * SLOT_BYTES);
        let lengths = [
            first.len().min(PIECE_BYTES),
            second.len().min(PIECE_BYTES - first.len().min(PIECE_BYTES)),
        ];
        let length = lengths[0] + lengths[1];
        if length == 0 {
            return Ok(0);
        }
        // SAFETY: inside the slot, which the peer has read: its bytes are ours until it is posted.
        unsafe {
            start.cast::<u32>().write(length as u32);
            let piece = start.add(HEAD_BYTES);
            std::ptr::copy_nonoverlapping(first.as_ptr(), piece, lengths[0]);
            std::ptr::copy_nonoverlapping(second.as_ptr(), piece.add(lengths[0]), lengths[1]);
        }
        self.lengths[at] = length;
        self.composed = self.composed.wrapping_add(1);
        self.push().map_err(into_io)?;
        Ok(length)
    }

    /// Returns whether the provider has taken everything.
    pub fn flush(&mut self) -> std::io::Result<bool> {
        if self.posted != self.composed {
            self.progress().map_err(into_io)?;
        }
        Ok(self.posted == self.composed)
    }

    /// Whether the other end has read everything.
    pub fn is_read(&self) -> bool {
        self.acknowledged == self.composed
    }

    /// Descriptor to poll for reading before sleeping on it.
    pub fn event_descriptor(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// Whether the caller may sleep on [`Pipe::event_descriptor`] now without missing an event.
    pub fn may_sleep(&mut self) -> bool {
        // An error stays pending, and the next call returns it.
        let quiet =
            self.send_credit().is_ok() && matches!(self.progress(), Ok(false)) && matches!(self.has_piece(), Ok(false));
        if !quiet
            || self.posted != self.composed
            || self.credit_sent != self.next_in
            || self.endpoint.wait_descriptor().is_none()
        {
            return false;
        }
        if !self.endpoint.may_sleep() {
            return false;
        }
        let queue = self.endpoint.wait_descriptor().cloned();
        match self.control.wait(queue.as_deref(), Duration::ZERO) {
            // The descriptor is readable. If nothing arrived, the event is an old one.
            Ok(true) => {
                let read = self.endpoint.read_slowly(&mut self.entries);
                let _ = self.process(read);
                false
            }
            Ok(false) => true,
            Err(_) => {
                let _ = self.check_control();
                false
            }
        }
    }
}

fn into_io(error: LinkError) -> std::io::Error {
    match error {
        LinkError::Io(error) => error,
        LinkError::PeerGone => std::io::ErrorKind::ConnectionReset.into(),
        other => std::io::Error::new(std::io::ErrorKind::InvalidData, other),
    }
}
