//! The sleep of a driver, and what it looks for in intervals.

use std::os::fd::BorrowedFd;
use std::task::Waker;
use std::time::{Duration, Instant};

use dayfly_fabric::stream::wire::poll;
use rustix::event::{PollFd, PollFlags};

use super::Driver;
use crate::engine::{Engine, EngineGuard, SharedEngine, Watched};
use crate::post::state::Phase;

/// Longest sleep. Bounds the delay of what another thread finds without waking this one.
const MAX_SLEEP: Duration = Duration::from_millis(100);
/// Interval of checks for failures, while events do not report any.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);

impl Driver {
    /// Notices ranks that are gone, and deadlines that are over.
    pub(super) fn look_at_clock(&mut self, engine: &mut Engine, now: Instant) {
        if now.duration_since(self.checked) < CHECK_INTERVAL && engine.known_losses() == self.losses_seen {
            return;
        }
        self.checked = now;
        self.losses_seen = engine.known_losses();
        engine.check_for_failures();
        for rank in 0..self.peers.len() {
            if self.peers[rank].end.is_none() && engine.is_gone(self.peers[rank].world) {
                // What it sent before counts.
                while self.move_messages(engine, rank) && self.peers[rank].end.is_none() {}
                let failure = engine.why_gone(self.peers[rank].world);
                self.fail(engine, rank, &failure);
            }
        }
        self.hand_over();
        // The sleep looks at deadlines too, but there is none while messages move.
        let (expired, _) = self.shared.lock().expire(now);
        expired.into_iter().for_each(Waker::wake);
    }

    /// Blocks until there is something to do. Other threads may use the engine meanwhile.
    pub(super) fn sleep<'a>(&mut self, engine: &'a SharedEngine, mut guard: EngineGuard<'a>) -> EngineGuard<'a> {
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
        self.look_at_clock(guard.engine(), now);
        guard
    }
}
