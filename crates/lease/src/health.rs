//! Suspension of nodes that fail repeatedly: they get no leases for a while.

/// Consecutive failures after which a node is suspended.
const MAX_IN_A_ROW: u32 = 3;
/// Milliseconds after which a failure no longer counts as consecutive.
const WINDOW_MS: u64 = 60_000;
/// First suspension in milliseconds. Each further one without a success in between lasts twice as long.
const FIRST_MS: u64 = 10_000;
/// Longest suspension in milliseconds.
const LONGEST_MS: u64 = 600_000;

/// Failure history of a node, by a monotonic clock in milliseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Health {
    in_a_row: u32,
    last_ms: u64,
    suspensions: u32,
    suspension: Option<Suspension>,
}

/// Why a node gets no leases, and until when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suspension {
    /// End of the suspension, by the same clock.
    pub until_ms: u64,
    /// Last failure.
    pub why: String,
}

impl Health {
    /// Records that a request to the node or a lease on it failed. Returns the suspension that begins, if any.
    pub fn failed(&mut self, now_ms: u64, why: &str) -> Option<&Suspension> {
        // Ignore requests that were under way when the suspension began.
        if self.suspension.is_some() {
            return None;
        }
        if now_ms.saturating_sub(self.last_ms) > WINDOW_MS && self.suspensions == 0 {
            self.in_a_row = 0;
        }
        self.last_ms = now_ms;
        self.in_a_row += 1;
        if self.in_a_row < MAX_IN_A_ROW {
            return None;
        }
        let length_ms = FIRST_MS.saturating_mul(1 << self.suspensions.min(16)).min(LONGEST_MS);
        self.suspensions += 1;
        // One more failure after the suspension is enough for the next.
        self.in_a_row = MAX_IN_A_ROW - 1;
        Some(self.suspension.insert(Suspension {
            until_ms: now_ms.saturating_add(length_ms),
            why: why.into(),
        }))
    }

    /// Records that a lease was used and ended normally. Does not end a current suspension.
    pub fn succeeded(&mut self) {
        *self = Self {
            suspension: self.suspension.take(),
            ..Self::default()
        };
    }

    /// Ends a suspension whose time is over. Returns whether one ended.
    pub fn tick(&mut self, now_ms: u64) -> bool {
        self.suspension
            .take_if(|suspension| now_ms >= suspension.until_ms)
            .is_some()
    }

    /// Clears the history when an operator resumes the node.
    pub fn forgive(&mut self) {
        *self = Self::default();
    }

    pub fn suspension(&self) -> Option<&Suspension> {
        self.suspension.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suspended_after(health: &mut Health, failures: u32, from_ms: u64) -> Option<u64> {
        let mut until = None;
        for n in 0..failures {
            until = until.or(health.failed(from_ms + u64::from(n), "x").map(|found| found.until_ms));
        }
        until
    }

    #[test]
    fn three_failures_in_a_row_suspend_the_node() {
        let mut health = Health::default();
        assert_eq!(suspended_after(&mut health, 2, 0), None);
        health.succeeded();
        assert_eq!(suspended_after(&mut health, 2, 10), None);
        assert_eq!(
            suspended_after(&mut health, 2, 10 + WINDOW_MS + 100),
            None,
            "the first two are forgotten"
        );
        let mut health = Health::default();
        assert_eq!(suspended_after(&mut health, 3, 0), Some(2 + FIRST_MS));
        assert_eq!(health.suspension().unwrap().why, "x");
        assert!(!health.tick(1 + FIRST_MS));
        assert!(health.tick(2 + FIRST_MS));
        assert!(health.suspension().is_none());
    }

    #[test]
    fn repeated_suspensions_grow_to_a_limit() {
        let mut health = Health::default();
        let mut now_ms = suspended_after(&mut health, 3, 0).unwrap();
        let mut length_ms = FIRST_MS;
        for _ in 0..30 {
            assert!(health.tick(now_ms));
            // The history is kept however long the node is idle.
            now_ms += 10 * WINDOW_MS;
            let until_ms = health.failed(now_ms, "again").unwrap().until_ms;
            length_ms = (2 * length_ms).min(LONGEST_MS);
            assert_eq!(until_ms - now_ms, length_ms);
            now_ms = until_ms;
        }
        health.tick(now_ms);
        health.succeeded();
        assert_eq!(suspended_after(&mut health, 2, now_ms), None);
        assert_eq!(suspended_after(&mut health, 1, now_ms), Some(now_ms + FIRST_MS));
    }

    #[test]
    fn failures_during_a_suspension_do_not_count() {
        let mut health = Health::default();
        let until = suspended_after(&mut health, 3, 0).unwrap();
        assert_eq!(suspended_after(&mut health, 50, 5), None);
        assert_eq!(health.suspension().unwrap().until_ms, until);
        health.forgive();
        assert_eq!(health, Health::default());
    }
}
