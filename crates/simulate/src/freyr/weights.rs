//! Trained weights as a file. A file is input: whatever it holds, it is refused or harmless.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::network::{Network, PARAMETERS};
use super::policy::Policy;

/// Bytes of a file of weights. One of ours has about 25,000.
pub const MAX_WEIGHTS_BYTES: usize = 1 << 20;
/// Magnitude of one weight: sums of 33 such products stay far from the end of the type.
const MAX_WEIGHT: f32 = 1e6;
const FORMAT: &str = "dayfly-freyr-1";

/// The weights of both networks, and how they were trained.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Weights {
    format: String,
    /// The command that trained them.
    command: String,
    seed: u64,
    episodes: u64,
    actor: Vec<f32>,
    critic: Vec<f32>,
}

/// Why a file of weights is refused.
#[derive(Debug, Error)]
pub enum WeightsError {
    /// Too long to be one.
    #[error(
        "the file of weights has {bytes} bytes, more than {MAX_WEIGHTS_BYTES}; give one that `--train-freyr` wrote"
    )]
    Size {
        /// Bytes of the file.
        bytes: usize,
    },
    /// Not JSON, or with other fields.
    #[error("the file of weights cannot be read ({0}); give one that `--train-freyr` wrote")]
    Json(#[from] serde_json::Error),
    /// Another format.
    #[error("the file of weights is not of the format {FORMAT}; train it again with `--train-freyr`")]
    Format,
    /// Another number of weights.
    #[error("the {network} has {count} weights instead of {PARAMETERS}; train it again with `--train-freyr`")]
    Count {
        /// Which network.
        network: &'static str,
        /// Weights in the file.
        count: usize,
    },
    /// A weight that is no number, or too large.
    #[error(
        "weight {index} of the {network} is not a number of magnitude up to {MAX_WEIGHT}; train it again with `--train-freyr`"
    )]
    Value {
        /// Which network.
        network: &'static str,
        /// Which weight, from 0.
        index: usize,
    },
}

impl Weights {
    pub(super) fn of(policy: &Policy, command: &str, seed: u64, episodes: u64) -> Self {
        Self {
            format: FORMAT.to_owned(),
            command: command.to_owned(),
            seed,
            episodes,
            actor: policy.actor.parameters().to_vec(),
            critic: policy.critic.parameters().to_vec(),
        }
    }

    /// Reads a file's text.
    ///
    /// # Errors
    ///
    /// See [`WeightsError`].
    pub fn from_json(text: &str) -> Result<Self, WeightsError> {
        if text.len() > MAX_WEIGHTS_BYTES {
            return Err(WeightsError::Size { bytes: text.len() });
        }
        let weights: Self = serde_json::from_str(text)?;
        if weights.format != FORMAT {
            return Err(WeightsError::Format);
        }
        for (network, parameters) in [("actor", &weights.actor), ("critic", &weights.critic)] {
            if parameters.len() != PARAMETERS {
                let count = parameters.len();
                return Err(WeightsError::Count { network, count });
            }
            if let Some(index) = parameters.iter().position(|weight| !is_usable(*weight)) {
                return Err(WeightsError::Value { network, index });
            }
        }
        Ok(weights)
    }

    /// The text of a file.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    pub(super) fn policy(&self) -> Policy {
        Policy {
            actor: Network::new(&self.actor),
            critic: Network::new(&self.critic),
        }
    }
}

fn is_usable(weight: f32) -> bool {
    weight.is_finite() && weight.abs() <= MAX_WEIGHT
}

#[cfg(test)]
mod tests {
    use super::*;
    use dayfly_harvest::random::Random;

    fn weights() -> Weights {
        Weights::of(&Policy::random(&mut Random::new(1)), "train", 1, 0)
    }

    #[test]
    fn written_weights_are_read_as_the_same() {
        assert_eq!(Weights::from_json(&weights().to_json()).unwrap(), weights());
    }

    #[test]
    fn weights_of_wrong_count_are_refused() {
        let mut short = weights();
        short.critic.pop();
        let error = Weights::from_json(&short.to_json()).unwrap_err();
        assert!(matches!(error, WeightsError::Count { network: "critic", count } if count == PARAMETERS - 1));
    }

    #[test]
    fn huge_and_missing_numbers_are_refused() {
        for value in ["1e7", "-1e30", "1e300", "null", "\"x\""] {
            let text = weights().to_json();
            let first = weights().actor[0];
            let text = text.replacen(&serde_json::to_string(&first).unwrap(), value, 1);
            let error = Weights::from_json(&text).unwrap_err();
            assert!(
                matches!(error, WeightsError::Value { .. } | WeightsError::Json(_)),
                "{value}: {error}"
            );
        }
    }

    #[test]
    fn foreign_text_and_formats_are_refused() {
        assert!(matches!(Weights::from_json("{}"), Err(WeightsError::Json(_))));
        assert!(matches!(Weights::from_json(""), Err(WeightsError::Json(_))));
        let long = " ".repeat(MAX_WEIGHTS_BYTES + 1);
        assert!(matches!(Weights::from_json(&long), Err(WeightsError::Size { .. })));
        let other = weights().to_json().replace(FORMAT, "other");
        assert!(matches!(Weights::from_json(&other), Err(WeightsError::Format)));
    }
}
