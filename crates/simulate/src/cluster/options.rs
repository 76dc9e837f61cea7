//! What is simulated, and its bounds.

use dayfly_harvest::coverage::CPU_WEIGHT_PERCENT;
use dayfly_harvest::{Amount, SchedulerKind};

use crate::freyr::Weights;
use crate::policy::Policy;

/// Nodes of a cluster at most.
pub const MAX_NODES: usize = 10_000;
/// Cores of a node at most.
pub const MAX_CORES: u64 = 4_096;
/// Schedulers at most.
pub const MAX_SHARDS: usize = 64;
/// Points of a timeline at most.
pub const MAX_TIMELINE: usize = 100_000;

/// What is simulated.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Number of nodes.
    pub nodes: usize,
    /// Cores and memory of each.
    pub capacity: Amount,
    /// Number of schedulers that share nothing.
    pub shards: usize,
    /// What decides who lends and borrows.
    pub policy: Policy,
    /// What places calls on nodes.
    pub scheduler: SchedulerKind,
    /// Seed of all that is drawn.
    pub seed: u64,
    /// Time until a new worker begins its first call, in microseconds.
    pub cold_start_us: u64,
    /// Time that a worker without calls is kept, in microseconds.
    pub keep_warm_us: u64,
    /// Time between two heartbeats of a node, in microseconds.
    pub heartbeat_us: u64,
    /// Time that a scheduler needs for a decision, in microseconds.
    pub decision_us: u64,
    /// Share of the safeguard, if it is not the policy's.
    pub safeguard: Option<f64>,
    /// What the coverage of processor time counts in that of a call, in percent.
    pub cpu_weight_percent: u8,
    /// Time between two points of the timeline, in microseconds; 0 for no timeline.
    pub timeline_us: u64,
    /// Weights of Freyr's networks, if others than those that come with this crate.
    pub freyr: Option<Weights>,
    /// Whether each node keeps a log of its events.
    pub logs: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            nodes: 1,
            capacity: Amount::new(72_000, 72 << 30),
            shards: 1,
            policy: Policy::Dayfly,
            scheduler: SchedulerKind::Dayfly,
            seed: 1,
            // An isolated worker without a warm pool: docs/measurements, 5.3 to 6.4 ms.
            cold_start_us: 6_000,
            // As Apache OpenWhisk keeps its containers.
            keep_warm_us: 600_000_000,
            // The default of `dayfly up`.
            heartbeat_us: 2_000_000,
            decision_us: 50,
            safeguard: None,
            cpu_weight_percent: CPU_WEIGHT_PERCENT,
            timeline_us: 0,
            freyr: None,
            logs: false,
        }
    }
}
