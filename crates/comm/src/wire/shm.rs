//! Messages through memory that two ranks of a host share.
//!
//! Each direction has a ring of slots and a ring of data. A slot has four cache lines: the envelope, and the bytes of a
//! short message. A longer message lies in the data ring, after the end of the previous one; both sides compute the
//! place. The sequence word of a slot is stored last (see [`dayfly_fabric::ring`]). The receiver counts the slots and
//! data that it has finished with in a separate cache line, which the sender reads only when it believes a ring to be
//! full.
//!
//! A still longer message is offered, and then copied once between the processes (see [`super::cross_memory`]). It is
//! copied in pieces, each claimed on a board in the shared memory, so that the sender can copy too while it is idle. If
//! the kernel permits no such copy, the bytes go through the data ring.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, Ordering};

use dayfly_fabric::memory::Mapping;
use dayfly_fabric::ring;
use dayfly_protocol::error::{Code, Failure};
use rustix::event::{PollFd, PollFlags};
use rustix::net::{RecvFlags, SendFlags};
use zerocopy::IntoBytes;

use super::Outgoing;
use super::control::{self, ControlAction};
use super::cross_memory::CrossMemory;
use super::envelope::{ENVELOPE_BYTES, EXTRA_BYTES, Envelope, kind};
use crate::matching::{MatchKey, Matching, RequestId, State, truncated};

mod handshake;
mod large_copy;
mod layout;

pub use handshake::ShmHandshake;
use large_copy::{IncomingCopy, OutgoingCopy, board_of};
use layout::{DATA_BYTES, MEMORY_BYTES, Ring, SLOT_BYTES, SLOTS, at};

const INLINE_BYTES: usize = SLOT_BYTES - ENVELOPE_BYTES;
/// Longest message without an offer.
const EAGER_BYTES: usize = 32 << 10;
/// Bytes of each fragment of a message through the data ring.
const FRAGMENT_BYTES: usize = 16 << 10;
/// Bytes of large messages that may be copied before a waiting doorbell rings all the same.
const SILENT_BYTES: usize = 512 << 10;
/// Messages that are taken at a time while receives wait.
const BATCH: usize = 16;
/// Transfers of one direction in which the sender can help at a time.
const BOARDS: usize = 8;

/// The connection to a rank on the same host.
#[derive(Debug)]
pub struct ShmTransport {
    peer: u32,
    memory: Mapping,
    /// Ends with the other process; a byte on it wakes a sleeping rank.
    doorbell: UnixStream,
    cross_memory: Option<CrossMemory>,
    outgoing: Ring,
    incoming: Ring,
    outbox: VecDeque<Outgoing>,
    incoming_copies: VecDeque<IncomingCopy>,
    outgoing_copies: VecDeque<OutgoingCopy>,
    /// Messages that the other side was offered and has not taken.
    offered: u32,
    boards: [bool; BOARDS],
    /// The other side reads it, possibly late, to probe cross memory attach.
    _probe: Box<u64>,
    /// Whether the other side never sleeps, which saves a fence.
    peer_never_sleeps: bool,
    /// Whether the doorbell waits for [`ShmTransport::ring_held_doorbell`], and whether it is due then.
    holds_doorbell: bool,
    is_doorbell_due: bool,
    /// Bytes that were copied to this side since the doorbell waits.
    copied_in_silence: usize,
}

impl ShmTransport {
    pub fn eager_bytes(&self) -> usize {
        EAGER_BYTES
    }

    pub fn immediate_bytes(&self) -> usize {
        EAGER_BYTES
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        self.memory.word(offset)
    }

    /// Writes a message into the rings. Returns false if they are full.
    #[inline]
    fn push(&mut self, mut envelope: Envelope, bytes: &[u8]) -> bool {
        let ring = &mut self.outgoing;
        if ring.next.wrapping_sub(ring.seen) > SLOTS {
            ring.seen = self.memory.word(ring.base + at::DONE).load(Ordering::Acquire);
            if ring.next.wrapping_sub(ring.seen) > SLOTS {
                return false;
            }
        }
        let slot = ring.slot();
        let into = if bytes.len() <= INLINE_BYTES {
            slot + ENVELOPE_BYTES
        } else {
            let (start, end) = ring.place(bytes.len());
            if end.wrapping_sub(ring.seen_data) as usize > DATA_BYTES {
                ring.seen_data = self.memory.word(ring.base + at::DONE + 4).load(Ordering::Acquire);
                if end.wrapping_sub(ring.seen_data) as usize > DATA_BYTES {
                    return false;
                }
            }
            ring.data = end;
            ring.data_at(start)
        };
        envelope.sequence = 0;
        let head = envelope.as_bytes();
        // SAFETY: slot and place lie inside the mapping and have room for the bytes. The peer reads neither before the
        // sequence word below is stored. Everything except that word is written here.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.memory.at(into), bytes.len());
            std::ptr::copy_nonoverlapping(head[4..].as_ptr(), self.memory.at(slot + 4), ENVELOPE_BYTES - 4);
        }
        ring::publish(self.memory.word(slot), ring.next);
        ring.next = ring.next.wrapping_add(1);
        if !self.peer_never_sleeps {
            self.ring_doorbell();
        }
        true
    }

    /// Has the doorbell wait.
    pub fn hold_doorbell(&mut self) {
        self.holds_doorbell = true;
    }

    /// Rings the doorbell for all messages since it waits.
    pub fn ring_held_doorbell(&mut self) {
        self.holds_doorbell = false;
        self.copied_in_silence = 0;
        if std::mem::take(&mut self.is_doorbell_due) {
            self.ring_doorbell();
        }
    }

    /// Rings a doorbell that waits once enough was copied that the other side may run out of messages to offer.
    fn copied(&mut self, length: usize) {
        self.copied_in_silence += length;
        if self.holds_doorbell && self.copied_in_silence >= SILENT_BYTES {
            self.ring_held_doorbell();
            self.hold_doorbell();
        }
    }

    /// Wakes the other side if it sleeps.
    fn ring_doorbell(&mut self) {
        if self.holds_doorbell {
            self.is_doorbell_due = true;
        } else if ring::must_wake(self.word(self.outgoing.base + at::ASLEEP)) {
            // A full doorbell wakes the peer too; a broken one is noticed elsewhere.
            let _ = rustix::net::send(&self.doorbell, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
    }

    #[inline]
    pub fn try_send(&mut self, envelope: Envelope, bytes: &[u8]) -> Result<bool, Failure> {
        Ok(self.outbox.is_empty() && self.push(envelope, bytes))
    }

    pub fn send(&mut self, message: Outgoing, matching: &mut Matching) -> Result<(), Failure> {
        self.offered += u32::from(message.envelope.kind == kind::OFFER);
        self.outbox.push_back(message);
        self.flush(matching);
        Ok(())
    }

    /// Sends queued messages. Returns whether any left.
    fn flush(&mut self, matching: &mut Matching) -> bool {
        let mut moved = false;
        while let Some(mut message) = self.outbox.pop_front() {
            let all = message.payload.as_slice();
            if message.envelope.kind != kind::DATA {
                if !self.push(message.envelope, all) {
                    self.outbox.push_front(message);
                    return moved;
                }
            } else {
                let mut sent = message.envelope.call as usize;
                while sent < all.len() {
                    let fragment = &all[sent..all.len().min(sent + FRAGMENT_BYTES)];
                    let envelope = Envelope {
                        length: fragment.len() as u64,
                        call: 0,
                        ..message.envelope
                    };
                    if !self.push(envelope, fragment) {
                        break;
                    }
                    moved = true;
                    sent += fragment.len();
                }
                if sent < all.len() {
                    message.envelope.call = sent as u64;
                    self.outbox.push_front(message);
                    return moved;
                }
            }
            moved = true;
            if let Some(request) = message.request {
                matching.complete(request);
            }
        }
        moved
    }

    /// Receives the next message if it has arrived, is short, and matches. Its bytes go to `into`, which has `room`
    /// bytes.
    #[inline]
    pub fn try_receive(&mut self, key: &MatchKey, into: *mut u8, room: usize) -> Option<Envelope> {
        let slot = self.incoming.slot();
        if !ring::has_arrived(self.word(slot), self.incoming.next) {
            return None;
        }
        // SAFETY: as in `take`.
        let envelope: Envelope = unsafe { std::ptr::read_volatile(self.memory.at(slot).cast()) };
        let length = envelope.length as usize;
        if envelope.kind != kind::EAGER || length > EAGER_BYTES || !key.fits(&envelope, room) {
            return None;
        }
        let (from, end) = self.payload(slot, length);
        // SAFETY: the source lies in the mapping, and the caller has this room.
        unsafe { std::ptr::copy_nonoverlapping(self.memory.at(from), into, length) };
        self.advance(end);
        Some(envelope)
    }

    /// Place of a slot's message, and the end of the data ring after it.
    #[inline]
    fn payload(&self, slot: usize, length: usize) -> (usize, u32) {
        if length <= INLINE_BYTES {
            return (slot + ENVELOPE_BYTES, self.incoming.data);
        }
        let (start, end) = self.incoming.place(length);
        (self.incoming.data_at(start), end)
    }

    /// Finishes with a message.
    #[inline]
    fn advance(&mut self, end: u32) {
        let ring = &mut self.incoming;
        ring.next = ring.next.wrapping_add(1);
        ring.data = end;
        let done = ring.base + at::DONE;
        if ring.next.wrapping_sub(ring.told) > SLOTS / 4 {
            ring.told = ring.next.wrapping_sub(1);
            self.memory.word(done).store(ring.told, Ordering::Release);
        }
        if ring.data.wrapping_sub(ring.told_data) as usize >= DATA_BYTES / 4 {
            ring.told_data = ring.data;
            self.memory.word(done + 4).store(ring.told_data, Ordering::Release);
        }
    }

    #[inline]
    pub fn progress(&mut self, matching: &mut Matching) -> Result<bool, Failure> {
        let slot = self.incoming.slot();
        let mut moved = false;
        if ring::has_arrived(self.word(slot), self.incoming.next) {
            moved = self.take(slot, matching)?;
            // Messages that no receive waits for stay where they are: a receive takes them from there.
            for _ in 1..BATCH {
                let slot = self.incoming.slot();
                if !matching.awaits(self.peer)
                    || !ring::has_arrived(self.word(slot), self.incoming.next)
                    || !self.take(slot, matching)?
                {
                    break;
                }
            }
        }
        if !self.outbox.is_empty() {
            moved |= self.flush(matching);
        }
        if !self.incoming_copies.is_empty() {
            moved |= self.advance_incoming_copies(matching);
        } else if !self.outgoing_copies.is_empty() {
            moved |= self.advance_outgoing_copies();
        }
        Ok(moved)
    }

    /// Takes the message in a slot. Returns false if there is no room for it.
    #[inline]
    fn take(&mut self, slot: usize, matching: &mut Matching) -> Result<bool, Failure> {
        // SAFETY: inside the mapping. The peer may write at the same time, which tears values but not memory.
        let envelope: Envelope = unsafe { std::ptr::read_volatile(self.memory.at(slot).cast()) };
        let (length, known) = match envelope.kind {
            kind::EAGER => (envelope.length as usize, envelope.length <= EAGER_BYTES as u64),
            kind::DATA => (envelope.length as usize, envelope.length <= FRAGMENT_BYTES as u64),
            other => (control::extra_bytes(other), true),
        };
        if !known {
            return Err(self.violation("a message longer than agreed"));
        }
        let (from, end) = self.payload(slot, length);
        // SAFETY: the range was checked to lie in the mapping; concurrent writes of the peer damage only its own
        // message.
        let bytes = unsafe { std::slice::from_raw_parts(self.memory.at(from), length) };
        match envelope.kind {
            kind::EAGER => {
                if !matching.admits(self.peer, &envelope) {
                    return Ok(false);
                }
                matching.deliver(self.peer, &envelope, bytes);
            }
            other => {
                // Small, or copied at once.
                if other == kind::DATA {
                    self.receive_fragment(&envelope, from, matching)?;
                } else {
                    let mut extra = [0; EXTRA_BYTES];
                    extra[..length].copy_from_slice(bytes);
                    self.control(&envelope, extra, matching)?;
                }
            }
        }
        self.advance(end);
        Ok(true)
    }

    fn violation(&self, what: &str) -> Failure {
        Failure::new(
            Code::ProtocolViolation,
            format!("rank {} broke the protocol of shared memory: {what}", self.peer),
        )
    }

    fn receive_fragment(&mut self, envelope: &Envelope, from: usize, matching: &mut Matching) -> Result<(), Failure> {
        let peer = self.peer;
        let Some((id, request)) = matching.named(envelope.tag, State::Receiving, peer) else {
            // The receive was cancelled; drop the bytes.
            return Ok(());
        };
        let done = request.filled;
        let length = envelope.length as usize;
        if length as u64 > request.status.length.saturating_sub(done as u64) {
            return Err(self.violation("more bytes than were offered"));
        }
        let room = request.length.saturating_sub(done).min(length);
        // SAFETY: the fragment lies in the mapping and the request's memory has `room` bytes after the first `done`.
        unsafe { std::ptr::copy_nonoverlapping(self.memory.at(from), request.start.wrapping_add(done), room) };
        request.filled += length;
        if request.filled as u64 == request.status.length {
            if request.status.length > request.length as u64 {
                request.failure = Some(truncated(request));
            }
            matching.complete(id);
        }
        Ok(())
    }

    /// Handles a control message.
    fn control(
        &mut self,
        envelope: &Envelope,
        extra: [u8; EXTRA_BYTES],
        matching: &mut Matching,
    ) -> Result<(), Failure> {
        match control::handle(self.peer, envelope, extra, matching)? {
            ControlAction::Nothing => {}
            ControlAction::Accept(offer, id) => self.accept(offer, id, matching)?,
            ControlAction::Data(mut message) => {
                // Counts the sent bytes, fragment by fragment.
                message.envelope.call = 0;
                self.outbox.push_back(message);
                self.flush(matching);
            }
            ControlAction::HelpCopy(id, invitation) => {
                if let Some(request) = matching.get(id)
                    && self.cross_memory.is_some()
                    && (1..=BOARDS).contains(&board_of(&invitation))
                {
                    self.outgoing_copies
                        .push_back(OutgoingCopy::new(id, request, &invitation));
                }
            }
            ControlAction::Taken(id) => {
                self.offered = self.offered.saturating_sub(1);
                self.outgoing_copies.retain(|help| help.request != id);
            }
            ControlAction::Withdrawn(token) => self.withdrawn(token, matching),
            ControlAction::Respond(message) => self.send(message, matching)?,
        }
        Ok(())
    }

    /// Whether nothing of a send has left.
    pub fn is_unsent(&self, id: RequestId) -> bool {
        control::is_unsent(&self.outbox, id, false)
    }

    pub fn is_flushed(&self) -> bool {
        self.outbox.is_empty()
    }

    pub fn socket(&self) -> (BorrowedFd<'_>, bool) {
        (self.doorbell.as_fd(), false)
    }

    pub fn fall_asleep(&mut self) -> bool {
        // A rank with a piece to copy must not sleep.
        let busy = !self.incoming_copies.is_empty() || !self.outgoing_copies.is_empty();
        let asleep = self.word(self.incoming.base + at::ASLEEP);
        !busy && ring::fall_asleep(asleep, self.word(self.incoming.slot()), self.incoming.next)
    }

    /// Expects from now on that the other side may sleep.
    pub fn expect_sleep(&mut self) {
        self.peer_never_sleeps = false;
    }

    pub fn wake_up(&mut self) {
        ring::wake_up(self.word(self.incoming.base + at::ASLEEP));
        let mut sink = [0; 64];
        while matches!(
            rustix::net::recv(&self.doorbell, &mut sink, RecvFlags::DONTWAIT),
            Ok((1.., _))
        ) {}
    }

    /// Whether the other process has closed its end.
    fn hung_up(&self) -> bool {
        let mut poll = [PollFd::new(&self.doorbell, PollFlags::RDHUP)];
        let now = rustix::event::Timespec::default();
        let ended = PollFlags::HUP | PollFlags::ERR | PollFlags::RDHUP;
        rustix::event::poll(&mut poll, Some(&now)).is_ok() && poll[0].revents().intersects(ended)
    }

    pub fn is_closed(&self) -> bool {
        let empty = || !ring::has_arrived(self.word(self.incoming.slot()), self.incoming.next);
        // Bytes written before its death become visible before its end; check again after the end.
        empty() && self.hung_up() && empty()
    }
}

#[cfg(test)]
mod tests;
