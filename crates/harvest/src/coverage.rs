//! Demand coverage: how much of what a call wants above what it owns a node's pool can give, for as long as the call
//! wants it (LIBRA, section 6.2).
//!
//! A pool is a step function: `S(t)` units of a resource remain in it for at least `t` more microseconds. Nodes send it
//! on heartbeats as [`Steps`]. For `x` units wanted during `d`:
//!
//! ```text
//! D_r = 1/(x d) * integral from 0 to d of min(x, S_r(t)) dt        D = 0.9 D_cpu + 0.1 D_memory
//! ```
//!
//! Where nothing is wanted of a resource, or for no time, its `D_r` is 1: nothing is missing. So `D` never grows with
//! the demand, and its order among nodes depends only on what is wanted. Integrals are exact, in 128 bits.

mod expected;
mod outlook;
mod steps;

use serde::{Deserialize, Serialize};

use crate::amount::{Amount, Resource};
pub use expected::{Claim, ExpectedPools};
pub use outlook::{Change, Forecast};
pub use steps::{MAX_STEPS, Step, Steps, StepsError};

/// What the coverage of processor time counts in that of a call, in percent. Idle cores are scarcer than idle memory.
/// That of memory counts the rest.
pub const CPU_WEIGHT_PERCENT: u8 = 90;

/// What the pools of one node can spare, by remaining time.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Spare {
    /// Thousandths of a core.
    pub cpu: Steps,
    /// Bytes of memory.
    pub memory: Steps,
}

impl Spare {
    /// The pool of one resource.
    pub fn get(&self, resource: Resource) -> &Steps {
        match resource {
            Resource::Cpu => &self.cpu,
            Resource::Memory => &self.memory,
        }
    }

    /// The same pools with at most so much of each resource at any time.
    #[must_use]
    pub fn at_most(&self, most: Amount) -> Self {
        Self {
            cpu: self.cpu.at_most(most.milli_cores),
            memory: self.memory.at_most(most.memory_bytes),
        }
    }

    /// What is left of it `by_us` microseconds later, if nothing joins the pools and nothing leaves them early.
    #[must_use]
    pub fn aged(&self, by_us: u64) -> Self {
        Self {
            cpu: self.cpu.aged(by_us),
            memory: self.memory.aged(by_us),
        }
    }
}

/// What a call wants above what it owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Want {
    /// How much of each resource.
    pub extra: Amount,
    /// For how long, in microseconds.
    pub duration_us: u64,
}

impl Want {
    /// Assumed for a call about which nothing is known: one more core for one second.
    pub const NOMINAL: Self = Self {
        extra: Amount::new(1_000, 0),
        duration_us: 1_000_000,
    };

    /// Whether more than nothing is wanted, so that a loan could make a difference.
    pub fn is_something(&self) -> bool {
        self.extra != Amount::ZERO && self.duration_us > 0
    }

    /// Demand coverage by these pools, between 0 and 1. It is 1 where nothing is wanted.
    pub fn coverage(&self, spare: &Spare) -> f64 {
        let share = |resource| self.share(resource, |units| spare.get(resource).area(0, self.duration_us, units));
        weighted(CPU_WEIGHT_PERCENT, share(Resource::Cpu), share(Resource::Memory))
    }

    /// Coverage of one resource, where `area` gives the integral of `min(units, S(t))` over the duration.
    fn share(&self, resource: Resource, area: impl FnOnce(u64) -> u128) -> f64 {
        let units = self.extra.get(resource);
        let wanted = u128::from(units) * u128::from(self.duration_us);
        if wanted == 0 {
            return 1.0;
        }
        area(units) as f64 / wanted as f64
    }
}

/// Coverage of a call, of those of both resources.
fn weighted(cpu_percent: u8, cpu: f64, memory: f64) -> f64 {
    let cpu_percent = f64::from(cpu_percent);
    ((cpu_percent * cpu + (100.0 - cpu_percent) * memory) / 100.0).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests;
