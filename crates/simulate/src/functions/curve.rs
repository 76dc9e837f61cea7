//! A monotone curve through measured points.

/// A curve that never falls: the isotonic fit of its points (pool adjacent violators), linear in the logarithms of both
/// axes between them, constant beyond them.
#[derive(Debug, Clone)]
pub(super) struct Curve {
    /// Logarithms of size and value, sizes ascending and distinct, values never falling.
    points: Vec<(f64, f64)>,
}

/// Logarithm that is defined from 0.
fn log(value: f64) -> f64 {
    value.max(0.0).ln_1p()
}

impl Curve {
    /// A curve through points of size and value, both finite and from 0.
    pub(super) fn new(points: impl Iterator<Item = (f64, f64)>) -> Self {
        let mut points: Vec<_> = points.map(|(size, value)| (log(size), log(value))).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        // Blocks of neighbours that share one value: their mean and their number.
        let mut blocks: Vec<(f64, usize)> = Vec::with_capacity(points.len());
        for &(_, value) in &points {
            blocks.push((value, 1));
            while let [.., (before, n), (last, m)] = blocks[..] {
                if before <= last {
                    break;
                }
                blocks.truncate(blocks.len() - 2);
                blocks.push(((before * n as f64 + last * m as f64) / (n + m) as f64, n + m));
            }
        }
        let values = blocks
            .into_iter()
            .flat_map(|(value, count)| std::iter::repeat_n(value, count));
        for (point, value) in points.iter_mut().zip(values) {
            point.1 = value;
        }
        points.dedup_by(|later, earlier| later.0 == earlier.0);
        Self { points }
    }

    /// The value at a size; that of the smallest size if it is not a number, 0 without points.
    pub(super) fn at(&self, size: f64) -> f64 {
        let (Some(first), Some(last)) = (self.points.first(), self.points.last()) else {
            return 0.0;
        };
        let place = log(if size.is_nan() { 0.0 } else { size });
        let value = if place <= first.0 {
            first.1
        } else if place >= last.0 {
            last.1
        } else {
            let after = self.points.partition_point(|point| point.0 <= place);
            let (low, high) = (self.points[after - 1], self.points[after]);
            low.1 + (high.1 - low.1) * (place - low.0) / (high.0 - low.0)
        };
        value.exp_m1()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Curve;

    #[test]
    fn curve_meets_rising_points_and_their_ends() {
        let curve = Curve::new([(10.0, 100.0), (1000.0, 10_000.0), (100.0, 1000.0)].into_iter());
        for (size, value) in [(10.0, 100.0), (1000.0, 10_000.0), (5.0, 100.0), (1e18, 10_000.0)] {
            assert!((curve.at(size) - value).abs() < 1e-6 * value, "{size}");
        }
        assert!((450.0..550.0).contains(&curve.at(50.0)));
        assert_eq!(Curve::new(std::iter::empty()).at(3.0), 0.0);
    }

    proptest! {
        #[test]
        fn curve_never_falls(
            points in prop::collection::vec((0.0..1e9_f64, 0.0..1e12_f64), 1..20),
            sizes in prop::collection::vec(0.0..1e10_f64, 2..20),
        ) {
            let curve = Curve::new(points.iter().copied());
            let mut sizes = sizes;
            sizes.sort_by(f64::total_cmp);
            let values: Vec<_> = sizes.iter().map(|&size| curve.at(size)).collect();
            prop_assert!(values.windows(2).all(|pair| pair[0] <= pair[1] * (1.0 + 1e-12)));
            prop_assert!(curve.at(f64::NAN).is_finite() && curve.at(f64::INFINITY).is_finite());
        }
    }
}
