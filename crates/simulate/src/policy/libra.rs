//! Predictions as LIBRA makes them: the class of an allocation, not a quantile (sections 4.3 and 8.2).

use dayfly_harvest::profile::Profiles;
use dayfly_harvest::{Amount, Demand, Features, FunctionId, Prediction, Predictor, Sample};

/// Allocations are whole cores.
const CORE: u64 = 1_000;
/// Allocations are multiples of 128 MiB, the smallest memory of the public platforms.
const MEMORY: u64 = 128 << 20;

/// Profiles whose amounts are rounded up to the next class. The published system has one prediction for what is kept and
/// for what is borrowed, and one for the duration.
#[derive(Debug)]
pub(super) struct Classes {
    profiles: Profiles,
}

impl Classes {
    pub fn new(profiles: Profiles) -> Self {
        Self { profiles }
    }
}

fn class(amount: Amount) -> Amount {
    let up = |units: u64, class: u64| units.div_ceil(class).max(1).saturating_mul(class);
    Amount::new(up(amount.milli_cores, CORE), up(amount.memory_bytes, MEMORY))
}

impl Predictor for Classes {
    fn predict(&mut self, function: FunctionId, features: &Features) -> Demand {
        match self.profiles.predict(function, features) {
            Demand::Known(prediction) => {
                let class = class(prediction.median);
                Demand::Known(Prediction {
                    median: class,
                    high: class,
                    short_us: prediction.median_us,
                    median_us: prediction.median_us,
                })
            }
            other => other,
        }
    }

    fn learn(&mut self, function: FunctionId, sample: Sample) {
        self.profiles.learn(function, sample);
    }
}
