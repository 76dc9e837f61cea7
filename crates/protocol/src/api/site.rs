//! The site as a whole: its managers, connection files, events, health and errors.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Capacity, LeaseState};
use crate::error::Failure;
use crate::ids::{LeaseId, NodeId, PublicKey};
use crate::named::named_enum;

/// Events of `GET /v1/events` (WebSocket).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A node registered.
    NodeUp {
        /// Id of the node.
        node: NodeId,
    },
    /// A node's heartbeats stopped or its connection was lost.
    NodeLost {
        /// Id of the node.
        node: NodeId,
    },
    /// A node was stopped in order.
    NodeLeft {
        /// Id of the node.
        node: NodeId,
    },
    /// A node was reclaimed and is empty.
    NodeReclaimed {
        /// Id of the node.
        node: NodeId,
    },
    /// A node offers more or fewer resources to leases.
    NodeResized {
        /// Id of the node.
        node: NodeId,
        /// What it offers now.
        capacity: Capacity,
    },
    /// A node failed repeatedly and gets no leases for a while.
    NodeSuspended {
        /// Id of the node.
        node: NodeId,
        /// Length of the suspension in milliseconds.
        for_ms: u64,
        /// Last failure.
        why: String,
    },
    /// A lease changed its state.
    Lease {
        /// Id of the lease.
        lease: LeaseId,
        /// Node of the lease.
        node: NodeId,
        /// New state.
        state: LeaseState,
    },
    /// A worker attempted something that no legitimate function does, and was refused.
    Incident {
        /// Lease of the worker.
        lease: LeaseId,
        /// Node of the worker.
        node: NodeId,
        /// What it attempted.
        what: String,
    },
}

/// Address of a site's manager, and how to authenticate it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ManagerAddress {
    /// URL, such as `https://127.0.0.1:7070`.
    pub manager: String,
    /// The certificate authority's certificate, as PEM.
    pub ca_pem: String,
}

named_enum! {
    /// State of a manager.
    ManagerState, "a manager state" {
        /// It has sent a message recently.
        Up = "up",
        /// It has sent nothing for some seconds.
        Silent = "silent",
    }
}

/// A manager, as in `GET /v1/managers`. The responding manager comes first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ManagerStatus {
    /// URL and certificate authority.
    #[serde(flatten)]
    pub address: ManagerAddress,
    /// Key that signs its tokens.
    pub key: PublicKey,
    /// State of the manager.
    pub state: ManagerState,
    /// Milliseconds since its last message.
    pub silent_ms: u64,
}

/// Header on every response of a manager that is one of several. Its value changes with the list of managers; a client
/// that sees a new value may request `GET /v1/managers`.
pub const MANAGERS_HEADER: &str = "dayfly-managers";

/// Connection file. A daemon writes it into its state directory (mode 0600) for clients of the same user, and
/// `DAYFLY_MANAGER` may name its path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Connection {
    /// URL of the manager, such as `https://127.0.0.1:7070`.
    pub manager: String,
    /// The certificate authority's certificate, as PEM.
    pub ca_pem: String,
    /// Bearer token; empty in a file that is used to log in.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub token: String,
    /// The site's other managers. Clients may use any of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<ManagerAddress>,
}

impl Connection {
    /// Returns all managers. The first is the one that the file names directly.
    pub fn managers(&self) -> Vec<ManagerAddress> {
        let first = ManagerAddress {
            manager: self.manager.clone(),
            ca_pem: self.ca_pem.clone(),
        };
        std::iter::once(first).chain(self.others.iter().cloned()).collect()
    }
}

/// A server where the ranks of groups meet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RendezvousAddress {
    /// Address as `host:port`.
    pub address: String,
    /// Key with which the server authenticates.
    #[schema(value_type = String)]
    pub key: PublicKey,
    /// The manager's signature, in hexadecimal. Authorises nodes to join for ranks that have no network.
    #[serde(default)]
    pub voucher: String,
}

/// Response to `GET /v1/rendezvous`: where the ranks of groups meet, and how the caller names its groups.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MeetingPlace {
    /// The server.
    #[serde(flatten)]
    pub rendezvous: RendezvousAddress,
    /// With what the names of the tenant's groups begin. The list of groups shows a tenant those with its own prefix.
    #[serde(default)]
    pub group_prefix: String,
}

/// A group of ranks that meets here, in the list of `GET /v1/groups`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GroupStatus {
    /// Name of the group, without the prefix of its tenant.
    pub name: String,
    /// The tenant whose prefix its name begins with; `None` for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The run; empty if its starter names none.
    pub run: String,
    /// Number of ranks.
    pub size: u32,
    /// Ranks that are present, in order.
    pub ranks: Vec<u32>,
    /// Whether all ranks have met.
    pub formed: bool,
    /// The first rank that was lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_rank: Option<u32>,
    /// Why that rank was lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// `GET /v1/version`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VersionInfo {
    /// Release of the manager.
    pub version: String,
    /// Its [`crate::WIRE_VERSION`].
    pub wire_version: u16,
}

named_enum! {
    /// Whether a manager can do its work.
    HealthStatus, "a health status" {
        /// It can.
        Ok = "ok",
        /// Its store cannot write.
        Degraded = "degraded",
    }
}

/// `GET /v1/health`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// Whether it can do its work.
    pub status: HealthStatus,
    /// Nodes that are up.
    pub nodes_up: u32,
    /// Leases that are granted or active.
    pub leases: u32,
    /// Last error of the store, while degraded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store_error: Option<String>,
}

/// Body of every HTTP error response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// Code, what happened and what to do.
    pub error: Failure,
}
