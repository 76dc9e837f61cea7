//! Totals over nodes and leases, for metrics and history.

use std::collections::BTreeMap;

use dayfly_protocol::api::{Capacity, LeaseState, NodeState};
use dayfly_protocol::cores::MilliCores;

use super::Cluster;

/// Resources of several nodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CapacityTotal {
    /// Cores for hot workers.
    pub cores: u64,
    /// Warm workers of one core.
    pub workers: MilliCores,
    /// Memory in bytes.
    pub memory_bytes: u64,
}

impl CapacityTotal {
    fn add(&mut self, one: &Capacity) {
        self.cores += u64::from(one.cores);
        self.workers = self.workers.plus(one.workers);
        self.memory_bytes = self.memory_bytes.saturating_add(one.memory_bytes);
    }
}

/// Totals over this manager's nodes and leases.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// Nodes by state.
    pub nodes: BTreeMap<&'static str, u32>,
    /// Live leases by state.
    pub leases: BTreeMap<&'static str, u32>,
    /// Resources of connected nodes.
    pub capacity: CapacityTotal,
    /// Free resources of connected nodes.
    pub free: CapacityTotal,
}

impl Summary {
    /// Adds up the nodes and leases of a cluster.
    pub fn of(cluster: &Cluster) -> Self {
        let mut summary = Self::default();
        // Include states without entries: a missing series looks like a fault in a graph.
        summary.nodes.insert(NodeState::Up.name(), 0);
        for state in [LeaseState::Granted, LeaseState::Active] {
            summary.leases.insert(state.name(), 0);
        }
        for node in cluster.nodes().values().filter(|node| node.owner().is_none()) {
            *summary.nodes.entry(node.state(false).name()).or_default() += 1;
            if node.is_connected() {
                summary.capacity.add(&node.capacity());
                summary.free.add(&node.free());
            }
        }
        for record in cluster.leases().live() {
            *summary.leases.entry(record.state.name()).or_default() += 1;
        }
        summary
    }
}
