//! What all measured calls of a node owned, used and borrowed.

use dayfly_protocol::api::HarvestTotals;

use crate::loan_sums::{LoanWindow, Sum};

/// What measured calls owned, used and borrowed.
#[derive(Debug, Default)]
pub(super) struct Totals {
    owned: Sum,
    used: Sum,
    borrowed: Sum,
}

impl Totals {
    /// Adds a window of a call.
    pub fn add(&mut self, window: &LoanWindow) {
        self.owned.add(window.owned, window.us);
        self.used.add(window.used, window.us);
        self.borrowed.add(window.borrowed, window.us);
    }

    /// Processor time in milliseconds of one core, and memory in MiB times seconds.
    pub fn report(&self) -> (HarvestTotals, HarvestTotals) {
        let of = |each: &dyn Fn(&Sum) -> u64| HarvestTotals {
            owned: each(&self.owned),
            used: each(&self.used),
            borrowed: each(&self.borrowed),
        };
        (of(&Sum::core_ms), of(&Sum::mib_s))
    }
}

#[cfg(test)]
mod tests {
    use dayfly_harvest::Amount;

    use super::*;

    #[test]
    fn totals_are_in_core_milliseconds_and_mebibyte_seconds() {
        let mut totals = Totals::default();
        let owned = Amount::new(2_000, 1 << 30);
        let window = LoanWindow {
            us: 3_000_000,
            owned,
            used: Amount::new(500, 1 << 20),
            lent: Amount::ZERO,
            borrowed: Amount::ZERO,
            waiting_ppm: 0,
        };
        totals.add(&window);
        let (cpu, memory) = totals.report();
        assert_eq!((cpu.owned, cpu.used, cpu.borrowed), (6_000, 1_500, 0));
        assert_eq!((memory.owned, memory.used, memory.borrowed), (3_072, 3, 0));
        totals.add(&LoanWindow {
            us: u64::MAX,
            owned: Amount::new(u64::MAX, u64::MAX),
            ..window
        });
        assert_eq!(totals.report().0.owned, u64::MAX);
    }
}
