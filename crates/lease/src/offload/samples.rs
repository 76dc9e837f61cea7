//! The last times of something.

/// Times that are kept.
const KEPT: usize = 32;

/// The last [`KEPT`] times.
#[derive(Debug, Clone, Default)]
pub struct Ring {
    times: Vec<f64>,
    next: usize,
}

/// Shorter durations count as none. No clock tells them, and sums of numbers near the smallest ones are not exact.
const MIN_SECONDS: f64 = 1e-15;

/// A duration in seconds that can be: not negative, finite, and at most a day. A clock that jumped makes others.
pub fn seconds(value: f64) -> Option<f64> {
    let is_possible = (0.0..=super::network::MAX_SECONDS).contains(&value);
    is_possible.then_some(if value < MIN_SECONDS { 0.0 } else { value })
}

impl Ring {
    /// Adds a time and forgets the oldest one.
    pub fn push(&mut self, value: f64) {
        if !value.is_finite() {
            return;
        }
        if self.times.len() < KEPT {
            self.times.push(value);
        } else {
            self.times[self.next] = value;
        }
        self.next = (self.next + 1) % KEPT;
    }

    /// The lower median; `None` if the ring is empty.
    pub fn median(&self) -> Option<f64> {
        self.quantile(0.5)
    }

    /// The value that 95 % do not exceed.
    pub fn p95(&self) -> Option<f64> {
        self.quantile(0.95)
    }

    /// Number of times.
    pub fn len(&self) -> usize {
        self.times.len()
    }

    /// The smallest value.
    pub fn min(&self) -> Option<f64> {
        self.times.iter().copied().min_by(f64::total_cmp)
    }

    fn quantile(&self, part: f64) -> Option<f64> {
        if self.times.is_empty() {
            return None;
        }
        let mut sorted = [0.0; KEPT];
        let sorted = &mut sorted[..self.times.len()];
        sorted.copy_from_slice(&self.times);
        sorted.sort_unstable_by(f64::total_cmp);
        let rank = (part * sorted.len() as f64).ceil() as usize;
        sorted.get(rank.saturating_sub(1)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ring_keeps_the_last_values() {
        let mut ring = Ring::default();
        assert_eq!(ring.median(), None);
        for value in 0..100 {
            ring.push(f64::from(value));
        }
        assert_eq!(
            (ring.min(), ring.median(), ring.p95()),
            (Some(68.0), Some(83.0), Some(98.0))
        );
    }

    #[test]
    fn impossible_durations_are_refused() {
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1e-9, 1e9] {
            assert_eq!(seconds(value), None);
        }
        assert_eq!(seconds(0.0), Some(0.0));
        assert_eq!(seconds(7e-309), Some(0.0));
    }
}
