//! Sums of amounts over time.

use dayfly_harvest::Amount;
use dayfly_protocol::api::HarvestTotals;

/// Unit-microseconds of both resources.
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    milli_core_us: u128,
    byte_us: u128,
}

impl Sum {
    fn add(&mut self, amount: Amount, us: u64) {
        let us = u128::from(us);
        self.milli_core_us = self.milli_core_us.saturating_add(u128::from(amount.milli_cores) * us);
        self.byte_us = self.byte_us.saturating_add(u128::from(amount.memory_bytes) * us);
    }
}

/// What measured calls owned, used and borrowed.
#[derive(Debug, Default)]
pub(super) struct Totals {
    owned: Sum,
    used: Sum,
    borrowed: Sum,
}

impl Totals {
    /// Adds a window of a call.
    pub fn add(&mut self, owned: Amount, used: Amount, borrowed: Amount, us: u64) {
        self.owned.add(owned, us);
        self.used.add(used, us);
        self.borrowed.add(borrowed, us);
    }

    /// Processor time in milliseconds of one core, and memory in MiB times seconds.
    pub fn report(&self) -> (HarvestTotals, HarvestTotals) {
        let whole = |value: u128| u64::try_from(value).unwrap_or(u64::MAX);
        let core_ms = |sum: &Sum| whole(sum.milli_core_us / 1_000_000);
        let mib_s = |sum: &Sum| whole((sum.byte_us >> 20) / 1_000_000);
        let of = |each: &dyn Fn(&Sum) -> u64| HarvestTotals {
            owned: each(&self.owned),
            used: each(&self.used),
            borrowed: each(&self.borrowed),
        };
        (of(&core_ms), of(&mib_s))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_in_core_milliseconds_and_mebibyte_seconds() {
        let mut totals = Totals::default();
        let owned = Amount::new(2_000, 1 << 30);
        totals.add(owned, Amount::new(500, 1 << 20), Amount::ZERO, 3_000_000);
        let (cpu, memory) = totals.report();
        assert_eq!((cpu.owned, cpu.used, cpu.borrowed), (6_000, 1_500, 0));
        assert_eq!((memory.owned, memory.used, memory.borrowed), (3_072, 3, 0));
        totals.add(Amount::new(u64::MAX, u64::MAX), owned, owned, u64::MAX);
        assert_eq!(totals.report().0.owned, u64::MAX);
    }
}
