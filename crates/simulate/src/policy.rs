//! The policies that are compared: each is a set of rules, and what predicts the demand of calls.

mod agent;
mod libra;
mod stage;

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dayfly_harvest::profile::{Models, Options, Profiles};
use dayfly_harvest::{Demand, Features, FunctionId, Predictor, Rules, Sample};
use serde::{Deserialize, Serialize};

pub(crate) use agent::Agent;
pub(crate) use stage::{Oracle, Stage};

/// Calls whose maximum predicts the next one, where there is no profiler (LIBRA, section 8.3).
const LAST_CALLS: usize = 5;

/// A policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Ours.
    Dayfly,
    /// LIBRA as published.
    Libra,
    /// No harvesting: each call has what it owns.
    Default,
    /// Freyr, by reinforcement learning.
    Freyr,
    /// Ours, without the safeguard.
    NoSafeguard,
    /// Ours, with the maximum of the last five calls in place of profiles.
    NoProfiler,
    /// Ours, with neither.
    Neither,
    /// Ours, with histograms alone.
    Histogram,
    /// Ours, with forests alone.
    Forest,
    /// Ours, knowing the demand of each call in advance: the limit of what predictions can give.
    Oracle,
}

impl Policy {
    /// All of them, as tables list them.
    pub const ALL: [Self; 10] = [
        Self::Default,
        Self::Dayfly,
        Self::Oracle,
        Self::Libra,
        Self::Freyr,
        Self::NoSafeguard,
        Self::NoProfiler,
        Self::Neither,
        Self::Histogram,
        Self::Forest,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Dayfly => "dayfly",
            Self::Libra => "libra",
            Self::Default => "default",
            Self::Freyr => "freyr",
            Self::NoSafeguard => "no-safeguard",
            Self::NoProfiler => "no-profiler",
            Self::Neither => "neither",
            Self::Histogram => "histogram",
            Self::Forest => "forest",
            Self::Oracle => "oracle",
        }
    }

    /// Its rules, without the length of a window. `None` if it harvests nothing.
    pub fn rules(self) -> Option<Rules> {
        let unguarded = Rules {
            safeguard: None,
            max_waiting_ppm: u32::MAX,
            ..Rules::default()
        };
        match self {
            Self::Default => None,
            Self::Dayfly | Self::NoProfiler | Self::Histogram | Self::Forest => Some(Rules::default()),
            Self::NoSafeguard | Self::Neither => Some(unguarded),
            Self::Libra => Some(Rules::libra()),
            // Freyr's safeguard is a matter of its agent: it looks at the call before. There is no pool in its public
            // repository: an allocation is of whatever is free on the node.
            Self::Freyr => Some(Rules {
                safeguard: None,
                lends_unreserved: true,
                ..Rules::libra()
            }),
            // What is known needs no headroom and no guard.
            Self::Oracle => Some(Rules {
                headroom: 1.0,
                ..unguarded
            }),
        }
    }

    /// What predicts for it, but for Freyr. Profiles are those of a live node, with its seed.
    pub(crate) fn predictor(self, stage: &Stage) -> Box<dyn Predictor + Send> {
        let profiles = |models| {
            Profiles::new(Options {
                models,
                ..Options::default()
            })
        };
        match self {
            Self::Oracle => Box::new(Oracle(stage.clone())),
            Self::Libra => Box::new(libra::Classes::new(profiles(Models::Best))),
            Self::NoProfiler | Self::Neither => Box::new(profiles(Models::MaxOfLast(LAST_CALLS))),
            Self::Histogram => Box::new(profiles(Models::Histogram)),
            Self::Forest => Box::new(profiles(Models::Forest)),
            Self::Dayfly | Self::NoSafeguard | Self::Default | Self::Freyr => Box::new(profiles(Models::Best)),
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that no policy has.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("There is no policy {name:?}. Choose one of: {}.", names())]
pub struct UnknownPolicy {
    name: String,
}

fn names() -> String {
    Policy::ALL.map(Policy::name).join(", ")
}

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        let found = Self::ALL.into_iter().find(|policy| policy.name() == name);
        found.ok_or_else(|| UnknownPolicy {
            name: name.chars().take(64).collect(),
        })
    }
}

type Learner = Arc<Mutex<Box<dyn Predictor + Send>>>;

/// One predictor for all nodes: managers pass samples on. Schedulers have another that learns the same, since a
/// prediction may count as a call that begins.
#[derive(Clone)]
pub(crate) struct Shared {
    nodes: Learner,
    schedulers: Option<Learner>,
}

impl Shared {
    pub fn new(nodes: Box<dyn Predictor + Send>, schedulers: Option<Box<dyn Predictor + Send>>) -> Self {
        let share = |predictor| Arc::new(Mutex::new(predictor));
        Self {
            nodes: share(nodes),
            schedulers: schedulers.map(share),
        }
    }

    /// What a scheduler expects of a call.
    pub fn expect(&self, function: FunctionId, features: &Features) -> Demand {
        let predict = |predictor: &Learner| lock(predictor).predict(function, features);
        self.schedulers.as_ref().map_or(Demand::Unknown, predict)
    }
}

fn lock(predictor: &Learner) -> MutexGuard<'_, Box<dyn Predictor + Send>> {
    predictor.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Predictor for Shared {
    fn predict(&mut self, function: FunctionId, features: &Features) -> Demand {
        lock(&self.nodes).predict(function, features)
    }

    fn learn(&mut self, function: FunctionId, sample: Sample) {
        lock(&self.nodes).learn(function, sample);
        if let Some(schedulers) = &self.schedulers {
            lock(schedulers).learn(function, sample);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_found_by_their_names() {
        for policy in Policy::ALL {
            assert_eq!(policy.to_string().parse(), Ok(policy));
            assert_eq!(serde_json::to_string(&policy).unwrap(), format!("\"{policy}\""));
        }
        let error = "best".parse::<Policy>().unwrap_err().to_string();
        assert!(error.contains("\"best\"") && error.contains("no-profiler"), "{error}");
    }
}
