//! What single calls used, between nodes and managers: managers keep the last samples of each function, for nodes that
//! have not run it.

use serde::{Deserialize, Serialize};

use crate::api::CallResources;
use crate::sizes::{Sizes, plausible};

/// Most samples that are kept of a function.
pub const MAX_SAMPLES: usize = 512;
/// Most samples in a node's message.
pub const MAX_REPORTED_SAMPLES: usize = 64;
/// Most functions whose samples a node reports or asks for at once.
pub const MAX_REPORTED_FUNCTIONS: usize = 16;
/// More than any machine has: 4,096 cores and 64 TiB.
const MAX_RESOURCES: CallResources = CallResources {
    milli_cores: 4_096_000,
    memory_bytes: 64 << 40,
};
/// Longest duration of a call: 1,000 days.
const MAX_DURATION_US: u64 = 1_000 * 86_400 * 1_000_000;

/// What one call used.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct CallSample {
    /// Bytes of its arguments.
    pub argument_bytes: u64,
    /// Sizes that its client stated, 0 for the rest.
    pub sizes: Sizes,
    /// The most it was allowed to use.
    pub allocation: CallResources,
    /// Its highest use in one window.
    pub peak: CallResources,
    /// How long it ran, in microseconds.
    pub duration_us: u64,
    /// It wanted more processor time than it was allowed to use.
    pub cpu_is_bound: bool,
    /// It wanted more memory than it was allowed to use.
    pub memory_is_bound: bool,
}

impl CallSample {
    /// Returns the sample with all values within their bounds: what a peer sends may be anything.
    pub fn sanitized(mut self) -> Self {
        self.sizes = self.sizes.map(plausible);
        for amount in [&mut self.allocation, &mut self.peak] {
            amount.milli_cores = amount.milli_cores.min(MAX_RESOURCES.milli_cores);
            amount.memory_bytes = amount.memory_bytes.min(MAX_RESOURCES.memory_bytes);
        }
        self.duration_us = self.duration_us.min(MAX_DURATION_US);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_sample_is_cut_to_its_bounds() {
        let most = CallResources {
            milli_cores: u64::MAX,
            memory_bytes: u64::MAX,
        };
        let sample = CallSample {
            sizes: [f64::NAN, f64::NEG_INFINITY, -1.0, 2.5],
            allocation: most,
            peak: most,
            duration_us: u64::MAX,
            ..CallSample::default()
        };
        let sane = sample.sanitized();
        assert_eq!(sane.sizes, [0.0, 0.0, 0.0, 2.5]);
        assert_eq!((sane.allocation, sane.peak), (MAX_RESOURCES, MAX_RESOURCES));
        assert_eq!(sane.duration_us, MAX_DURATION_US);
        let text = serde_json::to_string(&sane).unwrap();
        assert_eq!(serde_json::from_str::<CallSample>(&text).unwrap(), sane);
    }
}
