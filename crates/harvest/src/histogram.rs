//! The distribution of one measure over the samples that are kept, as the histogram models of LIBRA (section 4.3.2).
//!
//! Exact values are kept instead of bins: 512 of them cost 5 KiB, and no bin width has to suit both a kilobyte and a
//! terabyte. Samples can be weighted, which makes the same code the distribution that a forest predicts.
//!
//! A value can be a lower bound: the call wanted more than it was given. Such values are censored on the right, and
//! quantiles are those of Kaplan and Meier (1958) in the form of Efron (1967): the weight of a bound is handed to the
//! values above it. Quantiles of few samples are widened: see [`Distribution::high`] and [`Distribution::low`].

/// How much more than its largest value is assumed when that value is a bound.
pub(crate) const BOUND_FACTOR: u64 = 2;

/// The least number of samples that widening assumes. Below it, the logarithm in its ratio has no meaning.
const MIN_WIDENED: f64 = 3.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Value {
    units: u64,
    // Behind the units in the order: at equal units, an exact value comes first, as Kaplan and Meier have it.
    is_bound: bool,
}

/// Values by the slot of their sample, and the slots in order of value.
#[derive(Debug, Clone, Default)]
pub(crate) struct Histogram {
    values: Vec<Value>,
    order: Vec<u16>,
}

impl Histogram {
    /// Sets the value in a slot. Slots are filled from 0 on without gaps; a slot that is set again loses its old value.
    pub(crate) fn set(&mut self, slot: u16, units: u64, is_bound: bool) {
        let value = Value { units, is_bound };
        if let Some(old) = self.values.get(usize::from(slot)) {
            let place = self.place(*old, slot);
            self.order.remove(place);
            self.values[usize::from(slot)] = value;
        } else {
            debug_assert_eq!(self.values.len(), usize::from(slot));
            self.values.push(value);
        }
        let place = self.place(value, slot);
        self.order.insert(place, slot);
    }

    fn place(&self, value: Value, slot: u16) -> usize {
        self.order
            .partition_point(|other| (self.values[usize::from(*other)], *other) < (value, slot))
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.values.capacity() * size_of::<Value>() + self.order.capacity() * size_of::<u16>()
    }

    /// The distribution in which every sample counts the same.
    pub(crate) fn distribution(&self) -> Distribution<'_> {
        let count = self.values.len() as f64;
        Distribution {
            histogram: self,
            weights: None,
            total: count,
            count,
        }
    }

    /// The distribution in which the sample of each slot has a weight. Weights are finite and not negative; if all are
    /// 0, every sample counts the same. They tell as much as `count_factor` times the number of samples of equal weight
    /// that Kish (1965) counts.
    pub(crate) fn weighted<'a>(&'a self, weights: &'a [f32], count_factor: f64) -> Distribution<'a> {
        let (mut total, mut squares) = (0.0, 0.0);
        for weight in &weights[..self.values.len()] {
            total += f64::from(*weight);
            squares += f64::from(*weight) * f64::from(*weight);
        }
        if total <= 0.0 || squares <= 0.0 {
            return self.distribution();
        }
        Distribution {
            histogram: self,
            weights: Some(weights),
            total,
            count: count_factor * total * total / squares,
        }
    }
}

/// A distribution of values.
pub(crate) struct Distribution<'a> {
    histogram: &'a Histogram,
    weights: Option<&'a [f32]>,
    total: f64,
    count: f64,
}

impl Distribution<'_> {
    fn weight(&self, slot: u16) -> f64 {
        self.weights
            .map_or(1.0, |weights| f64::from(weights[usize::from(slot)]))
    }

    /// The smallest value at which the share of values up to it is at least `share`. Twice the largest value if the
    /// largest values are bounds and hide the answer; 0 if there are no values.
    pub(crate) fn quantile(&self, share: f64) -> u64 {
        let wanted = share * self.total - 1e-6 * self.total;
        let (mut passed, mut at_risk, mut factor, mut largest) = (0.0, self.total, 1.0, 0);
        for slot in &self.histogram.order {
            let weight = self.weight(*slot);
            if weight <= 0.0 {
                continue;
            }
            let value = self.histogram.values[usize::from(*slot)];
            largest = value.units;
            if value.is_bound {
                let left = at_risk - weight;
                if left <= 1e-6 * self.total {
                    break;
                }
                factor *= at_risk / left;
            } else {
                passed += weight * factor;
                if passed >= wanted {
                    return value.units;
                }
            }
            at_risk -= weight;
        }
        if factor > 1.0 || at_risk > 1e-6 * self.total {
            largest = largest.saturating_mul(BOUND_FACTOR);
        }
        largest
    }

    /// The median.
    pub(crate) fn median(&self) -> u64 {
        self.quantile(0.5)
    }

    /// A value that a further sample exceeds with a probability of at most `1 - share`.
    ///
    /// With n samples, this is the one at rank `share * (n + 1)`. If there are too few samples for this rank, the tail
    /// above the median is taken to be exponential: its largest of n values is then about `ln((n + 1) / 2)` scales
    /// above the median, and the answer `ln(1 / 2 / (1 - share))` scales.
    pub(crate) fn high(&self, share: f64) -> u64 {
        let share_of_sample = share * (self.count + 1.0) / self.count.max(1.0);
        if share_of_sample <= 1.0 {
            return self.quantile(share_of_sample);
        }
        let (median, largest) = (self.median(), self.quantile(1.0));
        let spread = largest.saturating_sub(median) as f64 * self.widening(1.0 - share);
        median.saturating_add(spread as u64)
    }

    /// A value that a further sample undercuts with a probability of at most `share`. As [`Self::high`], with the
    /// exponential tail on a logarithmic scale, since durations are positive.
    pub(crate) fn low(&self, share: f64) -> u64 {
        let rank = share * (self.count + 1.0);
        if rank >= 1.0 {
            // The quantile is the first value that reaches its share: rank r of n is reached at (r - 1) / n and a bit.
            return self.quantile((rank.floor() - 0.5) / self.count);
        }
        let (smallest, median) = (self.quantile(1e-5), self.median());
        if smallest == 0 {
            return 0;
        }
        let ratio = (smallest as f64 / median as f64).min(1.0);
        ((median as f64 * ratio.powf(self.widening(share))) as u64).min(median)
    }

    fn widening(&self, tail: f64) -> f64 {
        (0.5 / tail).ln() / (0.5 * (self.count.max(MIN_WIDENED) + 1.0)).ln()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn histogram(values: &[(u64, bool)]) -> Histogram {
        let mut histogram = Histogram::default();
        for (slot, (units, is_bound)) in values.iter().enumerate() {
            histogram.set(slot as u16, *units, *is_bound);
        }
        histogram
    }

    #[test]
    fn quantiles_of_many_are_their_ranks() {
        let histogram = histogram(&(1..=199).map(|units| (units, false)).collect::<Vec<_>>());
        let all = histogram.distribution();
        assert_eq!((all.median(), all.high(0.95), all.low(0.05)), (100, 190, 10));
        assert_eq!(all.high(0.99), 198);
    }

    #[test]
    fn quantiles_of_few_are_widened() {
        let histogram = histogram(&(0..20).map(|units| (100 + units, false)).collect::<Vec<_>>());
        let few = histogram.distribution();
        assert!(few.high(0.99) > 119 + 5, "{}", few.high(0.99));
        assert!(few.high(0.99) < 130, "{}", few.high(0.99));
        assert!(few.low(0.01) < 100 && few.low(0.01) > 80, "{}", few.low(0.01));
    }

    #[test]
    fn bounds_move_weight_to_larger_values() {
        // Five calls were stopped at 1 core; of the others, four used 2 and one used 4: the median is 2.
        let values = [1, 1, 1, 1, 1, 2, 2, 2, 2, 4].map(|units| (units, units == 1));
        assert_eq!(histogram(&values).distribution().median(), 2);
        assert_eq!(histogram(&[(7, true), (7, true)]).distribution().median(), 14);
        assert!(histogram(&[(7, false), (9, true)]).distribution().high(0.99) >= 18);
    }

    #[test]
    fn empty_histogram_predicts_nothing() {
        let empty = histogram(&[]);
        let none = empty.distribution();
        assert_eq!((none.median(), none.high(0.99), none.low(0.05)), (0, 0, 0));
    }

    proptest! {
        #[test]
        fn order_is_that_of_values(sets in prop::collection::vec((0u16..20, 0u64..30, any::<bool>()), 1..100)) {
            let mut histogram = Histogram::default();
            for (slot, units, is_bound) in sets {
                histogram.set(slot.min(histogram.values.len() as u16), units, is_bound);
            }
            let values: Vec<_> = histogram.order.iter().map(|slot| histogram.values[usize::from(*slot)]).collect();
            prop_assert!(values.is_sorted());
            let mut slots = histogram.order.clone();
            slots.sort_unstable();
            prop_assert!(slots.into_iter().eq(0..histogram.values.len() as u16));
        }

        #[test]
        fn quantiles_rise_with_their_share(
            values in prop::collection::vec((any::<u64>(), any::<bool>(), 0f32..3.0), 1..60),
            shares in (0.0f64..=1.0, 0.0f64..=1.0),
        ) {
            let histogram = histogram(&values.iter().map(|value| (value.0, value.1)).collect::<Vec<_>>());
            let weights: Vec<f32> = values.iter().map(|value| value.2).collect();
            let (low, high) = (shares.0.min(shares.1), shares.0.max(shares.1));
            for distribution in [histogram.distribution(), histogram.weighted(&weights, 1.0)] {
                prop_assert!(distribution.quantile(low) <= distribution.quantile(high));
                prop_assert!(distribution.low(0.05) <= distribution.median().max(1));
                prop_assert!(distribution.median() <= distribution.high(0.95));
            }
        }
    }
}
