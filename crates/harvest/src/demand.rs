//! The terms between those who predict what a call needs and those who lend and borrow by it.

use serde::{Deserialize, Serialize};

use crate::amount::Amount;

/// One call on one node. Unique while the node lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CallId(pub u64);

/// A tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TenantId(pub u32);

/// One function of one tenant. The same code at two tenants is two functions, so that nobody poisons another's profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FunctionId(pub u64);

/// Sizes that a client may state for a call.
pub const MAX_SIZES: usize = 4;

/// What is known about a call before it runs. Payloads are never read for it.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Features {
    /// Bytes of all arguments, also of those that travel by reference.
    pub argument_bytes: u64,
    /// Sizes that the client stated, 0 for the rest.
    pub sizes: [f64; MAX_SIZES],
}

impl Features {
    /// Number of values.
    pub const COUNT: usize = MAX_SIZES + 1;

    /// The values for a model. Values that are not finite count as 0.
    pub fn values(&self) -> [f64; Self::COUNT] {
        let mut values = [0.0; Self::COUNT];
        values[0] = self.argument_bytes as f64;
        for (value, size) in values[1..].iter_mut().zip(self.sizes) {
            *value = if size.is_finite() { size } else { 0.0 };
        }
        values
    }
}

/// What one finished call used.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// What was known of it before it ran.
    pub features: Features,
    /// The most it was allowed to use: owned and borrowed.
    pub allocation: Amount,
    /// Its highest use in one window.
    pub peak: Amount,
    /// How long it ran, in microseconds.
    pub duration_us: u64,
    /// It wanted more processor time than its allocation, so `peak.milli_cores` is a lower bound.
    pub cpu_is_bound: bool,
    /// It wanted more memory than its allocation, so `peak.memory_bytes` is a lower bound.
    pub memory_is_bound: bool,
}

/// Whether a call that used so much of its limit in a window wants more. The kernel accounts use in slices, so that it is
/// never quite all.
pub fn is_bound(used: u64, limit: u64) -> bool {
    used as f64 >= 0.95 * limit as f64
}

/// What a call is expected to need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Prediction {
    /// Median of its peak use.
    pub median: Amount,
    /// An amount that its peak rarely exceeds: the 95th percentile of a forest, the 99th of a histogram.
    pub high: Amount,
    /// A duration that it rarely undercuts, in microseconds: the 5th percentile.
    pub short_us: u64,
    /// Median of its duration, in microseconds.
    pub median_us: u64,
}

/// What is known about the demand of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Demand {
    /// Nothing yet: the call runs as it is configured.
    Unknown,
    /// The profiling window: the call lends nothing, and gets what can be spared, to find out what it would use.
    Profiling,
    /// Enough to lend and borrow by.
    Known(Prediction),
}

/// Predicts the demand of calls, and learns from those that ended.
pub trait Predictor {
    /// Predicts a call that begins now.
    fn predict(&mut self, function: FunctionId, features: &Features) -> Demand;

    /// Learns from a call that ended by itself.
    fn learn(&mut self, function: FunctionId, sample: Sample);

    /// Learns from a call that ended on another node.
    fn adopt(&mut self, function: FunctionId, sample: Sample) {
        self.learn(function, sample);
    }

    /// Begins the training of a function's models, on what it has learnt until now. Takes microseconds.
    fn begin_training(&mut self, _function: FunctionId) {}

    /// The models of the training that began last predict from now on.
    fn end_training(&mut self, _function: FunctionId) {}
}
