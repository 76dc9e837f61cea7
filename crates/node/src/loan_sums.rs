//! Sums of amounts over time: what calls owned, used, lent and borrowed.

use dayfly_harvest::Amount;
use dayfly_protocol::api::LoanUsage;

/// Unit-microseconds of both resources.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sum {
    milli_core_us: u128,
    byte_us: u128,
}

impl Sum {
    /// Adds an amount that was held for this long, in microseconds. Saturates.
    pub fn add(&mut self, amount: Amount, us: u64) {
        let us = u128::from(us);
        self.milli_core_us = self.milli_core_us.saturating_add(u128::from(amount.milli_cores) * us);
        self.byte_us = self.byte_us.saturating_add(u128::from(amount.memory_bytes) * us);
    }

    /// Adds another sum. Saturates.
    pub fn merge(&mut self, other: &Self) {
        self.milli_core_us = self.milli_core_us.saturating_add(other.milli_core_us);
        self.byte_us = self.byte_us.saturating_add(other.byte_us);
    }

    /// The amount that was held on average for this long, in microseconds.
    pub fn mean(&self, us: u64) -> Amount {
        let us = u128::from(us.max(1));
        Amount::new(whole(self.milli_core_us / us), whole(self.byte_us / us))
    }

    /// Processor time in microseconds of one core.
    pub fn core_us(&self) -> u64 {
        whole(self.milli_core_us / 1_000)
    }

    /// Processor time in milliseconds of one core.
    pub fn core_ms(&self) -> u64 {
        whole(self.milli_core_us / 1_000_000)
    }

    /// Memory in MiB times seconds.
    pub fn mib_s(&self) -> u64 {
        whole((self.byte_us >> 20) / 1_000_000)
    }
}

fn whole(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

/// A window of a measured call.
#[derive(Debug, Clone, Copy)]
pub struct LoanWindow {
    /// Its length, in microseconds.
    pub us: u64,
    pub owned: Amount,
    pub used: Amount,
    /// What others had of it.
    pub lent: Amount,
    /// What it had of others.
    pub borrowed: Amount,
    /// Share of the window, in millionths, in which it waited for a processor.
    pub waiting_ppm: u32,
}

impl LoanWindow {
    /// Time, in microseconds, that a lender waited for processor time that it owns: at most the share of what it owns
    /// that it did not get. A call with several threads waits for its own limit, too.
    pub fn waited_us(&self) -> u64 {
        let owned = self.owned.milli_cores;
        let lacking = owned.saturating_sub(self.used.milli_cores);
        if self.lent.milli_cores == 0 || lacking == 0 {
            return 0;
        }
        let us = u128::from(self.us);
        let waiting = us * u128::from(self.waiting_ppm.min(1_000_000)) / 1_000_000;
        let lacking = us * u128::from(lacking) / u128::from(owned);
        whole(waiting.min(lacking))
    }
}

/// What the calls of one lease lent and borrowed.
#[derive(Debug, Clone, Copy, Default)]
pub struct LoanSums {
    lent: Sum,
    borrowed: Sum,
    waited_us: u64,
}

impl LoanSums {
    /// Adds a window of a call.
    pub fn add(&mut self, window: &LoanWindow) {
        self.lent.add(window.lent, window.us);
        self.borrowed.add(window.borrowed, window.us);
        self.waited_us = self.waited_us.saturating_add(window.waited_us());
    }

    /// The sums so far.
    pub fn usage(&self) -> LoanUsage {
        LoanUsage {
            lent_core_us: self.lent.core_us(),
            borrowed_core_us: self.borrowed.core_us(),
            lent_mib_s: self.lent.mib_s(),
            borrowed_mib_s: self.borrowed.mib_s(),
            waited_us: self.waited_us,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window() -> LoanWindow {
        LoanWindow {
            us: 100_000,
            owned: Amount::new(2_000, 1 << 30),
            used: Amount::new(1_500, 1 << 20),
            lent: Amount::new(500, 1 << 29),
            borrowed: Amount::ZERO,
            waiting_ppm: 100_000,
        }
    }

    #[test]
    fn loans_are_in_core_microseconds_and_mebibyte_seconds() {
        let mut sums = LoanSums::default();
        for _ in 0..20 {
            sums.add(&window());
        }
        let usage = sums.usage();
        assert_eq!((usage.lent_core_us, usage.lent_mib_s), (1_000_000, 1_024));
        assert_eq!((usage.borrowed_core_us, usage.borrowed_mib_s), (0, 0));
        assert_eq!(usage.waited_us, 200_000);
    }

    #[test]
    fn only_lender_below_what_it_owns_waited() {
        assert_eq!(window().waited_us(), 10_000);
        let all = Amount::new(2_000, 0);
        assert_eq!(LoanWindow { used: all, ..window() }.waited_us(), 0);
        let nothing = Amount::ZERO;
        assert_eq!(
            LoanWindow {
                lent: nothing,
                ..window()
            }
            .waited_us(),
            0
        );
        // It waits for its own limit with some of its threads, and lacks a quarter of what it owns.
        let waiting_ppm = u32::MAX;
        assert_eq!(
            LoanWindow {
                waiting_ppm,
                ..window()
            }
            .waited_us(),
            25_000
        );
    }

    #[test]
    fn extreme_window_is_added_without_overflow() {
        let extremes = [0, 1, u64::MAX];
        for (us, owned, used) in extremes.into_iter().flat_map(|us| {
            let pairs = extremes
                .into_iter()
                .flat_map(|owned| extremes.map(|used| (owned, used)));
            pairs.map(move |(owned, used)| (us, owned, used))
        }) {
            let amount = |units| Amount::new(units, units);
            let window = LoanWindow {
                us,
                owned: amount(owned),
                used: amount(used),
                lent: amount(u64::MAX),
                borrowed: amount(u64::MAX),
                waiting_ppm: u32::MAX,
            };
            assert!(window.waited_us() <= us, "{window:?}");
            let mut sums = LoanSums::default();
            let mut before = sums.usage();
            for _ in 0..3 {
                sums.add(&window);
                assert_eq!(sums.usage(), sums.usage().merged(before), "{window:?}");
                before = sums.usage();
            }
        }
    }
}
