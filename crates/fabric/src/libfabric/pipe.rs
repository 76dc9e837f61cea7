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

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dayfly_protocol::fabric::{Card, notice};
use rustix::event::epoll;

use super::choice::Choice;
use super::ffi::{Context, Endpoint, Entry, Region, Target, is_from_peer};
use super::link::{AFTERMATH, GREETING_LIMIT, GREETING_NAP, LOOK_EVERY};
use super::opening::{Told, introduce, open_endpoint, question, refusal, remove_name, understand};
use super::{Control, FabricError};
use crate::LinkError;
use crate::memory::Mapping;
use crate::stream::wire::Wire;

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
const CREDIT_EVERY: u32 = SLOTS / 4;
/// Most completions taken at a time.
const AT_A_TIME: usize = 16;
/// Time limit of opening.
const LIMIT: Duration = Duration::from_secs(10);

/// One end of a stream. Fields are dropped in this order: registrations before the endpoint, and the endpoint before
/// the memory.
pub struct Pipe {
    _incoming: Region,
    outgoing: Region,
    endpoint: Endpoint,
    memory: Arc<Mapping>,
    control: Control,
    /// Readable when the endpoint or the control connection has an event.
    news: OwnedFd,
    choice: Choice,
    peer: Target,
    largest_inject: usize,
    /// One context for each slot, and one for writes without content.
    contexts: Box<[Context]>,
    entries: [Entry; AT_A_TIME],
    greeted: bool,
    /// Which slots contain an unread piece.
    landed: [bool; SLOTS as usize],
    /// The number of the current piece, its length once known, and the bytes read of it.
    next_in: u32,
    length: usize,
    read: usize,
    /// Number of pieces acknowledged to the writer.
    told: u32,
    /// Bytes of each composed piece.
    lengths: [usize; SLOTS as usize],
    /// Numbers of pieces that were composed, handed to the provider, and acknowledged by the other end.
    composed: u32,
    posted: u32,
    heard: u32,
    misses: u32,
    over: bool,
}

impl std::fmt::Debug for Pipe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pipe({}, {} out, {} in)", self.choice, self.composed, self.next_in)
    }
}

/// Result of opening.
#[derive(Debug)]
pub enum Opened {
    /// Both ends are open.
    Pipe(Box<Pipe>),
    /// Neither end is open. Contains the unchanged connection and the reason.
    Refused(Wire, String),
}

fn slot(number: u32) -> usize {
    (number % SLOTS) as usize
}

fn gone(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::BrokenPipe, error)
}

impl Pipe {
    /// Opens a stream over a connection whose other end does the same. Either both ends are open afterwards, or
    /// neither.
    ///
    /// # Errors
    /// When the connection ends, or the other end does not respond in time.
    pub fn open(wire: Wire, wanted: Choice) -> Result<Opened, LinkError> {
        let until = Instant::now() + LIMIT;
        let mut control = Control(wire);
        let begun = Self::begin(&control, wanted);
        control.send(
            &begun
                .as_ref()
                .map_or_else(|why| refusal(&why.to_string()), |(_, card)| *card),
            until,
        )?;
        let theirs = control.receive(until)?.accepted();
        let (mut parts, theirs) = match (begun, theirs) {
            (Ok((parts, _)), Ok(theirs)) => (parts, theirs),
            (Err(why), _) | (_, Err(why)) => return Ok(Opened::Refused(control.0, why.to_string())),
        };
        // Both ends reach the same conclusion.
        if let Err(why) = understand(&parts.endpoint, &theirs) {
            return Ok(Opened::Refused(control.0, why.to_string()));
        }
        let peer = Target {
            address: theirs.address.get(),
            key: theirs.key.get(),
        };
        parts
            .endpoint
            .connect(theirs.told()?)
            .map_err(|error| LinkError::Refused(error.to_string()))?;
        let mut pipe = Self::over(parts, control, wanted, peer)?;
        let greeted = pipe.greet();
        let verdict = match &greeted {
            Ok(()) => question(wanted),
            Err(why) => refusal(&why.to_string()),
        };
        pipe.control.send(&verdict, until)?;
        let agreed = pipe.control.receive(until)?.accepted();
        remove_name(&pipe.endpoint);
        match greeted.and(agreed.map(drop)) {
            Ok(()) => Ok(Opened::Pipe(Box::new(pipe))),
            Err(why) => Ok(Opened::Refused(pipe.control.0, why.to_string())),
        }
    }

    fn begin(control: &Control, wanted: Choice) -> Result<(Parts, Card), LinkError> {
        let mut endpoint = open_endpoint(control, wanted, 4 * SLOTS as usize, false)?;
        if endpoint.provider().largest_write() < SLOT_BYTES {
            return Err(LinkError::Refused(format!(
                "the provider writes no more than {} bytes at once",
                endpoint.provider().largest_write()
            )));
        }
        let memory = Arc::new(Mapping::anonymous(2 * RING_BYTES)?);
        let mut register = |start: usize| {
            // SAFETY: inside the mapping, which outlives its registrations here and in the pipe; what lies there is
            // accessed as memory that the peer may change.
            let region = unsafe { endpoint.register(memory.at(start), RING_BYTES) };
            region.map_err(|error| LinkError::Refused(error.to_string()))
        };
        let (incoming, outgoing) = (register(0)?, register(RING_BYTES)?);
        let card = introduce(&endpoint, incoming.target(), wanted)?;
        let parts = Parts {
            incoming,
            outgoing,
            endpoint,
            memory,
        };
        Ok((parts, card))
    }

    fn over(parts: Parts, control: Control, choice: Choice, peer: Target) -> Result<Self, LinkError> {
        let Parts {
            incoming,
            outgoing,
            endpoint,
            memory,
        } = parts;
        let news = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(std::io::Error::from)?;
        let watch = |source: BorrowedFd<'_>, flags| {
            epoll::add(&news, source, epoll::EventData::new_u64(0), flags).map_err(std::io::Error::from)
        };
        watch(
            control.socket().as_fd(),
            epoll::EventFlags::IN | epoll::EventFlags::RDHUP,
        )?;
        if let Some(queue) = endpoint.wait_descriptor() {
            watch(queue.as_fd(), epoll::EventFlags::IN)?;
        }
        Ok(Self {
            _incoming: incoming,
            outgoing,
            largest_inject: endpoint.provider().largest_inject(),
            endpoint,
            memory,
            control,
            news,
            choice,
            peer,
            contexts: (0..=SLOTS).map(|_| Context([0; 8])).collect(),
            entries: [Entry::EMPTY; AT_A_TIME],
            greeted: false,
            landed: [false; SLOTS as usize],
            next_in: 0,
            length: 0,
            read: 0,
            told: 0,
            lengths: [0; SLOTS as usize],
            composed: 0,
            posted: 0,
            heard: 0,
            misses: 0,
            over: false,
        })
    }

    /// Waits until both ends have received a write, so that an unconnected fabric is reported now instead of by a later
    /// hang.
    fn greet(&mut self) -> Result<(), LinkError> {
        let until = Instant::now() + GREETING_LIMIT;
        let mut said = false;
        loop {
            if !said {
                said = self.say(notice::of(notice::GREETING, 0))?;
            }
            self.progress()?;
            if said && self.greeted {
                return Ok(());
            }
            if Instant::now() >= until {
                let choice = self.choice;
                return Err(LinkError::Refused(format!(
                    "the two ends do not reach each other over {choice}"
                )));
            }
            // Do not read the control connection: the other end's verdict may already be there and must be read later.
            std::thread::sleep(GREETING_NAP);
        }
    }

    /// Provider and domain of the stream.
    pub fn choice(&self) -> Choice {
        self.choice
    }

    /// Writes a notice without content. Returns false if the provider cannot take it now.
    fn say(&mut self, notice: u32) -> Result<bool, LinkError> {
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
        sent.map_err(|error| self.broken(&error))
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
    fn broken(&mut self, error: &FabricError) -> LinkError {
        if self.control.wait(None, AFTERMATH).is_err() {
            return LinkError::PeerGone;
        }
        LinkError::Io(gone(error.to_string()))
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

    fn give_credit(&mut self) -> Result<(), LinkError> {
        if self.told != self.next_in && self.say(notice::of(notice::GRANT, self.next_in))? {
            self.told = self.next_in;
        }
        Ok(())
    }

    /// Processes completions. Returns whether there were any.
    fn progress(&mut self) -> Result<bool, LinkError> {
        let read = self.endpoint.read(&mut self.entries);
        self.took(read)
    }

    fn took(&mut self, read: Result<usize, FabricError>) -> Result<bool, LinkError> {
        let count = read.map_err(|error| self.broken(&error))?;
        for at in 0..count {
            let entry = self.entries[at];
            if is_from_peer(&entry) {
                self.heard_of(entry.data as u32)?;
            }
        }
        if self.posted != self.composed {
            self.push()?;
        }
        Ok(count > 0)
    }

    /// Processes the notice of a write by the other end.
    fn heard_of(&mut self, data: u32) -> Result<(), LinkError> {
        let violation = |what: &str| LinkError::Violation(format!("{what}, over libfabric"));
        let (kind, number) = notice::read(data);
        match kind {
            notice::SLOT => {
                let ahead = number.wrapping_sub(self.next_in) & notice::MASK;
                let at = slot(self.next_in.wrapping_add(ahead));
                if ahead >= SLOTS || self.landed[at] {
                    return Err(violation("a piece that was not due"));
                }
                self.landed[at] = true;
            }
            notice::GRANT => {
                let more = number.wrapping_sub(self.heard) & notice::MASK;
                // Ignore a credit that a later one has overtaken.
                if more <= self.posted.wrapping_sub(self.heard) {
                    self.heard = self.heard.wrapping_add(more);
                } else if notice::MASK + 1 - more > SLOTS {
                    return Err(violation("credit for what was not sent"));
                }
            }
            notice::GREETING if !self.greeted => self.greeted = true,
            _ => return Err(violation("a notice that means nothing")),
        }
        Ok(())
    }

    /// Receives into `target`. Returns 0 when the peer has closed and everything that it sent has been read.
    pub fn receive(&mut self, target: &mut [u8]) -> std::io::Result<usize> {
        if target.is_empty() {
            return Ok(0);
        }
        if !self.has_piece().map_err(failed)? {
            self.progress().map_err(failed)?;
            if !self.has_piece().map_err(failed)? {
                self.misses = self.misses.wrapping_add(1);
                if self.misses.is_multiple_of(LOOK_EVERY) {
                    self.give_credit().map_err(failed)?;
                    self.look_around().map_err(failed)?;
                }
                return match self.over {
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
            self.landed[slot(self.next_in)] = false;
            self.next_in = self.next_in.wrapping_add(1);
            (self.length, self.read) = (0, 0);
            if self.next_in.wrapping_sub(self.told) >= CREDIT_EVERY {
                self.give_credit().map_err(failed)?;
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
        if !self.landed[at] {
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
    fn look_around(&mut self) -> Result<(), LinkError> {
        if self.over || self.control.wait(None, Duration::ZERO).is_ok() {
            return Ok(());
        }
        let since = Instant::now();
        while since.elapsed() < AFTERMATH {
            self.progress()?;
            if self.has_piece()? {
                return Ok(());
            }
        }
        self.over = true;
        Ok(())
    }

    /// Sends from `first`, then `second`. Returns the number of bytes taken.
    pub fn send(&mut self, first: &[u8], second: &[u8]) -> std::io::Result<usize> {
        if self.composed.wrapping_sub(self.heard) >= SLOTS {
            self.progress().map_err(failed)?;
            if self.composed.wrapping_sub(self.heard) >= SLOTS {
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
        self.push().map_err(failed)?;
        Ok(length)
    }

    /// Returns whether the provider has taken everything.
    pub fn flush(&mut self) -> std::io::Result<bool> {
        if self.posted != self.composed {
            self.progress().map_err(failed)?;
        }
        Ok(self.posted == self.composed)
    }

    /// Whether the other end has read everything.
    pub fn is_read(&self) -> bool {
        self.heard == self.composed
    }

    /// Descriptor to poll for reading before sleeping on it.
    pub fn news(&self) -> BorrowedFd<'_> {
        self.news.as_fd()
    }

    /// Whether the caller may sleep on [`Pipe::news`] now without missing an event.
    pub fn may_sleep(&mut self) -> bool {
        // An error stays pending, and the next call returns it.
        let quiet =
            self.give_credit().is_ok() && matches!(self.progress(), Ok(false)) && matches!(self.has_piece(), Ok(false));
        if !quiet
            || self.posted != self.composed
            || self.told != self.next_in
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
                let _ = self.took(read);
                false
            }
            Ok(false) => true,
            Err(_) => {
                let _ = self.look_around();
                false
            }
        }
    }
}

fn failed(error: LinkError) -> std::io::Error {
    match error {
        LinkError::Io(error) => error,
        LinkError::PeerGone => std::io::ErrorKind::ConnectionReset.into(),
        other => std::io::Error::new(std::io::ErrorKind::InvalidData, other),
    }
}

/// The components of a pipe before its peer is known.
struct Parts {
    incoming: Region,
    outgoing: Region,
    endpoint: Endpoint,
    memory: Arc<Mapping>,
}
