//! The states of one lease, by its node's monotonic clock in milliseconds.
//!
//! ```text
//! granted --first channel--> active --expiry, idle--> expired | released
//!    \--- not used by its start-by time --> expired
//!    \--- release, revoke, loss, in any living state --> released | revoked | lost
//!    \--- recall: as expiry does, with a grace of its own --> revoked
//! ```

use dayfly_protocol::api::LeaseState;
use dayfly_protocol::error::{Code, Failure};

/// Milliseconds that a call running at expiry may continue before its worker is killed.
pub const DEFAULT_GRACE_MS: u64 = 2_000;
/// Milliseconds after which an unused grant expires: twice the time that a cold Python client needs to import and
/// connect on a slow file system.
pub const DEFAULT_START_BY_MS: u64 = 30_000;

/// Terms of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// Length from first use.
    pub duration_ms: u64,
    /// Time until the first use, after which an unused lease expires.
    pub start_by_ms: u64,
    /// Time without a channel after which a used lease is released; 0 for never.
    pub idle_release_ms: u64,
    /// Time that a running call may take after expiry.
    pub grace_ms: u64,
}

/// Action that the node must take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The lease's time is over: start no new call, and let running calls end by this time.
    Drain {
        /// By the node's monotonic clock.
        until_ms: u64,
    },
    /// The lease has ended: close its channels, end its executor and free its resources.
    End(LeaseState),
}

/// Why a lease refuses an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// The lease has ended.
    #[error("the lease is {}; lease again", .0.name())]
    Ended(LeaseState),
    /// The lease has expired, and only running calls continue.
    #[error("the lease has expired and only finishes its running calls; lease again")]
    Draining,
    /// The lease was recalled, and only running calls continue.
    #[error("the lease is being taken back and only finishes its running calls; lease again")]
    Recalled,
    /// The requested duration is 0.
    #[error("a lease of 0 ms; ask for at least 1 ms")]
    NoDuration,
}

impl LeaseError {
    /// The error code that a peer receives.
    pub fn code(self) -> Code {
        match self {
            Self::Ended(LeaseState::Expired) | Self::Draining => Code::LeaseExpired,
            Self::Ended(_) | Self::Recalled => Code::LeaseEnded,
            Self::NoDuration => Code::InvalidRequest,
        }
    }
}

impl From<LeaseError> for Failure {
    fn from(error: LeaseError) -> Self {
        Failure::new(error.code(), error.to_string())
    }
}

/// One lease on its node. All times are in milliseconds by the node's monotonic clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    terms: Terms,
    state: LeaseState,
    /// The start-by time while granted, afterwards the expiry.
    ends_at_ms: u64,
    first_use_ms: Option<u64>,
    ended_at_ms: Option<u64>,
    channels: u32,
    idle_since_ms: Option<u64>,
    draining: bool,
    /// State at the end of its time: `expired`, or `revoked` after a recall.
    ends_as: LeaseState,
}

impl Lease {
    /// Returns a lease granted now.
    pub fn grant(terms: Terms, now_ms: u64) -> Result<Self, LeaseError> {
        if terms.duration_ms == 0 {
            return Err(LeaseError::NoDuration);
        }
        Ok(Self {
            terms,
            state: LeaseState::Granted,
            ends_at_ms: now_ms.saturating_add(terms.start_by_ms),
            first_use_ms: None,
            ended_at_ms: None,
            channels: 0,
            idle_since_ms: None,
            draining: false,
            ends_as: LeaseState::Expired,
        })
    }

    pub fn state(&self) -> LeaseState {
        self.state
    }

    /// Number of open channels.
    pub fn channels(&self) -> u32 {
        self.channels
    }

    /// Records an open channel. Returns true for the first use, which starts the lease's duration.
    pub fn open_channel(&mut self, now_ms: u64) -> Result<bool, LeaseError> {
        let first = self.use_now(now_ms)?;
        self.channels += 1;
        self.idle_since_ms = None;
        Ok(first)
    }

    /// Records a closed channel.
    pub fn close_channel(&mut self, now_ms: u64) {
        self.channels = self.channels.saturating_sub(1);
        if self.channels == 0 && self.state == LeaseState::Active {
            self.idle_since_ms = Some(now_ms);
        }
    }

    fn use_now(&mut self, now_ms: u64) -> Result<bool, LeaseError> {
        self.check(now_ms)?;
        let first = self.state == LeaseState::Granted;
        if first {
            self.state = LeaseState::Active;
            self.first_use_ms = Some(now_ms);
            self.ends_at_ms = now_ms.saturating_add(self.terms.duration_ms);
        }
        Ok(first)
    }

    /// Checks that the lease may be used now.
    pub fn check(&self, now_ms: u64) -> Result<(), LeaseError> {
        match self.state {
            LeaseState::Granted | LeaseState::Active if self.ends_as == LeaseState::Revoked => {
                Err(LeaseError::Recalled)
            }
            LeaseState::Granted | LeaseState::Active if self.draining => Err(LeaseError::Draining),
            LeaseState::Granted | LeaseState::Active if now_ms >= self.ends_at_ms => {
                Err(LeaseError::Ended(LeaseState::Expired))
            }
            LeaseState::Granted | LeaseState::Active => Ok(()),
            ended => Err(LeaseError::Ended(ended)),
        }
    }

    /// Restarts the duration from now. A draining lease cannot be renewed, because its workers are already stopping.
    pub fn renew(&mut self, now_ms: u64, duration_ms: u64) -> Result<(), LeaseError> {
        if duration_ms == 0 {
            return Err(LeaseError::NoDuration);
        }
        self.check(now_ms)?;
        self.terms.duration_ms = duration_ms;
        if self.state == LeaseState::Active {
            self.ends_at_ms = now_ms.saturating_add(duration_ms);
        }
        Ok(())
    }

    /// Recalls the lease: it starts no new call, running calls may continue for `grace_ms`, and it ends as `revoked`. A
    /// second recall, or the recall of an expired lease, can only shorten the grace.
    pub fn recall(&mut self, now_ms: u64, grace_ms: u64) {
        if !self.state.is_live() {
            return;
        }
        let until_ms = now_ms.saturating_add(grace_ms);
        let until_ms = match self.draining || self.ends_as == LeaseState::Revoked {
            true => until_ms.min(self.ends_at_ms.saturating_add(self.terms.grace_ms)),
            false => until_ms,
        };
        self.ends_at_ms = now_ms.min(self.ends_at_ms);
        self.terms.grace_ms = until_ms.saturating_sub(self.ends_at_ms);
        self.ends_as = LeaseState::Revoked;
    }

    /// The state in which it will end when its time is over.
    pub fn ends_as(&self) -> LeaseState {
        self.ends_as
    }

    /// Whether only running calls continue.
    pub fn is_draining(&self) -> bool {
        self.state.is_live() && self.draining
    }

    /// Ends the lease as `released`, `revoked` or `lost`. Returns false, and changes nothing, if it has already ended.
    pub fn end(&mut self, state: LeaseState, now_ms: u64) -> bool {
        if !self.state.is_live() || state.is_live() {
            return false;
        }
        self.state = state;
        self.ended_at_ms = Some(now_ms);
        true
    }

    /// Returns the action that is due. `busy` states whether a call is running. Call it at [`Lease::next_at`], and when
    /// the last call of a draining lease ends.
    pub fn tick(&mut self, now_ms: u64, busy: bool) -> Option<Step> {
        if !self.state.is_live() {
            return None;
        }
        if now_ms >= self.ends_at_ms {
            let until_ms = self.ends_at_ms.saturating_add(self.terms.grace_ms);
            if busy && now_ms < until_ms {
                return (!std::mem::replace(&mut self.draining, true)).then_some(Step::Drain { until_ms });
            }
            let state = self.ends_as;
            self.end(state, now_ms);
            return Some(Step::End(state));
        }
        if self.idle_ends_at().is_some_and(|at| now_ms >= at) && !busy {
            self.end(LeaseState::Released, now_ms);
            return Some(Step::End(LeaseState::Released));
        }
        None
    }

    /// Returns when [`Lease::tick`] must be called next if nothing else happens, or `None` after the end.
    pub fn next_at(&self) -> Option<u64> {
        if !self.state.is_live() {
            return None;
        }
        if self.draining {
            return Some(self.ends_at_ms.saturating_add(self.terms.grace_ms));
        }
        Some(
            self.idle_ends_at()
                .map_or(self.ends_at_ms, |idle| idle.min(self.ends_at_ms)),
        )
    }

    fn idle_ends_at(&self) -> Option<u64> {
        if self.terms.idle_release_ms == 0 {
            return None;
        }
        self.idle_since_ms
            .map(|since| since.saturating_add(self.terms.idle_release_ms))
    }

    /// Returns the remaining milliseconds; before first use, the full length.
    pub fn remaining_ms(&self, now_ms: u64) -> u64 {
        match self.state {
            LeaseState::Granted => self.terms.duration_ms,
            LeaseState::Active => self.ends_at_ms.saturating_sub(now_ms),
            _ => 0,
        }
    }

    /// Returns the milliseconds from first use to the end or to now. Allocation is billed by them.
    pub fn allocated_ms(&self, now_ms: u64) -> u64 {
        self.first_use_ms
            .map_or(0, |first| self.ended_at_ms.unwrap_or(now_ms).saturating_sub(first))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TERMS: Terms = Terms {
        duration_ms: 1_000,
        start_by_ms: 300,
        idle_release_ms: 100,
        grace_ms: 50,
    };

    fn active_at(now_ms: u64) -> Lease {
        let mut lease = Lease::grant(TERMS, now_ms).unwrap();
        assert_eq!(lease.open_channel(now_ms), Ok(true));
        lease
    }

    #[test]
    fn unused_grant_ends_at_its_start_by_time() {
        let mut lease = Lease::grant(TERMS, 10).unwrap();
        assert_eq!(lease.next_at(), Some(310));
        assert_eq!(lease.tick(309, false), None);
        assert_eq!(lease.tick(310, false), Some(Step::End(LeaseState::Expired)));
        assert_eq!(lease.open_channel(311), Err(LeaseError::Ended(LeaseState::Expired)));
        assert_eq!(lease.allocated_ms(400), 0);
    }

    #[test]
    fn time_counts_from_the_first_use() {
        let mut lease = Lease::grant(TERMS, 0).unwrap();
        assert_eq!(lease.open_channel(200), Ok(true));
        assert_eq!(lease.open_channel(250), Ok(false));
        assert_eq!(lease.remaining_ms(200), 1_000);
        assert_eq!(lease.next_at(), Some(1_200));
        assert_eq!(lease.tick(1_199, false), None);
        assert_eq!(lease.tick(1_200, false), Some(Step::End(LeaseState::Expired)));
        assert_eq!(lease.allocated_ms(9_999), 1_000);
    }

    #[test]
    fn recalled_lease_only_finishes_running_calls() {
        let mut lease = active_at(0);
        lease.recall(100, 30);
        assert_eq!(lease.open_channel(100), Err(LeaseError::Recalled));
        assert_eq!(lease.renew(100, 1_000), Err(LeaseError::Recalled));
        assert_eq!(lease.tick(100, true), Some(Step::Drain { until_ms: 130 }));
        assert!(lease.is_draining());
        assert_eq!(lease.tick(110, true), None);
        assert_eq!(lease.next_at(), Some(130));
        assert_eq!(lease.tick(111, false), Some(Step::End(LeaseState::Revoked)));
        assert_eq!(lease.allocated_ms(9_999), 111);
    }

    #[test]
    fn recall_without_grace_or_calls_ends_the_lease() {
        let mut idle = active_at(0);
        idle.recall(100, 5_000);
        assert_eq!(idle.tick(100, false), Some(Step::End(LeaseState::Revoked)));
        let mut busy = active_at(0);
        busy.recall(100, 0);
        assert_eq!(busy.tick(100, true), Some(Step::End(LeaseState::Revoked)));
        let mut unused = Lease::grant(TERMS, 0).unwrap();
        unused.recall(10, 50);
        assert_eq!(unused.tick(10, false), Some(Step::End(LeaseState::Revoked)));
    }

    #[test]
    fn second_recall_never_lengthens_the_grace() {
        let mut lease = active_at(0);
        lease.recall(100, 1_000);
        assert_eq!(lease.tick(100, true), Some(Step::Drain { until_ms: 1_100 }));
        lease.recall(200, 10_000);
        assert_eq!(lease.next_at(), Some(1_100));
        lease.recall(300, 0);
        assert_eq!(lease.tick(300, true), Some(Step::End(LeaseState::Revoked)));
        // A recall does not give more time to an expired lease.
        let mut expiring = active_at(0);
        assert_eq!(expiring.tick(1_000, true), Some(Step::Drain { until_ms: 1_050 }));
        expiring.recall(1_010, 5_000);
        assert_eq!(expiring.tick(1_050, true), Some(Step::End(LeaseState::Revoked)));
    }

    #[test]
    fn running_call_is_killed_after_its_grace() {
        let mut lease = active_at(0);
        assert_eq!(lease.tick(1_000, true), Some(Step::Drain { until_ms: 1_050 }));
        assert_eq!(lease.tick(1_001, true), None);
        assert_eq!(lease.open_channel(1_001), Err(LeaseError::Draining));
        assert_eq!(lease.renew(1_001, 500), Err(LeaseError::Draining));
        assert_eq!(lease.next_at(), Some(1_050));
        assert_eq!(lease.tick(1_050, true), Some(Step::End(LeaseState::Expired)));
    }

    #[test]
    fn draining_lease_ends_with_its_last_call() {
        let mut lease = active_at(0);
        assert_eq!(lease.tick(1_000, true), Some(Step::Drain { until_ms: 1_050 }));
        assert_eq!(lease.tick(1_010, false), Some(Step::End(LeaseState::Expired)));
    }

    #[test]
    fn renewal_counts_from_now() {
        let mut lease = active_at(0);
        assert_eq!(lease.renew(900, 1_000), Ok(()));
        assert_eq!(lease.remaining_ms(900), 1_000);
        assert_eq!(lease.tick(1_000, false), None);
        assert_eq!(lease.renew(1_900, 1_000).unwrap_err().code(), Code::LeaseExpired);
    }

    #[test]
    fn idle_lease_is_released_after_its_first_channel() {
        let mut lease = active_at(0);
        lease.close_channel(200);
        assert_eq!(lease.next_at(), Some(300));
        assert_eq!(lease.tick(299, false), None);
        assert_eq!(lease.tick(300, false), Some(Step::End(LeaseState::Released)));
    }

    #[test]
    fn new_channel_ends_idleness() {
        let mut lease = active_at(0);
        lease.close_channel(200);
        assert_eq!(lease.open_channel(250), Ok(false));
        assert_eq!(lease.tick(400, false), None);
    }

    #[test]
    fn idle_release_of_zero_disables_it() {
        let mut lease = Lease::grant(
            Terms {
                idle_release_ms: 0,
                ..TERMS
            },
            0,
        )
        .unwrap();
        lease.open_channel(0).unwrap();
        lease.close_channel(1);
        assert_eq!(lease.tick(999, false), None);
    }

    #[test]
    fn first_cause_of_an_end_is_kept() {
        let mut lease = active_at(0);
        assert!(lease.end(LeaseState::Revoked, 10));
        assert!(!lease.end(LeaseState::Released, 11));
        assert_eq!(lease.state(), LeaseState::Revoked);
        assert_eq!(lease.check(12).unwrap_err().code(), Code::LeaseEnded);
    }

    #[derive(Debug, Clone)]
    enum Happening {
        Open,
        Close,
        Renew(u64),
        Tick(bool),
        End,
    }

    fn happening() -> impl Strategy<Value = Happening> {
        prop_oneof![
            Just(Happening::Open),
            Just(Happening::Close),
            (1..2_000u64).prop_map(Happening::Renew),
            any::<bool>().prop_map(Happening::Tick),
            Just(Happening::End),
        ]
    }

    proptest! {
        #[test]
        fn lease_ends_once_within_its_grace(
            happenings in proptest::collection::vec((0..200u64, happening()), 1..60)
        ) {
            let mut lease = Lease::grant(TERMS, 0).unwrap();
            let (mut now, mut ends, mut latest) = (0, 0, TERMS.start_by_ms + TERMS.grace_ms);
            for (pause, what) in happenings {
                now += pause;
                let was_live = lease.state().is_live();
                match what {
                    Happening::Open => if lease.open_channel(now) == Ok(true) {
                        latest = now + TERMS.duration_ms.max(lease.remaining_ms(now)) + TERMS.grace_ms;
                    },
                    Happening::Close => lease.close_channel(now),
                    Happening::Renew(length) => if lease.renew(now, length).is_ok() && lease.state() == LeaseState::Active {
                        latest = now + length + TERMS.grace_ms;
                    },
                    Happening::Tick(busy) => {
                        if let Some(Step::End(_)) = lease.tick(now, busy) { ends += 1; }
                        prop_assert!(!lease.state().is_live() || now < latest, "alive at {now}, past {latest}");
                    }
                    Happening::End => if lease.end(LeaseState::Revoked, now) { ends += 1; },
                }
                prop_assert!(was_live || !lease.state().is_live());
            }
            prop_assert_eq!(ends, u32::from(!lease.state().is_live()));
        }
    }
}
