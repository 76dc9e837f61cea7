//! What managers over one store tell each other.

use dayfly_protocol::accounts::Prices;
use dayfly_protocol::api::{Capacity, Event};
use dayfly_protocol::ids::{PublicKey, TenantId};
use serde::{Deserialize, Serialize};

use super::{Bearer, LeaseRecord, NodeRecord, Snapshot, TenantRecord};

/// Something that another manager changed or saw.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum News {
    /// A manager has started: nodes and clients shall know of it before another one dies.
    Manager,
    /// A tenant is new, or has other limits.
    Tenant(TenantRecord),
    /// A tenant has spent so much.
    Spent(TenantId, u64),
    /// The site's prices.
    Prices(Prices),
    /// A bearer is new, and replaces whatever it replaces in the store.
    Bearer(Bearer),
    /// This bearer is worth nothing any more, and its leases are to end.
    Revoked([u8; 32]),
    /// The leases of this bearer, which is about to be revoked, go on without it.
    LeasesKept([u8; 32]),
    /// A node has a new owner or address, or was taken back or given again.
    Node(NodeRecord),
    /// Something happened, to a lease of this tenant if it is about one.
    Event(Event, Option<TenantId>),
    /// Some of it may have been missed: this is how everything is.
    #[serde(skip)]
    Everything(Box<Snapshot>),
}

/// A manager as it tells the others of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Presence {
    /// `https://...`, where nodes, clients and other managers reach it.
    pub url: String,
    /// Its certificate authority, PEM.
    pub ca_pem: String,
    /// What its nodes have free, all together.
    pub free: Capacity,
}

/// Another manager.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Signs its tokens, and is its name.
    pub key: PublicKey,
    /// As it said last.
    pub presence: Presence,
    /// For how long it has said nothing, in milliseconds of the store's clock.
    pub silent_ms: u64,
}

/// What a manager that died leaves to the one that goes on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Adopted {
    /// Its nodes, under their new epochs.
    pub nodes: Vec<NodeRecord>,
    /// Their leases that live, or ended lately.
    pub leases: Vec<LeaseRecord>,
}
