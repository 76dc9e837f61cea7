//! The profile of one function.

use super::window::{Measure, Window, bounded};
use super::{Models, Options};
use crate::amount::{Amount, Resource};
use crate::demand::{Demand, Features, Prediction, Sample};
use crate::histogram::BOUND_FACTOR;

/// The share of calls whose peak stays below what a histogram predicts, and the share that ends sooner (section 4.3.2).
const HISTOGRAM_HIGH: f64 = 0.99;
const SHORT: f64 = 0.05;

#[derive(Debug, Default)]
pub(crate) struct Function {
    window: Window,
    has_begun: bool,
    last_use: u64,
    /// At least so much of each resource is predicted, since the last sample was a lower bound. 0 if it was none.
    floor: Amount,
}

impl Function {
    pub(crate) fn window(&self) -> &Window {
        &self.window
    }

    pub(crate) fn last_use(&self) -> u64 {
        self.last_use
    }

    pub(crate) fn mark(&mut self, use_number: u64) {
        self.last_use = use_number;
    }

    pub(crate) fn predict(&mut self, _features: &Features, options: &Options) -> Demand {
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        let is_known = match options.models {
            Models::MaxOfLast(_) => self.window.len() > 0,
            _ => self.window.len() > options.profiling_calls,
        };
        if is_known {
            let prediction = match options.models {
                Models::MaxOfLast(count) => self.max_of_last(count),
                _ => self.by_histogram(),
            };
            return Demand::Known(self.sane(prediction, options));
        }
        if is_first && self.window.len() == 0 {
            Demand::Unknown
        } else {
            Demand::Profiling
        }
    }

    pub(crate) fn learn(&mut self, sample: Sample, options: &Options) {
        let sample = bounded(sample, options.max_demand);
        self.has_begun = true;
        for resource in Resource::ALL {
            *self.floor.get_mut(resource) = if Measure::Peak(resource).is_bound(&sample) {
                sample.peak.get(resource).saturating_mul(BOUND_FACTOR)
            } else {
                0
            };
        }
        self.window.add(sample);
    }

    pub(crate) fn import(&mut self, samples: &[Sample], options: &Options) {
        for sample in samples {
            self.learn(*sample, options);
        }
    }

    fn by_histogram(&self) -> Prediction {
        let of = |measure| self.window.histogram(measure).distribution();
        let amount = |units: fn(&crate::histogram::Distribution<'_>) -> u64| {
            Amount::new(
                units(&of(Measure::Peak(Resource::Cpu))),
                units(&of(Measure::Peak(Resource::Memory))),
            )
        };
        Prediction {
            median: amount(|distribution| distribution.median()),
            high: amount(|distribution| distribution.high(HISTOGRAM_HIGH)),
            short_us: of(Measure::Duration).low(SHORT),
            median_us: of(Measure::Duration).median(),
        }
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
