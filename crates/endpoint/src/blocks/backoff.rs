//! The pause between attempts to submit blocks.

use std::time::{Duration, Instant};

/// First and longest pause after a refusal or a failed job; each further failure doubles it.
const MIN_BACKOFF: Duration = Duration::from_secs(2);
const MAX_BACKOFF: Duration = Duration::from_secs(300);

/// Why no block was submitted, and when the next attempt may be made.
pub struct Backoff {
    reason: Option<String>,
    pause: Duration,
    not_before: Option<Instant>,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            reason: None,
            pause: MIN_BACKOFF,
            not_before: None,
        }
    }
}

impl Backoff {
    /// Records a failed attempt. Each further one doubles the pause.
    pub fn fail(&mut self, reason: String) {
        tracing::warn!(reason, retry_s = self.pause.as_secs(), "no more nodes");
        self.reason = Some(reason);
        self.not_before = Some(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(MAX_BACKOFF);
    }

    /// Ends the pause.
    pub fn reset(&mut self) {
        (self.pause, self.not_before) = (MIN_BACKOFF, None);
    }

    /// Whether a block may be submitted now.
    pub fn is_over(&self) -> bool {
        self.not_before.is_none_or(|at| Instant::now() >= at)
    }

    /// Forgets the reason, because a block was submitted or none is wanted.
    pub fn clear_reason(&mut self) {
        self.reason = None;
    }

    /// Why the last attempt failed.
    pub fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }
}
