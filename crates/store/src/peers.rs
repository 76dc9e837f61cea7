//! Messages between managers that share a store.

use dayfly_protocol::api::{Capacity, Event};
use dayfly_protocol::ids::{PublicKey, TenantId};
use dayfly_protocol::tenancy::Prices;
use serde::{Deserialize, Serialize};

use super::{Bearer, LeaseRecord, NodeRecord, Snapshot, TenantRecord};

/// A change or an event of another manager.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum PeerUpdate {
    /// A manager has started. Nodes and clients must learn its address before another manager dies.
    Manager,
    /// A tenant was created, or its limits changed.
    Tenant(TenantRecord),
    /// A tenant's total spending, in billionths.
    Spent(TenantId, u64),
    /// The site's prices.
    Prices(Prices),
    /// A bearer was created. It replaces the same bearers as in the store.
    Bearer(Bearer),
    /// A bearer was revoked, and its leases must end.
    Revoked([u8; 32]),
    /// The leases of this bearer, which is about to be revoked, continue without it.
    LeasesKept([u8; 32]),
    /// A node has a new owner or address, or was reclaimed or returned.
    Node(NodeRecord),
    /// An event, with the tenant of the lease that it concerns.
    Event(Event, Option<TenantId>),
    /// The complete state, because messages may have been missed.
    #[serde(skip)]
    Everything(Box<Snapshot>),
}

/// A manager's description of itself for the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Presence {
    /// URL for nodes, clients and other managers.
    pub url: String,
    /// Its certificate authority, as PEM.
    pub ca_pem: String,
    /// Free resources of its nodes together.
    pub free: Capacity,
}

/// Another manager.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Key that signs its tokens. Identifies the manager.
    pub key: PublicKey,
    /// Last received description.
    pub presence: Presence,
    /// Milliseconds since its last message, by the store's clock.
    pub silent_ms: u64,
}

/// State of a dead manager that another one takes over.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AdoptedNodes {
    /// Its nodes, with their new epochs.
    pub nodes: Vec<NodeRecord>,
    /// Their live and recently ended leases.
    pub leases: Vec<LeaseRecord>,
}
