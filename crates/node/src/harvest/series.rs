//! What one call owned, used, lent and borrowed over time, in at most [`MAX_LOAN_POINTS`] spans of about equal length.

use dayfly_harvest::Amount;
use dayfly_protocol::api::{CallResources, LoanPoint, LoanSeries, MAX_LOAN_POINTS};

use crate::loan_sums::{LoanWindow, Sum};

/// Length of the first spans in microseconds: that of a window.
const FIRST_STEP_US: u64 = 100_000;

/// The spans of a call.
#[derive(Debug)]
pub(super) struct Series {
    /// Length of a full span in microseconds.
    step_us: u64,
    spans: Vec<Span>,
}

/// The sums of the windows of a span.
#[derive(Debug, Clone, Copy, Default)]
struct Span {
    us: u64,
    owned: Sum,
    used: Sum,
    lent: Sum,
    borrowed: Sum,
}

impl Default for Series {
    fn default() -> Self {
        Self {
            step_us: FIRST_STEP_US,
            spans: Vec::new(),
        }
    }
}

impl Series {
    /// Adds the next window. When all spans are full, neighbours are merged, so that spans are twice as long from now on.
    pub fn add(&mut self, window: &LoanWindow) {
        if window.us == 0 {
            return;
        }
        let new = Span::of(window);
        loop {
            let is_full = self.spans.len() == MAX_LOAN_POINTS;
            match self.spans.last_mut() {
                // A window goes where the larger part of it belongs.
                Some(last) if last.us.saturating_add(window.us / 2) <= self.step_us => return last.merge(&new),
                _ if is_full => self.merge_neighbours(),
                _ => return self.spans.push(new),
            }
        }
    }

    fn merge_neighbours(&mut self) {
        let merged = self.spans.chunks(2).map(|pair| {
            let mut first = pair[0];
            pair[1..].iter().for_each(|second| first.merge(second));
            first
        });
        self.spans = merged.collect();
        self.step_us = self.step_us.saturating_mul(2);
    }

    /// Measured time in microseconds.
    pub fn us(&self) -> u64 {
        self.spans.iter().fold(0, |sum, span| sum.saturating_add(span.us))
    }

    /// The means of each span; `None` if a peer would refuse them.
    pub fn report(&self) -> Option<LoanSeries> {
        LoanSeries::checked(self.spans.iter().map(Span::point).collect())
    }
}

impl Span {
    fn of(window: &LoanWindow) -> Self {
        let sum = |amount: Amount| {
            let mut sum = Sum::default();
            sum.add(amount, window.us);
            sum
        };
        Self {
            us: window.us,
            owned: sum(window.owned),
            used: sum(window.used),
            lent: sum(window.lent),
            borrowed: sum(window.borrowed),
        }
    }

    fn merge(&mut self, later: &Self) {
        self.us = self.us.saturating_add(later.us);
        self.owned.merge(&later.owned);
        self.used.merge(&later.used);
        self.lent.merge(&later.lent);
        self.borrowed.merge(&later.borrowed);
    }

    fn point(&self) -> LoanPoint {
        let mean = |sum: &Sum| {
            let Amount {
                milli_cores,
                memory_bytes,
            } = sum.mean(self.us);
            CallResources {
                milli_cores,
                memory_bytes,
            }
        };
        LoanPoint {
            us: self.us,
            owned: mean(&self.owned),
            used: mean(&self.used),
            lent: mean(&self.lent),
            borrowed: mean(&self.borrowed),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn window() -> impl Strategy<Value = LoanWindow> {
        let amount = || (0..64_000u64, 0..1u64 << 40).prop_map(|(cpu, memory)| Amount::new(cpu, memory));
        // Mostly whole windows, some that end early, and some that come late.
        let us = prop_oneof![8 => 100_000..101_000u64, 1 => 0..100_000u64, 1 => 100_000..3_000_000u64];
        (us, amount(), amount(), amount(), amount()).prop_map(|(us, owned, used, lent, borrowed)| LoanWindow {
            us,
            owned,
            used,
            lent,
            borrowed,
            waiting_ppm: 0,
        })
    }

    fn series_of(windows: &[LoanWindow]) -> Series {
        let mut series = Series::default();
        windows.iter().for_each(|window| series.add(window));
        series
    }

    fn even(us: u64, count: usize) -> Series {
        let owned = Amount::new(1_000, 1 << 20);
        let window = LoanWindow {
            us,
            owned,
            used: owned,
            lent: Amount::ZERO,
            borrowed: Amount::ZERO,
            waiting_ppm: 0,
        };
        series_of(&vec![window; count])
    }

    proptest! {
        #[test]
        fn series_has_the_sums_of_its_windows(windows in vec(window(), 0..700)) {
            let series = series_of(&windows);
            let mut all = Sum::default();
            let mut borrowed = Sum::default();
            for window in &windows {
                all.add(window.owned, window.us);
                borrowed.add(window.borrowed, window.us);
            }
            let total = |of: fn(&Span) -> Sum| {
                let mut total = Sum::default();
                series.spans.iter().for_each(|span| total.merge(&of(span)));
                total
            };
            prop_assert_eq!(total(|span| span.owned), all);
            prop_assert_eq!(total(|span| span.borrowed), borrowed);
            let us: u64 = windows.iter().map(|window| window.us).sum();
            prop_assert_eq!(series.us(), us);
            // What is reported is rounded to whole units of each span.
            if let Some(reported) = series.report() {
                prop_assert_eq!(reported.us(), us);
                let sums = reported.sums();
                prop_assert!(sums.owned.core_us.abs_diff(all.core_us()) <= us / 1_000 + 1);
                prop_assert!(sums.borrowed.mib_s.abs_diff(borrowed.mib_s()) <= us / 1_000_000 + 1);
            }
        }

        #[test]
        fn series_is_small_and_has_no_empty_span(windows in vec(window(), 0..700)) {
            let series = series_of(&windows);
            prop_assert!(series.spans.len() <= MAX_LOAN_POINTS);
            prop_assert!(series.spans.iter().all(|span| span.us > 0));
        }
    }

    #[test]
    fn step_doubles_when_all_spans_are_full() {
        for (count, spans, first_us) in [
            (1, 1, 100_300),
            (64, 64, 100_300),
            (65, 33, 200_600),
            (128, 64, 200_600),
        ] {
            let series = even(100_300, count);
            assert_eq!((series.spans.len(), series.spans[0].us), (spans, first_us), "{count}");
        }
        let day = even(100_000, 864_000);
        assert!((32..=MAX_LOAN_POINTS).contains(&day.spans.len()), "{}", day.spans.len());
        assert_eq!(day.us(), 86_400_000_000);
        assert_eq!(day.report().unwrap().sums().used.core_us, 86_400_000_000);
    }

    #[test]
    fn extreme_windows_are_added_without_overflow() {
        let most = Amount::new(u64::MAX, u64::MAX);
        let window = LoanWindow {
            us: u64::MAX,
            owned: most,
            used: most,
            lent: most,
            borrowed: most,
            waiting_ppm: u32::MAX,
        };
        let series = series_of(&vec![window; 1_000]);
        assert!(series.spans.len() <= MAX_LOAN_POINTS);
        assert_eq!((series.us(), series.report()), (u64::MAX, None));
        assert_eq!(even(0, 9).report(), None);
    }
}
