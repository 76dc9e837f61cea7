//! The thread of a post: it drives the engine, and moves messages between the engine and the other threads.

use std::future::poll_fn;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use dayfly_fabric::stream::wire::poll;
use dayfly_protocol::error::{Code, Failure};
use rustix::event::{PollFd, PollFlags};

use super::incoming::{Head, Incoming, Trouble, error_of};
use super::memory::Pool;
use super::outgoing::{Outgoing, OwnMessage};
use super::state::{Consumed, Phase, Shared, Submission, Work};
use super::word::{self, Credit, MAX_CREDITS, Word};
use super::{Message, PostError};
use crate::engine::{Engine, EngineGuard, SharedEngine, Started, Watched};
use crate::group::Communicator;
use crate::matching::{MatchKey, RequestId, Status, Waiting};

/// Time without movement after which the thread sleeps.
const SPIN: Duration = Duration::from_micros(5);
/// The same while bytes wait for room in a ring, which no event announces.
const UNFLUSHED_SPIN: Duration = Duration::from_micros(100);
/// Longest sleep. Bounds the delay of what another thread finds without waking this one.
const MAX_SLEEP: Duration = Duration::from_millis(100);
/// Interval of checks for failures, while events do not report any.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);
/// Turns between two reads of the clock.
const TURNS: u32 = 64;
/// Messages that the engine moves in a turn.
const MOVES: u32 = 64;
/// Longest wait for the last words to leave.
const LEAVE_LIMIT: Duration = Duration::from_secs(1);

/// The engine, as messages with one rank use it.
#[derive(Debug)]
pub struct Link<'a> {
    engine: &'a mut Engine,
    /// The rank in the post.
    rank: u32,
    /// The rank in the whole group.
    world: u32,
    context: u32,
}

impl Link<'_> {
    pub fn rank(&self) -> u32 {
        self.rank
    }

    fn key(&self, tag: u32) -> MatchKey {
        MatchKey {
            context: self.context,
            tag,
            call: 0,
        }
    }

    /// Starts a send. Returns its request unless it is complete.
    ///
    /// # Safety
    /// As [`Engine::send`].
    pub unsafe fn send(&mut self, tag: u32, start: *const u8, length: usize) -> Result<Option<RequestId>, Failure> {
        // SAFETY: required of the caller.
        match unsafe { self.engine.send(self.world, self.key(tag), start, length) }? {
            Started::Done(_) => Ok(None),
            Started::Pending(request) => Ok(Some(request)),
        }
    }

    /// Starts a receive of exactly `length` bytes. Returns its request unless it is complete.
    ///
    /// # Safety
    /// As [`Engine::receive`].
    pub unsafe fn receive(&mut self, tag: u32, start: *mut u8, length: usize) -> Result<Option<RequestId>, Failure> {
        // SAFETY: required of the caller.
        match unsafe { self.engine.receive(self.world, self.key(tag), start, length) }? {
            Started::Done(status) if status.length != length as u64 => {
                Err(Failure::new(Code::ProtocolViolation, word::violation("too few bytes")))
            }
            Started::Done(_) => Ok(None),
            Started::Pending(request) => Ok(Some(request)),
        }
    }

    /// The outcome of a request; `None` if it is not complete.
    pub fn take(&mut self, request: RequestId) -> Option<Result<Status, Failure>> {
        self.engine.matching.take(request)
    }

    pub fn cancel(&mut self, request: RequestId) {
        self.engine.cancel(request);
    }

    /// The first waiting message with this tag.
    pub fn take_arrived(&mut self, tag: u32) -> Option<Waiting> {
        self.engine.matching.take_arrived(self.world, self.context, tag)
    }
}

/// A rank of the post.
#[derive(Debug)]
struct Peer {
    world: u32,
    /// Why nothing is sent to it any more.
    end: Option<PostError>,
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
    /// The background task that wakes this thread when another one completes its requests.
    hook: usize,
    losses_seen: u64,
    checked: Instant,
    own: Vec<OwnMessage>,
}

impl Driver {
    pub fn new(shared: Arc<Shared>, communicator: Communicator) -> Result<Self, Failure> {
        let peer = |world: &u32| Peer {
            world: *world,
            end: None,
            outgoing: Outgoing::default(),
            incoming: Incoming::default(),
        };
        let peers = communicator.members().iter().map(peer).collect();
        let hook = {
            let mut guard = communicator.engine.lock();
            guard.engine().attach_driver(&shared.wake)?;
            let wake = shared.wake.clone();
            guard.background().add(Box::pin(poll_fn(move |_| {
                wake.wake();
                Poll::Pending
            })))
        };
        Ok(Self {
            pool: Arc::new(Pool::new(shared.options.pool_bytes)),
            shared,
            communicator,
            peers,
            results: Results::default(),
            end: None,
            closed_at: None,
            phase: Phase::Open,
            hook,
            losses_seen: 0,
            checked: Instant::now(),
            own: Vec::new(),
        })
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
                    self.check_for_failures(guard.engine(), Instant::now());
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
        Link {
            engine,
            rank: rank as u32,
            world: self.peers[rank].world,
            context: self.communicator.context,
        }
    }

    /// Moves what can be moved. Returns whether there was anything.
    fn turn(&mut self, guard: &mut EngineGuard<'_>) -> bool {
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
            Some(end) => submission.receipt.report(Err(end.clone())),
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
        if let Err(failure) = self.peers[rank].outgoing.send_word(&mut link, bytes, None) {
            self.fail(engine, rank, &failure);
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
            let parts = if parts.iter().all(is_aligned) {
                parts
            } else if let Some(mut memory) = self.pool.take(&layout) {
                memory.zero_gaps(&layout);
                for (part, (offset, _)) in parts.iter().zip(layout.offsets()) {
                    memory.write(*offset as usize, part);
                }
                memory.into_parts(&layout)
            } else {
                receipt.report(Err(PostError::OutOfMemory { bytes: layout.bytes() }));
                self.results.own_arrived += 1;
                continue;
            };
            self.results.own_arrived += 1;
            self.results.messages.push(Message {
                from: rank,
                lane,
                charge,
                parts,
            });
            receipt.report(Ok(()));
        }
        self.own = own;
        moved
    }

    /// Moves messages with another rank.
    fn move_messages(&mut self, engine: &mut Engine, rank: usize) -> bool {
        match self.try_move_messages(engine, rank) {
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
        moved |= incoming.advance(rank as u32, &mut link, &mut self.results.messages)?;
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
                let incoming = &mut self.peers[rank].incoming;
                let complete = &mut self.results.messages;
                incoming.begin(rank as u32, head, options.window_bytes, &self.pool, complete)
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

    /// Ends the exchange with a rank after a failure.
    fn fail(&mut self, engine: &mut Engine, rank: usize, failure: &Failure) {
        self.part_with(engine, rank, error_of(rank as u32, failure));
    }

    /// Ends the exchange with a rank.
    fn part_with(&mut self, engine: &mut Engine, rank: usize, why: PostError) {
        let mut link = self.link(engine, rank);
        let peer = &mut self.peers[rank];
        if peer.end.is_some() {
            return;
        }
        let is_cut = peer.incoming.is_incomplete();
        peer.outgoing.abandon(&mut link, &why);
        peer.incoming.abandon(&mut link);
        peer.end = Some(why.clone());
        match why {
            PostError::PeerClosed { rank } if is_cut => self.results.losses.push(PostError::PeerLost {
                rank,
                reason: "it closed its post before its messages had arrived".into(),
            }),
            PostError::PeerLost { .. } => self.results.losses.push(why),
            _ => {}
        }
        let own = self.shared.rank as usize;
        let mut others = self.peers.iter().enumerate().filter(|(rank, _)| *rank != own);
        self.results.is_exhausted = others.all(|(_, peer)| peer.end.is_some());
    }

    /// Ends the post here, and informs the others that it is revoked. Every rank does so once.
    fn revoke(&mut self, engine: &mut Engine, by: u32) {
        if self.end.is_some() {
            return;
        }
        for rank in 0..self.peers.len() {
            self.send_word(engine, rank, word::revoke(by));
        }
        self.give_up(engine, PostError::Revoked { by });
    }

    /// Ends the post here, and informs the others that it is closed.
    fn stop(&mut self, engine: &mut Engine, why: PostError) {
        self.send_close(engine);
        self.give_up(engine, why);
    }

    fn send_close(&mut self, engine: &mut Engine) {
        if self.closed_at.is_none() {
            self.closed_at = Some(Instant::now());
            for rank in 0..self.peers.len() {
                self.send_word(engine, rank, word::close());
            }
        }
    }

    /// Gives all messages up, except words that must still leave.
    fn give_up(&mut self, engine: &mut Engine, why: PostError) {
        for rank in 0..self.peers.len() {
            let mut link = self.link(engine, rank);
            let Peer { incoming, outgoing, .. } = &mut self.peers[rank];
            outgoing.abandon_messages(&mut link, &why);
            incoming.abandon(&mut link);
        }
        self.end = Some(why.clone());
        let wakers = self.shared.lock().end(why);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Informs the others of the end, once everything has left.
    fn close_when_idle(&mut self, engine: &mut Engine) {
        let is_idle = |peer: &Peer| peer.outgoing.is_idle();
        match self.phase {
            Phase::Open => {}
            Phase::Closing if self.end.is_none() && !self.peers.iter().all(is_idle) => {}
            Phase::Closing | Phase::Stopping => self.send_close(engine),
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
        {
            let mut state = self.shared.lock();
            for message in messages.drain(..) {
                wakers.extend(state.deliver(message, self.shared.options.window_bytes));
            }
            for _ in 0..std::mem::take(own_arrived) {
                state.own_arrived();
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
        }
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Notices ranks that are gone.
    fn check_for_failures(&mut self, engine: &mut Engine, now: Instant) {
        if now.duration_since(self.checked) < CHECK_INTERVAL && engine.known_losses() == self.losses_seen {
            return;
        }
        self.checked = now;
        self.losses_seen = engine.known_losses();
        engine.check_for_failures();
        for rank in 0..self.peers.len() {
            if self.peers[rank].end.is_none() && engine.is_gone(self.peers[rank].world) {
                // What it sent before counts.
                self.move_messages(engine, rank);
                let failure = engine.why_gone(self.peers[rank].world);
                self.fail(engine, rank, &failure);
            }
        }
        self.hand_over();
    }

    /// Blocks until there is something to do. Other threads may use the engine meanwhile.
    fn sleep<'a>(&mut self, engine: &'a SharedEngine, mut guard: EngineGuard<'a>) -> EngineGuard<'a> {
        let mut watched: Vec<Watched> = Vec::with_capacity(self.peers.len());
        self.shared.wake.announce();
        // From here on whatever another thread finds wakes this one. What it found before is looked for once more.
        let has_moved = guard.progress();
        let mut limit = guard.engine().begin_sleep(&mut watched, MAX_SLEEP);
        if has_moved || guard.engine().has_news(self.losses_seen) {
            limit = Duration::ZERO;
        }
        let expired = {
            let mut state = self.shared.lock();
            let now = Instant::now();
            let (expired, next) = state.expire(now);
            limit = match next {
                _ if state.has_work() && self.phase == Phase::Open => Duration::ZERO,
                Some(next) => limit.min(next.saturating_duration_since(now)),
                None => limit,
            };
            if self.phase != Phase::Open {
                limit = limit.min(CHECK_INTERVAL);
            }
            state.set_next_look(Some(now + limit));
            expired
        };
        drop(guard);
        expired.into_iter().for_each(Waker::wake);
        let mut polled = Vec::with_capacity(watched.len() + 1);
        polled.push(PollFd::from_borrowed_fd(self.shared.wake.event(), PollFlags::IN));
        for (socket, writes) in watched {
            let wants = if writes {
                PollFlags::IN | PollFlags::OUT
            } else {
                PollFlags::IN
            };
            // SAFETY: the engine keeps it open, and this thread keeps the engine.
            let socket = unsafe { BorrowedFd::borrow_raw(socket) };
            polled.push(PollFd::from_borrowed_fd(socket, wants));
        }
        // An error has the same consequence as no event: look again.
        let _ = poll(&mut polled, limit);
        let ended = PollFlags::HUP | PollFlags::ERR;
        let has_ended = polled.iter().any(|polled| polled.revents().intersects(ended));
        self.shared.wake.withdraw();
        self.shared.lock().set_next_look(None);
        let mut guard = engine.lock();
        guard.engine().end_sleep();
        let now = Instant::now();
        if has_ended {
            self.checked = now.checked_sub(CHECK_INTERVAL).unwrap_or(now);
        }
        self.check_for_failures(guard.engine(), now);
        guard
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let engine = self.communicator.engine.clone();
        let mut guard = engine.lock();
        for rank in 0..self.peers.len() {
            let mut link = self.link(guard.engine(), rank);
            let Peer { incoming, outgoing, .. } = &mut self.peers[rank];
            outgoing.abandon(&mut link, &PostError::Closed);
            incoming.abandon(&mut link);
        }
        guard.background().cancel(self.hook);
        guard.engine().detach_driver();
        drop(guard);
        self.shared.finish();
    }
}
