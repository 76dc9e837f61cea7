//! How often the ranks of a sandbox may join a group.

use std::time::{Duration, Instant};

/// Minimum interval between two joins after the initial burst.
const INTERVAL: Duration = Duration::from_millis(100);

/// A rate limit: `burst` at once, then one in each [`INTERVAL`].
#[derive(Debug)]
pub struct RateLimit {
    left: u32,
    burst: u32,
    since: Instant,
}

impl RateLimit {
    /// A full allowance.
    pub fn new(burst: u32, now: Instant) -> Self {
        Self {
            left: burst,
            burst,
            since: now,
        }
    }

    /// Takes one from the allowance. Returns whether there was one.
    pub fn admits(&mut self, now: Instant) -> bool {
        let passed = now.duration_since(self.since).as_millis() / INTERVAL.as_millis();
        let passed = u32::try_from(passed).unwrap_or(u32::MAX);
        if passed > 0 {
            self.left = self.left.saturating_add(passed).min(self.burst);
            self.since = now;
        }
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burst_passes_then_rate_is_limited() {
        let start = Instant::now();
        let mut rate_limit = RateLimit::new(3, start);
        let admitted = |rate_limit: &mut RateLimit, now| (0..100).filter(|_| rate_limit.admits(now)).count();
        assert_eq!(admitted(&mut rate_limit, start), 3);
        assert_eq!(admitted(&mut rate_limit, start + Duration::from_millis(99)), 0);
        assert_eq!(admitted(&mut rate_limit, start + Duration::from_millis(250)), 2);
        assert_eq!(admitted(&mut rate_limit, start + Duration::from_secs(3600)), 3);
    }
}
