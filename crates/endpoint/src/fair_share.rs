//! Fair shares of the workers that several worker sets lease from the same nodes. A worker set with endless tasks must
//! not exclude the others.
//!
//! If a worker set finds no room and has less than its share, each worker set is limited to its share. If one has had
//! nothing for a while, all others make room: free cores may be scattered, and a gang needs many at once. No worker set
//! gives up room while none holds a lease.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use dayfly_protocol::cores::MilliCores;

/// How long a worker set without workers waits before all others make room.
const MAX_STARVATION: Duration = Duration::from_secs(1);

/// The shares of all worker sets of a site. A `K` identifies each of them.
#[derive(Debug)]
pub struct FairShare<K> {
    /// Number of worker sets with tasks or workers, and of those that find no room and have less than their share.
    active: AtomicU32,
    waiting: AtomicU32,
    /// Leases and gangs that have not ended.
    held: AtomicU32,
    /// The worker set that all others make room for.
    claim: Mutex<Option<K>>,
}

/// State of one worker set, as it is counted in [`FairShare`].
#[derive(Debug, Default)]
pub struct ShareState {
    active: bool,
    waiting: bool,
}

impl<K> Default for FairShare<K> {
    fn default() -> Self {
        Self {
            active: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
            held: AtomicU32::new(0),
            claim: Mutex::new(None),
        }
    }
}

impl<K: Clone + PartialEq> FairShare<K> {
    /// Whether one of several worker sets finds no room.
    pub fn is_contended(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0 && self.active.load(Ordering::Relaxed) > 1
    }

    /// Whether any worker set holds a lease that it could give up.
    pub fn has_leases(&self) -> bool {
        self.held.load(Ordering::Relaxed) > 0
    }

    /// Counts a lease that has begun.
    pub fn add_lease(&self) {
        self.held.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a lease that has ended.
    pub fn remove_lease(&self) {
        self.held.fetch_sub(1, Ordering::Relaxed);
    }

    /// An equal share of `total`, in whole cores and at least 1.
    fn equal_share(&self, total: MilliCores) -> MilliCores {
        let active = self.active.load(Ordering::Relaxed).max(1);
        MilliCores::from((total.whole_part() / active).max(1))
    }

    /// Number of cores, of `total`, that this worker set may have now.
    pub fn share(&self, of: &K, total: MilliCores) -> MilliCores {
        let claim = self.claim.lock().unwrap_or_else(PoisonError::into_inner);
        match &*claim {
            Some(other) if other != of => MilliCores::ZERO,
            _ => self.equal_share(total),
        }
    }

    /// Records whether a worker set has tasks or workers.
    pub fn set_active(&self, share_state: &mut ShareState, active: bool) {
        change(&mut share_state.active, active, &self.active);
    }

    /// Records since when a worker set has found no room; `None` if it finds some. It has workers on `has` of `total`
    /// cores.
    pub fn record_wait(
        &self,
        one: &K,
        share_state: &mut ShareState,
        since: Option<Instant>,
        has: MilliCores,
        total: MilliCores,
    ) {
        let is_waiting = since.is_some() && has < self.equal_share(total);
        change(&mut share_state.waiting, is_waiting, &self.waiting);
        let claims = has == MilliCores::ZERO && since.is_some_and(|since| since.elapsed() >= MAX_STARVATION);
        let mut claim = self.claim.lock().unwrap_or_else(PoisonError::into_inner);
        match claims {
            true if claim.is_none() => *claim = Some(one.clone()),
            false if claim.as_ref() == Some(one) => *claim = None,
            _ => {}
        }
    }
}

/// Changes a flag, and the count of set flags.
fn change(flag: &mut bool, value: bool, count: &AtomicU32) {
    match (*flag, value) {
        (false, true) => drop(count.fetch_add(1, Ordering::Relaxed)),
        (true, false) => drop(count.fetch_sub(1, Ordering::Relaxed)),
        _ => {}
    }
    *flag = value;
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOTAL: MilliCores = MilliCores::new(8_000);

    fn cores(number: u16) -> MilliCores {
        number.into()
    }

    /// Shares of three worker sets with tasks.
    fn three() -> (FairShare<char>, [ShareState; 3]) {
        let fair_share = FairShare::default();
        let mut share_states = [ShareState::default(), ShareState::default(), ShareState::default()];
        for share_state in &mut share_states {
            fair_share.set_active(share_state, true);
        }
        (fair_share, share_states)
    }

    fn long_ago() -> Option<Instant> {
        Instant::now().checked_sub(MAX_STARVATION * 2)
    }

    #[test]
    fn contention_limits_each_to_an_equal_share() {
        let (fair_share, [mut a, _, mut c]) = three();
        let now = Some(Instant::now());
        // A worker set with its full share does not limit the others.
        fair_share.record_wait(&'a', &mut a, now, cores(2), TOTAL);
        assert!(!fair_share.is_contended());
        fair_share.record_wait(&'c', &mut c, now, cores(1), TOTAL);
        assert!(fair_share.is_contended());
        assert_eq!(fair_share.share(&'a', TOTAL), cores(2));
        fair_share.record_wait(&'c', &mut c, None, cores(2), TOTAL);
        assert!(!fair_share.is_contended());
    }

    #[test]
    fn starved_worker_sets_get_room_in_turn() {
        let (fair_share, [mut a, mut b, _]) = three();
        fair_share.record_wait(&'a', &mut a, long_ago(), cores(1), TOTAL);
        assert_eq!(fair_share.share(&'c', TOTAL), cores(2));
        fair_share.record_wait(&'a', &mut a, long_ago(), cores(0), TOTAL);
        fair_share.record_wait(&'b', &mut b, long_ago(), cores(0), TOTAL);
        assert_eq!(
            ['a', 'b', 'c'].map(|one| fair_share.share(&one, TOTAL)),
            [2, 0, 0].map(cores)
        );
        fair_share.record_wait(&'a', &mut a, None, cores(4), TOTAL);
        assert_eq!(
            ['a', 'b', 'c'].map(|one| fair_share.share(&one, TOTAL)),
            [2, 2, 2].map(cores)
        );
        fair_share.record_wait(&'b', &mut b, long_ago(), cores(0), TOTAL);
        assert_eq!(fair_share.share(&'a', TOTAL), cores(0));
    }

    #[test]
    fn single_worker_set_keeps_everything() {
        let fair_share = FairShare::default();
        let mut share_state = ShareState::default();
        fair_share.set_active(&mut share_state, true);
        fair_share.record_wait(&'a', &mut share_state, long_ago(), cores(0), TOTAL);
        assert!(!fair_share.is_contended());
        assert_eq!(fair_share.share(&'a', TOTAL), TOTAL);
        fair_share.set_active(&mut share_state, false);
        assert_eq!(fair_share.equal_share(TOTAL), TOTAL);
    }
}
