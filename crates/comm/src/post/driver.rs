//! The thread of a post: it drives the engine, and moves messages between the engine and the other threads.

mod end;
mod sleep;

use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use dayfly_protocol::error::{Code, Failure};

use super::incoming::{Head, Incoming, Trouble};
use super::link::Link;
use super::memory::Pool;
use super::outgoing::{Outgoing, OwnMessage};
use super::registration::Registration;
use super::state::{Consumed, Phase, Shared, Submission, Work};
use super::word::{self, Credit, MAX_CREDITS, Word};
use super::{Message, PostError};
use crate::engine::{Engine, EngineGuard};
use crate::group::Communicator;

/// Time without movement after which the thread sleeps.
const SPIN: Duration = Duration::from_micros(5);
/// The same while bytes wait for room in a ring, which no event announces.
const UNFLUSHED_SPIN: Duration = Duration::from_micros(100);
/// Turns between two reads of the clock.
const TURNS: u32 = 64;
/// Messages that the engine moves in a turn.
const MOVES: u32 = 16;
/// Longest wait for the last words to leave.
const LEAVE_LIMIT: Duration = Duration::from_secs(1);

/// A rank of the post.
#[derive(Debug)]
struct Peer {
    world: u32,
    /// Why nothing is sent to it any more.
    end: Option<PostError>,
    /// Why a word could not be sent. What has arrived is taken before the exchange ends.
    failure: Option<Failure>,
    outgoing: Outgoing,
    incoming: Incoming,
}

/// Results of a turn for the other threads.
#[derive(Debug, Default)]
struct Results {
    messages: Vec<Message>,
    wanted: Vec<u32>,
    losses: Vec<PostError>,
    own_arrived: usize,
    /// Whether all other ranks have ended.
    is_exhausted: bool,
}

/// The state of the thread.
#[derive(Debug)]
pub struct Driver {
    shared: Arc<Shared>,
    communicator: Communicator,
    peers: Vec<Peer>,
    pool: Arc<Pool>,
    results: Results,
    /// Why nothing is sent or received any more.
    end: Option<PostError>,
    /// When the others were informed of the end.
    closed_at: Option<Instant>,
    phase: Phase,
    losses_seen: u64,
    checked: Instant,
    own: Vec<OwnMessage>,
    _registration: Registration,
    /// Dropped last, so that a caller that waits for it finds the engine released.
    _finish: Finish,
}

/// Reports the end of the thread when it is dropped.
#[derive(Debug)]
struct Finish(Arc<Shared>);

impl Drop for Finish {
    fn drop(&mut self) {
        self.0.finish();
    }
}

impl Driver {
    pub fn new(shared: Arc<Shared>, registration: Registration, communicator: Communicator) -> Self {
        let peer = |world: &u32| Peer {
            world: *world,
            end: None,
            failure: None,
            outgoing: Outgoing::default(),
            incoming: Incoming::default(),
        };
        let peers = communicator.members().iter().map(peer).collect();
        Self {
            pool: Arc::new(Pool::new(shared.options.pool_bytes)),
            _finish: Finish(shared.clone()),
            shared,
            _registration: registration,
            communicator,
            peers,
            results: Results::default(),
            end: None,
            closed_at: None,
            phase: Phase::Open,
            losses_seen: 0,
            checked: Instant::now(),
            own: Vec::new(),
        }
    }

    /// Runs until the post is closed.
    pub fn run(mut self) {
        let engine = self.communicator.engine.clone();
        let mut guard = engine.lock();
        let mut idle: Option<Instant> = None;
        let mut turns = 0u32;
        while !self.is_over() {
            guard.yield_to_waiters();
            let moved = self.turn(&mut guard);
            turns = turns.wrapping_add(1);
            if moved {
                idle = None;
                if turns.is_multiple_of(TURNS) {
                    self.look_at_clock(guard.engine(), Instant::now());
                }
                continue;
            }
            let now = Instant::now();
            let limit = match guard.engine().is_flushed() {
                true => SPIN,
                false => UNFLUSHED_SPIN,
            };
            if now.duration_since(*idle.get_or_insert(now)) < limit {
                std::thread::yield_now();
                continue;
            }
            guard = self.sleep(&engine, guard);
        }
    }

    fn link<'a>(&self, engine: &'a mut Engine, rank: usize) -> Link<'a> {
        Link::new(engine, rank as u32, self.peers[rank].world, self.communicator.context)
    }

    /// Moves what can be moved. Returns whether there was anything.
    fn turn(&mut self, guard: &mut EngineGuard<'_>) -> bool {
        guard.engine().hold_doorbells();
        let mut moved = false;
        for _ in 0..MOVES {
            if !guard.progress() {
                break;
            }
            moved = true;
        }
        let engine = guard.engine();
        moved |= self.take_work(engine);
        for rank in 0..self.peers.len() {
            if rank as u32 == self.shared.rank {
                moved |= self.deliver_own();
            } else if self.peers[rank].end.is_none() {
                moved |= self.move_messages(engine, rank);
            }
        }
        self.close_when_idle(engine);
        engine.ring_held_doorbells();
        self.hand_over();
        moved
    }

    /// Takes what the other threads want done.
    fn take_work(&mut self, engine: &mut Engine) -> bool {
        let (work, phase) = {
            let mut state = self.shared.lock();
            if !state.has_work() {
                return false;
            }
            (state.take_work(), state.phase())
        };
        let Work {
            submissions,
            consumed,
            revoke,
        } = work;
        let moved = !submissions.is_empty() || !consumed.is_empty() || revoke || phase != self.phase;
        self.phase = phase;
        for submission in submissions {
            self.queue(submission);
        }
        self.return_credit(engine, consumed);
        if revoke {
            self.revoke(engine, self.shared.rank);
        }
        if phase == Phase::Stopping && self.end.is_none() {
            self.stop(engine, PostError::Closed);
        }
        moved
    }

    fn queue(&mut self, submission: Submission) {
        let peer = &mut self.peers[submission.to as usize];
        match self.end.as_ref().or(peer.end.as_ref()) {
            Some(end) => {
                let end = end.clone();
                submission.refuse(end);
            }
            None => peer.outgoing.queue(submission),
        }
    }

    /// Returns the credit of consumed messages to their senders.
    fn return_credit(&mut self, engine: &mut Engine, mut consumed: Vec<Consumed>) {
        consumed.sort_unstable_by_key(|(rank, lane, _)| (*rank, *lane));
        for of_rank in consumed.chunk_by(|one, other| one.0 == other.0) {
            let rank = of_rank[0].0 as usize;
            let of_lanes = of_rank.chunk_by(|one, other| one.1 == other.1);
            let credits: Vec<Credit> = of_lanes
                .map(|of_lane| Credit {
                    charge: of_lane.iter().map(|(_, _, charge)| charge).sum(),
                    lane: of_lane[0].1,
                    reserved: 0,
                })
                .collect();
            if rank as u32 == self.shared.rank {
                for credit in &credits {
                    // Fails after an end only, which dropped the lanes.
                    let _ = self.peers[rank].outgoing.credit(credit.lane, credit.charge);
                }
                continue;
            }
            for credits in credits.chunks(MAX_CREDITS) {
                for credit in credits {
                    self.peers[rank].incoming.returned(credit.lane, credit.charge);
                }
                self.send_word(engine, rank, word::credit(credits));
            }
        }
    }

    fn send_word(&mut self, engine: &mut Engine, rank: usize, bytes: Vec<u8>) {
        if self.peers[rank].end.is_some() || rank as u32 == self.shared.rank {
            return;
        }
        let mut link = self.link(engine, rank);
        let peer = &mut self.peers[rank];
        if let Err(failure) = peer.outgoing.send_word(&mut link, bytes, None) {
            peer.failure.get_or_insert(failure);
        }
    }

    /// Delivers messages of this rank to itself.
    fn deliver_own(&mut self) -> bool {
        let rank = self.shared.rank;
        let mut own = std::mem::take(&mut self.own);
        if self.peers[rank as usize]
            .outgoing
            .take_own(self.shared.options.window_bytes, &mut own)
        {
            self.results.wanted.push(rank);
        }
        let moved = !own.is_empty();
        for message in own.drain(..) {
            let OwnMessage {
                lane,
                parts,
                layout,
                receipt,
            } = message;
            let charge = word::charge(layout.bytes(), parts.len());
            let is_aligned =
                |part: &bytes::Bytes| (part.as_ptr() as usize).is_multiple_of(super::layout::ALIGNMENT as usize);
            self.results.own_arrived += 1;
            let arrived = if parts.iter().all(is_aligned) {
                parts
            } else if let Some(mut memory) = self.pool.take(&layout) {
                memory.zero_gaps(&layout);
                for (part, (offset, _)) in parts.iter().zip(layout.offsets()) {
                    memory.write(*offset as usize, part);
                }
                // The receipt's owner may want its memory back.
                drop(parts);
                memory.into_parts(&layout)
            } else {
                drop(parts);
                receipt.report(Err(PostError::OutOfMemory { bytes: layout.bytes() }));
                // It is due: the message has just taken it.
                let _ = self.peers[rank as usize].outgoing.credit(lane, charge);
                continue;
            };
            self.results.messages.push(Message {
                from: rank,
                lane,
                charge,
                parts: arrived,
            });
            receipt.report(Ok(()));
        }
        self.own = own;
        moved
    }

    /// Moves messages with another rank.
    fn move_messages(&mut self, engine: &mut Engine, rank: usize) -> bool {
        let outcome = self.try_move_messages(engine, rank);
        let failure = self.peers[rank].failure.take();
        match outcome.and_then(|moved| failure.map_or(Ok(moved), |failure| Err(failure.into()))) {
            Ok(moved) => moved,
            Err(Trouble::Failed(failure)) => {
                self.fail(engine, rank, &failure);
                true
            }
            Err(Trouble::Violation(what)) => {
                let reason = word::violation(what);
                engine.lose(self.peers[rank].world, reason.clone());
                self.fail(engine, rank, &Failure::new(Code::ProtocolViolation, reason));
                true
            }
            Err(Trouble::OutOfMemory(bytes)) => {
                self.stop(engine, PostError::OutOfMemory { bytes });
                true
            }
        }
    }

    fn try_move_messages(&mut self, engine: &mut Engine, rank: usize) -> Result<bool, Trouble> {
        let mut moved = false;
        loop {
            let mut link = self.link(engine, rank);
            let Some(bytes) = self.peers[rank].incoming.next_word(&mut link)? else {
                break;
            };
            moved = true;
            self.handle(engine, rank, &bytes)?;
            if self.peers[rank].end.is_some() {
                return Ok(true);
            }
        }
        let mut link = self.link(engine, rank);
        let Peer { incoming, outgoing, .. } = &mut self.peers[rank];
        moved |= incoming.advance(&mut link, &mut self.results.messages)?;
        moved |= outgoing.advance(&mut link, self.shared.options.window_bytes)?;
        Ok(moved)
    }

    /// Handles a word.
    fn handle(&mut self, engine: &mut Engine, rank: usize, bytes: &[u8]) -> Result<(), Trouble> {
        let options = &self.shared.options;
        match Word::read(bytes, options.message_bytes).map_err(Trouble::Violation)? {
            Word::Message {
                lane,
                number,
                layout,
                bytes,
            } => {
                if self.end.is_some() {
                    return Ok(());
                }
                let head = Head {
                    lane,
                    number,
                    layout,
                    bytes,
                };
                let window = options.window_bytes;
                let mut link = self.link(engine, rank);
                let incoming = &mut self.peers[rank].incoming;
                incoming.begin(&mut link, head, window, &self.pool, &mut self.results.messages)
            }
            Word::Credit(credits) => {
                let outgoing = &mut self.peers[rank].outgoing;
                for Credit { lane, charge, .. } in credits {
                    if self.end.is_none() {
                        outgoing.credit(lane, charge).map_err(Trouble::Violation)?;
                    }
                }
                Ok(())
            }
            Word::Want => {
                self.results.wanted.push(rank as u32);
                Ok(())
            }
            Word::Revoke(by) if by >= self.shared.size => Err(Trouble::Violation("a revocation by no rank")),
            Word::Revoke(by) => {
                self.revoke(engine, by);
                Ok(())
            }
            Word::Close => {
                self.part_with(engine, rank, PostError::PeerClosed { rank: rank as u32 });
                Ok(())
            }
        }
    }

    /// Whether the thread may end.
    fn is_over(&self) -> bool {
        let Some(since) = self.closed_at else {
            return false;
        };
        let has_left = |peer: &Peer| peer.end.is_some() || peer.outgoing.is_idle();
        self.phase != Phase::Open && (self.peers.iter().all(has_left) || since.elapsed() >= LEAVE_LIMIT)
    }

    /// Hands the results of a turn to the other threads.
    fn hand_over(&mut self) {
        let Results {
            messages,
            wanted,
            losses,
            own_arrived,
            is_exhausted,
        } = &mut self.results;
        if messages.is_empty() && wanted.is_empty() && losses.is_empty() && *own_arrived == 0 && !*is_exhausted {
            return;
        }
        let mut wakers = Vec::new();
        let unwanted;
        {
            let mut state = self.shared.lock();
            for message in messages.drain(..) {
                wakers.extend(state.deliver(message, self.shared.options.window_bytes));
            }
            for rank in wanted.drain(..) {
                state.want_credit(rank);
            }
            for loss in losses.drain(..) {
                wakers.extend(state.lose(loss));
            }
            if std::mem::take(is_exhausted) {
                wakers.extend(state.exhaust());
            }
            wakers.extend(state.own_arrived(std::mem::take(own_arrived)));
            unwanted = state.take_unwanted();
        }
        drop(unwanted);
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let engine = self.communicator.engine.clone();
        let mut guard = engine.lock();
        // Only if the thread failed, or could not be started.
        self.send_close(guard.engine());
        for rank in 0..self.peers.len() {
            let mut link = self.link(guard.engine(), rank);
            let Peer { incoming, outgoing, .. } = &mut self.peers[rank];
            outgoing.abandon(&mut link, &PostError::Closed);
            incoming.abandon(&mut link);
        }
        guard.engine().matching.retire(self.communicator.context);
    }
}
