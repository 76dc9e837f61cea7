//! The idle units of one resource on one node: who lent them, until when, and who has them.
//!
//! Each unit that a lender gave up is in exactly one place: idle in the pool, or with one borrower. The lender's end takes
//! all of its units away at once; a borrower's end leaves them to others with the expiry that they had at first. The
//! operations are those of LIBRA, section 5.1.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::demand::{CallId, TenantId};

/// Units of one lender that are with one borrower.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loan {
    /// Who owns them.
    pub lender: CallId,
    /// Who has them.
    pub borrower: CallId,
    /// How many.
    pub units: u64,
}

/// What a lender put into the pool.
#[derive(Debug, Clone)]
struct Offer {
    tenant: TenantId,
    expiry_us: u64,
    idle: u64,
    loans: BTreeMap<CallId, u64>,
    /// Its units are counted in the totals up to here.
    counted_us: u64,
}

impl Offer {
    fn lent(&self) -> u64 {
        self.loans.values().sum()
    }

    fn units(&self) -> u64 {
        self.idle + self.lent()
    }

    fn take_back(&mut self, borrower: CallId, units: u64) -> u64 {
        let Some(loan) = self.loans.get_mut(&borrower) else {
            return 0;
        };
        let units = units.min(*loan);
        *loan -= units;
        self.idle += units;
        if *loan == 0 {
            self.loans.remove(&borrower);
        }
        units
    }
}

/// Units times microseconds since the pool was made. `promised = lent + idle + returned` once all lenders ended; while
/// they run, what is still promised is missing from the right side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PoolTotals {
    /// From each offer to its expiry.
    pub promised: u128,
    /// With borrowers, before the expiry.
    pub lent: u128,
    /// In the pool, before the expiry.
    pub idle: u128,
    /// Taken back by lenders before the expiry.
    pub returned: u128,
    /// With borrowers, after the expiry: the lender ran longer than predicted.
    pub lent_late: u128,
    /// In the pool, after the expiry.
    pub idle_late: u128,
}

/// The pool of one resource on one node.
#[derive(Debug, Clone, Default)]
pub struct Pool {
    offers: BTreeMap<CallId, Offer>,
    /// Sum over the offers.
    idle: u64,
    /// Sum over the offers.
    lent: u64,
    totals: PoolTotals,
}

impl Pool {
    /// Counts the time up to `now_us`. Times before the last one count as the last one.
    pub fn advance(&mut self, now_us: u64) {
        for offer in self.offers.values_mut() {
            let (from, to) = (offer.counted_us, now_us.max(offer.counted_us));
            let kept_promise = u128::from(to.min(offer.expiry_us).saturating_sub(from));
            let late = u128::from(to - from) - kept_promise;
            let (idle, lent) = (u128::from(offer.idle), u128::from(offer.lent()));
            self.totals.idle += idle * kept_promise;
            self.totals.lent += lent * kept_promise;
            self.totals.idle_late += idle * late;
            self.totals.lent_late += lent * late;
            offer.counted_us = to;
        }
    }

    /// Adds an offer. A lender has one offer: a second one is refused, and changes nothing.
    pub fn put(&mut self, lender: CallId, tenant: TenantId, units: u64, expiry_us: u64, now_us: u64) -> bool {
        if units == 0 || self.offers.contains_key(&lender) {
            return false;
        }
        self.totals.promised += u128::from(units) * u128::from(expiry_us.saturating_sub(now_us));
        let offer = Offer {
            tenant,
            expiry_us,
            idle: units,
            loans: BTreeMap::new(),
            counted_us: now_us,
        };
        self.idle += units;
        self.offers.insert(lender, offer);
        true
    }

    /// Lends up to `units` to a borrower, from the latest expiry to the earliest, and returns the loans. `only` restricts
    /// the lenders to one tenant. Nobody borrows from itself.
    pub fn get(&mut self, borrower: CallId, units: u64, only: Option<TenantId>, now_us: u64) -> Vec<Loan> {
        self.advance(now_us);
        let mut order: Vec<_> = self
            .offers
            .iter()
            .filter(|(lender, offer)| {
                **lender != borrower && offer.idle > 0 && only.is_none_or(|tenant| tenant == offer.tenant)
            })
            .map(|(lender, offer)| (Reverse(offer.expiry_us), *lender))
            .collect();
        order.sort_unstable();
        let (mut loans, mut missing) = (Vec::new(), units);
        for (_, lender) in order {
            if missing == 0 {
                break;
            }
            let Some(offer) = self.offers.get_mut(&lender) else {
                continue;
            };
            let units = offer.idle.min(missing);
            offer.idle -= units;
            self.idle -= units;
            self.lent += units;
            missing -= units;
            *offer.loans.entry(borrower).or_default() += units;
            loans.push(Loan {
                lender,
                borrower,
                units,
            });
        }
        loans
    }

    /// Removes the offer of a lender, and returns what its borrowers lose.
    pub fn release(&mut self, lender: CallId, now_us: u64) -> Vec<Loan> {
        self.advance(now_us);
        let Some(offer) = self.offers.remove(&lender) else {
            return Vec::new();
        };
        self.idle -= offer.idle;
        self.lent -= offer.lent();
        self.totals.returned +=
            u128::from(offer.units()) * u128::from(offer.expiry_us.saturating_sub(offer.counted_us));
        let loans = offer.loans.into_iter();
        loans
            .map(|(borrower, units)| Loan {
                lender,
                borrower,
                units,
            })
            .collect()
    }

    /// Returns up to `units` of a borrower to the pool, those that expire first at first, and returns how many.
    pub fn give_back(&mut self, borrower: CallId, units: u64, now_us: u64) -> u64 {
        self.advance(now_us);
        let mut order: Vec<_> = self
            .offers
            .iter()
            .filter(|(_, offer)| offer.loans.contains_key(&borrower))
            .map(|(lender, offer)| (offer.expiry_us, *lender))
            .collect();
        order.sort_unstable();
        let mut missing = units;
        for (_, lender) in order {
            let Some(offer) = self.offers.get_mut(&lender) else {
                continue;
            };
            let taken = offer.take_back(borrower, missing);
            self.idle += taken;
            self.lent -= taken;
            missing -= taken;
        }
        units - missing
    }

    /// Takes up to `units` of one loan back into the pool, and returns how many.
    pub fn take_back(&mut self, lender: CallId, borrower: CallId, units: u64, now_us: u64) -> u64 {
        self.advance(now_us);
        let Some(offer) = self.offers.get_mut(&lender) else {
            return 0;
        };
        let units = offer.take_back(borrower, units);
        self.idle += units;
        self.lent -= units;
        units
    }

    /// Units that a call put into the pool, wherever they are.
    pub fn offered(&self, lender: CallId) -> u64 {
        self.offers.get(&lender).map_or(0, Offer::units)
    }

    /// Units that a call has of others.
    pub fn borrowed(&self, borrower: CallId) -> u64 {
        self.offers
            .values()
            .filter_map(|offer| offer.loans.get(&borrower))
            .sum()
    }

    /// Units that nobody uses. `only` restricts the lenders to one tenant.
    pub fn idle(&self, only: Option<TenantId>) -> u64 {
        let Some(tenant) = only else { return self.idle };
        let offers = self.offers.values();
        offers
            .filter(|offer| offer.tenant == tenant)
            .map(|offer| offer.idle)
            .sum()
    }

    /// Units of a lender that nobody uses.
    pub fn idle_of(&self, lender: CallId) -> u64 {
        self.offers.get(&lender).map_or(0, |offer| offer.idle)
    }

    /// Units that are with borrowers.
    pub fn lent(&self) -> u64 {
        self.lent
    }

    /// The lenders, in the order of their ids.
    pub fn lenders(&self) -> Vec<CallId> {
        self.offers.keys().copied().collect()
    }

    /// The loans of a lender.
    pub fn loans_of(&self, lender: CallId) -> Vec<Loan> {
        let loans = self.offers.get(&lender).map(|offer| &offer.loans);
        loans
            .into_iter()
            .flatten()
            .map(|(borrower, units)| Loan {
                lender,
                borrower: *borrower,
                units: *units,
            })
            .collect()
    }

    /// The lender whose units are with borrowers and expire first.
    pub fn first_to_expire(&self) -> Option<CallId> {
        let lenders = self.offers.iter().filter(|(_, offer)| !offer.loans.is_empty());
        lenders
            .min_by_key(|(lender, offer)| (offer.expiry_us, **lender))
            .map(|(lender, _)| *lender)
    }

    /// What is idle, by its expiry: the input of demand coverage.
    pub fn idle_by_expiry(&self) -> Vec<(u64, u64)> {
        let offers = self.offers.values().filter(|offer| offer.idle > 0);
        offers.map(|offer| (offer.expiry_us, offer.idle)).collect()
    }

    /// The totals up to the last time that was counted.
    pub fn totals(&self) -> PoolTotals {
        self.totals
    }

    /// Units times microseconds that are promised from the last time that was counted on.
    pub fn outstanding(&self) -> u128 {
        let offers = self.offers.values();
        offers
            .map(|offer| u128::from(offer.units()) * u128::from(offer.expiry_us.saturating_sub(offer.counted_us)))
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TENANT: TenantId = TenantId(0);

    #[test]
    fn latest_expiry_is_lent_first() {
        let mut pool = Pool::default();
        pool.put(CallId(1), TENANT, 1, 400, 0);
        pool.put(CallId(2), TENANT, 2, 300, 0);
        let loans = pool.get(CallId(4), 2, None, 10);
        let loan = |lender, units| Loan {
            lender: CallId(lender),
            borrower: CallId(4),
            units,
        };
        assert_eq!(loans, [loan(1, 1), loan(2, 1)]);
    }

    #[test]
    fn returned_units_keep_their_first_expiry() {
        let mut pool = Pool::default();
        pool.put(CallId(1), TENANT, 3, 500, 0);
        pool.get(CallId(2), 3, None, 10);
        assert_eq!(pool.give_back(CallId(2), u64::MAX, 20), 3);
        assert_eq!(pool.idle_by_expiry(), [(500, 3)]);
    }

    #[test]
    fn loans_within_a_tenant_cross_no_border() {
        let mut pool = Pool::default();
        pool.put(CallId(1), TenantId(1), 3, 500, 0);
        assert_eq!(pool.get(CallId(2), 3, Some(TenantId(2)), 0), []);
        assert_eq!(pool.get(CallId(2), 3, Some(TenantId(1)), 0).len(), 1);
    }

    #[derive(Debug, Clone)]
    enum Step {
        Put(u64, u64, u64),
        Get(u64, u64),
        Release(u64),
        GiveBack(u64, u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..6u64, 0..9u64, 0..900u64).prop_map(|(lender, units, expiry)| Step::Put(lender, units, expiry)),
            (0..6u64, 0..9u64).prop_map(|(borrower, units)| Step::Get(borrower, units)),
            (0..6u64).prop_map(Step::Release),
            (0..6u64, 0..9u64).prop_map(|(borrower, units)| Step::GiveBack(borrower, units)),
        ]
    }

    proptest! {
        #[test]
        fn every_unit_is_in_one_place(steps in prop::collection::vec((step(), 0..50u64), 0..60)) {
            let (mut pool, mut now, mut offered) = (Pool::default(), 0, BTreeMap::new());
            for (step, wait) in steps {
                now += wait;
                match step {
                    Step::Put(lender, units, expiry) => {
                        if pool.put(CallId(lender), TENANT, units, expiry, now) {
                            offered.insert(lender, units);
                        }
                    }
                    Step::Get(borrower, units) => {
                        let got: u64 = pool.get(CallId(borrower), units, None, now).iter().map(|loan| loan.units).sum();
                        prop_assert!(got <= units);
                    }
                    Step::Release(lender) => {
                        pool.release(CallId(lender), now);
                        offered.remove(&lender);
                    }
                    Step::GiveBack(borrower, units) => {
                        let had = pool.borrowed(CallId(borrower));
                        let back = pool.give_back(CallId(borrower), units, now);
                        prop_assert_eq!(back, had.min(units));
                        prop_assert_eq!(pool.borrowed(CallId(borrower)), had - back);
                    }
                }
                let borrowed: u64 = (0..6).map(|borrower| pool.borrowed(CallId(borrower))).sum();
                prop_assert_eq!(borrowed, pool.lent());
                prop_assert_eq!(pool.idle_by_expiry().iter().map(|(_, units)| units).sum::<u64>(), pool.idle(None));
                prop_assert_eq!(offered.values().sum::<u64>(), pool.idle(None) + pool.lent());
                for (lender, units) in &offered {
                    prop_assert_eq!(pool.offered(CallId(*lender)), *units);
                }
                pool.advance(now);
                let totals = pool.totals();
                prop_assert_eq!(totals.promised, totals.lent + totals.idle + totals.returned + pool.outstanding());
            }
        }
    }
}
