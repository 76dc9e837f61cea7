//! Endpoints and their blocks in the bodies of the manager's HTTP API.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::ids::{EndpointId, TenantId};
use crate::named::named_enum;
use crate::tasks::TaskCounts;

/// Settings of an endpoint, made by its owner.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct EndpointSpec {
    /// Description, for display.
    pub description: String,
    /// How it obtains nodes: `local`, `slurm`, ...
    pub provider: String,
    /// Names of tenants other than the owner that may run tasks there; `team:NAME` for a team, `*` for everyone.
    pub shared_with: Vec<String>,
    /// Whether each tenant's tasks run under the tenant's own account, at a separate endpoint named after this one and
    /// the tenant.
    pub accounts: bool,
}

/// A request from an endpoint with per-tenant accounts for the credentials of one tenant's daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AccountRequest {
    /// Id of the tenant.
    pub tenant: TenantId,
}

/// An endpoint to register.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EndpointRegistration {
    /// Unique name.
    #[schema(pattern = "^[A-Za-z][A-Za-z0-9._-]{0,127}$")]
    pub name: String,
    /// Settings of the endpoint.
    #[serde(flatten)]
    pub spec: EndpointSpec,
}

/// A registered endpoint and the token of its dispatcher. The token is shown only once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NewEndpoint {
    /// Bearer token of the dispatcher. Invalidates earlier tokens of the same endpoint.
    pub token: String,
    /// `https://address:port` of the manager.
    pub manager: String,
    /// The manager's certificate authority, as PEM.
    pub ca_pem: String,
    /// Status of the endpoint.
    pub status: EndpointStatus,
}

named_enum! {
    /// State of a block.
    BlockState, "a block state" {
        /// In the batch system's queue.
        Pending = "pending",
        /// Running on its nodes.
        Running = "running",
    }
}

/// Nodes that a site requested or holds through one batch job: a pilot job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BlockStatus {
    /// Name of the block at the endpoint.
    pub name: String,
    /// Job id in the batch system.
    pub job: String,
    /// State of the block.
    pub state: BlockState,
    /// Nodes requested.
    pub nodes: u32,
    /// Nodes that have joined.
    pub joined: u32,
    /// Time of submission, in milliseconds since the Unix epoch.
    pub submitted_at_ms: u64,
    /// Latest end, in milliseconds since the Unix epoch; 0 if unknown or unlimited.
    pub ends_at_ms: u64,
    /// The batch system's message, such as why the job is pending.
    pub words: String,
}

named_enum! {
    /// State of an endpoint.
    EndpointState, "an endpoint state" {
        /// Its dispatcher is connected.
        Up = "up",
        /// Its dispatcher is not connected.
        Down = "down",
    }
}

/// A registered endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EndpointStatus {
    /// Id of the endpoint.
    pub id: EndpointId,
    pub name: String,
    /// Name of the owner.
    pub owner: String,
    /// Whether another tenant operates it. Only plain data may be read from its results, unless the caller trusts that
    /// tenant.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub foreign: bool,
    /// Settings of the endpoint.
    #[serde(flatten)]
    pub spec: EndpointSpec,
    /// State of the endpoint.
    pub state: EndpointState,
    /// Workers at present.
    pub workers: u32,
    /// Blocks that it holds or has requested from a batch system.
    pub blocks: Vec<BlockStatus>,
    /// Why it has no more workers, if it wants more: the error message of the party that refused.
    pub trouble: Option<String>,
    /// Its tasks, of all owners.
    pub tasks: TaskCounts,
}
