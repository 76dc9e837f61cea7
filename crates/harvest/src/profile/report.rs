//! What is known about a function, for people.

use serde::Serialize;

use super::Options;
use super::contest::Contest;
use super::function::Function;
use crate::amount::{Amount, Resource};
use crate::demand::Prediction;
use crate::rules::Rules;

/// The last calls whose mean a report shows.
const REPORTED_CALLS: usize = 32;

/// Which model predicts a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ChosenModel {
    /// None yet: there are too few samples.
    None,
    /// Random forests.
    Forest,
    /// Histograms.
    Histogram,
    /// The maximum of the last calls.
    MaxOfLast,
}

/// The scores of the models on samples that they had not learned from.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Scores {
    /// Mean loss of the forest: the pinball loss of all predicted quantiles, each divided by the mean of its measure.
    /// The lower, the better.
    pub forest_loss: f64,
    /// Mean loss of the histogram.
    pub histogram_loss: f64,
    /// Share of samples whose class of processor time the forest predicts.
    pub cpu_accuracy: f64,
    /// Share of samples whose class of memory the forest predicts.
    pub memory_accuracy: f64,
    /// Share of the variance of the duration that the forest explains; below 0 if it does harm.
    pub duration_r2: f64,
    /// Whether both accuracies and R2 are at least 0.9: the paper's own test, which decides nothing here.
    pub is_size_related: bool,
}

impl From<&Contest> for Scores {
    fn from(contest: &Contest) -> Self {
        Self {
            forest_loss: contest.forest_loss,
            histogram_loss: contest.histogram_loss,
            cpu_accuracy: contest.cpu_accuracy,
            memory_accuracy: contest.memory_accuracy,
            duration_r2: contest.duration_r2,
            is_size_related: contest.is_size_related(),
        }
    }
}

/// What decides how much a call lends, beside its prediction.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lending {
    /// What a call owns.
    pub owned: Amount,
    /// The rules of its node.
    pub rules: Rules,
    /// Whether the node lends. Otherwise the reason states what the call would lend.
    pub is_on: bool,
    /// Whether the terms of its last call permit it to lend.
    pub is_permitted: bool,
}

/// What is known about a function.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Samples that are kept.
    pub samples: usize,
    /// Samples from which on it is predicted.
    pub samples_needed: usize,
    /// The model that predicts.
    pub model: ChosenModel,
    /// Scores of forest and histogram, once they were compared.
    pub scores: Option<Scores>,
    /// What calls are predicted to need at most, as the mean of the last 32 calls.
    pub high: Option<Amount>,
    /// What a call that owns the given amount would lend, as the mean of the last 32 calls.
    pub lends: Amount,
    /// Why it lends or does not, in a sentence.
    pub reason: String,
}

impl Report {
    /// The report of a function whose calls own an amount under these rules.
    pub(super) fn new(function: &Function, lending: &Lending, options: &Options) -> Self {
        let samples = function.window().len();
        let samples_needed = function.samples_needed(options);
        let predictions = last_predictions(function, options);
        let (high, lends) = (high(&predictions), lends(&predictions, lending));
        Self {
            samples,
            samples_needed,
            model: function.model(options),
            scores: function.contest().map(Scores::from),
            high,
            lends,
            reason: match high {
                _ if !lending.is_permitted => {
                    "It lends nothing, because its lease or its function states that its calls do not lend.".to_owned()
                }
                None if samples == 0 => "It lends nothing, because none of its calls has ended yet.".to_owned(),
                None if samples < samples_needed => format!(
                    "It lends nothing yet, because {samples} of {samples_needed} samples are there to predict by."
                ),
                None => "It lends nothing, because its last calls are of sizes that it did not have before.".to_owned(),
                Some(_) if predictions.iter().all(|one| lending.rules.leaves_alone(one)) => format!(
                    "It lends nothing, because its calls are expected to take less than {} ms.",
                    lending.rules.min_duration_us / 1_000
                ),
                Some(high) => reason(function, lending, high, lends),
            },
        }
    }
}

fn last_predictions(function: &Function, options: &Options) -> Vec<Prediction> {
    if !function.is_known(options) {
        return Vec::new();
    }
    let rows = function.window().rows_in_order().rev().take(REPORTED_CALLS);
    rows.filter_map(|row| function.prediction(row, options)).collect()
}

fn mean(amounts: impl ExactSizeIterator<Item = Amount>) -> Amount {
    let count = amounts.len().max(1) as u64;
    let sum = amounts.fold(Amount::ZERO, |sum, amount| sum + amount);
    Amount::new(sum.milli_cores / count, sum.memory_bytes / count)
}

fn high(predictions: &[Prediction]) -> Option<Amount> {
    (!predictions.is_empty()).then(|| mean(predictions.iter().map(|prediction| prediction.high)))
}

fn lends(predictions: &[Prediction], lending: &Lending) -> Amount {
    let (owned, rules) = (lending.owned, &lending.rules);
    let kept = |resource, high: Amount| rules.kept(resource, owned.get(resource), high.get(resource), 0);
    let lent = predictions.iter().map(
        |prediction| match rules.leaves_alone(prediction) || !lending.is_permitted {
            true => Amount::ZERO,
            false => {
                let high = prediction.high;
                owned - Amount::new(kept(Resource::Cpu, high), kept(Resource::Memory, high))
            }
        },
    );
    mean(lent)
}

fn reason(function: &Function, lending: &Lending, high: Amount, lends: Amount) -> String {
    let owned = lending.owned;
    let basis = if function.uses_forests() {
        "predicted from their sizes"
    } else {
        "whatever their sizes are"
    };
    let floor = function.floor();
    if lends != Amount::ZERO {
        let parts: Vec<_> = Resource::ALL
            .into_iter()
            .filter(|resource| lends.get(*resource) > 0)
            .collect();
        let list = |amount: Amount| {
            let named: Vec<_> = parts
                .iter()
                .map(|resource| named(*resource, amount.get(*resource)))
                .collect();
            named.join(" and ")
        };
        let verb = if lending.is_on { "lends" } else { "would lend" };
        return format!(
            "It {verb} about {} of {}, because its last calls need at most about {}, {basis}.",
            list(lends),
            list(owned),
            list(high)
        );
    }
    if let Some(resource) = Resource::ALL.into_iter().find(|resource| floor.get(*resource) > 0) {
        let resource = if resource == Resource::Cpu {
            "processor time"
        } else {
            "memory"
        };
        return format!("It lends nothing, because its last call wanted more {resource} than it was given.");
    }
    format!(
        "It lends nothing, because its calls need up to about {} and {} of the {} and {} that they own, {basis}, and a \
         margin above that.",
        named(Resource::Cpu, high.milli_cores),
        named(Resource::Memory, high.memory_bytes),
        named(Resource::Cpu, owned.milli_cores),
        named(Resource::Memory, owned.memory_bytes),
    )
}

fn named(resource: Resource, units: u64) -> String {
    match resource {
        Resource::Cpu => format!("{:.2} cores", units as f64 / 1_000.0),
        Resource::Memory => format!("{} MiB", units.div_ceil(1 << 20)),
    }
}
