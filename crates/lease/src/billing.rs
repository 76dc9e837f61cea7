//! Usage of leases and its cost.
//!
//! User code can write to the meters, so their values are untrusted claims: [`clamp`] cuts them to what wall-clock time
//! allows. Meters travel as totals with growing sequence numbers, so that an entry may arrive more than once.

use dayfly_protocol::api::{LoanUsage, Usage};
use dayfly_protocol::cores::MilliCores;
use dayfly_protocol::tenancy::Prices;

/// Cuts one worker's meter to plausible values: computing and polling together take at most the time since the lease
/// began (`wall_us`), failures do not exceed calls, and no counter decreases below `before`, the last accepted value.
/// Computing takes precedence over polling.
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

/// Returns the sum of two usages, for example of two workers or two periods. Saturates.
pub fn add(a: Usage, b: Usage) -> Usage {
    Usage {
        computing_us: a.computing_us.saturating_add(b.computing_us),
        polling_us: a.polling_us.saturating_add(b.polling_us),
        allocated_us: a.allocated_us.saturating_add(b.allocated_us),
        calls: a.calls.saturating_add(b.calls),
        failures: a.failures.saturating_add(b.failures),
    }
}

/// Returns `a - b` for each quantity. Saturates at 0.
pub fn subtract(a: Usage, b: Usage) -> Usage {
    Usage {
        computing_us: a.computing_us.saturating_sub(b.computing_us),
        polling_us: a.polling_us.saturating_sub(b.polling_us),
        allocated_us: a.allocated_us.saturating_sub(b.allocated_us),
        calls: a.calls.saturating_sub(b.calls),
        failures: a.failures.saturating_sub(b.failures),
    }
}

/// Returns the larger value of each quantity. Totals therefore never decrease, in whatever order they arrive.
pub fn merge(a: Usage, b: Usage) -> Usage {
    Usage {
        computing_us: a.computing_us.max(b.computing_us),
        polling_us: a.polling_us.max(b.polling_us),
        allocated_us: a.allocated_us.max(b.allocated_us),
        calls: a.calls.max(b.calls),
        failures: a.failures.max(b.failures),
    }
}

/// Cost of a lease, in billionths of the site's unit of account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cost {
    /// Cost of memory, cores and GPUs that the lease holds: Ca ta.
    pub allocation: u64,
    /// Cost of computing: Cc tc, for each core of a worker.
    pub computing: u64,
    /// Cost of polling: Ch th, for each core of a worker.
    pub polling: u64,
    /// Cost of borrowed resources.
    pub borrowing: u64,
}

impl Cost {
    /// Returns the cost of `usage` at these prices. `ta` is the product of allocation time and memory. `allocated_us`
    /// counts the time once for each worker and `memory_bytes` is for the whole lease, hence the division by `workers`.
    /// The time of a worker counts as often as it owns cores, so half a core costs half. More usage never costs less.
    pub fn of(
        prices: &Prices,
        usage: &Usage,
        memory_bytes: u64,
        workers: u16,
        cores_per_worker: MilliCores,
        gpus_per_worker: u16,
    ) -> Self {
        const US_PER_S: u128 = 1_000_000;
        let whole = |billionths: u128| u64::try_from(billionths).unwrap_or(u64::MAX);
        let core_s = |us: u64, price: u64| {
            let milli_core_us = u128::from(us).saturating_mul(cores_per_worker.get().into());
            whole(milli_core_us.saturating_mul(price.into()) / US_PER_S / u128::from(MilliCores::ONE.get()))
        };
        let byte_us = u128::from(usage.allocated_us) * u128::from(memory_bytes) / u128::from(workers.max(1));
        // Divide the bytes first: 2^64 us of 2^64 bytes would leave no room for the price.
        let memory = (byte_us >> 30).saturating_mul(prices.allocation_per_gib_s.into()) / US_PER_S;
        let gpu_us = u128::from(usage.allocated_us) * u128::from(gpus_per_worker);
        let gpus = gpu_us.saturating_mul(prices.gpu_per_s.into()) / US_PER_S;
        let cores = core_s(usage.allocated_us, prices.core_per_s);
        Self {
            allocation: whole(memory).saturating_add(cores).saturating_add(whole(gpus)),
            computing: core_s(usage.computing_us, prices.computing_per_s),
            polling: core_s(usage.polling_us, prices.polling_per_s),
            borrowing: 0,
        }
    }

    /// Returns this cost with that of `loans`. More loans never cost less.
    #[must_use]
    pub fn with_loans(self, prices: &Prices, loans: &LoanUsage) -> Self {
        let product = |units: u64, price: u64, scale: u128| u128::from(units) * u128::from(price) / scale;
        let cores = product(loans.borrowed_core_us, prices.borrowed_core_per_s, 1_000_000);
        let memory = product(loans.borrowed_mib_s, prices.borrowed_per_gib_s, 1_024);
        Self {
            borrowing: u64::try_from(cores.saturating_add(memory)).unwrap_or(u64::MAX),
            ..self
        }
    }

    /// Returns C = Ca ta + Cc tc + Ch th, with the cost of loans. Saturates.
    pub fn total(&self) -> u64 {
        self.allocation
            .saturating_add(self.computing)
            .saturating_add(self.polling)
            .saturating_add(self.borrowing)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
    fn claim_of_too_much_time_is_cut() {
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
    fn meter_that_is_set_back_still_counts() {
        let before = used(500, 200, 10);
        let believed = clamp(Usage::default(), before, 1_000);
        assert_eq!(
            (believed.computing_us, believed.polling_us, believed.calls),
            (500, 200, 10)
        );
    }

    #[test]
    fn total_equals_the_sum_in_the_paper() {
        let prices = Prices {
            allocation_per_gib_s: 2,
            computing_per_s: 1_000,
            polling_per_s: 100,
            ..Prices::default()
        };
        let usage = Usage {
            computing_us: 3_000_000,
            polling_us: 5_000_000,
            allocated_us: 40_000_000,
            calls: 1,
            failures: 0,
        };
        // 4 workers for 10 s with 2 GiB in total: 20 GiB s.
        assert_eq!(
            Cost::of(&prices, &usage, 2 << 30, 4, MilliCores::ONE, 0).total(),
            2 * 20 + 1_000 * 3 + 100 * 5
        );
    }

    #[test]
    fn half_a_core_costs_half() {
        let prices = Prices {
            computing_per_s: 1_000,
            polling_per_s: 100,
            ..Prices::default()
        };
        let usage = used(3_000_000, 5_000_000, 1);
        let total = |thousandths| Cost::of(&prices, &usage, 0, 1, MilliCores::new(thousandths), 0).total();
        assert_eq!([500, 1_000, 2_000].map(total), [1_750, 3_500, 7_000]);
        assert_eq!(
            (1..=100).map(|_| total(10)).sum::<u64>(),
            total(1_000),
            "nothing is lost"
        );
    }

    #[test]
    fn held_cores_and_gpus_cost_without_a_call() {
        let prices = Prices {
            core_per_s: 10,
            gpu_per_s: 1_000,
            ..Prices::default()
        };
        // Two workers for five seconds.
        let usage = Usage {
            allocated_us: 10_000_000,
            ..Usage::default()
        };
        let total = |cores, gpus| Cost::of(&prices, &usage, 0, 2, MilliCores::from(cores), gpus).total();
        assert_eq!(total(1_u16, 0), 100);
        assert_eq!(total(16, 0), 1_600, "a worker of 16 cores pays for 16");
        assert_eq!(total(1, 2), 100 + 20_000);
    }

    #[test]
    fn borrowing_costs_what_the_site_sets() {
        let loans = LoanUsage {
            lent_core_us: u64::MAX,
            borrowed_core_us: 3_000_000,
            lent_mib_s: u64::MAX,
            borrowed_mib_s: 2_048,
            waited_us: 7,
        };
        let free = Cost::default().with_loans(&Prices::default(), &loans);
        assert_eq!(free.total(), 0);
        let prices = Prices {
            borrowed_core_per_s: 10,
            borrowed_per_gib_s: 100,
            ..Prices::default()
        };
        let paid = Cost::default().with_loans(&prices, &loans);
        assert_eq!((paid.borrowing, paid.total()), (230, 230));
        let endless = LoanUsage {
            borrowed_core_us: u64::MAX,
            borrowed_mib_s: u64::MAX,
            ..loans
        };
        let dear = Prices {
            borrowed_core_per_s: u64::MAX,
            borrowed_per_gib_s: u64::MAX,
            ..prices
        };
        assert_eq!(paid.with_loans(&dear, &endless).total(), u64::MAX);
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
        fn accepted_usage_fits_the_clock_and_never_decreases(
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
        fn totals_merge_to_one_bill_in_any_order(entries in proptest::collection::vec(any_usage(), 1..10)) {
            let forth = entries.iter().copied().fold(Usage::default(), merge);
            let back = entries.iter().rev().copied().fold(forth, merge);
            prop_assert_eq!(forth, back);
        }

        #[test]
        fn more_usage_never_costs_less(a in any_usage(), b in any_usage(), memory in any::<u64>(), workers in any::<u16>(), cores in any::<u64>(), gpus in any::<u16>(), price in any::<u64>()) {
            let prices = Prices { allocation_per_gib_s: price, computing_per_s: price, polling_per_s: price, core_per_s: price, gpu_per_s: price, ..Prices::default() };
            let less = Cost::of(&prices, &a, memory, workers, MilliCores::new(cores), gpus);
            let more = Cost::of(&prices, &merge(a, b), memory, workers, MilliCores::new(cores), gpus);
            prop_assert!(more.total() >= less.total());
        }

        #[test]
        fn no_usage_overflows_the_bill(usage in any_usage(), memory in any::<u64>(), workers in any::<u16>(), cores in any::<u64>(), gpus in any::<u16>(), price in any::<u64>()) {
            let prices = Prices { allocation_per_gib_s: price, computing_per_s: price, polling_per_s: price, core_per_s: price, gpu_per_s: price, ..Prices::default() };
            Cost::of(&prices, &usage, memory, workers, MilliCores::new(cores), gpus).total();
        }
    }
}
