//! What a call owned, used, lent and borrowed over time.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::CallResources;
use crate::ids::TaskId;

/// Most points of a series. A longer call has longer spans.
pub const MAX_LOAN_POINTS: usize = 64;
/// Longest series in microseconds: a century.
const MAX_SERIES_US: u64 = 3_200_000_000_000_000;
/// Most of a processor that a point may have: a million cores.
const MAX_MILLI_CORES: u64 = 1_000_000_000;
/// Most memory that a point may have: an exbibyte.
const MAX_MEMORY_BYTES: u64 = 1 << 60;

/// What a call had in a span of time, as means over the span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct LoanPoint {
    /// Length of the span in microseconds.
    pub us: u64,
    /// What it owned.
    pub owned: CallResources,
    /// What it used, also of what it borrowed.
    pub used: CallResources,
    /// What others had of it.
    pub lent: CallResources,
    /// What it had of others.
    pub borrowed: CallResources,
}

impl LoanPoint {
    fn amounts(&self) -> [CallResources; 4] {
        [self.owned, self.used, self.lent, self.borrowed]
    }
}

/// What a call had over time. The spans follow each other without gaps.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LoanSeries {
    /// At most [`MAX_LOAN_POINTS`], in the order of time.
    points: Vec<LoanPoint>,
}

/// An amount of both resources times the time for which a call had it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct SeriesSum {
    /// Processor time in microseconds of one core.
    pub core_us: u64,
    /// Memory in MiB times seconds.
    pub mib_s: u64,
}

/// The sums of a series.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct SeriesSums {
    /// What the call owned.
    pub owned: SeriesSum,
    /// What it used, also of what it borrowed.
    pub used: SeriesSum,
    /// What others had of it.
    pub lent: SeriesSum,
    /// What it had of others.
    pub borrowed: SeriesSum,
}

/// What a task's last execution owned, used, lent and borrowed, as in `GET /v1/tasks/{id}/loans`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TaskLoans {
    /// Id of the task.
    pub task: TaskId,
    /// Measured time in microseconds: the first milliseconds of an execution may be missing.
    pub us: u64,
    /// Sums over the measured time.
    pub sums: SeriesSums,
    /// What it had over time: at most 64 spans that follow each other, with means over each span.
    #[schema(max_items = 64)]
    pub points: Vec<LoanPoint>,
}

impl LoanSeries {
    /// Returns the series with these points, or `None` if it has too many, an empty span, or impossible amounts. What
    /// another process sends is a series only after this.
    pub fn checked(points: Vec<LoanPoint>) -> Option<Self> {
        let is_possible = |point: &LoanPoint| {
            let amounts = point.amounts();
            let fits = |one: &CallResources| one.milli_cores <= MAX_MILLI_CORES && one.memory_bytes <= MAX_MEMORY_BYTES;
            point.us > 0 && amounts.iter().all(fits)
        };
        let us = points.iter().try_fold(0u64, |sum, point| sum.checked_add(point.us))?;
        let has_bounds = (1..=MAX_LOAN_POINTS).contains(&points.len()) && us <= MAX_SERIES_US;
        (has_bounds && points.iter().all(is_possible)).then_some(Self { points })
    }

    /// Returns the series if it is within the bounds.
    pub fn within_bounds(self) -> Option<Self> {
        Self::checked(self.points)
    }

    /// The points, in the order of time.
    pub fn points(&self) -> &[LoanPoint] {
        &self.points
    }

    /// Measured time in microseconds.
    pub fn us(&self) -> u64 {
        self.points.iter().fold(0, |sum, point| sum.saturating_add(point.us))
    }

    /// The sums. They differ from the exact ones by less than a thousandth of a core and one byte at a time.
    pub fn sums(&self) -> SeriesSums {
        let sum = |of: fn(&LoanPoint) -> CallResources| {
            let total = |units: fn(CallResources) -> u64| {
                let each = self
                    .points
                    .iter()
                    .map(|point| u128::from(units(of(point))) * u128::from(point.us));
                each.fold(0, u128::saturating_add)
            };
            let whole = |sum: u128| u64::try_from(sum).unwrap_or(u64::MAX);
            SeriesSum {
                core_us: whole(total(|amount| amount.milli_cores) / 1_000),
                mib_s: whole((total(|amount| amount.memory_bytes) >> 20) / 1_000_000),
            }
        };
        SeriesSums {
            owned: sum(|point| point.owned),
            used: sum(|point| point.used),
            lent: sum(|point| point.lent),
            borrowed: sum(|point| point.borrowed),
        }
    }

    /// The body for a task.
    pub fn of_task(self, task: TaskId) -> TaskLoans {
        TaskLoans {
            task,
            us: self.us(),
            sums: self.sums(),
            points: self.points,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(us: u64, milli_cores: u64) -> LoanPoint {
        LoanPoint {
            us,
            owned: CallResources {
                milli_cores,
                memory_bytes: 1 << 30,
            },
            ..LoanPoint::default()
        }
    }

    #[test]
    fn sums_are_core_microseconds_and_mebibyte_seconds() {
        let series = LoanSeries::checked(vec![point(500_000, 1_000), point(1_500_000, 3_000)]).unwrap();
        let owned = series.sums().owned;
        assert_eq!((owned.core_us, owned.mib_s), (5_000_000, 2_048));
        assert_eq!((series.us(), series.sums().lent), (2_000_000, SeriesSum::default()));
    }

    #[test]
    fn series_outside_its_bounds_is_refused() {
        let good = point(1, MAX_MILLI_CORES);
        let with = |change: fn(&mut LoanPoint)| {
            let mut bad = good;
            change(&mut bad);
            LoanSeries::checked(vec![good, bad])
        };
        assert!(with(|_| {}).is_some());
        assert!(with(|bad| bad.us = 0).is_none());
        assert!(with(|bad| bad.us = MAX_SERIES_US).is_none());
        assert!(with(|bad| bad.us = u64::MAX).is_none());
        assert!(with(|bad| bad.used.milli_cores = MAX_MILLI_CORES + 1).is_none());
        assert!(with(|bad| bad.lent.memory_bytes = u64::MAX).is_none());
        assert!(with(|bad| bad.borrowed.milli_cores = u64::MAX).is_none());
        assert!(LoanSeries::checked(Vec::new()).is_none());
        assert!(LoanSeries::checked(vec![good; MAX_LOAN_POINTS]).is_some());
        assert!(LoanSeries::checked(vec![good; MAX_LOAN_POINTS + 1]).is_none());
    }

    #[test]
    fn largest_series_has_sums() {
        let most = CallResources {
            milli_cores: u64::MAX,
            memory_bytes: u64::MAX,
        };
        let point = LoanPoint {
            us: u64::MAX,
            owned: most,
            used: most,
            lent: most,
            borrowed: most,
        };
        let series = LoanSeries {
            points: vec![point; MAX_LOAN_POINTS],
        };
        assert_eq!(series.us(), u64::MAX);
        assert_eq!(series.sums().borrowed.core_us, u64::MAX);
        assert_eq!(series.within_bounds(), None);
    }

    #[test]
    fn series_is_whole_numbers_in_json() {
        let series = LoanSeries::checked(vec![point(100_000, 500)]).unwrap();
        let text = serde_json::to_string(&series).unwrap();
        assert_eq!(serde_json::from_str::<LoanSeries>(&text).unwrap(), series);
        for broken in [
            text.replace("500", "0.5"),
            text.replace("500", "NaN"),
            text.replace("500", "-1"),
        ] {
            assert!(serde_json::from_str::<LoanSeries>(&broken).is_err(), "{broken}");
        }
    }
}
