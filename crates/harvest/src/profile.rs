//! Profiles: what each function used before, and what its next call will need (LIBRA, section 4).

mod classes;
mod contest;
mod forests;
mod function;
mod report;
mod training;
mod window;

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::amount::Amount;
use crate::demand::{Demand, Features, FunctionId, Predictor, Sample};
pub use contest::r2;
pub use forests::settings;
use function::Function;
pub use report::{ChosenModel, Lending, Report, Scores};
pub use training::{Trained, TrainingJob};
pub use window::{MAX_DURATION_US, MAX_SAMPLES};

/// Which model predicts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Models {
    /// The forest or the histogram of a function, whichever loses less on samples that it has not learned from.
    Best,
    /// The forest of each function.
    Forest,
    /// The histograms of each function.
    Histogram,
    /// The maximum of so many last calls, as LIBRA without its profiler. There is no profiling window.
    MaxOfLast(usize),
}

/// When models are trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trains {
    /// While a sample is learnt.
    #[default]
    AtOnce,
    /// Between [`Predictor::begin_training`] and [`Predictor::end_training`] of a function that is due, on the samples
    /// that it had at the begin. So the models do not depend on how long a training took.
    OnRequest,
}

/// How profiles learn and predict.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Which model predicts.
    pub models: Models,
    /// Calls after the first that find out what a function would use.
    pub profiling_calls: usize,
    /// The most that is ever predicted, and believed of a sample.
    pub max_demand: Amount,
    /// Functions that are kept. Beyond it, the one that was used longest ago is forgotten.
    pub max_functions: usize,
    /// Bytes on the heap of all profiles. Beyond it, functions lose their forests, in the order of their last use, and
    /// histograms predict them for some calls. If there are no forests, functions are forgotten.
    pub max_bytes: usize,
    /// The seed of all forests.
    pub seed: u64,
    /// When models are trained.
    pub trains: Trains,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            models: Models::Best,
            profiling_calls: 20,
            // More than any node has: 4,096 cores and 64 TiB.
            max_demand: Amount::new(4_096_000, 64 << 40),
            max_functions: 4_096,
            // Of the 32 MiB for all of harvesting: 85 functions with forests, or 340 with histograms.
            max_bytes: 27 << 20,
            seed: 0,
            trains: Trains::AtOnce,
        }
    }
}

/// The profiles of all functions. Deterministic: the same calls in the same order give the same predictions.
#[derive(Debug)]
pub struct Profiles {
    options: Options,
    functions: BTreeMap<FunctionId, Function>,
    bytes: usize,
    uses: u64,
    /// Functions whose models should be trained, in the order in which that was noticed.
    due: VecDeque<FunctionId>,
}

impl Profiles {
    /// No profiles yet.
    pub fn new(options: Options) -> Self {
        Self {
            options,
            functions: BTreeMap::new(),
            bytes: 0,
            uses: 0,
            due: VecDeque::new(),
        }
    }

    /// The kept samples of a function, oldest first: at most [`MAX_SAMPLES`]. Empty if there are none.
    pub fn export(&self, function: FunctionId) -> Vec<Sample> {
        let function = self.functions.get(&function);
        function.map_or_else(Vec::new, |function| function.window().in_order().copied().collect())
    }

    /// Replaces the profile of a function by one that learned from these samples, oldest first. The last
    /// [`MAX_SAMPLES`] count.
    pub fn import(&mut self, function: FunctionId, samples: &[Sample]) {
        let samples = &samples[samples.len().saturating_sub(MAX_SAMPLES)..];
        self.forget(function);
        self.change(function, |profile, options| profile.import(samples, options));
    }

    /// The number of kept samples of a function.
    pub fn samples(&self, function: FunctionId) -> usize {
        self.functions
            .get(&function)
            .map_or(0, |function| function.window().len())
    }

    /// What is known about a function, and what its calls lend. None if the function has no profile.
    pub fn report(&self, function: FunctionId, lending: &Lending) -> Option<Report> {
        let function = self.functions.get(&function)?;
        Some(Report::new(function, lending, &self.options))
    }

    /// Bytes on the heap of the profile of a function.
    pub fn heap_bytes(&self, function: FunctionId) -> usize {
        self.functions.get(&function).map_or(0, Function::heap_bytes)
    }

    /// The functions that have a profile, in their order.
    pub fn functions(&self) -> impl Iterator<Item = FunctionId> + '_ {
        self.functions.keys().copied()
    }

    /// The function whose models should be trained next, if any. Always none unless they train [on
    /// request](Trains::OnRequest).
    pub fn due(&self) -> Option<FunctionId> {
        self.due.front().copied()
    }

    /// The training of a function that has begun.
    pub fn training(&self, function: FunctionId) -> Option<TrainingJob> {
        self.functions.get(&function)?.training().cloned()
    }

    /// Ends the training that has begun with its models; trains them here if there are none, or others.
    pub fn end_training_with(&mut self, function: FunctionId, trained: Option<Trained>) {
        if self.functions.contains_key(&function) {
            self.change(function, |profile, options| profile.end_training(trained, options));
        }
    }

    fn forget(&mut self, function: FunctionId) {
        self.bytes -= self.heap_bytes(function);
        self.due.retain(|due| *due != function);
        self.functions.remove(&function);
    }

    /// Changes a profile, and keeps all profiles within their bytes.
    fn change(&mut self, function: FunctionId, change: impl FnOnce(&mut Function, &Options)) {
        let options = self.options.clone();
        let profile = self.used(function);
        let before = profile.heap_bytes();
        change(profile, &options);
        let after = profile.heap_bytes();
        if profile.is_due() && !self.due.contains(&function) {
            self.due.push_back(function);
        }
        self.bytes = self.bytes - before + after;
        while self.bytes > options.max_bytes {
            let others = self.functions.iter_mut().filter(|(id, _)| **id != function);
            let Some((id, oldest)) = others.min_by_key(|(_, profile)| (!profile.uses_forests(), profile.last_use()))
            else {
                return;
            };
            if oldest.uses_forests() {
                let before = oldest.heap_bytes();
                oldest.drop_forests();
                self.bytes = self.bytes - before + oldest.heap_bytes();
            } else {
                let oldest = *id;
                self.forget(oldest);
            }
        }
    }

    /// The profile of a function, begun if need be, and marked as the last used.
    fn used(&mut self, function: FunctionId) -> &mut Function {
        self.uses += 1;
        if !self.functions.contains_key(&function) && self.functions.len() >= self.options.max_functions.max(1) {
            let oldest = self.functions.iter().min_by_key(|(_, profile)| profile.last_use());
            if let Some(oldest) = oldest.map(|(id, _)| *id) {
                self.forget(oldest);
            }
        }
        let options = &self.options;
        let profile = self
            .functions
            .entry(function)
            .or_insert_with(|| Function::new(function, options));
        profile.mark(self.uses);
        profile
    }
}

impl Default for Profiles {
    fn default() -> Self {
        Self::new(Options::default())
    }
}

impl Predictor for Profiles {
    fn predict(&mut self, function: FunctionId, features: &Features) -> Demand {
        let options = self.options.clone();
        self.used(function).predict(features, &options)
    }

    fn learn(&mut self, function: FunctionId, sample: Sample) {
        self.change(function, |profile, options| profile.learn(sample, options));
    }

    fn begin_training(&mut self, function: FunctionId) {
        self.due.retain(|due| *due != function);
        if let Some(profile) = self.functions.get_mut(&function) {
            profile.begin_training();
        }
    }

    fn end_training(&mut self, function: FunctionId) {
        self.end_training_with(function, None);
    }
}

#[cfg(test)]
mod tests;
