//! Fair sharing between crews that lease from the same nodes, so that a crew with endless tasks does not exclude the
//! others.
//!
//! If one of several finds no room and has less than its share, each is limited to its share. If one has had nothing
//! for a while, all others make room: the room they left may be fragmented, and a gang needs much at once. No crew
//! gives up room while none holds any.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a crew without workers waits before all others make room.
const PATIENCE: Duration = Duration::from_secs(1);

/// All that lease from the same nodes; a `K` identifies each.
#[derive(Debug)]
pub struct Crowd<K> {
    /// Number of those with tasks or workers, and of those with less than their share that find no room.
    active: AtomicU32,
    starved: AtomicU32,
    /// Leases and gangs that have not ended.
    held: AtomicU32,
    /// The one that all others make room for.
    claim: Mutex<Option<K>>,
}

/// State of one of them, as counted in the crowd.
#[derive(Debug, Default)]
pub struct Standing {
    active: bool,
    starved: bool,
}

impl<K> Default for Crowd<K> {
    fn default() -> Self {
        Self {
            active: AtomicU32::new(0),
            starved: AtomicU32::new(0),
            held: AtomicU32::new(0),
            claim: Mutex::new(None),
        }
    }
}

impl<K: Clone + PartialEq> Crowd<K> {
    /// Whether one of several finds no room.
    pub fn is_crowded(&self) -> bool {
        self.starved.load(Ordering::Relaxed) > 0 && self.active.load(Ordering::Relaxed) > 1
    }

    /// Whether any of them holds a lease that it could give up.
    pub fn holds_any(&self) -> bool {
        self.held.load(Ordering::Relaxed) > 0
    }

    /// Counts a lease that has begun.
    pub fn takes(&self) {
        self.held.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a lease that has ended.
    pub fn gives(&self) {
        self.held.fetch_sub(1, Ordering::Relaxed);
    }

    /// An equal share of `there` cores, at least 1.
    fn part(&self, there: u32) -> u32 {
        (there / self.active.load(Ordering::Relaxed).max(1)).max(1)
    }

    /// Number of cores, of `there`, that this one may have now.
    pub fn share(&self, of: &K, there: u32) -> u32 {
        let claim = self.claim.lock().unwrap_or_else(PoisonError::into_inner);
        match &*claim {
            Some(other) if other != of => 0,
            _ => self.part(there),
        }
    }

    /// Records whether one has tasks or workers.
    pub fn count(&self, standing: &mut Standing, active: bool) {
        change(&mut standing.active, active, &self.active);
    }

    /// Records since when one has found no room (`None` if it finds some); it has workers on `has` of `there` cores.
    pub fn starve(&self, one: &K, standing: &mut Standing, since: Option<Instant>, has: u32, there: u32) {
        let starved = since.is_some() && has < self.part(there);
        change(&mut standing.starved, starved, &self.starved);
        let claims = has == 0 && since.is_some_and(|since| since.elapsed() >= PATIENCE);
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

    const THERE: u32 = 8;

    /// A crowd of three with tasks.
    fn three() -> (Crowd<char>, [Standing; 3]) {
        let crowd = Crowd::default();
        let mut standings = [Standing::default(), Standing::default(), Standing::default()];
        for standing in &mut standings {
            crowd.count(standing, true);
        }
        (crowd, standings)
    }

    fn long_ago() -> Option<Instant> {
        Instant::now().checked_sub(PATIENCE * 2)
    }

    #[test]
    fn each_has_its_part_where_one_with_less_finds_no_room() {
        let (crowd, [mut a, _, mut c]) = three();
        let now = Some(Instant::now());
        // One with its full share does not cause crowding.
        crowd.starve(&'a', &mut a, now, 2, THERE);
        assert!(!crowd.is_crowded());
        crowd.starve(&'c', &mut c, now, 1, THERE);
        assert!(crowd.is_crowded());
        assert_eq!(crowd.share(&'a', THERE), 2);
        crowd.starve(&'c', &mut c, None, 2, THERE);
        assert!(!crowd.is_crowded());
    }

    #[test]
    fn all_make_room_for_one_that_has_had_nothing_for_a_while_and_for_one_at_a_time() {
        let (crowd, [mut a, mut b, _]) = three();
        crowd.starve(&'a', &mut a, long_ago(), 1, THERE);
        assert_eq!(crowd.share(&'c', THERE), 2);
        crowd.starve(&'a', &mut a, long_ago(), 0, THERE);
        crowd.starve(&'b', &mut b, long_ago(), 0, THERE);
        assert_eq!(['a', 'b', 'c'].map(|one| crowd.share(&one, THERE)), [2, 0, 0]);
        crowd.starve(&'a', &mut a, None, 4, THERE);
        assert_eq!(['a', 'b', 'c'].map(|one| crowd.share(&one, THERE)), [2, 2, 2]);
        crowd.starve(&'b', &mut b, long_ago(), 0, THERE);
        assert_eq!(crowd.share(&'a', THERE), 0);
    }

    #[test]
    fn who_is_alone_gives_nothing_up() {
        let crowd = Crowd::default();
        let mut standing = Standing::default();
        crowd.count(&mut standing, true);
        crowd.starve(&'a', &mut standing, long_ago(), 0, THERE);
        assert!(!crowd.is_crowded());
        assert_eq!(crowd.share(&'a', THERE), THERE);
        crowd.count(&mut standing, false);
        assert_eq!(crowd.part(THERE), THERE);
    }
}
