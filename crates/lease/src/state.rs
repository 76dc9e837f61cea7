//! The life of one lease, by its node's monotonic clock in milliseconds.
//!
//! ```text
//! granted --first channel--> active --expiry, idle--> expired | released
//!    \--- nobody came by its start-by time --> expired
//!    \--- release, revoke, loss, in any living state --> released | revoked | lost
//!    \--- recall: as expiry does, with a grace of its own --> revoked
//! ```

use dayfly_protocol::error::{Code, Failure};
use serde::{Deserialize, Serialize};

/// A call that runs at expiry may go on for this long before its worker is killed.
pub const DEFAULT_GRACE_MS: u64 = 2_000;
/// A grant that nobody uses for this long is taken back: twice what a cold Python client needs to import and connect
/// on a slow file system.
pub const DEFAULT_START_BY_MS: u64 = 30_000;

/// Where a lease is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Capacity is held and nobody came yet.
    Granted,
    /// Used at least once.
    Active,
    /// Given back by its holder, or idle.
    Released,
    /// Its time is over, or nobody came in time.
    Expired,
    /// Ended by an operator.
    Revoked,
    /// Its node or its executor is gone.
    Lost,
}

impl State {
    /// Its name on the wire and in the store.
    pub fn name(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::Active => "active",
            Self::Released => "released",
            Self::Expired => "expired",
            Self::Revoked => "revoked",
            Self::Lost => "lost",
        }
    }

    /// The state with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        [
            Self::Granted,
            Self::Active,
            Self::Released,
            Self::Expired,
            Self::Revoked,
            Self::Lost,
        ]
        .into_iter()
        .find(|state| state.name() == name)
    }

    /// Whether it holds capacity.
    pub fn is_live(self) -> bool {
        matches!(self, Self::Granted | Self::Active)
    }
}

/// What was agreed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// Length from first use.
    pub duration_ms: u64,
    /// Time to the first use.
    pub start_by_ms: u64,
    /// Time without a channel, once there was one, after which it is released; 0 for never.
    pub idle_release_ms: u64,
    /// What a running call gets at expiry.
    pub grace_ms: u64,
}

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Time is over: let no new call begin, and let the running ones end by this time.
    Drain {
        /// By the node's monotonic clock.
        until_ms: u64,
    },
    /// The lease has ended: close its channels, end its executor, give its capacity back.
    End(State),
}

/// Why a lease does not do what was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// It has ended.
    #[error("the lease is {}; lease again", .0.name())]
    Ended(State),
    /// Its time is over and the grace for running calls has begun.
    #[error("the lease has expired and only finishes its running calls; lease again")]
    Draining,
    /// It was taken back and the grace for running calls has begun.
    #[error("the lease is being taken back and only finishes its running calls; lease again")]
    Recalled,
    /// No time at all.
    #[error("a lease of 0 ms; ask for at least 1 ms")]
    NoDuration,
}

impl LeaseError {
    /// The code under which a peer hears of it.
    pub fn code(self) -> Code {
        match self {
            Self::Ended(State::Expired) | Self::Draining => Code::LeaseExpired,
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

/// One lease on its node. All times are the node's monotonic milliseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    terms: Terms,
    state: State,
    /// End of life: the start-by time while granted, else the expiry.
    ends_at_ms: u64,
    first_use_ms: Option<u64>,
    ended_at_ms: Option<u64>,
    channels: u32,
    idle_since_ms: Option<u64>,
    draining: bool,
    /// How it ends when its time is over: `expired`, or `revoked` once it was recalled.
    ends_as: State,
}

impl Lease {
    /// A lease granted now.
    pub fn grant(terms: Terms, now_ms: u64) -> Result<Self, LeaseError> {
        if terms.duration_ms == 0 {
            return Err(LeaseError::NoDuration);
        }
        Ok(Self {
            terms,
            state: State::Granted,
            ends_at_ms: now_ms.saturating_add(terms.start_by_ms),
            first_use_ms: None,
            ended_at_ms: None,
            channels: 0,
            idle_since_ms: None,
            draining: false,
            ends_as: State::Expired,
        })
    }

    /// Where it is.
    pub fn state(&self) -> State {
        self.state
    }

    /// Channels open now.
    pub fn channels(&self) -> u32 {
        self.channels
    }

    /// A channel wants to open. True for the first one, with which the lease's time begins.
    pub fn open_channel(&mut self, now_ms: u64) -> Result<bool, LeaseError> {
        let first = self.use_now(now_ms)?;
        self.channels += 1;
        self.idle_since_ms = None;
        Ok(first)
    }

    /// A channel closed.
    pub fn close_channel(&mut self, now_ms: u64) {
        self.channels = self.channels.saturating_sub(1);
        if self.channels == 0 && self.state == State::Active {
            self.idle_since_ms = Some(now_ms);
        }
    }

    fn use_now(&mut self, now_ms: u64) -> Result<bool, LeaseError> {
        self.check(now_ms)?;
        let first = self.state == State::Granted;
        if first {
            self.state = State::Active;
            self.first_use_ms = Some(now_ms);
            self.ends_at_ms = now_ms.saturating_add(self.terms.duration_ms);
        }
        Ok(first)
    }

    /// Whether it may be used now.
    pub fn check(&self, now_ms: u64) -> Result<(), LeaseError> {
        match self.state {
            State::Granted | State::Active if self.ends_as == State::Revoked => Err(LeaseError::Recalled),
            State::Granted | State::Active if self.draining => Err(LeaseError::Draining),
            State::Granted | State::Active if now_ms >= self.ends_at_ms => Err(LeaseError::Ended(State::Expired)),
            State::Granted | State::Active => Ok(()),
            ended => Err(LeaseError::Ended(ended)),
        }
    }

    /// Counts the length anew from now. A lease that drains is past saving: its workers were told to stop.
    pub fn renew(&mut self, now_ms: u64, duration_ms: u64) -> Result<(), LeaseError> {
        if duration_ms == 0 {
            return Err(LeaseError::NoDuration);
        }
        self.check(now_ms)?;
        self.terms.duration_ms = duration_ms;
        if self.state == State::Active {
            self.ends_at_ms = now_ms.saturating_add(duration_ms);
        }
        Ok(())
    }

    /// Takes it back: no new call, and what runs may end within `grace_ms`. It ends as `revoked`. A second recall can only
    /// shorten the grace; a lease whose time was over keeps the grace that it has, if that is shorter.
    pub fn recall(&mut self, now_ms: u64, grace_ms: u64) {
        if !self.state.is_live() {
            return;
        }
        let until_ms = now_ms.saturating_add(grace_ms);
        let until_ms = match self.draining || self.ends_as == State::Revoked {
            true => until_ms.min(self.ends_at_ms.saturating_add(self.terms.grace_ms)),
            false => until_ms,
        };
        self.ends_at_ms = now_ms.min(self.ends_at_ms);
        self.terms.grace_ms = until_ms.saturating_sub(self.ends_at_ms);
        self.ends_as = State::Revoked;
    }

    /// How it ends when its time is over.
    pub fn ends_as(&self) -> State {
        self.ends_as
    }

    /// Whether it only finishes its running calls.
    pub fn is_draining(&self) -> bool {
        self.state.is_live() && self.draining
    }

    /// Ends it as `released`, `revoked` or `lost`. False when it had ended already: the first cause stands.
    pub fn end(&mut self, state: State, now_ms: u64) -> bool {
        if !self.state.is_live() || state.is_live() {
            return false;
        }
        self.state = state;
        self.ended_at_ms = Some(now_ms);
        true
    }

    /// What time demands. `busy` tells whether a call runs. Call it whenever [`Lease::next_at`] has come, and when a
    /// draining lease's last call ends.
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
            self.end(State::Released, now_ms);
            return Some(Step::End(State::Released));
        }
        None
    }

    /// When [`Lease::tick`] will next have something to say if nothing else happens.
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

    /// Milliseconds left. Before first use, the full length.
    pub fn remaining_ms(&self, now_ms: u64) -> u64 {
        match self.state {
            State::Granted => self.terms.duration_ms,
            State::Active => self.ends_at_ms.saturating_sub(now_ms),
            _ => 0,
        }
    }

    /// Milliseconds since first use, up to its end: what allocation is billed by.
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
    fn a_grant_that_nobody_uses_comes_back_at_its_start_by_time() {
        let mut lease = Lease::grant(TERMS, 10).unwrap();
        assert_eq!(lease.next_at(), Some(310));
        assert_eq!(lease.tick(309, false), None);
        assert_eq!(lease.tick(310, false), Some(Step::End(State::Expired)));
        assert_eq!(lease.open_channel(311), Err(LeaseError::Ended(State::Expired)));
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
        assert_eq!(lease.tick(1_200, false), Some(Step::End(State::Expired)));
        assert_eq!(lease.allocated_ms(9_999), 1_000);
    }

    #[test]
    fn a_lease_that_is_taken_back_finishes_what_runs_within_its_grace_and_begins_nothing() {
        let mut lease = active_at(0);
        lease.recall(100, 30);
        assert_eq!(lease.open_channel(100), Err(LeaseError::Recalled));
        assert_eq!(lease.renew(100, 1_000), Err(LeaseError::Recalled));
        assert_eq!(lease.tick(100, true), Some(Step::Drain { until_ms: 130 }));
        assert!(lease.is_draining());
        assert_eq!(lease.tick(110, true), None);
        assert_eq!(lease.next_at(), Some(130));
        assert_eq!(lease.tick(111, false), Some(Step::End(State::Revoked)));
        assert_eq!(lease.allocated_ms(9_999), 111);
    }

    #[test]
    fn without_grace_or_calls_a_recall_is_an_end() {
        let mut idle = active_at(0);
        idle.recall(100, 5_000);
        assert_eq!(idle.tick(100, false), Some(Step::End(State::Revoked)));
        let mut busy = active_at(0);
        busy.recall(100, 0);
        assert_eq!(busy.tick(100, true), Some(Step::End(State::Revoked)));
        let mut unused = Lease::grant(TERMS, 0).unwrap();
        unused.recall(10, 50);
        assert_eq!(unused.tick(10, false), Some(Step::End(State::Revoked)));
    }

    #[test]
    fn a_second_recall_shortens_the_grace_and_never_lengthens_it() {
        let mut lease = active_at(0);
        lease.recall(100, 1_000);
        assert_eq!(lease.tick(100, true), Some(Step::Drain { until_ms: 1_100 }));
        lease.recall(200, 10_000);
        assert_eq!(lease.next_at(), Some(1_100));
        lease.recall(300, 0);
        assert_eq!(lease.tick(300, true), Some(Step::End(State::Revoked)));
        // Nor does a recall give more time to a lease whose own is over.
        let mut expiring = active_at(0);
        assert_eq!(expiring.tick(1_000, true), Some(Step::Drain { until_ms: 1_050 }));
        expiring.recall(1_010, 5_000);
        assert_eq!(expiring.tick(1_050, true), Some(Step::End(State::Revoked)));
    }

    #[test]
    fn a_running_call_gets_its_grace_and_no_more() {
        let mut lease = active_at(0);
        assert_eq!(lease.tick(1_000, true), Some(Step::Drain { until_ms: 1_050 }));
        assert_eq!(lease.tick(1_001, true), None);
        assert_eq!(lease.open_channel(1_001), Err(LeaseError::Draining));
        assert_eq!(lease.renew(1_001, 500), Err(LeaseError::Draining));
        assert_eq!(lease.next_at(), Some(1_050));
        assert_eq!(lease.tick(1_050, true), Some(Step::End(State::Expired)));
    }

    #[test]
    fn a_draining_lease_ends_with_its_last_call() {
        let mut lease = active_at(0);
        assert_eq!(lease.tick(1_000, true), Some(Step::Drain { until_ms: 1_050 }));
        assert_eq!(lease.tick(1_010, false), Some(Step::End(State::Expired)));
    }

    #[test]
    fn renewing_counts_from_now() {
        let mut lease = active_at(0);
        assert_eq!(lease.renew(900, 1_000), Ok(()));
        assert_eq!(lease.remaining_ms(900), 1_000);
        assert_eq!(lease.tick(1_000, false), None);
        assert_eq!(lease.renew(1_900, 1_000).unwrap_err().code(), Code::LeaseExpired);
    }

    #[test]
    fn an_idle_lease_is_released_once_it_had_a_channel() {
        let mut lease = active_at(0);
        lease.close_channel(200);
        assert_eq!(lease.next_at(), Some(300));
        assert_eq!(lease.tick(299, false), None);
        assert_eq!(lease.tick(300, false), Some(Step::End(State::Released)));
    }

    #[test]
    fn a_new_channel_ends_idleness() {
        let mut lease = active_at(0);
        lease.close_channel(200);
        assert_eq!(lease.open_channel(250), Ok(false));
        assert_eq!(lease.tick(400, false), None);
    }

    #[test]
    fn idle_release_of_zero_means_never() {
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
    fn the_first_cause_of_an_end_stands() {
        let mut lease = active_at(0);
        assert!(lease.end(State::Revoked, 10));
        assert!(!lease.end(State::Released, 11));
        assert_eq!(lease.state(), State::Revoked);
        assert_eq!(lease.check(12).unwrap_err().code(), Code::LeaseEnded);
    }

    #[test]
    fn every_state_has_a_name_that_reads_back() {
        for state in [
            State::Granted,
            State::Active,
            State::Released,
            State::Expired,
            State::Revoked,
            State::Lost,
        ] {
            assert_eq!(State::from_name(state.name()), Some(state));
        }
        assert_eq!(State::from_name("alive"), None);
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
        fn a_lease_ends_once_never_revives_and_never_outlives_its_grace(
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
                    Happening::Renew(length) => if lease.renew(now, length).is_ok() && lease.state() == State::Active {
                        latest = now + length + TERMS.grace_ms;
                    },
                    Happening::Tick(busy) => {
                        if let Some(Step::End(_)) = lease.tick(now, busy) { ends += 1; }
                        prop_assert!(!lease.state().is_live() || now < latest, "alive at {now}, past {latest}");
                    }
                    Happening::End => if lease.end(State::Revoked, now) { ends += 1; },
                }
                prop_assert!(was_live || !lease.state().is_live());
            }
            prop_assert_eq!(ends, u32::from(!lease.state().is_live()));
        }
    }
}
