//! What all measured calls of a node owned, used, lent and borrowed.

use dayfly_harvest::Amount;
use dayfly_protocol::api::{CallResources, HarvestTotals, HarvestedNow};

use crate::loan_sums::{LoanWindow, Sum};

/// What measured calls owned, used, lent and borrowed.
#[derive(Debug, Default)]
pub(super) struct Totals {
    owned: Sum,
    used: Sum,
    lent: Sum,
    borrowed: Sum,
    now: HarvestedNow,
}

impl Totals {
    /// Adds a window of a call.
    pub fn add(&mut self, window: &LoanWindow) {
        self.owned.add(window.owned, window.us);
        self.used.add(window.used, window.us);
        self.lent.add(window.lent, window.us);
        self.borrowed.add(window.borrowed, window.us);
    }

    /// Sets what running calls had, from the last window of each.
    pub fn set_now(&mut self, windows: impl Iterator<Item = LoanWindow>) {
        let mut sums = [Amount::ZERO; 4];
        for window in windows {
            let amounts = [window.owned, window.used, window.lent, window.borrowed];
            sums.iter_mut().zip(amounts).for_each(|(sum, amount)| *sum += amount);
        }
        let [owned, used, lent, borrowed] = sums.map(|sum| CallResources {
            milli_cores: sum.milli_cores,
            memory_bytes: sum.memory_bytes,
        });
        self.now = HarvestedNow {
            owned,
            used,
            lent,
            borrowed,
        };
    }

    /// What running calls had in their last windows.
    pub fn now(&self) -> HarvestedNow {
        self.now
    }

    /// Processor time in milliseconds of one core, and memory in MiB times seconds.
    pub fn report(&self) -> (HarvestTotals, HarvestTotals) {
        let of = |each: &dyn Fn(&Sum) -> u64| HarvestTotals {
            owned: each(&self.owned),
            used: each(&self.used),
            borrowed: each(&self.borrowed),
            lent: each(&self.lent),
        };
        (of(&Sum::core_ms), of(&Sum::mib_s))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_in_core_milliseconds_and_mebibyte_seconds() {
        let mut totals = Totals::default();
        let owned = Amount::new(2_000, 1 << 30);
        let window = LoanWindow {
            us: 3_000_000,
            owned,
            used: Amount::new(500, 1 << 20),
            lent: Amount::new(250, 1 << 20),
            borrowed: Amount::ZERO,
            waiting_ppm: 0,
        };
        totals.add(&window);
        let (cpu, memory) = totals.report();
        assert_eq!((cpu.owned, cpu.used, cpu.lent, cpu.borrowed), (6_000, 1_500, 750, 0));
        assert_eq!(
            (memory.owned, memory.used, memory.lent, memory.borrowed),
            (3_072, 3, 3, 0)
        );
        totals.set_now([window, window].into_iter());
        assert_eq!(
            (totals.now().owned.milli_cores, totals.now().lent.milli_cores),
            (4_000, 500)
        );
        totals.set_now(std::iter::empty());
        assert_eq!(totals.now(), HarvestedNow::default());
        totals.add(&LoanWindow {
            us: u64::MAX,
            owned: Amount::new(u64::MAX, u64::MAX),
            ..window
        });
        assert_eq!(totals.report().0.owned, u64::MAX);
    }
}
