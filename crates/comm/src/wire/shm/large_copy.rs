//! Large messages within a host: copied once, by both sides at the same time.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use dayfly_protocol::error::{Code, Failure};

use super::{BOARDS, EAGER_BYTES, ShmTransport, at};
use crate::matching::{Matching, Request, RequestId, State, truncated};
use crate::wire::Outgoing;
use crate::wire::control::{retract, taken, withdrawal};
use crate::wire::envelope::{Envelope, Offer, kind};

/// Smallest piece in bytes: large compared with a system call, small compared with the message.
const PIECE_BYTES: usize = 32 << 10;
const LARGEST_PIECE_BYTES: usize = 1 << 20;
/// Longest message, in bytes, that is copied without the sender's help.
const ALONE_BYTES: usize = 4 << 20;
/// Pieces of a message, between the bounds of a piece.
const PIECES: usize = 8;
/// Length in bytes from which on the sender helps.
const SHARED_FROM_BYTES: usize = 96 << 10;
const BOARD_BYTES: usize = 64;
/// Bits of the length in an ACCEPT; the number of the board is above them.
const LENGTH_BITS: u32 = 48;
const _: () = assert!(at::BOARDS + BOARDS * BOARD_BYTES <= at::SLOTS);

/// A message that this side receives by copying it.
#[derive(Debug)]
pub struct IncomingCopy {
    request: RequestId,
    /// The sender's request.
    token: u32,
    remote: u64,
    local: *mut u8,
    length: usize,
    /// The board, if the sender may help.
    board: Option<usize>,
    piece: usize,
    claimed: u32,
    copied: u32,
}

// SAFETY: the pointer belongs to the request, see `Matching`.
unsafe impl Send for IncomingCopy {}

/// A message of this side that both sides copy.
#[derive(Debug)]
pub struct OutgoingCopy {
    pub request: RequestId,
    board: usize,
    claim: u32,
    local: *const u8,
    length: usize,
    remote: u64,
}

// SAFETY: as for `IncomingCopy`.
unsafe impl Send for OutgoingCopy {}

impl OutgoingCopy {
    /// The transfer that a receiver's message describes.
    pub fn new(id: RequestId, request: &Request, invitation: &Envelope) -> Self {
        Self {
            request: id,
            board: board_of(invitation).saturating_sub(1),
            claim: invitation.context,
            local: request.start,
            // At most the receiver's room, and at most the message.
            length: request
                .length
                .min((invitation.length & ((1 << LENGTH_BITS) - 1)) as usize),
            remote: invitation.call,
        }
    }
}

/// The number of the board, from 1; 0 without a board.
pub fn board_of(invitation: &Envelope) -> usize {
    (invitation.length >> LENGTH_BITS) as usize
}

/// Bytes of a piece, in whole pages.
fn piece_bytes(length: usize) -> usize {
    let even = length.div_ceil(PIECES).next_multiple_of(4096);
    even.clamp(PIECE_BYTES, LARGEST_PIECE_BYTES)
}

fn pieces(length: usize, piece: usize) -> u32 {
    length.div_ceil(piece) as u32
}

fn place_of(number: u32, length: usize, piece: usize) -> (usize, usize) {
    let start = number as usize * piece;
    (start, piece.min(length - start))
}

/// The words of a board. One word holds the transfer and its next piece, so that no piece of an old transfer is
/// claimed. Then the pieces that the sender copied, and whether it failed at one.
struct Board<'a> {
    next: &'a AtomicU64,
    helped: &'a AtomicU32,
    failed: &'a AtomicU32,
}

impl Board<'_> {
    /// Claims the next piece; `None` if none is left.
    fn claim(&self, transfer: u32, pieces: u32) -> Option<u32> {
        let mut seen = self.next.load(Ordering::Acquire);
        loop {
            if (seen >> 32) as u32 != transfer || seen as u32 >= pieces {
                return None;
            }
            match self
                .next
                .compare_exchange_weak(seen, seen + 1, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(claimed) => return Some(claimed as u32),
                Err(now) => seen = now,
            }
        }
    }
}

impl ShmTransport {
    fn board(&self, direction: usize, number: usize) -> Board<'_> {
        let start = direction + at::BOARDS + number * BOARD_BYTES;
        Board {
            // SAFETY: inside the mapping, aligned to the board, and only used as an atomic.
            next: unsafe { AtomicU64::from_ptr(self.memory.at(start).cast()) },
            helped: self.memory.word(start + 8),
            failed: self.memory.word(start + 12),
        }
    }

    pub fn accept(&mut self, offer: Offer, id: RequestId, matching: &mut Matching) -> Result<(), Failure> {
        let Some(request) = matching.get_mut(id) else {
            return Ok(());
        };
        let Some(cross_memory) = self.cross_memory else {
            let answer = Envelope {
                kind: kind::ACCEPT,
                tag: offer.token as u32,
                context: id.to_wire(),
                ..Envelope::default()
            };
            return self.send(Outgoing::control(answer), matching);
        };
        let length = request
            .length
            .min(usize::try_from(request.status.length).unwrap_or(usize::MAX));
        if length < SHARED_FROM_BYTES {
            // SAFETY: the request's memory has this room.
            let copied = unsafe { cross_memory.read(offer.address, request.start, length) };
            self.finish(id, offer.token as u32, copied.is_ok(), matching)?;
            self.copied(length);
            return Ok(());
        }
        let mut pull = IncomingCopy {
            request: id,
            token: offer.token as u32,
            remote: offer.address,
            local: request.start,
            length,
            board: None,
            piece: ALONE_BYTES,
            claimed: 0,
            copied: 0,
        };
        // If both sides have something to send, both are busy, and helping would slow them down.
        if self.offered == 0
            && let Some(number) = self.boards.iter().position(|used| !used)
        {
            self.boards[number] = true;
            pull.piece = piece_bytes(length);
            pull.board = Some(number);
            let board = self.board(self.incoming.base, number);
            board.helped.store(0, Ordering::Relaxed);
            board.failed.store(0, Ordering::Relaxed);
            board.next.store(u64::from(id.to_wire()) << 32, Ordering::Release);
            let invitation = Envelope {
                kind: kind::ACCEPT,
                tag: offer.token as u32,
                context: id.to_wire(),
                length: (number as u64 + 1) << LENGTH_BITS | length as u64,
                call: pull.local as u64,
                ..Envelope::default()
            };
            self.send(Outgoing::control(invitation), matching)?;
        }
        self.incoming_copies.push_back(pull);
        Ok(())
    }

    /// Reports the end to the sender, and completes the receive.
    fn finish(&mut self, id: RequestId, token: u32, well: bool, matching: &mut Matching) -> Result<(), Failure> {
        let peer = self.peer;
        if !well {
            let reason =
                format!("the memory of rank {peer} could not be read: it is gone, or has given the message up");
            matching.give_up(id, Failure::new(Code::RankLost, reason));
        } else if let Some(request) = matching.get_mut(id) {
            if request.status.length > request.length as u64 {
                request.failure = Some(truncated(request));
            }
            matching.complete(id);
        }
        self.send(Outgoing::control(taken(token, well)), matching)
    }

    /// Copies a piece of the oldest transfer. Returns whether anything moved.
    pub(super) fn advance_incoming_copies(&mut self, matching: &mut Matching) -> bool {
        let (Some(pull), Some(cross_memory)) = (self.incoming_copies.front(), self.cross_memory) else {
            return false;
        };
        let total = pieces(pull.length, pull.piece);
        let board = pull.board.map(|number| self.board(self.incoming.base, number));
        let claimed = match &board {
            Some(board) => board.claim(pull.request.to_wire(), total),
            None => (pull.claimed < total).then_some(pull.claimed),
        };
        if let Some(number) = claimed {
            let (start, length) = place_of(number, pull.length, pull.piece);
            // SAFETY: the piece lies within the request's memory, and no one else has claimed it.
            let copied =
                unsafe { cross_memory.read(pull.remote.wrapping_add(start as u64), pull.local.add(start), length) };
            if let Some(pull) = self.incoming_copies.front_mut() {
                pull.claimed += 1;
                pull.copied += 1;
            }
            if copied.is_err() {
                self.abandon(matching);
            }
            return true;
        }
        let helped = board.as_ref().map_or(0, |board| board.helped.load(Ordering::Acquire));
        if pull.copied.saturating_add(helped) < total {
            return false;
        }
        let well = board.is_none_or(|board| board.failed.load(Ordering::Relaxed) == 0);
        if let Some(pull) = self.incoming_copies.pop_front() {
            self.leave_board(&pull);
            // A report that cannot be sent now is queued, or the other side is gone.
            let _ = self.finish(pull.request, pull.token, well, matching);
            self.copied(pull.length);
        }
        true
    }

    fn leave_board(&mut self, pull: &IncomingCopy) {
        if let Some(number) = pull.board {
            self.board(self.incoming.base, number)
                .next
                .store(u64::MAX, Ordering::Release);
            self.boards[number] = false;
        }
    }

    /// Ends the oldest transfer, which failed.
    fn abandon(&mut self, matching: &mut Matching) {
        if let Some(pull) = self.incoming_copies.pop_front() {
            self.close(&pull);
            let _ = self.finish(pull.request, pull.token, false, matching);
        }
    }

    /// Ends a transfer early: no piece can be claimed any more, and the sender's claimed pieces are copied or never
    /// will be.
    fn close(&mut self, pull: &IncomingCopy) {
        if let Some(number) = pull.board {
            let board = self.board(self.incoming.base, number);
            let claimed = board.next.swap(u64::MAX, Ordering::AcqRel) as u32;
            let claimed = claimed.min(pieces(pull.length, pull.piece));
            while pull.copied.saturating_add(board.helped.load(Ordering::Acquire)) < claimed && !self.hung_up() {
                std::thread::yield_now();
            }
        }
        self.leave_board(pull);
    }

    /// Copies a piece of one of our messages to the receiver. Returns whether there was one.
    pub(super) fn advance_outgoing_copies(&mut self) -> bool {
        let (Some(help), Some(cross_memory)) = (self.outgoing_copies.front(), self.cross_memory) else {
            return false;
        };
        let board = self.board(self.outgoing.base, help.board);
        let bytes = piece_bytes(help.length);
        let Some(number) = board.claim(help.claim, pieces(help.length, bytes)) else {
            self.outgoing_copies.pop_front();
            return true;
        };
        let (start, length) = place_of(number, help.length, bytes);
        // SAFETY: the piece lies within the message, which stays until its request is complete or cancelled.
        let copied =
            unsafe { cross_memory.write(help.local.add(start), help.remote.wrapping_add(start as u64), length) };
        if copied.is_err() {
            board.failed.store(1, Ordering::Relaxed);
        }
        board.helped.fetch_add(1, Ordering::AcqRel);
        true
    }

    /// Handles that the sender has withdrawn a message that is being copied.
    pub(super) fn withdrawn(&mut self, token: u32, matching: &mut Matching) {
        let Some(at) = self.incoming_copies.iter().position(|pull| pull.token == token) else {
            return;
        };
        if let Some(pull) = self.incoming_copies.remove(at) {
            self.close(&pull);
            let reason = format!("rank {} gave up a message while it was received", self.peer);
            matching.give_up(pull.request, Failure::new(Code::Cancelled, reason));
        }
    }

    pub fn cancel(&mut self, id: RequestId, matching: &Matching) {
        let Some(request) = matching.get(id) else {
            return;
        };
        if let Some(at) = self.incoming_copies.iter().position(|pull| pull.request == id)
            && let Some(pull) = self.incoming_copies.remove(at)
        {
            self.close(&pull);
            self.outbox.push_back(Outgoing::control(taken(pull.token, false)));
        }
        if request.state != State::Sending {
            return;
        }
        self.outgoing_copies.retain(|help| help.request != id);
        self.offered = self.offered.saturating_sub(u32::from(request.length > EAGER_BYTES));
        let begun = self
            .outbox
            .front()
            .is_some_and(|message| message.envelope.kind == kind::DATA);
        if retract(&mut self.outbox, id, begun) {
            self.outbox.push_back(withdrawal(id));
        }
    }
}
