//! Remembers the hellos that were seen, so that each opens one connection and no second.

use std::collections::{BTreeSet, HashSet};

use mayfly_protocol::ids::ChannelId;

use crate::token::TokenError;

/// Most hellos remembered: at 24 bytes in each of two sets some 10 MiB at worst, and 4,000 connections a second
/// under a tolerance of 15 s each way.
pub const DEFAULT_CAPACITY: usize = 120_000;

/// Channel ids of the hellos that are still fresh enough to be believed. A hello that is older is refused for its
/// age, so its id can be forgotten.
#[derive(Debug)]
pub struct ReplayWindow {
    tolerance_ms: u64,
    capacity: usize,
    seen: HashSet<ChannelId>,
    by_age: BTreeSet<(u64, ChannelId)>,
    /// Ids of hellos sent before this were forgotten; they stay refused even when the wall clock is set back.
    forgotten_before_ms: u64,
}

impl ReplayWindow {
    /// Believes hellos whose clock is at most `tolerance_ms` away from the node's.
    pub fn new(tolerance_ms: u64, capacity: usize) -> Self {
        Self {
            tolerance_ms,
            capacity,
            seen: HashSet::new(),
            by_age: BTreeSet::new(),
            forgotten_before_ms: 0,
        }
    }

    /// Most milliseconds between a client's clock and the node's.
    pub fn tolerance_ms(&self) -> u64 {
        self.tolerance_ms
    }

    /// Hellos remembered now.
    pub fn len(&self) -> usize {
        self.by_age.len()
    }

    /// Whether none is remembered.
    pub fn is_empty(&self) -> bool {
        self.by_age.is_empty()
    }

    /// Whether a hello of this age could still be believed; changes nothing.
    pub fn fresh(&self, sent_at_ms: u64, now_ms: u64) -> Result<(), TokenError> {
        if sent_at_ms.abs_diff(now_ms) > self.tolerance_ms || sent_at_ms < self.forgotten_before_ms {
            return Err(TokenError::ClockTooFar {
                sent_at_ms,
                now_ms,
                tolerance_ms: self.tolerance_ms,
            });
        }
        Ok(())
    }

    /// Accepts a hello once. Call it last, when its signatures are verified, so that a forger cannot fill the window.
    pub fn accept(&mut self, channel: ChannelId, sent_at_ms: u64, now_ms: u64) -> Result<(), TokenError> {
        self.fresh(sent_at_ms, now_ms)?;
        self.forget(now_ms);
        if self.seen.contains(&channel) {
            return Err(TokenError::Replayed);
        }
        if self.by_age.len() >= self.capacity {
            return Err(TokenError::TooManyHellos {
                capacity: self.capacity,
            });
        }
        self.seen.insert(channel);
        self.by_age.insert((sent_at_ms, channel));
        Ok(())
    }

    fn forget(&mut self, now_ms: u64) {
        let oldest = now_ms.saturating_sub(self.tolerance_ms);
        while let Some(&(sent_at_ms, channel)) = self.by_age.first() {
            if sent_at_ms >= oldest {
                break;
            }
            self.by_age.pop_first();
            self.seen.remove(&channel);
            self.forgotten_before_ms = self.forgotten_before_ms.max(sent_at_ms + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn channel(n: u8) -> ChannelId {
        ChannelId([n; 16])
    }

    #[test]
    fn a_hello_is_accepted_once() {
        let mut window = ReplayWindow::new(1_000, 10);
        assert_eq!(window.accept(channel(1), 5_000, 5_000), Ok(()));
        assert_eq!(window.accept(channel(1), 5_000, 5_001), Err(TokenError::Replayed));
        assert_eq!(window.accept(channel(1), 5_001, 5_001), Err(TokenError::Replayed));
        assert_eq!(window.accept(channel(2), 5_000, 5_001), Ok(()));
    }

    #[test]
    fn a_hello_from_too_long_ago_or_from_the_future_is_refused() {
        let mut window = ReplayWindow::new(1_000, 10);
        assert!(matches!(
            window.accept(channel(1), 3_999, 5_000),
            Err(TokenError::ClockTooFar { .. })
        ));
        assert!(matches!(
            window.accept(channel(1), 6_001, 5_000),
            Err(TokenError::ClockTooFar { .. })
        ));
        assert_eq!(window.accept(channel(1), 4_000, 5_000), Ok(()));
    }

    #[test]
    fn memory_stays_bounded_and_comes_back_with_time() {
        let mut window = ReplayWindow::new(1_000, 2);
        window.accept(channel(1), 5_000, 5_000).unwrap();
        window.accept(channel(2), 5_000, 5_000).unwrap();
        assert_eq!(
            window.accept(channel(3), 5_000, 5_000),
            Err(TokenError::TooManyHellos { capacity: 2 })
        );
        assert_eq!(window.accept(channel(3), 6_500, 6_500), Ok(()));
        assert_eq!(window.len(), 1);
    }

    #[test]
    fn a_clock_that_is_set_back_reopens_no_forgotten_hello() {
        let mut window = ReplayWindow::new(1_000, 10);
        window.accept(channel(1), 5_000, 5_000).unwrap();
        window.accept(channel(2), 7_000, 7_000).unwrap();
        assert!(window.accept(channel(1), 5_000, 5_500).is_err());
        assert!(window.accept(channel(2), 7_000, 6_500).is_err());
    }
}
