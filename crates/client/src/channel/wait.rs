//! The part of [`Channel`] that waits for completions: it polls, then sleeps, and checks that the node lives.

use std::time::{Duration, Instant};

use dayfly_fabric::{AnyLink, Link, LinkError};
use dayfly_protocol::error::Code;
use rustix::event::{PollFd, PollFlags, Timespec};

use super::{Channel, Completion};
use crate::error::CallError;

/// Empty polls of shared memory between two reads of the clock: less than a microsecond.
const POLLS_PER_CHECK: u32 = 256;
/// Empty polls of a stream between two reads of the clock. Each is a system call.
const STREAM_POLLS_PER_CHECK: u32 = 2;
/// Longest sleep without a wake-up before the channel is polled again.
const SLEEP_LIMIT: Duration = Duration::from_millis(100);
/// Interval at which a waiting thread checks that the node is alive.
const CHECK_EVERY: Duration = Duration::from_millis(50);

impl Channel {
    /// Waits at most `limit` for the next completion. Returns an error if no call is outstanding.
    pub fn wait(&mut self, limit: Duration) -> Result<Completion, CallError> {
        let oldest = self.outstanding;
        if oldest == 0 {
            return Err(CallError::new(Code::InvalidRequest, "no call is outstanding"));
        }
        match self.spin_or_sleep(Some(Instant::now() + limit)) {
            Ok(Some(completion)) => Ok(completion),
            Ok(None) => Err(CallError::new(
                Code::TimedOut,
                format!("no completion within {} ms", limit.as_millis()),
            )),
            Err(error) => Err(self.broken(error, 0)),
        }
    }

    #[inline]
    pub(super) fn receive(&mut self, sequence: u32) -> Result<Completion, CallError> {
        match self.spin_or_sleep(None) {
            Ok(Some(completion)) if completion.sequence == sequence => Ok(completion),
            Ok(_) => Err(CallError::new(
                Code::ProtocolViolation,
                "the worker responded to another call",
            )),
            Err(error) => Err(self.broken(error, sequence)),
        }
    }

    #[inline]
    fn spin_or_sleep(&mut self, until: Option<Instant>) -> Result<Option<Completion>, LinkError> {
        for _ in 0..self.polls_per_check() {
            if let Some(completion) = self.poll()? {
                return Ok(Some(completion));
            }
        }
        self.wait_longer(until)
    }

    #[inline]
    fn polls_per_check(&self) -> u32 {
        match &self.link {
            AnyLink::Mapped(_) => POLLS_PER_CHECK,
            AnyLink::Stream(_) | AnyLink::Fabric(_) => STREAM_POLLS_PER_CHECK,
        }
    }

    #[cold]
    fn wait_longer(&mut self, until: Option<Instant>) -> Result<Option<Completion>, LinkError> {
        let since = Instant::now();
        let mut checked_after = Duration::ZERO;
        loop {
            for _ in 0..self.polls_per_check() {
                if let Some(completion) = self.poll()? {
                    return Ok(Some(completion));
                }
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(None);
            }
            if since.elapsed() >= checked_after + CHECK_EVERY {
                checked_after = since.elapsed();
                self.check_node()?;
            }
            if self.spin.is_some_and(|spin| since.elapsed() >= spin) {
                self.link.wait(left.unwrap_or(SLEEP_LIMIT).min(SLEEP_LIMIT))?;
            }
        }
    }

    /// Returns an error if the node closed the connection. A node that died sends no reason.
    pub(crate) fn check_node(&self) -> Result<(), LinkError> {
        let Some(control) = &self.control else { return Ok(()) };
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut waiting = [PollFd::new(control, PollFlags::IN | PollFlags::RDHUP)];
        match rustix::event::poll(&mut waiting, Some(&now)) {
            Ok(1..) => Err(LinkError::PeerGone),
            _ => Ok(()),
        }
    }
}
