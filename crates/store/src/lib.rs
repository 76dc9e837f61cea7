//! Durable state of a manager, in terms of the domain.
//!
//! Placement uses the state in memory. The store is its journal, which is read at start. A power cut may lose the last
//! milliseconds of lease changes, because nodes hold the leases and report them again. It loses no bookings and
//! bearers: they are on the disk before they are confirmed.
//!
//! A manager writes to a [`Store`], and its durable tasks to a [`TaskStore`](tasks::TaskStore). Both return a
//! [`Pending`] at once. A single manager has a [`SqliteStore`] and [`SqliteTasks`], or a [`MemoryStore`]. Several
//! managers share a [`PostgresStore`], and one of them at a time has the [`PostgresTasks`]. `commit_mark` detects a
//! database that lost data. With the feature `conformance`, `store_tests!` and `task_store_tests!` test another kind of
//! store.

mod audit;
mod bearers;
mod commit_mark;
mod content_list;
mod error;
pub mod flows;
mod leases;
mod memory;
mod peers;
mod pending;
mod postgres;
mod sqlite;
pub mod system;
mod task_loans;
mod task_output;
pub mod tasks;
pub mod teams;
pub mod triggers;

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;

use std::time::Duration;

use dayfly_lease::quota::Held;
use dayfly_protocol::api::{Capacity, Metered, NodeAddress};
use dayfly_protocol::ids::{LeaseId, NodeId, PublicKey, TenantId};
use dayfly_protocol::tenancy::{AuditEntry, Prices, TenantSpec};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

pub use audit::{AUDIT_ENTRY_BYTES, AUDIT_STEP, AuditPage, AuditTrim, TrimResult};
pub use bearers::{Bearer, BearerKind, RevokedLeases, hash};
pub use error::StoreError;
pub use leases::{Change, ChangeResult, LeaseRecord, OwnedChange};
pub use memory::MemoryStore;
pub use peers::{AdoptedNodes, Peer, PeerUpdate, Presence};
pub use pending::Pending;
pub use postgres::{PostgresStore, PostgresTasks, SharedTasks, TasksOwner};
pub use sqlite::{SqliteStore, SqliteTasks};

/// Time limit of a write. The longest pause of a healthy disk is some seconds of write-back.
const WRITE_DEADLINE: Duration = Duration::from_secs(10);
/// Time limit of loading everything. Some hundred thousand leases are loaded per second.
pub const LOAD_DEADLINE: Duration = Duration::from_secs(60);

/// A stored node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Last known address.
    pub address: NodeAddress,
    /// Last known capacity.
    pub capacity: Capacity,
    /// Last epoch of ownership by a manager.
    pub epoch: u64,
    /// Last booked number of its journal.
    pub booked: u64,
    /// Whether its owner has reclaimed it.
    pub reclaimed: bool,
    /// The manager that it last connected to, if the store serves several.
    pub manager: Option<PublicKey>,
}

/// State of a node that registers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeRegistration {
    /// New epoch, one more than the last.
    pub epoch: u64,
    /// Last booked number of its journal.
    pub booked: u64,
    /// Whether its owner has reclaimed it.
    pub reclaimed: bool,
    /// If another manager had the node before: its live and recently ended leases.
    pub leases: Option<Vec<LeaseRecord>>,
}

/// A stored tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantRecord {
    /// Id of the tenant.
    pub id: TenantId,
    /// Unique name.
    pub name: String,
    /// Limits and prices.
    pub spec: TenantSpec,
    /// Total spending in billionths. Only bookings and charges change it.
    pub spent: u64,
    /// The part of `spent` for tasks: the last total that was [charged](Store::charge).
    pub spent_on_tasks: u64,
}

/// Result of a booking.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BookingResult {
    /// Last booked number of the node's journal.
    pub sequence: u64,
    /// Tenants that this booking charged, with their total spending in billionths.
    pub spent: Vec<(TenantId, u64)>,
}

/// Selects lines of the bill: leases that were alive within a period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BillQuery {
    /// Only this tenant's leases; `None` for all tenants'.
    pub tenant: Option<TenantId>,
    /// Omits leases that ended before, in milliseconds since the Unix epoch.
    pub from_ms: u64,
    /// Omits leases granted at or after this time, in milliseconds since the Unix epoch.
    pub until_ms: u64,
    /// Last lease of the previous page: time of its grant, and id.
    pub after: Option<(u64, LeaseId)>,
    /// Most lines.
    pub limit: u32,
}

/// State that a manager loads when it starts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// All nodes that ever registered.
    pub nodes: Vec<NodeRecord>,
    /// Live and recently ended leases on this manager's nodes.
    pub leases: Vec<LeaseRecord>,
    /// All bearers.
    pub bearers: Vec<Bearer>,
    /// All tenants.
    pub tenants: Vec<TenantRecord>,
    /// Prices of tenants that have none of their own.
    pub prices: Prices,
}

/// Writes changes of leases.
pub trait LeaseWriter: Send + Sync + 'static {
    /// Stores changes of leases in this order, all or none, except those that are [`ChangeResult::Stale`] or
    /// [`ChangeResult::OverQuota`].
    fn change_leases(&self, changes: Vec<OwnedChange>) -> Pending<Vec<ChangeResult>>;
}

/// Durable state of a manager. Writes take effect in the order of the calls. Each is kept completely or not at all.
///
/// Some stores serve several managers at once. The other managers receive one manager's changes of tenants, bearers,
/// prices and nodes as [`PeerUpdate`]. Only the owner of a node keeps its leases in memory, and the next owner loads
/// them. The methods for several managers do nothing for a single one.
pub trait Store: LeaseWriter {
    /// Loads everything except leases that ended before this time.
    fn load(&self, ended_after_ms: u64) -> Pending<Snapshot>;

    /// Registers a node: stores its address and owner, and returns its new epoch. Returns `None` if it is known with
    /// another key. Includes its leases that ended after this time, if it comes from another manager.
    fn register(
        &self,
        address: NodeAddress,
        capacity: Capacity,
        ended_after_ms: u64,
    ) -> Pending<Option<NodeRegistration>>;

    /// Books totals of this node's leases under a number of its journal, durably. Returns the last booked number. A
    /// number that is not greater was booked before and changes nothing, whichever manager sends it. The cost of the
    /// leases is added to their tenants' spending in the same transaction.
    fn book(&self, node: NodeId, sequence: u64, totals: Vec<(LeaseId, Metered)>) -> Pending<BookingResult>;

    /// Charges tenants for their tasks, durably. Idempotent: amounts are growing totals, and a total that was already
    /// charged changes nothing. Returns the tenants that were charged.
    fn charge(&self, totals: Vec<(TenantId, u64)>) -> Pending<Vec<TenantRecord>>;

    /// Records that a node's owner reclaimed it or returned it. Durable.
    fn reclaim(&self, node: NodeId, reclaimed: bool) -> Pending<()>;

    /// Stores a bearer, durably. A client's bearer replaces that tenant's earlier one with the same name and takes over
    /// its leases.
    fn keep(&self, bearer: Bearer) -> Pending<()>;

    /// Deletes a bearer, durably. With [`RevokedLeases::Keep`], its leases no longer end with a token; otherwise the
    /// owners of their nodes end them.
    fn revoke(&self, hash: [u8; 32], leases: RevokedLeases) -> Pending<()>;

    /// Stores a tenant's limits under its name, durably, with the id `new` if the name is new. Does not change its
    /// spending.
    fn tenant(&self, new: TenantId, name: String, spec: TenantSpec) -> Pending<TenantRecord>;

    /// Stores the site's prices, durably.
    fn prices(&self, prices: Prices) -> Pending<()>;

    /// Returns lines of the bill, ordered by time of grant and id.
    fn bill(&self, query: BillQuery) -> Pending<Vec<LeaseRecord>>;

    /// Appends an entry to the audit log, durably, under the next number. Ignores the number in `entry`.
    fn audit(&self, entry: AuditEntry) -> Pending<()>;

    /// Returns a page of the audit log, oldest entry first.
    fn audited(&self, page: AuditPage) -> Pending<Vec<AuditEntry>>;

    /// Returns the number of the last entry to delete if the audit log may have `most_bytes`; 0 if none must be
    /// deleted.
    fn audit_surplus(&self, most_bytes: u64) -> Pending<u64>;

    /// Performs one step of trimming the audit log.
    fn trim_audit(&self, trim: AuditTrim) -> Pending<TrimResult>;

    /// Uses up a join token for a node and stores that node's only credential, durably. Returns false if the token does
    /// not exist, has expired, or was used by another node. The same node may repeat the call, because its response may
    /// have been lost.
    fn admit(&self, join_hash: [u8; 32], credential: Bearer, now_ms: u64) -> Pending<bool>;

    /// Records that this manager is alive, and returns the other managers. Returns `None` for a store of a single
    /// manager.
    fn present(&self, _me: Presence) -> Option<Pending<Vec<Peer>>> {
        None
    }

    /// Takes over the nodes of a manager that has been silent for `_silent`, and returns them.
    fn adopt(&self, _from: PublicKey, _silent: Duration, _ended_after_ms: u64) -> Pending<AdoptedNodes> {
        Pending::ready(Ok(AdoptedNodes::default()))
    }

    /// Sends updates to the other managers.
    fn publish(&self, _updates: Vec<PeerUpdate>) {}

    /// Returns a receiver of the other managers' changes from now on. It can be taken once.
    fn peer_updates(&self) -> Option<mpsc::Receiver<PeerUpdate>> {
        None
    }

    /// Returns leases on other managers' nodes that are alive or ended after this time: one lease, or all.
    fn others(&self, _lease: Option<LeaseId>, _ended_after_ms: u64) -> Pending<Vec<LeaseRecord>> {
        Pending::ready(Ok(Vec::new()))
    }

    /// Returns what tenants hold on all managers' nodes, or `None` where this manager's memory contains that.
    fn held(&self) -> Option<Pending<Vec<(TenantId, Held)>>> {
        None
    }
}
