//! Waiting: polling, then yielding the core, then sleeping, always with a limit.

use std::time::{Duration, Instant};

use dayfly_fabric::clock::{ticks, ticks_of_us};
use dayfly_fabric::stream::wire::poll;
use dayfly_protocol::error::{Code, Failure};
use rustix::event::{PollFd, PollFlags};

use super::driver::announce_sleep;
use super::{Engine, EngineGuard};

/// Polls between two reads of the clock.
const POLLS: u32 = 32;
/// Interval of checks for failures, in microseconds.
const TICK_US: u64 = 1000;
/// Time to poll before the core is yielded, if there are more ranks than cores.
const OVERSUBSCRIBED_US: u64 = 2;
/// Longest sleep. Bounds the delay of everything that causes no wake-up.
const SLEEP_LIMIT: Duration = Duration::from_millis(5);

/// State of a wait.
#[derive(Debug)]
pub struct WaitState {
    what: &'static str,
    polls: u32,
    since: u64,
    /// When anything moved last.
    moved: u64,
    tick: u64,
    began: Option<Instant>,
}

impl WaitState {
    pub fn new(what: &'static str) -> Self {
        Self {
            what,
            polls: 0,
            since: 0,
            moved: 0,
            tick: 0,
            began: None,
        }
    }
}

/// What checks for failures remember.
#[derive(Debug, Default)]
pub struct FailureChecks {
    /// Number of lost ranks that the last check has seen.
    pub lost_seen: u64,
    polls: u32,
    /// When polls last found a check due.
    checked: u64,
}

impl EngineGuard<'_> {
    /// Moves bytes; without any, waits a little as the options say. Returns an error after the deadline.
    #[inline]
    pub fn step(&mut self, wait_state: &mut WaitState) -> Result<(), Failure> {
        if self.progress() {
            wait_state.moved = 0;
        }
        wait_state.polls += 1;
        if wait_state.polls.is_multiple_of(POLLS) {
            return self.step_slowly(wait_state);
        }
        Ok(())
    }

    #[cold]
    fn step_slowly(&mut self, wait_state: &mut WaitState) -> Result<(), Failure> {
        let now = ticks();
        if wait_state.since == 0 {
            (wait_state.since, wait_state.tick) = (now, now);
        }
        if wait_state.moved == 0 {
            wait_state.moved = now;
        }
        let idle = now.wrapping_sub(wait_state.moved);
        if now.wrapping_sub(wait_state.tick) >= ticks_of_us(TICK_US) {
            wait_state.tick = now;
            self.yield_to_waiters();
            self.engine().check_for_failures();
            let limit = self.engine().options.deadline;
            let began = *wait_state.began.get_or_insert_with(Instant::now);
            if began.elapsed() >= limit {
                return Err(Failure::new(
                    Code::TimedOut,
                    format!(
                        "rank {} has waited {limit:?} in {}; the others are not there, or wait for something else",
                        self.engine().rank,
                        wait_state.what
                    ),
                ));
            }
        }
        let engine = self.engine();
        if let Some(spin) = engine.options.spin
            && idle >= ticks_of_us(spin.as_micros() as u64)
        {
            engine.sleep();
            // The sleep may have been long.
            wait_state.tick = now.wrapping_sub(ticks_of_us(TICK_US));
        } else if engine.oversubscribed && idle >= ticks_of_us(OVERSUBSCRIBED_US) {
            std::thread::yield_now();
        }
        Ok(())
    }
}

impl Engine {
    /// Counts a poll that moved nothing. Once in a while it checks for failures, because a program may test and never wait.
    #[inline]
    pub fn count_poll(&mut self) {
        self.checks.polls = self.checks.polls.wrapping_add(1);
        if self.checks.polls.is_multiple_of(POLLS) {
            self.check_if_due();
        }
    }

    #[cold]
    fn check_if_due(&mut self) {
        let now = ticks();
        if now.wrapping_sub(self.checks.checked) >= ticks_of_us(TICK_US) {
            self.checks.checked = now;
            self.check_for_failures();
        }
    }

    /// Blocks until a message arrives or the sleep limit is over.
    fn sleep(&mut self) {
        let mut limit = SLEEP_LIMIT;
        for transport in self.transports.iter_mut().flatten() {
            limit = limit.min(announce_sleep(transport));
        }
        let mut waiting = Vec::with_capacity(self.transports.len());
        for transport in self.transports.iter().flatten() {
            let (socket, writes) = transport.socket();
            let wants = if writes {
                PollFlags::IN | PollFlags::OUT
            } else {
                PollFlags::IN
            };
            if !transport.is_closed() {
                waiting.push(PollFd::from_borrowed_fd(socket, wants));
            }
        }
        // An error has the same consequence as no event: look again.
        let _ = poll(&mut waiting, limit);
        self.end_sleep();
        // This sleep took the driver's announcement back too.
        if let Some(driver) = &self.matching.driver {
            driver.wake();
        }
    }
}

/// Cores of the machine that are online.
pub(super) fn online_cores() -> usize {
    // SAFETY: sysconf reads no memory of this process.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }).unwrap_or(1)
}
