//! Profiles of functions: what nodes learnt about their calls.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::HarvestMode;
use crate::executor::METERED_NAME_BYTES;
use crate::ids::NodeId;
use crate::named::named_enum;
use crate::text;

/// Most profiles that a node reports at once: versions of a function, and functions of this name in several modules.
pub const MAX_PROFILES: usize = 16;
/// Most bytes of the sentence in [`LearntProfile::reason`].
pub const MAX_REASON_BYTES: usize = 512;
/// Most bytes of the name by which a profile is asked for.
pub const MAX_PROFILE_NAME_BYTES: usize = 256;
/// Most samples of a profile.
const MAX_SAMPLES: u32 = 512;
/// Largest loss, and smallest R2 below 0, that is shown. Real ones are much smaller.
const MAX_SCORE: f64 = 1e6;

named_enum! {
    /// The model that predicts a function's calls.
    ProfileModel, "a model" {
        /// None yet: there are too few samples.
        None = "none",
        /// Random forests over the sizes of arguments.
        Forest = "forest",
        /// Histograms, whatever the sizes are.
        Histogram = "histogram",
        /// The maximum of the last calls.
        MaxOfLast = "max_of_last",
    }
}

/// Scores of both models on samples that they had not learnt from.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProfileScores {
    /// Mean loss of the forest: the pinball loss of all predicted quantiles, each divided by the mean of its measure.
    /// The model that loses less predicts.
    pub forest_loss: f64,
    /// Mean loss of the histogram.
    pub histogram_loss: f64,
    /// Share of samples whose class of processor time the forest predicts.
    pub cpu_accuracy: f64,
    /// Share of samples whose class of memory the forest predicts.
    pub memory_accuracy: f64,
    /// Share of the variance of the duration that the forest explains; below 0 if it does harm.
    pub duration_r2: f64,
    /// Whether both accuracies and R2 are at least 0.9: the published test, which decides nothing here.
    pub is_size_related: bool,
}

/// Processor time and memory of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct CallResources {
    /// Thousandths of a core.
    pub milli_cores: u64,
    /// Memory in bytes.
    pub memory_bytes: u64,
}

/// What one node learnt about a function.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LearntProfile {
    /// Name in the code, and the beginning of the code's hash: `NAME@HASH`.
    pub function: String,
    /// Samples that are kept, at most 512.
    pub samples: u32,
    /// Samples from which on calls are predicted.
    pub samples_needed: u32,
    /// The model that predicts.
    pub model: ProfileModel,
    /// Scores of both models; absent before they were compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scores: Option<ProfileScores>,
    /// What its last call owned.
    pub owned: CallResources,
    /// What calls are predicted to need at most, as the mean of the last 32 calls; absent before there are predictions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high: Option<CallResources>,
    /// What a call lends, or would lend if the node lent, as the mean of the last 32 calls.
    pub lends: CallResources,
    /// Why it lends or does not, in a sentence.
    pub reason: String,
}

/// What a node learnt about a function, as in `GET /v1/functions/{id}/profile`. Each node learns from its own calls.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FunctionProfile {
    /// Id of the node.
    pub node: NodeId,
    /// Name of the node.
    pub node_name: String,
    /// What the node does with idle resources.
    pub mode: HarvestMode,
    /// What it learnt.
    #[serde(flatten)]
    pub learnt: LearntProfile,
}

impl LearntProfile {
    /// Returns the profile with all values within their bounds and texts in one line: what a node sends may be anything.
    pub fn sanitized(mut self) -> Self {
        self.function = text::line(&self.function, METERED_NAME_BYTES);
        self.reason = text::line(&self.reason, MAX_REASON_BYTES);
        self.samples = self.samples.min(MAX_SAMPLES);
        self.samples_needed = self.samples_needed.min(MAX_SAMPLES);
        if let Some(scores) = &mut self.scores {
            for share in [&mut scores.cpu_accuracy, &mut scores.memory_accuracy] {
                *share = within(*share, 0.0, 1.0);
            }
            for loss in [&mut scores.forest_loss, &mut scores.histogram_loss] {
                *loss = within(*loss, 0.0, MAX_SCORE);
            }
            scores.duration_r2 = within(scores.duration_r2, -MAX_SCORE, 1.0);
        }
        self
    }
}

/// The value within these bounds. No number is the least.
fn within(value: f64, least: f64, most: f64) -> f64 {
    if value.is_nan() {
        least
    } else {
        value.clamp(least, most)
    }
}

/// Whether a function with this label (`NAME@HASH`) is the one that a text names: the label itself, the name, the end of
/// the name after a `.`, or one of these with an `@` and the beginning of the hash.
pub fn is_named(label: &str, wanted: &str) -> bool {
    let (name, hash) = label.rsplit_once('@').unwrap_or((label, ""));
    let is_name = |wanted: &str| {
        let rest = name.strip_suffix(wanted);
        !wanted.is_empty() && rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    let pinned = wanted.rsplit_once('@');
    let is_label = !wanted.is_empty() && label == wanted;
    is_label || is_name(wanted) || pinned.is_some_and(|(wanted, digits)| is_name(wanted) && hash.starts_with(digits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn function_is_found_by_name_and_hash() {
        for wanted in ["__main__.half@1a2b3c4d", "__main__.half", "half", "half@1a2b", "half@"] {
            assert!(is_named("__main__.half@1a2b3c4d", wanted), "{wanted}");
        }
        for wanted in [
            "",
            "@1a2b3c4d",
            "alf",
            "__main__",
            "half@2",
            "other",
            ".half",
            "half@1a2b3c4d5",
        ] {
            assert!(!is_named("__main__.half@1a2b3c4d", wanted), "{wanted}");
        }
        assert!(is_named("a@b@1a2b3c4d", "a@b") && !is_named("f", "f@1a"));
        assert!(is_named("@1a2b3c4d", "@1a2b3c4d") && !is_named("", ""));
    }

    #[test]
    fn hostile_profile_is_cut_to_its_bounds() {
        let hostile = LearntProfile {
            function: "f\n".repeat(500),
            samples: u32::MAX,
            samples_needed: u32::MAX,
            model: ProfileModel::Forest,
            scores: Some(ProfileScores {
                forest_loss: f64::NAN,
                histogram_loss: f64::INFINITY,
                cpu_accuracy: -1.0,
                memory_accuracy: 1e300,
                duration_r2: f64::NEG_INFINITY,
                is_size_related: true,
            }),
            owned: CallResources::default(),
            high: None,
            lends: CallResources::default(),
            reason: "\u{1b}[2J".repeat(10_000),
        };
        let sane = hostile.sanitized();
        assert!(sane.function.len() <= METERED_NAME_BYTES && !sane.function.contains('\n'));
        assert!(sane.reason.len() <= MAX_REASON_BYTES && !sane.reason.contains('\u{1b}'));
        assert_eq!((sane.samples, sane.samples_needed), (512, 512));
        let scores = sane.scores.unwrap();
        assert_eq!((scores.forest_loss, scores.histogram_loss), (0.0, MAX_SCORE));
        assert_eq!((scores.cpu_accuracy, scores.memory_accuracy), (0.0, 1.0));
        assert_eq!(scores.duration_r2, -MAX_SCORE);
    }
}
