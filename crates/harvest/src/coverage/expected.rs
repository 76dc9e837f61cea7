//! The pools of one node as one scheduler expects them between two heartbeats: as the last one reported them, less what
//! calls that the scheduler placed there since will borrow and own, plus what they will lend.

use std::collections::BTreeMap;

use super::outlook::{Change, Forecast};
use super::{CPU_WEIGHT_PERCENT, Spare, Want};
use crate::amount::Amount;

/// What a call that a scheduler placed on a node does to the pools there.
#[derive(Debug, Clone, Copy)]
pub struct Claim {
    at_us: u64,
    owned: Amount,
    borrows: Change,
    lends: Change,
}

impl Claim {
    /// A call that was placed at `at_us`, owns `owned`, and will borrow what it wants for as long as it wants it.
    pub fn new(at_us: u64, owned: Amount, want: &Want) -> Self {
        Self {
            at_us,
            owned,
            borrows: Change {
                amount: want.extra,
                until_us: at_us.saturating_add(want.duration_us),
            },
            lends: Change {
                amount: Amount::ZERO,
                until_us: at_us,
            },
        }
    }

    /// The same call, which lends `amount` of what it owns for `lends_us`.
    #[must_use]
    pub fn lending(mut self, amount: Amount, lends_us: u64) -> Self {
        self.lends = Change {
            amount,
            until_us: self.at_us.saturating_add(lends_us),
        };
        self
    }
}

/// The pools of one node. A `K` names a call. Times are those of the scheduler's clock, in microseconds.
#[derive(Debug)]
pub struct ExpectedPools<K> {
    /// As last reported, and when.
    spare: Spare,
    spare_us: u64,
    /// What nobody owned and nobody had borrowed then.
    reported: Amount,
    /// What is left of it for calls that come now.
    unowned: Amount,
    /// Calls that the last report does not show yet.
    recent: BTreeMap<K, Claim>,
    /// Of `spare` and `recent`. Renewed when they change, so that a decision only reads.
    forecast: Forecast,
}

impl<K> Default for ExpectedPools<K> {
    fn default() -> Self {
        Self::with_cpu_weight(CPU_WEIGHT_PERCENT)
    }
}

impl<K> ExpectedPools<K> {
    /// Pools before the first report. The coverage of processor time counts `percent` in that of a call.
    pub fn with_cpu_weight(percent: u8) -> Self {
        Self {
            spare: Spare::default(),
            spare_us: 0,
            reported: Amount::ZERO,
            unowned: Amount::ZERO,
            recent: BTreeMap::new(),
            forecast: Forecast::default().with_cpu_weight(percent),
        }
    }
}

impl<K: Ord> ExpectedPools<K> {
    /// Takes a report of `at_us`: the pools, and what nobody owns and nobody has borrowed. Calls that were placed at least
    /// `transit_us` before it are in it.
    pub fn report(&mut self, at_us: u64, spare: &Spare, unowned: Amount, transit_us: u64) {
        self.spare_us = at_us;
        self.spare.clone_from(spare);
        self.reported = unowned;
        self.recent
            .retain(|_, claim| claim.at_us.saturating_add(transit_us) > at_us);
        self.renew();
    }

    /// Counts a call that was placed on the node.
    pub fn add(&mut self, call: K, claim: Claim) {
        self.recent.insert(call, claim);
        self.renew();
    }

    /// Counts a call no more. Without effect if the last report shows it already.
    pub fn remove(&mut self, call: &K) {
        if self.recent.remove(call).is_some() {
            self.renew();
        }
    }

    /// Calls that the last report does not show.
    pub fn claims(&self) -> usize {
        self.recent.len()
    }

    /// Demand coverage of a call that owns `owned` by all that the node could lend to it: its pools, and what nobody owns
    /// once the call has what it owns. `None` if it is below `least`.
    pub fn coverage_from(&self, now_us: u64, want: &Want, owned: Amount, least: f64) -> Option<f64> {
        self.forecast.coverage_from(now_us, want, self.unowned - owned, least)
    }

    /// Demand coverage by the pools alone. `None` if it is below `least`.
    pub fn pool_coverage_from(&self, now_us: u64, want: &Want, least: f64) -> Option<f64> {
        self.forecast.coverage_from(now_us, want, Amount::ZERO, least)
    }

    /// How much of what the call wants the node can lend, in whole hundredths: 0 where it can lend nothing, also of a call
    /// that wants one resource only, and 0 for a call that wants nothing. Rounded, so that nodes that are about as good
    /// are equal.
    pub fn gain_percent(&self, now_us: u64, want: &Want, owned: Amount) -> u8 {
        let without = Forecast::default().with_cpu_weight(self.forecast.cpu_weight());
        let nothing = without.coverage(now_us, want, Amount::ZERO);
        if nothing >= 1.0 {
            return 0;
        }
        let coverage = self.forecast.coverage(now_us, want, self.unowned - owned);
        let gain = (coverage - nothing) / (1.0 - nothing);
        (gain.clamp(0.0, 1.0) * 100.0).round() as u8
    }

    fn renew(&mut self) {
        let taken: Vec<Change> = self.recent.values().map(|claim| claim.borrows).collect();
        let given: Vec<Change> = self.recent.values().map(|claim| claim.lends).collect();
        let forecast = Forecast::new(self.spare_us, &self.spare, &taken, &given);
        self.forecast = forecast.with_cpu_weight(self.forecast.cpu_weight());
        let owned = self.recent.values().map(|claim| claim.owned);
        self.unowned = owned.fold(self.reported, |left, owned| left - owned);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::coverage::Steps;

    const WANT: Want = Want {
        extra: Amount::new(1_000, 0),
        duration_us: 1_000,
    };

    fn pools(milli_cores: u64, unowned: u64) -> ExpectedPools<u8> {
        let mut pools = ExpectedPools::default();
        report(&mut pools, 0, milli_cores, unowned);
        pools
    }

    fn report(pools: &mut ExpectedPools<u8>, at_us: u64, milli_cores: u64, unowned: u64) {
        let spare = Spare {
            cpu: Steps::of_pool(at_us, [(at_us + 10_000, milli_cores)]),
            memory: Steps::default(),
        };
        pools.report(at_us, &spare, Amount::new(unowned, 0), 100);
    }

    fn gain(pools: &ExpectedPools<u8>, owned: u64) -> u8 {
        pools.gain_percent(500, &WANT, Amount::new(owned, 0))
    }

    #[test]
    fn gain_counts_only_what_can_be_lent() {
        assert_eq!(gain(&ExpectedPools::default(), 0), 0);
        assert_eq!(gain(&pools(250, 0), 1_000), 25);
        assert_eq!(gain(&pools(250, 1_500), 1_000), 75);
        assert_eq!(gain(&pools(u64::MAX, u64::MAX), 1_000), 100);
        let none = Want::default();
        assert_eq!(pools(250, 0).gain_percent(500, &none, Amount::ZERO), 0);
    }

    #[test]
    fn placed_calls_count_until_a_report_shows_them() {
        let mut pools = pools(2_000, 0);
        let claim = Claim::new(400, Amount::ZERO, &WANT);
        pools.add(1, claim);
        assert_eq!(gain(&pools, 0), 100);
        pools.add(2, claim);
        // Both want what there is during the first 900 of the 1,000 us.
        assert_eq!(gain(&pools, 0), 10);
        pools.remove(&2);
        pools.remove(&2);
        assert_eq!(gain(&pools, 0), 100);
        report(&mut pools, 450, 500, 0);
        assert_eq!((pools.claims(), gain(&pools, 0)), (1, 5), "it is on its way");
        report(&mut pools, 500, 500, 0);
        assert_eq!((pools.claims(), gain(&pools, 0)), (0, 50));
    }

    #[test]
    fn placed_calls_take_what_nobody_owned() {
        let mut pools = pools(0, 3_000);
        let claim = Claim::new(0, Amount::new(1_000, 0), &Want::default());
        pools.add(1, claim);
        assert_eq!(gain(&pools, 1_000), 100);
        pools.add(2, claim.lending(Amount::new(250, 0), 5_000));
        assert_eq!(gain(&pools, 1_000), 25);
    }

    proptest! {
        #[test]
        fn more_placements_never_raise_the_gain(
            units in any::<u64>(), unowned in any::<u64>(), owned in any::<u64>(), extra in any::<u64>(), us in any::<u64>(),
        ) {
            let mut pools = pools(units, unowned);
            let want = Want { extra: Amount::new(extra, extra), duration_us: us };
            let before = pools.gain_percent(0, &want, Amount::new(owned, 0));
            pools.add(1, Claim::new(0, Amount::new(owned, owned), &want));
            prop_assert!(pools.gain_percent(0, &want, Amount::new(owned, 0)) <= before);
            prop_assert!(before <= 100);
        }
    }
}
