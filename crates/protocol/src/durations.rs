//! Histograms of call durations. Workers count, nodes and managers add up, and Prometheus reads the sums.

use std::fmt::{self, Write};

/// Number of buckets. Each covers durations up to four times as long as the previous one.
pub const DURATION_BUCKETS: usize = 16;

/// Exclusive upper bound of a bucket in nanoseconds, or `None` for the last bucket, which has no bound.
pub fn duration_bound_ns(bucket: usize) -> Option<u64> {
    (bucket + 1 < DURATION_BUCKETS).then(|| 256 << (2 * bucket))
}

/// Returns the bucket of a call that took `ns` nanoseconds.
#[inline(always)]
pub fn duration_bucket(ns: u64) -> usize {
    // A bucket spans two doublings, starting at 256 ns.
    let doublings = 64 - (ns >> 8).leading_zeros() as usize;
    doublings.div_ceil(2).min(DURATION_BUCKETS - 1)
}

/// Appends the counts as an OpenMetrics histogram in seconds. Omits the sum, because no sum is measured.
pub fn histogram(text: &mut String, name: &str, help: &str, calls: &[u64; DURATION_BUCKETS]) -> fmt::Result {
    writeln!(text, "# HELP {name}_seconds {help}.")?;
    writeln!(text, "# TYPE {name}_seconds histogram")?;
    writeln!(text, "# UNIT {name}_seconds seconds")?;
    let mut below = 0u64;
    for (bucket, count) in calls.iter().enumerate() {
        below = below.saturating_add(*count);
        match duration_bound_ns(bucket) {
            Some(bound) => writeln!(
                text,
                "{name}_seconds_bucket{{le=\"{:e}\"}} {below}",
                bound as f64 * 1e-9
            )?,
            None => writeln!(text, "{name}_seconds_bucket{{le=\"+Inf\"}} {below}")?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_falls_into_the_bucket_of_its_bounds() {
        for ns in [
            0,
            1,
            255,
            256,
            1_023,
            1_024,
            65_535,
            65_536,
            1_000_000,
            999_999_999,
            u64::MAX,
        ] {
            let bucket = duration_bucket(ns);
            assert!(
                duration_bound_ns(bucket).is_none_or(|bound| ns < bound),
                "{ns} in {bucket}"
            );
            let before = bucket.checked_sub(1).and_then(duration_bound_ns);
            assert!(before.is_none_or(|bound| ns >= bound), "{ns} in {bucket}");
        }
    }
}
