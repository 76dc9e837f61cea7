//! The profile of one function.

use super::contest::{Contest, Loss};
use super::forests::{Forests, predict_with};
use super::report::ChosenModel;
use super::training::{Trained, TrainingJob};
use super::window::{MAX_SAMPLES, Measure, Window, bounded};
use super::{Models, Options, Trains};
use crate::amount::{Amount, Resource};
use crate::demand::{Demand, Features, FunctionId, Prediction, Sample};
use crate::forest::{Row, row};
use crate::histogram::BOUND_FACTOR;

/// The share of calls whose peak stays below what a histogram predicts (section 4.3.2).
const HISTOGRAM_HIGH: f64 = 0.99;

/// Samples that show a change before it is noticed: a sharp one takes five. Those before them are forgotten: what is not
/// needed to predict at once, the rest when there are enough new ones.
const SHOWN_BY_DRIFT: usize = 4;

/// Forests are trained again at every half more samples, and once so many came after the window is full.
const RELEARN_SAMPLES: usize = MAX_SAMPLES / 2;

/// Samples from which forests that made room for others are trained again, so that functions that take turns at the room
/// do not train at each call.
const RELEARN_WITHOUT_FORESTS: usize = 16;

#[derive(Debug)]
pub(super) struct Function {
    window: Window,
    has_begun: bool,
    last_use: u64,
    seed: u64,
    /// At least so much of each resource is predicted, since the last sample was a lower bound. 0 if it was none.
    floor: Amount,
    contest: Option<Contest>,
    /// None while histograms predict.
    forests: Option<Box<Forests>>,
    drift: Drift,
    /// Samples until the next training.
    until_relearn: usize,
    /// A training should begin.
    is_due: bool,
    /// The training that has begun. None after the samples that it learns from were forgotten.
    training: Option<TrainingJob>,
    /// The oldest samples, which the next training forgets, since they are from before a change.
    stale: usize,
}

impl Function {
    pub(super) fn new(id: FunctionId, options: &Options) -> Self {
        Self {
            window: Window::default(),
            has_begun: false,
            last_use: 0,
            seed: options.seed ^ id.0.rotate_left(32),
            floor: Amount::ZERO,
            contest: None,
            forests: None,
            drift: Drift::default(),
            stale: 0,
            is_due: false,
            training: None,
            until_relearn: options.profiling_calls.saturating_add(1).min(MAX_SAMPLES),
        }
    }

    pub(super) fn window(&self) -> &Window {
        &self.window
    }

    pub(super) fn last_use(&self) -> u64 {
        self.last_use
    }

    pub(super) fn mark(&mut self, use_number: u64) {
        self.last_use = use_number;
    }

    pub(super) fn floor(&self) -> Amount {
        self.floor
    }

    pub(super) fn contest(&self) -> Option<&Contest> {
        self.contest.as_ref()
    }

    pub(super) fn uses_forests(&self) -> bool {
        self.forests.is_some()
    }

    /// Histograms predict until enough samples came to train the forests again.
    pub(super) fn drop_forests(&mut self) {
        self.forests = None;
        self.drift = Drift::default();
        self.until_relearn = self.until_relearn.min(RELEARN_WITHOUT_FORESTS);
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.window.heap_bytes()
            + self
                .forests
                .as_ref()
                .map_or(0, |forests| forests.heap_bytes() + size_of::<Forests>())
    }

    pub(super) fn model(&self, options: &Options) -> ChosenModel {
        match options.models {
            _ if !self.is_known(options) => ChosenModel::None,
            Models::MaxOfLast(_) => ChosenModel::MaxOfLast,
            _ if self.forests.is_some() => ChosenModel::Forest,
            _ => ChosenModel::Histogram,
        }
    }

    /// The number of samples from which on it is predicted.
    pub(super) fn samples_needed(&self, options: &Options) -> usize {
        match options.models {
            Models::MaxOfLast(_) => 1,
            // More are never kept.
            _ => options.profiling_calls.saturating_add(1).min(MAX_SAMPLES),
        }
    }

    /// Whether there are enough samples to predict by.
    pub(super) fn is_known(&self, options: &Options) -> bool {
        self.window.len() >= self.samples_needed(options)
    }

    pub(super) fn predict(&mut self, features: &Features, options: &Options) -> Demand {
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        if self.is_known(options) {
            self.prediction(&row(features), options)
                .map_or(Demand::Profiling, Demand::Known)
        } else if is_first && self.window.len() == 0 {
            Demand::Unknown
        } else {
            Demand::Profiling
        }
    }

    /// What is predicted for a call, if anything is known about calls of this size.
    pub(super) fn prediction(&self, row: &Row, options: &Options) -> Option<Prediction> {
        let prediction = match (options.models, &self.forests) {
            (Models::MaxOfLast(count), _) => self.max_of_last(count),
            (_, Some(forests)) => forests.covers(row).then(|| forests.predict(row, &self.window))?,
            (_, None) => self.by_histogram(),
        };
        Some(self.sane(prediction, options))
    }

    pub(super) fn learn(&mut self, sample: Sample, options: &Options) {
        let sample = bounded(sample, options.max_demand);
        self.has_begun = true;
        let has_drifted = self.is_known(options) && self.has_drifted(&sample, options);
        self.set_floor(&sample);
        self.add(sample);
        self.until_relearn = self.until_relearn.saturating_sub(1);
        if has_drifted {
            self.forget(options);
        } else if self.until_relearn == 0 {
            if self.stale > 0 {
                self.keep_last(self.window.len().saturating_sub(self.stale));
                self.stale = 0;
            }
            self.relearn(options);
        }
    }

    /// Learns from many samples, and trains once.
    pub(super) fn import(&mut self, samples: &[Sample], options: &Options) {
        for sample in samples {
            let sample = bounded(*sample, options.max_demand);
            self.set_floor(&sample);
            self.add(sample);
        }
        self.has_begun = self.window.len() > 0;
        if self.is_known(options) {
            self.relearn(options);
        } else {
            self.until_relearn = self.until_relearn.saturating_sub(self.window.len()).max(1);
        }
    }

    /// Begins anew with the last samples, since the function has changed.
    fn forget(&mut self, options: &Options) {
        let needed = self.samples_needed(options);
        self.keep_last(needed.max(SHOWN_BY_DRIFT));
        self.stale = needed.saturating_sub(SHOWN_BY_DRIFT);
        self.relearn(options);
        self.until_relearn = needed;
    }

    /// Forgets older samples. The others move to other slots, so nothing that was trained on the old ones counts.
    fn keep_last(&mut self, count: usize) {
        self.window = self.window.last(count);
        self.forests = None;
        self.training = None;
        // Otherwise each sample until the training has ended would show the same change.
        self.drift = Drift::default();
    }

    fn add(&mut self, sample: Sample) {
        let (slot, old) = self.window.add(sample);
        if let Some(forests) = &mut self.forests {
            forests.replace(slot, old.as_ref(), &self.window.rows()[usize::from(slot)]);
        }
    }

    /// A sample that is a lower bound doubles the demand of the next call, until one is not.
    fn set_floor(&mut self, sample: &Sample) {
        for resource in Resource::ALL {
            *self.floor.get_mut(resource) = if Measure::Peak(resource).is_bound(sample) {
                sample.peak.get(resource).saturating_mul(BOUND_FACTOR)
            } else {
                0
            };
        }
    }

    fn has_drifted(&mut self, sample: &Sample, options: &Options) -> bool {
        match self.prediction(&row(&sample.features), options) {
            Some(prediction) => self.drift.observe(&prediction, sample, self.forests.is_some()),
            None => false,
        }
    }

    /// Trains the models, or requests it. Until then, the models that there are predict.
    fn relearn(&mut self, options: &Options) {
        let count = self.window.len();
        self.until_relearn = if count < MAX_SAMPLES {
            (count / 2).max(1)
        } else {
            RELEARN_SAMPLES
        };
        if !matches!(options.models, Models::Best | Models::Forest) {
            self.forests = None;
            self.expect();
        } else if options.trains == Trains::AtOnce {
            self.forests = None;
            self.take_models(TrainingJob::new(&self.window, self.seed).train(), options);
        } else {
            self.is_due = true;
        }
    }

    /// Whether a training should begin.
    pub(super) fn is_due(&self) -> bool {
        self.is_due
    }

    /// Begins a training that is due. One that runs already counts no more.
    pub(super) fn begin_training(&mut self) {
        if std::mem::take(&mut self.is_due) {
            self.training = Some(TrainingJob::new(&self.window, self.seed));
        }
    }

    /// The training that has begun.
    pub(super) fn training(&self) -> Option<&TrainingJob> {
        self.training.as_ref()
    }

    /// Ends the training that has begun with its models, or trains them if there are none.
    pub(super) fn end_training(&mut self, trained: Option<Trained>, options: &Options) {
        let Some(job) = self.training.take() else { return };
        let trained = trained.filter(|trained| trained.is_of(&job));
        self.take_models(trained.unwrap_or_else(|| job.train()), options);
    }

    fn take_models(&mut self, trained: Trained, options: &Options) {
        let (contest, forests) = trained.fit(&self.window);
        let prefers_forest = options.models == Models::Forest || contest.prefers_forest();
        self.forests = prefers_forest.then(|| Box::new(forests));
        self.contest = Some(contest);
        self.expect();
    }

    /// Watches for drift from what the model should lose from now on.
    fn expect(&mut self) {
        self.drift = Drift::new(Loss::new(&self.window), self.expected_loss());
    }

    /// What the chosen model should lose on each sample.
    fn expected_loss(&self) -> f64 {
        match (&self.contest, &self.forests) {
            (Some(contest), Some(_)) => contest.forest_loss,
            _ => {
                let (loss, prediction) = (Loss::new(&self.window), self.by_histogram());
                let samples = self.window.slots();
                let sum: f64 = samples.iter().map(|sample| loss.of(&prediction, sample)).sum();
                sum / samples.len().max(1) as f64
            }
        }
    }

    fn by_histogram(&self) -> Prediction {
        predict_with(|measure, measured| measured(self.window.histogram(measure).distribution(), HISTOGRAM_HIGH))
    }

    fn max_of_last(&self, count: usize) -> Prediction {
        let last = || self.window.in_order().rev().take(count.max(1));
        let peak = last().fold(Amount::ZERO, |peak, sample| peak.max(sample.peak));
        let duration_us = last().map(|sample| sample.duration_us).max().unwrap_or_default();
        Prediction {
            median: peak,
            high: peak,
            short_us: duration_us,
            median_us: duration_us,
        }
    }

    /// The prediction within its bounds.
    fn sane(&self, prediction: Prediction, options: &Options) -> Prediction {
        let mut sane = prediction;
        for resource in Resource::ALL {
            let (floor, max) = (self.floor.get(resource), options.max_demand.get(resource));
            let median = prediction.median.get(resource).max(floor).min(max);
            *sane.median.get_mut(resource) = median;
            *sane.high.get_mut(resource) = prediction.high.get(resource).min(max).max(median);
        }
        sane.median_us = prediction.median_us.min(super::MAX_DURATION_US);
        sane.short_us = prediction.short_us.min(sane.median_us);
        sane
    }
}

/// Watches whether predictions still hold.
#[derive(Debug, Default)]
struct Drift {
    loss: Option<Loss>,
    expected: f64,
    /// The mean loss, weighted towards the last samples.
    mean: f64,
    /// One bit for each of the last 32 samples: whether a peak exceeded its high prediction.
    exceeded: u32,
    observed: usize,
}

impl Drift {
    /// The weight of the last sample in the mean.
    const SHARE: f64 = 1.0 / 16.0;
    /// Samples before anything is concluded.
    const MIN_OBSERVED: usize = 16;
    /// Samples of 32 that may exceed one of both high predictions. If each is exceeded in 5 of 100 calls, as it should,
    /// more than so many do by chance with a probability of 1 in 7,000; if in 1 of 100, of 1 in 2,500.
    const MAX_EXCEEDED_FOREST: u32 = 10;
    const MAX_EXCEEDED_HISTOGRAM: u32 = 4;

    fn new(loss: Loss, expected: f64) -> Self {
        Self {
            loss: Some(loss),
            expected,
            mean: expected,
            ..Self::default()
        }
    }

    /// Takes a sample and what was predicted. Returns whether the function has changed: its loss is more than twice what
    /// it was (and 0.2 more than that, by which an outlier raises the mean), or high predictions are exceeded often.
    fn observe(&mut self, prediction: &Prediction, sample: &Sample, is_forest: bool) -> bool {
        let Some(loss) = self.loss else { return false };
        let exceeds = Resource::ALL
            .iter()
            .any(|resource| sample.peak.get(*resource) > prediction.high.get(*resource));
        self.observed += 1;
        self.exceeded = (self.exceeded << 1) | u32::from(exceeds);
        self.mean += (loss.of(prediction, sample) - self.mean) * Self::SHARE;
        let allowed = if is_forest {
            Self::MAX_EXCEEDED_FOREST
        } else {
            Self::MAX_EXCEEDED_HISTOGRAM
        };
        self.observed >= Self::MIN_OBSERVED
            && (self.exceeded.count_ones() > allowed || self.mean > 2.0 * self.expected + 0.2)
    }
}
