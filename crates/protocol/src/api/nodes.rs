//! Nodes: addresses, resources, states, and tokens to join a site.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{CallResources, ManagerAddress, Sandbox};
use crate::cores::MilliCores;
use crate::ids::{NodeId, PublicKey, TenantId};
use crate::named::named_enum;

/// Addresses and key of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeAddress {
    /// Id of the node.
    pub id: NodeId,
    /// Display name.
    pub name: String,
    /// Boot id of its host. A client with the same boot id shares its memory.
    pub host: String,
    /// Unix socket for clients on the same host.
    pub unix: Option<String>,
    /// `address:port` for all other clients.
    pub tcp: Option<String>,
    /// Key that signs its verdicts.
    pub key: PublicKey,
    /// Fabrics of the node, by the site's names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fabrics: Vec<String>,
}

/// Most fabrics of a node.
pub const MAX_FABRICS: usize = 16;
/// Longest name of a fabric, in bytes.
pub const MAX_FABRIC_NAME: usize = 64;

/// Resources of a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Capacity {
    /// Cores that leases may use.
    pub cores: u16,
    /// Memory that leases may use, in bytes.
    pub memory_bytes: u64,
    /// Most warm workers of one core. A warm worker counts as many as it owns cores.
    pub workers: MilliCores,
    /// GPUs that leases may use.
    #[serde(default)]
    pub gpus: u16,
}

named_enum! {
    /// State of a node.
    NodeState, "a node state" {
        /// Connected, and gets leases.
        Up = "up",
        /// Failed repeatedly, and gets no leases for a while.
        Suspended = "suspended",
        /// Being reclaimed, and still holds leases.
        Leaving = "leaving",
        /// Reclaimed and empty.
        Reclaimed = "reclaimed",
        /// Stopped in order.
        Left = "left",
        /// Its connection was lost.
        Lost = "lost",
    }
}

/// A node, as in `GET /v1/nodes`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeStatus {
    /// Addresses and key.
    pub address: NodeAddress,
    /// Total resources.
    pub capacity: Capacity,
    /// Resources that are not leased.
    pub free: Capacity,
    /// State of the node.
    pub state: NodeState,
    /// Remaining milliseconds of a suspension.
    #[serde(default)]
    pub suspended_ms: u64,
    /// Last failure of a suspended node.
    #[serde(default)]
    pub why: Option<String>,
    /// Milliseconds since its last heartbeat.
    pub heartbeat_age_ms: u64,
    /// Number of leases on the node.
    pub leases: u32,
    /// Isolation levels, as the node reported when it connected; absent while unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandboxes: Option<NodeSandboxes>,
    /// Harvesting on the node, as it last reported; absent while it is off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub harvest: Option<HarvestStatus>,
}

named_enum! {
    /// What a node does with resources that calls own and do not use.
    HarvestMode, "a harvest mode" {
        /// It measures nothing.
        Off = "off",
        /// It measures, holds workers to what they own, and lends nothing.
        Watch = "watch",
        /// It lends cores to other calls as long as they are idle. Memory is measured, and not lent.
        On = "on",
    }
}

/// Harvesting on a node. Only long calls of warm workers are measured, from the second call of a worker on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HarvestStatus {
    /// What the node does.
    pub mode: HarvestMode,
    /// Why it can measure and lend nothing, as a sentence; absent if it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Calls that are measured now.
    pub calls: u32,
    /// Functions with a profile.
    pub functions: u32,
    /// Calls that profiles have learnt from since the node started.
    pub samples: u64,
    /// Processor time of measured calls since the node started, in milliseconds of one core.
    pub core_ms: HarvestTotals,
    /// Memory of measured calls since the node started, in MiB times seconds.
    pub mib_s: HarvestTotals,
    /// Measurements that came so late that a lender would have got everything back.
    pub late_windows: u64,
    /// What the calls had that are measured now. For operators only: tenants could learn from it what others leave idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub now: Option<HarvestedNow>,
}

/// What measured calls had in the last windows of 100 ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct HarvestedNow {
    /// What they owned.
    pub owned: CallResources,
    /// What they used, also of what they borrowed.
    pub used: CallResources,
    /// What others had of them.
    pub lent: CallResources,
    /// What they had of others, and of what no call owned.
    pub borrowed: CallResources,
}

/// An amount of a resource times the time for which calls had it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct HarvestTotals {
    /// Owned by measured calls.
    pub owned: u64,
    /// Used by them, also of what they borrowed.
    pub used: u64,
    /// Borrowed by them, also of what no call owned.
    pub borrowed: u64,
    /// Lent by them to others.
    #[serde(default)]
    pub lent: u64,
}

impl HarvestStatus {
    /// The status of a node that has measured nothing.
    pub fn new(mode: HarvestMode, why: Option<String>) -> Self {
        Self {
            mode,
            why,
            calls: 0,
            functions: 0,
            samples: 0,
            core_ms: HarvestTotals::default(),
            mib_s: HarvestTotals::default(),
            late_windows: 0,
            now: None,
        }
    }
}

/// `PUT /v1/nodes/ID/harvest`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HarvestSwitch {
    /// What the node does from now on, until it ends.
    pub mode: HarvestMode,
}

/// Most bytes of the sentence in [`HarvestStatus::why`].
pub const MAX_HARVEST_WHY_BYTES: usize = 512;

/// The isolation levels that a node allows, by tenant. The node decides and enforces them; the manager only shows them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeSandboxes {
    /// Tenants that own the node.
    pub owners: Vec<TenantId>,
    /// Levels for the owners' leases. The first is the default.
    pub of_owners: Vec<Sandbox>,
    /// Levels for all other tenants' leases.
    pub of_others: Vec<Sandbox>,
}

/// Most owners of a node.
pub const MAX_NODE_OWNERS: usize = 16;

impl NodeSandboxes {
    /// Returns the levels that a tenant's leases may have on the node.
    pub fn of(&self, tenant: TenantId) -> &[Sandbox] {
        match self.owners.contains(&tenant) {
            true => &self.of_owners,
            false => &self.of_others,
        }
    }
}

/// `PATCH /v1/nodes/{id}`: what the node offers to leases from now on, at most what it was started with. What is absent
/// stays as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeResize {
    /// Cores of hot workers, beside those that the node always keeps shared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<u16>,
    /// Memory in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Most warm workers of one core. If absent, it follows `cores` in proportion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<u16>,
    /// GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<u16>,
}

impl NodeResize {
    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Response to `DELETE /v1/nodes/{id}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Reclaimed {
    /// Status of the empty node.
    pub node: NodeStatus,
    /// Leases that were ended.
    pub leases: u32,
    /// Milliseconds from the request's arrival at the node until none of their processes was left.
    pub empty_ms: f64,
}

/// `POST /v1/nodes/join-tokens`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JoinTokenRequest {
    /// Milliseconds until an unused token expires; one hour if absent.
    #[serde(default = "an_hour")]
    pub valid_for_ms: u64,
}

fn an_hour() -> u64 {
    3_600_000
}

/// Response to [`JoinTokenRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JoinToken {
    /// Bearer token for one first connection to `/v1/nodes/connect`.
    pub token: String,
    /// URL of the manager, such as `https://127.0.0.1:7070`.
    pub manager: String,
    /// The certificate authority's certificate, as PEM.
    pub ca_pem: String,
    /// Expiry, in milliseconds since the Unix epoch.
    pub expires_at_ms: u64,
    /// The tenant that made the token. It owns the nodes that join with it, and no other tenant's code runs there as
    /// the node's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<TenantId>,
    /// The site's other managers. Nodes may use any of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<ManagerAddress>,
}
