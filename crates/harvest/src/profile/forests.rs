//! The three forests of one function: class of processor time, class of memory, duration.

use super::classes::class;
use super::window::{MAX_SAMPLES, Measure, Window};
use crate::amount::{Amount, Resource};
use crate::demand::{Features, Prediction};
use crate::forest::{Forest, Row, Settings, Target, Training};
use crate::histogram::{BOUND_FACTOR, Distribution};

/// The share of calls whose peak stays below the high prediction of a forest, and the share that ends before the short.
pub(super) const FOREST_HIGH: f64 = 0.95;
pub(super) const SHORT: f64 = 0.05;

/// The form of each forest. On the functions of `tests/scikit_learn.json` that sizes tell, it scores at most 0.012 below
/// the 100 trees with leaves of one sample that scikit-learn has by default, and up to 0.05 above. Larger leaves leave
/// neighbours for quantiles, fewer trees are faster.
const TREES: usize = 32;
const MIN_LEAF: usize = 3;

/// How many more samples the neighbours of a call count for than their unequal weights suggest: part of what differs
/// between them is size, not chance. Measured on the functions of `tests/scikit_learn.json` after 80 and 270 samples:
/// with 2, calls exceed a high prediction in 0 to 7 of 100 cases; with 1 in 0 to 2, with 3 in 0 to 9.
const NEIGHBOUR_FACTOR: f64 = 2.0;

/// How far beyond the sizes of its samples a forest still predicts: it cannot extrapolate.
const RANGE_SLACK: f32 = 0.1;

/// The settings of the forests of functions.
pub fn settings(seed: u64) -> Settings {
    Settings {
        trees: TREES,
        min_leaf: MIN_LEAF,
        features_per_split: 0,
        seed,
    }
}

/// What the forests learn, by slot. Of a sample that is a bound, twice as much.
pub(super) struct Targets {
    values: [Vec<f64>; 3],
    classes: [Vec<u16>; 2],
}

impl Targets {
    pub(super) fn new(window: &Window) -> Self {
        let units = |measure: Measure| {
            let samples = window.slots().iter();
            samples.map(move |sample| {
                let factor = if measure.is_bound(sample) { BOUND_FACTOR } else { 1 };
                measure.units(sample).saturating_mul(factor)
            })
        };
        Self {
            values: Measure::ALL.map(|measure| units(measure).map(|units| units as f64).collect()),
            classes: Resource::ALL.map(|resource| {
                units(Measure::Peak(resource))
                    .map(|units| class(resource, units))
                    .collect()
            }),
        }
    }

    pub(super) fn classes(&self, resource: Resource) -> &[u16] {
        &self.classes[Measure::Peak(resource).index()]
    }

    pub(super) fn durations(&self) -> &[f64] {
        &self.values[Measure::Duration.index()]
    }

    fn of(&self, measure: Measure) -> Target<'_> {
        let values = &self.values[measure.index()];
        match measure {
            Measure::Peak(resource) => Target::Classes {
                classes: self.classes(resource),
                values,
            },
            Measure::Duration => Target::Values(values),
        }
    }
}

#[derive(Debug)]
pub(super) struct Forests {
    forests: [Forest; 3],
    /// The least and greatest value of each feature.
    ranges: [(f32, f32); Features::COUNT],
}

impl Forests {
    /// Learns from the samples in these slots.
    pub(super) fn train(window: &Window, targets: &Targets, members: &[u16], seed: u64) -> Self {
        let training = Training::new(window.rows(), members);
        let train = |measure: Measure| {
            let settings = settings(seed.wrapping_add(measure.index() as u64));
            Forest::train(&training, targets.of(measure), settings)
        };
        let mut ranges = [(f32::MAX, f32::MIN); Features::COUNT];
        for slot in members {
            widen(&mut ranges, &window.rows()[usize::from(*slot)]);
        }
        Self {
            forests: Measure::ALL.map(train),
            ranges,
        }
    }

    pub(super) fn forest(&self, measure: Measure) -> &Forest {
        &self.forests[measure.index()]
    }

    /// Whether the sizes of a call are like those of the samples.
    pub(super) fn covers(&self, row: &Row) -> bool {
        row.iter().zip(&self.ranges).all(|(value, (low, high))| {
            let slack = RANGE_SLACK * low.abs().max(high.abs());
            *value >= low - slack && *value <= high + slack
        })
    }

    pub(super) fn predict(&self, row: &Row, window: &Window) -> Prediction {
        predict_with(|measure, measured| {
            let mut weights = [0.0; MAX_SAMPLES];
            self.forest(measure).weigh(row, &mut weights);
            measured(
                window.histogram(measure).weighted(&weights, NEIGHBOUR_FACTOR),
                FOREST_HIGH,
            )
        })
    }

    /// Takes a sample in, in place of the one whose row was `old`.
    pub(super) fn replace(&mut self, slot: u16, old: Option<&Row>, new: &Row) {
        widen(&mut self.ranges, new);
        for forest in &mut self.forests {
            forest.replace(slot, old, new);
        }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.forests.iter().map(Forest::heap_bytes).sum()
    }
}

/// A prediction from distributions: `of` calls its second argument with the distribution of a measure, and the share of
/// calls whose peak stays below the high prediction.
pub(super) fn predict_with(
    of: impl Fn(Measure, &dyn Fn(Distribution<'_>, f64) -> (u64, u64)) -> (u64, u64),
) -> Prediction {
    let peak = |resource| {
        of(Measure::Peak(resource), &|distribution, share| {
            (distribution.median(), distribution.high(share))
        })
    };
    let (cpu, memory) = (peak(Resource::Cpu), peak(Resource::Memory));
    let (median_us, short_us) = of(Measure::Duration, &|distribution, _| {
        (distribution.median(), distribution.low(SHORT))
    });
    Prediction {
        median: Amount::new(cpu.0, memory.0),
        high: Amount::new(cpu.1.max(cpu.0), memory.1.max(memory.0)),
        short_us: short_us.min(median_us),
        median_us,
    }
}

fn widen(ranges: &mut [(f32, f32); Features::COUNT], row: &Row) {
    for ((low, high), value) in ranges.iter_mut().zip(row) {
        *low = low.min(*value);
        *high = high.max(*value);
    }
}
