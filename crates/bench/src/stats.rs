//! Percentiles and histograms of latencies.

use crate::tsc::Tsc;
use serde::{Deserialize, Serialize};

/// Latencies of single calls, in ticks of the [`Tsc`].
#[derive(Debug, Clone, Default)]
pub struct Samples {
    ticks: Vec<u64>,
}

impl Samples {
    /// Reserves memory for `samples` samples and touches its pages, so that recording causes no page fault.
    pub fn with_capacity(samples: usize) -> Self {
        let mut ticks = vec![u64::MAX; samples];
        ticks.clear();
        Samples { ticks }
    }

    /// Records one latency in ticks.
    #[inline(always)]
    pub fn push(&mut self, ticks: u64) {
        self.ticks.push(ticks);
    }

    /// Records one latency in nanoseconds, measured by another clock.
    pub fn push_ns(&mut self, ns: f64) {
        let tsc = Tsc::get();
        self.ticks.push((ns / tsc.ns(1)).round().max(0.0) as u64);
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        self.ticks.len()
    }

    /// Whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.ticks.is_empty()
    }

    /// Removes all samples and keeps the memory.
    pub fn clear(&mut self) {
        self.ticks.clear();
    }

    /// Returns the samples from index `first` on, in nanoseconds, ascending.
    fn sorted_from(&self, first: usize) -> Vec<f64> {
        let mut ticks = self.ticks[first..].to_vec();
        ticks.sort_unstable();
        let tsc = Tsc::get();
        ticks.into_iter().map(|t| tsc.ns(t)).collect()
    }

    /// Returns all samples in nanoseconds, ascending.
    pub fn sorted_ns(&self) -> Vec<f64> {
        self.sorted_from(0)
    }

    /// Returns the percentiles of all samples.
    pub fn summary(&self) -> Summary {
        Summary::of_sorted(&self.sorted_ns())
    }

    /// Returns the median of the samples from index `first` on, in nanoseconds.
    pub fn median_from(&self, first: usize) -> f64 {
        percentile(&self.sorted_from(first), 0.5)
    }
}

/// Makes `calls` calls and records the time of each in `samples`.
#[inline(always)]
pub fn timed<E>(calls: usize, samples: &mut Samples, mut call: impl FnMut() -> Result<(), E>) -> Result<(), E> {
    for _ in 0..calls {
        let before = Tsc::now();
        call()?;
        samples.push(Tsc::now().wrapping_sub(before));
    }
    Ok(())
}

/// Returns the percentile of ascending samples by nearest rank; 0 without samples.
pub fn percentile(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64 - 1e-9).ceil().max(1.0) as usize;
    sorted
        .get(rank.min(sorted.len()).wrapping_sub(1))
        .copied()
        .unwrap_or(0.0)
}

/// Percentiles of a set of latencies in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Median.
    pub p50_ns: f64,
    /// 99th percentile.
    pub p99_ns: f64,
    /// 99.9th percentile.
    pub p999_ns: f64,
    /// Minimum.
    pub min_ns: f64,
    /// Maximum.
    pub max_ns: f64,
    /// Mean, which a few preempted calls dominate.
    pub mean_ns: f64,
    /// Number of calls.
    pub samples: u64,
}

impl Summary {
    /// Describes ascending latencies in nanoseconds.
    pub fn of_sorted(sorted: &[f64]) -> Self {
        let tenth = |ns: f64| (ns * 10.0).round() / 10.0;
        Summary {
            p50_ns: tenth(percentile(sorted, 0.5)),
            p99_ns: tenth(percentile(sorted, 0.99)),
            p999_ns: tenth(percentile(sorted, 0.999)),
            min_ns: tenth(sorted.first().copied().unwrap_or(0.0)),
            max_ns: tenth(sorted.last().copied().unwrap_or(0.0)),
            mean_ns: tenth(sorted.iter().sum::<f64>() / sorted.len().max(1) as f64),
            samples: sorted.len() as u64,
        }
    }

    /// Describes latencies in nanoseconds, in any order.
    pub fn of(ns: impl IntoIterator<Item = f64>) -> Self {
        let mut ns: Vec<f64> = ns.into_iter().collect();
        ns.sort_unstable_by(f64::total_cmp);
        Self::of_sorted(&ns)
    }
}

/// Counts of latencies in buckets of about 3 % width. Its size is fixed, and histograms can be added.
#[derive(Debug, Clone, PartialEq)]
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
}

/// Buckets per doubling: 32 bound a bucket's width to 1/32 of its value.
const PER_OCTAVE_BITS: u32 = 5;
const PER_OCTAVE: u64 = 1 << PER_OCTAVE_BITS;

impl Default for Histogram {
    fn default() -> Self {
        Histogram {
            counts: vec![0; Self::bucket(u64::MAX) + 1],
            total: 0,
        }
    }
}

impl Histogram {
    /// Counts one latency in nanoseconds.
    pub fn record(&mut self, ns: u64) {
        self.counts[Self::bucket(ns)] += 1;
        self.total += 1;
    }

    /// Adds another histogram's counts.
    pub fn add(&mut self, other: &Histogram) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(a, b)| *a += b);
        self.total += other.total;
    }

    /// Number of counted latencies.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Returns the upper end of the bucket of a percentile, in nanoseconds.
    pub fn percentile(&self, share: f64) -> u64 {
        let wanted = ((share * self.total as f64 - 1e-9).ceil() as u64).max(1);
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return Self::upper(bucket);
            }
        }
        0
    }

    /// Returns the non-empty buckets: upper end in nanoseconds, and count.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.counts
            .iter()
            .enumerate()
            .filter(|(_, n)| **n > 0)
            .map(|(bucket, n)| (Self::upper(bucket), *n))
    }

    fn bucket(ns: u64) -> usize {
        if ns < PER_OCTAVE {
            return ns as usize;
        }
        let shift = 63 - ns.leading_zeros() - PER_OCTAVE_BITS;
        (u64::from(shift) * PER_OCTAVE + (ns >> shift)) as usize
    }

    fn upper(bucket: usize) -> u64 {
        let bucket = bucket as u64;
        if bucket < PER_OCTAVE {
            return bucket;
        }
        let shift = bucket / PER_OCTAVE - 1;
        let first = (PER_OCTAVE + bucket % PER_OCTAVE) << shift;
        first + ((1u64 << shift) - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_ranks() {
        let ns: Vec<f64> = (1..=1000).map(f64::from).collect();
        let s = Summary::of_sorted(&ns);
        assert_eq!(
            (s.p50_ns, s.p99_ns, s.p999_ns, s.min_ns, s.max_ns),
            (500.0, 990.0, 999.0, 1.0, 1000.0)
        );
        assert_eq!((s.mean_ns, s.samples), (500.5, 1000));
    }

    #[test]
    fn one_sample_is_every_percentile() {
        let one = Summary::of([7.0]);
        assert_eq!((one.p50_ns, one.p999_ns, one.min_ns), (7.0, 7.0, 7.0));
        assert_eq!(Summary::of([]).p50_ns, 0.0);
    }

    #[test]
    fn order_of_samples_does_not_matter() {
        assert_eq!(Summary::of([3.0, 1.0, 2.0]), Summary::of([1.0, 2.0, 3.0]));
    }

    #[test]
    fn buckets_cover_all_values_without_overlap() {
        let mut last = None;
        for ns in (0..5000)
            .chain((13..64).flat_map(|b| [(1u64 << b) - 1, 1 << b, (1 << b) + 1]))
            .chain([u64::MAX])
        {
            let bucket = Histogram::bucket(ns);
            assert!(Histogram::upper(bucket) >= ns, "{ns}");
            assert!(bucket == 0 || Histogram::upper(bucket - 1) < ns, "{ns}");
            assert!(last <= Some(bucket), "{ns}");
            last = Some(bucket);
        }
    }

    #[test]
    fn histogram_percentiles_are_within_a_bucket() {
        let (mut a, mut b) = (Histogram::default(), Histogram::default());
        (1..=5000).for_each(|ns| a.record(ns));
        (5001..=10_000).for_each(|ns| b.record(ns));
        a.add(&b);
        assert_eq!(a.total(), 10_000);
        for (share, exact) in [(0.5, 5000.0), (0.99, 9900.0), (0.999, 9990.0)] {
            let got = a.percentile(share) as f64;
            assert!(got >= exact && got <= exact * 1.04, "{share}: {got} against {exact}");
        }
        assert_eq!(a.buckets().map(|(_, n)| n).sum::<u64>(), 10_000);
    }

    #[test]
    fn timed_stops_at_an_error() {
        let (mut samples, mut calls) = (Samples::with_capacity(8), 0);
        let ended: Result<(), &str> = timed(5, &mut samples, || {
            calls += 1;
            if calls == 4 { Err("broken") } else { Ok(()) }
        });
        assert_eq!((ended, samples.len()), (Err("broken"), 3));
    }
}
