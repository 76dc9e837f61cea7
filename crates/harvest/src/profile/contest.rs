//! Forest against histogram: 70 % of the samples train both, and on the other 30 % whichever loses less decides.
//!
//! The loss is the pinball loss (Koenker and Bassett, 1978) of the quantiles that lending and borrowing use: median and
//! 95th percentile of both peaks, median and 5th percentile of the duration. It is the loss of which these quantiles
//! are the least, so no model can look better by caution or daring. Each measure is divided by its mean.

use super::classes::class;
use super::forests::{FOREST_HIGH, Forests, SHORT, Targets, predict_with};
use super::window::{Measure, Window};
use crate::amount::Resource;
use crate::demand::{Prediction, Sample};
use crate::random::Random;

/// How much less a forest must lose: sizes that tell nothing lose as little now and then.
const FOREST_BONUS: f64 = 0.95;

/// Below so many samples, 30 % are too few to compare by, and three different parts of 30 % are tried in turn.
const MIN_SINGLE_SPLIT: usize = 128;

/// Accuracy and R2 from which a function counts as related to sizes (section 8.6).
const MIN_SCORE: f64 = 0.9;

/// The most that one sample can lose: an outlier is no change of behaviour.
pub(super) const MAX_LOSS: f64 = 2.0;

/// What a prediction loses.
#[derive(Debug, Clone, Copy)]
pub(super) struct Loss {
    scales: [f64; 3],
}

impl Loss {
    pub(super) fn new(window: &Window) -> Self {
        let count = window.slots().len().max(1) as f64;
        let mean = |measure: Measure| {
            window
                .slots()
                .iter()
                .map(|sample| measure.units(sample) as f64)
                .sum::<f64>()
                / count
        };
        Self {
            scales: Measure::ALL.map(|measure| mean(measure).max(1.0)),
        }
    }

    /// The loss of a prediction when this is what came. A value that is a bound can only show that the prediction was
    /// too low.
    pub(super) fn of(&self, prediction: &Prediction, sample: &Sample) -> f64 {
        let mut sum = 0.0;
        for measure in Measure::ALL {
            let quantiles = match measure {
                Measure::Peak(resource) => [
                    (0.5, prediction.median.get(resource)),
                    (FOREST_HIGH, prediction.high.get(resource)),
                ],
                Measure::Duration => [(0.5, prediction.median_us), (SHORT, prediction.short_us)],
            };
            let came = measure.units(sample) as f64;
            for (share, predicted) in quantiles {
                let short = came - predicted as f64;
                let loss = if short > 0.0 {
                    share * short
                } else if measure.is_bound(sample) {
                    0.0
                } else {
                    (share - 1.0) * short
                };
                sum += loss / self.scales[measure.index()];
            }
        }
        sum.min(MAX_LOSS)
    }
}

/// What came out.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Contest {
    pub(super) forest_loss: f64,
    pub(super) histogram_loss: f64,
    /// Share of samples whose class was predicted.
    pub(super) cpu_accuracy: f64,
    pub(super) memory_accuracy: f64,
    pub(super) duration_r2: f64,
}

impl Contest {
    /// Holds the contest. Returns it with the forests, which have the held back samples in their leaves by then.
    pub(super) fn hold(window: &Window, targets: &Targets, seed: u64) -> (Self, Forests) {
        let mut slots: Vec<u16> = (0..window.slots().len() as u16).collect();
        Random::new(seed).shuffle(&mut slots);
        let held_back = (slots.len() * 3 / 10).max(1).min(slots.len());
        let rounds = if slots.len() < MIN_SINGLE_SPLIT { 3 } else { 1 };
        let mut tally = Tally::new(Loss::new(window));
        for _ in 1..rounds {
            let (test, train) = slots.split_at(held_back);
            tally.round(
                window,
                targets,
                &Forests::train(window, targets, train, seed),
                test,
                train,
            );
            slots.rotate_left(held_back);
        }
        let (test, train) = slots.split_at(held_back);
        let mut forests = Forests::train(window, targets, train, seed);
        tally.round(window, targets, &forests, test, train);
        for slot in test {
            forests.replace(*slot, None, &window.rows()[usize::from(*slot)]);
        }
        (tally.contest(), forests)
    }

    pub(super) fn prefers_forest(&self) -> bool {
        self.forest_loss < FOREST_BONUS * self.histogram_loss
    }

    /// The paper's own test.
    pub(super) fn is_size_related(&self) -> bool {
        self.cpu_accuracy >= MIN_SCORE && self.memory_accuracy >= MIN_SCORE && self.duration_r2 >= MIN_SCORE
    }
}

struct Tally {
    loss: Loss,
    forest_loss: f64,
    histogram_loss: f64,
    compared: usize,
    /// Samples that show a class, and those whose class was predicted.
    shown: [usize; 2],
    right: [usize; 2],
    /// Durations that came and that were predicted.
    durations: Vec<(f64, f64)>,
}

impl Tally {
    fn new(loss: Loss) -> Self {
        Self {
            loss,
            forest_loss: 0.0,
            histogram_loss: 0.0,
            compared: 0,
            shown: [0; 2],
            right: [0; 2],
            durations: Vec::new(),
        }
    }

    fn round(&mut self, window: &Window, targets: &Targets, forests: &Forests, test: &[u16], train: &[u16]) {
        let mut weights = vec![0.0; window.slots().len()];
        for slot in train {
            weights[usize::from(*slot)] = 1.0;
        }
        // With the percentile of the forest: the question is whether sizes tell anything.
        let by_histogram =
            predict_with(|measure, measured| measured(window.histogram(measure).weighted(&weights, 1.0), FOREST_HIGH));
        for slot in test {
            let slot = usize::from(*slot);
            let (sample, row) = (&window.slots()[slot], &window.rows()[slot]);
            for resource in Resource::ALL {
                let measure = Measure::Peak(resource);
                if !measure.is_bound(sample) {
                    let predicted = forests.forest(measure).class(row, targets.classes(resource));
                    let is_right = predicted == class(resource, measure.units(sample));
                    self.shown[measure.index()] += 1;
                    self.right[measure.index()] += usize::from(is_right);
                }
            }
            let duration = forests.forest(Measure::Duration).mean(row, targets.durations());
            self.durations.push((sample.duration_us as f64, duration));
            // Beyond the sizes that it knows, a forest does not predict.
            if forests.covers(row) {
                self.forest_loss += self.loss.of(&forests.predict(row, window), sample);
                self.histogram_loss += self.loss.of(&by_histogram, sample);
                self.compared += 1;
            }
        }
    }

    fn contest(self) -> Contest {
        let share = |part: f64, whole: usize| if whole > 0 { part / whole as f64 } else { 0.0 };
        Contest {
            forest_loss: share(self.forest_loss, self.compared),
            histogram_loss: share(self.histogram_loss, self.compared),
            cpu_accuracy: share(self.right[0] as f64, self.shown[0]),
            memory_accuracy: share(self.right[1] as f64, self.shown[1]),
            duration_r2: r2(&self.durations),
        }
    }
}

/// The share of the variance that predictions explain: 1 if all are right, below 0 if the mean would be better. Pairs of
/// what came and what was predicted.
pub fn r2(pairs: &[(f64, f64)]) -> f64 {
    let mean = pairs.iter().map(|pair| pair.0).sum::<f64>() / pairs.len().max(1) as f64;
    let squares: f64 = pairs.iter().map(|(came, _)| (came - mean).powi(2)).sum();
    let errors: f64 = pairs.iter().map(|(came, predicted)| (came - predicted).powi(2)).sum();
    if squares > 0.0 {
        1.0 - errors / squares
    } else if errors > 0.0 {
        0.0
    } else {
        1.0
    }
}
