//! Allowances: the right to lease from nodes directly.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Capacity, NodeAddress, Sandbox};
use crate::cores::MilliCores;
use crate::ids::{AllowanceId, PublicKey};

/// `POST /v1/allowances`: requests the right to lease from nodes directly.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AllowanceRequest {
    /// Ed25519 key whose owner may use it.
    pub holder: PublicKey,
    /// Total workers of all leases under it.
    #[schema(minimum = 1)]
    pub workers: u32,
    /// Total cores of all leases; 0 for one per worker.
    #[serde(default)]
    pub cores: MilliCores,
    /// Total memory in bytes; 0 for the nodes' defaults, if the tenant has no memory quota.
    #[serde(default)]
    pub memory_bytes: u64,
    /// Most workers on one node; 0 for the manager's default of twice an even share.
    #[serde(default)]
    pub workers_per_node: u16,
    /// Longest lease in milliseconds.
    #[schema(minimum = 1)]
    pub duration_ms: u64,
    /// Isolation of its workers; if absent, the site's default.
    #[serde(default)]
    pub sandbox: Option<Sandbox>,
}

/// An allowance, and the nodes with free resources.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Allowance {
    /// Id of the allowance.
    pub allowance: AllowanceId,
    /// The signed [`crate::hello::Token`], in hexadecimal. A request for updates before it expires returns a newer
    /// token.
    pub token: String,
    /// Remaining validity of the token in milliseconds.
    pub lasts_ms: u64,
    /// Version of the list of nodes. The next request names it to get newer ones.
    pub version: u64,
    /// Nodes with free resources, those with the most first. Of many nodes, a random sample.
    pub nodes: Vec<FreeNode>,
    /// Workers that may still start.
    pub workers_left: u32,
}

/// A node with free resources.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FreeNode {
    /// Addresses and key.
    pub node: NodeAddress,
    /// Free resources, as last reported.
    pub free: Capacity,
}
