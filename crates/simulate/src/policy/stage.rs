//! What predictors of this crate see beyond a function and its features: the oracle sees what a call will need, and
//! Freyr's agent sees the node.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dayfly_harvest::{Amount, CallId, Demand, Features, FunctionId, Prediction, Predictor, Sample};

use crate::call::Call;
use crate::freyr::Load;

/// The call that is decided on now. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stage(Arc<Mutex<Scene>>);

/// A call, and when and where it is decided on.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Scene {
    /// What the call will turn out to need.
    pub foresight: Option<Prediction>,
    /// The time.
    pub now_us: u64,
    /// A call that begins on a node.
    pub begins: Option<(CallId, Amount, Load)>,
}

impl Stage {
    /// A scheduler decides on a call.
    pub fn place(&self, now_us: u64, call: &Call) {
        *self.lock() = Scene {
            foresight: Some(foresight(call)),
            now_us,
            ..Scene::default()
        };
    }

    /// A call begins on a node.
    pub fn begin(&self, now_us: u64, id: CallId, call: &Call, load: Load) {
        *self.lock() = Scene {
            foresight: Some(foresight(call)),
            now_us,
            begins: Some((id, call.owned, load)),
        };
    }

    /// The scene now.
    pub fn scene(&self) -> Scene {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, Scene> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A prediction that is right. A call has at least what it owns, and no use of more than its peak.
fn foresight(call: &Call) -> Prediction {
    let peak = call.peak();
    Prediction {
        median: peak,
        high: peak,
        short_us: call.duration_us(peak.milli_cores),
        median_us: call.duration_us(call.owned.milli_cores),
    }
}

/// The oracle: predicts what a call will turn out to need.
#[derive(Debug, Clone)]
pub(crate) struct Oracle(pub Stage);

impl Predictor for Oracle {
    fn predict(&mut self, _function: FunctionId, _features: &Features) -> Demand {
        self.0.scene().foresight.map_or(Demand::Unknown, Demand::Known)
    }

    fn learn(&mut self, _function: FunctionId, _sample: Sample) {}
}
