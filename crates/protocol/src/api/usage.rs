//! Metered usage of leases and of the site.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{LoanUsage, is_default};
use crate::cores::MilliCores;

/// Metered usage of a lease: the quantities that a bill is computed from. All but `calls` and `failures` are in
/// microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct Usage {
    /// Sum over workers of time spent inside functions.
    pub computing_us: u64,
    /// Sum over workers of time spent polling for work.
    pub polling_us: u64,
    /// Time since first use, multiplied by the number of workers.
    pub allocated_us: u64,
    /// Invocations that ended. Loading a function runs code and counts as one.
    pub calls: u64,
    /// The part of `calls` that ended in an error.
    pub failures: u64,
}

/// Most functions that are metered separately in one lease. All others are metered together.
pub const MAX_FUNCTIONS: usize = 64;
/// Name under which all other functions are metered.
pub const OTHER_FUNCTIONS: &str = "others";

/// Usage of one function, part of its lease's [`Usage`]. Loading of functions and functions that are not metered
/// separately account for the difference.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct FunctionUsage {
    /// Name and the beginning of its code's hash, such as `stats.mean@5f0c9a1b`.
    pub function: String,
    /// Invocations of the function that ended.
    pub calls: u64,
    /// The part of `calls` that ended in an error.
    pub failures: u64,
    /// Microseconds inside the function, over all workers.
    pub computing_us: u64,
}

/// Usage of a lease, in total and by function.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Metered {
    /// Total usage.
    #[serde(flatten)]
    pub usage: Usage,
    /// Usage by function, in the order of their names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub functions: Vec<FunctionUsage>,
    /// What its calls lent and borrowed.
    #[serde(default, skip_serializing_if = "is_default")]
    pub loans: LoanUsage,
}

impl From<Usage> for Metered {
    fn from(usage: Usage) -> Self {
        Self {
            usage,
            functions: Vec::new(),
            loans: LoanUsage::default(),
        }
    }
}

/// Use of the site at one moment, as in `GET /v1/history`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UsageSample {
    /// Time, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// Nodes that accepted leases.
    pub nodes_up: u32,
    /// Leases that were alive.
    pub leases: u32,
    /// Cores for hot workers on connected nodes.
    pub cores: u64,
    /// The part of `cores` that was leased.
    pub cores_leased: u64,
    /// Warm workers of one core on connected nodes.
    pub workers: MilliCores,
    /// The part of `workers` that was leased.
    pub workers_leased: MilliCores,
    /// Memory on connected nodes, in bytes.
    pub memory_bytes: u64,
    /// The part of `memory_bytes` that was leased.
    pub memory_leased_bytes: u64,
    /// Usage booked from the manager's start to this moment.
    pub used: Usage,
}
