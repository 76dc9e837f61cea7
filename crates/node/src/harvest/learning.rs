//! The profiles of a node's functions, and how much they have learnt.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use dayfly_harvest::{Demand, Features, FunctionId, Options, Predictor, Profiles, Sample};

/// How much was learnt.
#[derive(Debug, Default)]
pub(super) struct Learnt {
    samples: AtomicU64,
    functions: AtomicU32,
}

impl Learnt {
    /// Calls that were learnt from.
    pub fn samples(&self) -> u64 {
        self.samples.load(Ordering::Relaxed)
    }

    /// Functions with a profile.
    pub fn functions(&self) -> u32 {
        self.functions.load(Ordering::Relaxed)
    }
}

/// Profiles that count what they learn.
#[derive(Debug)]
pub(super) struct CountedProfiles {
    profiles: Profiles,
    learnt: Arc<Learnt>,
}

impl CountedProfiles {
    /// No profiles yet.
    pub fn new(learnt: Arc<Learnt>) -> Self {
        Self {
            profiles: Profiles::new(Options::default()),
            learnt,
        }
    }
}

impl Predictor for CountedProfiles {
    fn predict(&mut self, function: FunctionId, features: &Features) -> Demand {
        self.profiles.predict(function, features)
    }

    fn learn(&mut self, function: FunctionId, sample: Sample) {
        self.profiles.learn(function, sample);
        self.learnt.samples.fetch_add(1, Ordering::Relaxed);
        let functions = u32::try_from(self.profiles.functions().count()).unwrap_or(u32::MAX);
        self.learnt.functions.store(functions, Ordering::Relaxed);
    }
}
