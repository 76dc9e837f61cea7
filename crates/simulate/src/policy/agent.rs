//! Freyr's agent as a predictor: what it allocates counts as what the call needs.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dayfly_harvest::{Amount, CallId, Demand, Features, FunctionId, Prediction, Predictor, Sample};

use super::stage::Stage;
use crate::freyr::Freyr;

/// Freyr knows nothing of when lent units return: all of them count as lent for an hour.
const EXPIRY_US: u64 = 3_600_000_000;

/// An agent that several nodes ask. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Agent {
    stage: Stage,
    freyr: Arc<Mutex<Freyr>>,
}

impl Agent {
    pub fn new(stage: Stage, freyr: Arc<Mutex<Freyr>>) -> Self {
        Self { stage, freyr }
    }

    /// What a call used in a window.
    pub fn measure(&self, call: CallId, used: Amount) {
        self.lock().measure(call, used);
    }

    /// A call ended: it returned, or it did not.
    pub fn end(&self, now_us: u64, call: CallId, has_returned: bool) {
        self.lock().end(now_us, call, has_returned);
    }

    fn lock(&self) -> MutexGuard<'_, Freyr> {
        self.freyr.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Predictor for Agent {
    fn predict(&mut self, function: FunctionId, _features: &Features) -> Demand {
        let scene = self.stage.scene();
        // A scheduler asks as well. The agent decides once, when a call begins.
        let Some((call, owned, load)) = scene.begins else {
            return Demand::Unknown;
        };
        let allocation = self.lock().decide(scene.now_us, call, function, owned, load);
        Demand::Known(Prediction {
            median: allocation,
            high: allocation,
            short_us: EXPIRY_US,
            median_us: EXPIRY_US,
        })
    }

    // It learns from what the node reports of each call.
    fn learn(&mut self, _function: FunctionId, _sample: Sample) {}
}
