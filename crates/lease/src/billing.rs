//! What leases used and what that costs.
//!
//! Meters are written where user code can reach them, so they are claims: [`clamp`] cuts them to what wall-clock time
//! allows. They travel as totals under growing numbers, so [`Account::book`] may hear an entry any number of times.

use std::collections::HashMap;

use mayfly_protocol::api::Usage;
use mayfly_protocol::ids::LeaseId;
use serde::{Deserialize, Serialize};

/// Cuts one worker's meter to what can be true: it cannot have computed and polled for longer than it existed, nor
/// failed more often than it was called, and no counter ever goes back. `wall_us` is the time since the worker's lease
/// began; `before` what was believed last time. Computing is believed before polling.
pub fn clamp(claimed: Usage, before: Usage, wall_us: u64) -> Usage {
    let computing_us = claimed
        .computing_us
        .clamp(before.computing_us, wall_us.max(before.computing_us));
    let room_us = wall_us.saturating_sub(computing_us).max(before.polling_us);
    let polling_us = claimed.polling_us.clamp(before.polling_us, room_us);
    let calls = claimed.calls.max(before.calls);
    Usage {
        computing_us,
        polling_us,
        allocated_us: wall_us.max(before.allocated_us),
        calls,
        failures: claimed.failures.clamp(before.failures, calls),
    }
}

/// Sum of two usages, as of two workers or of two times.
pub fn add(a: Usage, b: Usage) -> Usage {
    Usage {
        computing_us: a.computing_us.saturating_add(b.computing_us),
        polling_us: a.polling_us.saturating_add(b.polling_us),
        allocated_us: a.allocated_us.saturating_add(b.allocated_us),
        calls: a.calls.saturating_add(b.calls),
        failures: a.failures.saturating_add(b.failures),
    }
}

/// The larger of each quantity: totals never go back, whatever order they arrive in.
pub fn merge(a: Usage, b: Usage) -> Usage {
    Usage {
        computing_us: a.computing_us.max(b.computing_us),
        polling_us: a.polling_us.max(b.polling_us),
        allocated_us: a.allocated_us.max(b.allocated_us),
        calls: a.calls.max(b.calls),
        failures: a.failures.max(b.failures),
    }
}

/// What one node's journal has been booked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Account {
    booked: u64,
    totals: HashMap<LeaseId, Usage>,
}

impl Account {
    /// An account that continues after `booked` with these totals.
    pub fn resume(booked: u64, totals: impl IntoIterator<Item = (LeaseId, Usage)>) -> Self {
        Self {
            booked,
            totals: totals.into_iter().collect(),
        }
    }

    /// Last number booked.
    pub fn booked(&self) -> u64 {
        self.booked
    }

    /// What a lease used.
    pub fn total(&self, lease: &LeaseId) -> Usage {
        self.totals.get(lease).copied().unwrap_or_default()
    }

    /// Books an entry of totals; answers those that changed. An entry that was booked before changes nothing.
    pub fn book(&mut self, sequence: u64, usage: &[(LeaseId, Usage)]) -> Vec<(LeaseId, Usage)> {
        if sequence <= self.booked {
            return Vec::new();
        }
        self.booked = sequence;
        let mut changed = Vec::new();
        for &(lease, used) in usage {
            let total = self.totals.entry(lease).or_default();
            let merged = merge(*total, used);
            if merged != *total {
                *total = merged;
                changed.push((lease, merged));
            }
        }
        changed
    }

    /// Forgets a lease that has ended and been archived.
    pub fn forget(&mut self, lease: &LeaseId) -> Option<Usage> {
        self.totals.remove(lease)
    }
}

/// Prices of a site, in billionths of its unit of account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prices {
    /// Ca: for one GiB held for one second.
    pub allocation_per_gib_s: u64,
    /// Cc: for one second inside functions.
    pub computing_per_s: u64,
    /// Ch: for one second of polling.
    pub polling_per_s: u64,
}

impl Prices {
    /// C = Ca ta + Cc tc + Ch th, in billionths. `ta` is the papers' product of allocation time and memory: the usage
    /// counts it once for each worker and `memory_bytes` is the whole lease's, hence the division.
    pub fn cost(&self, usage: &Usage, memory_bytes: u64, workers: u16) -> u128 {
        const US_PER_S: u128 = 1_000_000;
        let byte_us = u128::from(usage.allocated_us) * u128::from(memory_bytes) / u128::from(workers.max(1));
        // Bytes first: 2^64 us of 2^64 bytes would leave no room for the price.
        let allocation = (byte_us >> 30).saturating_mul(self.allocation_per_gib_s.into()) / US_PER_S;
        let computing = u128::from(usage.computing_us) * u128::from(self.computing_per_s) / US_PER_S;
        let polling = u128::from(usage.polling_us) * u128::from(self.polling_per_s) / US_PER_S;
        allocation.saturating_add(computing).saturating_add(polling)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LEASE: LeaseId = LeaseId([1; 16]);

    fn used(computing_us: u64, polling_us: u64, calls: u64) -> Usage {
        Usage {
            computing_us,
            polling_us,
            allocated_us: 0,
            calls,
            failures: 0,
        }
    }

    #[test]
    fn a_repeated_number_never_charges_twice() {
        let mut account = Account::default();
        assert_eq!(
            account.book(1, &[(LEASE, used(10, 0, 1))]),
            vec![(LEASE, used(10, 0, 1))]
        );
        assert_eq!(account.book(1, &[(LEASE, used(99, 0, 9))]), vec![]);
        assert_eq!(account.total(&LEASE), used(10, 0, 1));
        assert_eq!(
            account.book(2, &[(LEASE, used(30, 0, 2))]),
            vec![(LEASE, used(30, 0, 2))]
        );
        assert_eq!((account.booked(), account.total(&LEASE)), (2, used(30, 0, 2)));
    }

    #[test]
    fn a_worker_that_claims_more_time_than_there_was_is_cut() {
        let claimed = Usage {
            computing_us: 900,
            polling_us: 900,
            allocated_us: 7,
            calls: 3,
            failures: 8,
        };
        let believed = clamp(claimed, Usage::default(), 1_000);
        assert_eq!(
            believed,
            Usage {
                computing_us: 900,
                polling_us: 100,
                allocated_us: 1_000,
                calls: 3,
                failures: 3
            }
        );
    }

    #[test]
    fn a_worker_that_sets_its_meter_back_still_pays() {
        let before = used(500, 200, 10);
        let believed = clamp(Usage::default(), before, 1_000);
        assert_eq!(
            (believed.computing_us, believed.polling_us, believed.calls),
            (500, 200, 10)
        );
    }

    #[test]
    fn the_bill_is_the_papers_sum() {
        let prices = Prices {
            allocation_per_gib_s: 2,
            computing_per_s: 1_000,
            polling_per_s: 100,
        };
        let usage = Usage {
            computing_us: 3_000_000,
            polling_us: 5_000_000,
            allocated_us: 40_000_000,
            calls: 1,
            failures: 0,
        };
        // 4 workers for 10 s with 2 GiB in all: 20 GiB s.
        assert_eq!(prices.cost(&usage, 2 << 30, 4), 2 * 20 + 1_000 * 3 + 100 * 5);
    }

    fn any_usage() -> impl Strategy<Value = Usage> {
        (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>()).prop_map(
            |(computing_us, polling_us, allocated_us, calls, failures)| Usage {
                computing_us,
                polling_us,
                allocated_us,
                calls,
                failures,
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_believed_fits_the_clock_and_never_shrinks(
            claims in proptest::collection::vec((any_usage(), 0..1_000_000u64), 1..20)
        ) {
            let (mut wall, mut believed) = (0, Usage::default());
            for (claim, passed) in claims {
                wall += passed;
                let now = clamp(claim, believed, wall);
                prop_assert!(now.computing_us + now.polling_us <= wall);
                prop_assert!(now.failures <= now.calls);
                prop_assert_eq!(merge(now, believed), now);
                believed = now;
            }
        }

        #[test]
        fn entries_repeated_or_late_leave_the_same_totals(
            entries in proptest::collection::vec(any_usage(), 1..10),
            order in proptest::collection::vec(0..10usize, 0..30),
        ) {
            let mut once = Account::default();
            for (n, usage) in entries.iter().enumerate() { once.book(n as u64 + 1, &[(LEASE, *usage)]); }
            let mut noisy = Account::default();
            for (n, usage) in entries.iter().enumerate() {
                noisy.book(n as u64 + 1, &[(LEASE, *usage)]);
                for &again in order.iter().filter(|&&again| again <= n) {
                    prop_assert!(noisy.book(again as u64 + 1, &[(LEASE, entries[again])]).is_empty());
                }
            }
            prop_assert_eq!(once, noisy);
        }

        #[test]
        fn no_usage_overflows_the_bill(usage in any_usage(), memory in any::<u64>(), workers in any::<u16>(), price in any::<u64>()) {
            let prices = Prices { allocation_per_gib_s: price, computing_per_s: price, polling_per_s: price };
            prices.cost(&usage, memory, workers);
        }
    }
}
