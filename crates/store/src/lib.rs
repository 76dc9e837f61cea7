//! Durable state of a manager, in terms of the domain.
//!
//! Placement uses the state in memory. The store is its journal, which is read at start. A power cut may lose the last
//! milliseconds of lease changes, because nodes hold the leases and report them again. It loses no bookings and
//! bearers: they are on the disk before they are confirmed.
//!
//! A manager writes to a [`Store`], and its durable tasks to a [`TaskStore`](tasks::TaskStore). Both return a
//! [`Pending`] at once. A single manager has a [`SqliteStore`] and [`SqliteTasks`], or a [`MemoryStore`]. Several
//! managers share a [`PostgresStore`], and one of them at a time has the [`PostgresTasks`]. `mark` detects a database
//! that lost data. With the feature `conformance`, `store_tests!` and `task_store_tests!` test another kind of store.

pub mod accounts;
mod apply;
pub mod flows;
mod mark;
mod memory;
mod news;
mod postgres;
mod sqlite;
pub mod system;
pub mod tasks;
pub mod triggers;

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;

use std::time::Duration;

use dayfly_lease::Cost;
use dayfly_lease::billing::merge;
use dayfly_lease::quota::{Held, QuotaError};
use dayfly_protocol::api::{
    Capacity, FunctionUsage, LeaseState, MAX_FUNCTIONS, Metered, Mode, NodeAddress, Sandbox, Usage,
};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{LeaseId, NodeId, PublicKey, TenantId};
use dayfly_protocol::tenancy::{AuditEntry, Prices, Role, TenantSpec};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::sync::{mpsc, oneshot};

pub use memory::MemoryStore;
pub use news::{Adopted, News, Peer, Presence};
pub use postgres::{PostgresStore, PostgresTasks, SharedTasks, TasksOwner};
pub use sqlite::{SqliteStore, SqliteTasks};

/// Time limit of a write. The longest pause of a healthy disk is some seconds of write-back.
const WRITE_DEADLINE: Duration = Duration::from_secs(10);
/// Time limit of loading everything. Some hundred thousand leases are loaded per second.
pub const LOAD_DEADLINE: Duration = Duration::from_secs(60);

/// Why the store failed. Nothing of the write was kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The disk is full.
    #[error("the store cannot write because its disk is full; free some space, nothing needs a restart")]
    Full,
    /// Another process has the store open.
    #[error("the store {0} is in use by another manager; stop that one, or choose another state directory")]
    InUse(String),
    /// A later release wrote the store.
    #[error("the store has schema {found} and this release knows {known}; start the release that wrote it")]
    Schema {
        /// Schema version of the store.
        found: i64,
        /// Schema version of this release.
        known: i64,
    },
    /// The database has tables of this program's former name.
    #[error(
        "the database has tables of Mayfly, as Dayfly was called before; to go on with them, run \
         `ALTER SCHEMA mayfly RENAME TO dayfly` in it"
    )]
    Former,
    /// Any other error of the disk or the database.
    #[error("the store failed: {0}; check its disk, or restore it from a backup")]
    Broken(String),
    /// The store lacks data that it had when it was last used.
    #[error("{0}; restore the newest backup, or start once with `--accept-loss` to go on with what is there")]
    Lost(String),
    /// The store does not respond in time.
    #[error("the store did not answer within {} s; check its disk, and the database if it is one", WRITE_DEADLINE.as_secs())]
    Slow,
    /// The database cannot be reached.
    #[error("the database cannot be reached: {0}; check that it runs, and the address given with `--store`")]
    Unreachable(String),
    /// The database's address cannot be used.
    #[error("the store `{address}` cannot be used: {why}")]
    Address {
        /// The address without its password.
        address: String,
        /// The reason.
        why: String,
    },
    /// Another manager now owns the node.
    #[error("the node belongs to another manager by now; ask again")]
    Stale,
    /// Another manager now has the tasks.
    #[error("another manager has the tasks by now; ask again")]
    Moved,
    /// The leases of all managers together would exceed a quota.
    #[error(transparent)]
    Quota(#[from] QuotaError),
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Stale => Failure::new(Code::StaleEpoch, error.to_string()),
            StoreError::Moved => Failure::new(Code::Unreachable, error.to_string()),
            StoreError::Quota(quota) => quota.into(),
            StoreError::Lost(_) => Failure::new(Code::StoreLost, error.to_string()),
            other => Failure::new(Code::StoreFailed, other.to_string()),
        }
    }
}

/// A stored lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseRecord {
    /// Id of the lease.
    pub lease: LeaseId,
    /// Tenant that pays.
    pub tenant: TenantId,
    /// Node of the lease.
    pub node: NodeId,
    /// The key that may use it.
    pub holder: PublicKey,
    /// State of the lease.
    pub state: LeaseState,
    /// Number of workers.
    pub workers: u16,
    /// Cores of each worker.
    pub cores_per_worker: u16,
    /// GPUs of each worker.
    pub gpus_per_worker: u16,
    pub mode: Mode,
    /// Isolation of its workers.
    pub sandbox: Sandbox,
    /// Exact image of a container, as reported by its node.
    pub image: Option<String>,
    /// Memory of the whole lease in bytes.
    pub memory_bytes: u64,
    /// Length from first use or last renewal, in milliseconds.
    pub duration_ms: u64,
    /// Time of the grant, in milliseconds since the Unix epoch.
    pub granted_at_ms: u64,
    /// Expiry, in milliseconds since the Unix epoch; later by the start-by time while the lease is only granted.
    pub expires_at_ms: u64,
    /// End, in milliseconds since the Unix epoch; 0 while the lease is alive.
    pub ended_at_ms: u64,
    /// Booked usage.
    pub usage: Usage,
    /// Usage by function, as last reported by its node.
    pub functions: Vec<FunctionUsage>,
    /// Prices agreed at the time of the grant.
    pub prices: Prices,
    /// SHA-256 of the token that it was granted or last renewed with, and with which it ends; `None` if it does not end
    /// with a token.
    pub bearer: Option<[u8; 32]>,
}

impl LeaseRecord {
    /// GPUs of all workers together.
    pub fn gpus(&self) -> u16 {
        self.workers.saturating_mul(self.gpus_per_worker)
    }

    /// Resources that the lease holds while it is alive.
    pub fn held(&self) -> Held {
        Held::by_one(self.workers, self.cores_per_worker, self.memory_bytes)
    }

    /// Books totals of usage. The latest totals determine the division among functions.
    pub fn book(&mut self, used: Metered) {
        self.usage = merge(self.usage, used.usage);
        // A restarted node does not know the lease's functions.
        if !used.functions.is_empty() {
            self.functions = used.functions;
            self.functions.truncate(MAX_FUNCTIONS);
        }
    }

    /// Returns the cost so far.
    pub fn cost(&self) -> Cost {
        Cost::of(&self.prices, &self.usage, self.memory_bytes, self.workers)
    }
}

/// A change of a lease. Changes are idempotent, and a change of an ended lease has no effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Offered to its node, which may still refuse it.
    Offered(Box<LeaseRecord>),
    /// Accepted by its node.
    Taken {
        /// Id of the lease.
        lease: LeaseId,
        /// Mode that the node chose.
        mode: Mode,
        /// Exact image of a container.
        image: Option<String>,
        /// Isolation of its workers.
        sandbox: Sandbox,
    },
    /// Refused by its node. The lease is deleted.
    Refused {
        /// Id of the lease.
        lease: LeaseId,
    },
    /// Used for the first time.
    Active {
        /// Id of the lease.
        lease: LeaseId,
        /// New expiry, in milliseconds since the Unix epoch.
        expires_at_ms: u64,
    },
    /// Renewed.
    Renewed {
        /// Id of the lease.
        lease: LeaseId,
        /// New length in milliseconds.
        duration_ms: u64,
        /// New expiry, in milliseconds since the Unix epoch.
        expires_at_ms: u64,
        /// SHA-256 of the token with which it ends from now on.
        bearer: Option<[u8; 32]>,
    },
    /// Ended.
    Ended {
        /// Id of the lease.
        lease: LeaseId,
        /// Final state.
        state: LeaseState,
        /// Time of the end, in milliseconds since the Unix epoch.
        at_ms: u64,
    },
}

/// A change, made by the manager that owned the lease's node in this epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// The lease's node.
    pub node: NodeId,
    /// Epoch of the ownership. A note of an earlier epoch has no effect.
    pub epoch: u64,
    pub change: Change,
}

/// Result of a [`Note`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Noted {
    /// The change is stored, or was stored before.
    Kept,
    /// Another manager owns the node. Nothing was changed.
    Stale,
    /// The lease was not stored, because its tenant already holds too much at other managers.
    Over(QuotaError),
}

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
pub struct Registered {
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
pub struct Booked {
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

/// Entries of the audit log that one step of trimming examines.
pub const AUDIT_STEP: u32 = 10_000;
/// Approximate bytes of an entry besides its subject and details.
pub const AUDIT_ENTRY_BYTES: u64 = 100;

/// One step of trimming the audit log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuditTrim {
    /// Examines entries with greater numbers.
    pub above: u64,
    /// Most entries to examine.
    pub step: u32,
    /// Deletes entries up to this number.
    pub up_to: u64,
    /// Deletes entries from before this time, in milliseconds since the Unix epoch.
    pub before_ms: u64,
}

/// Result of one step of trimming the audit log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Trimmed {
    /// Number of deleted entries.
    pub entries: u64,
    /// Where the next step begins, if there may be more entries.
    pub next: Option<u64>,
}

/// Selects entries of the audit log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuditPage {
    /// Entries with greater numbers than this.
    pub above: u64,
    /// Entries with smaller numbers than this: the last of them. `None` for the first entries after `above`.
    pub before: Option<u64>,
    /// Most entries.
    pub limit: u32,
}

impl AuditPage {
    /// Returns the upper bound within the range of a database's integers.
    fn below(&self) -> i64 {
        let most = i64::MAX as u64;
        self.before.unwrap_or(most).min(most) as i64
    }
}

/// The kind of a bearer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum As {
    /// A person or a program that uses the HTTP API.
    Client(Role),
    /// A future node, once.
    Join,
    /// The node that the bearer is bound to.
    Node,
    /// The dispatcher of the endpoint whose id is the bearer's name.
    Endpoint,
}

impl As {
    /// Whether a new bearer of this kind replaces the earlier one with the same kind, tenant and name.
    pub fn is_named(self) -> bool {
        matches!(self, Self::Client(_) | Self::Endpoint)
    }

    /// Whether both are of the same kind, regardless of their roles.
    pub fn is_like(self, other: Self) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }

    /// The kind's name in the store.
    fn name(self) -> &'static str {
        match self {
            Self::Client(role) => role.name(),
            Self::Join => "join",
            Self::Node => "node",
            Self::Endpoint => "endpoint",
        }
    }

    /// Parses [`As::name`].
    fn from_name(name: &str) -> Self {
        match name {
            "join" => Self::Join,
            "endpoint" => Self::Endpoint,
            other => Role::from_name(other).map_or(Self::Node, Self::Client),
        }
    }
}

/// Returns the SHA-256 of a text. A store contains only this of a token. A token is 256 random bits, so its plain hash
/// cannot be reversed.
pub fn hash(text: &str) -> [u8; 32] {
    Sha256::digest(text).into()
}

/// A bearer token. The store contains only its SHA-256.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bearer {
    /// SHA-256 of the token.
    pub hash: [u8; 32],
    /// Kind of the bearer.
    pub speaks: As,
    /// Tenant of the bearer.
    pub tenant: TenantId,
    /// Purpose, for display. A client's token replaces the tenant's earlier one with the same name, and an endpoint's
    /// token replaces that endpoint's earlier one.
    pub name: String,
    /// Whether the bearer may only read.
    pub read_only: bool,
    /// The node that it is bound to, or that used it.
    pub node: Option<NodeId>,
    /// Expiry, in milliseconds since the Unix epoch.
    pub expires_at_ms: u64,
}

/// What happens to the leases of a revoked token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leases {
    /// They end.
    End,
    /// They continue to their own expiry.
    Keep,
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

/// A write in progress.
#[derive(Debug)]
pub struct Pending<T>(oneshot::Receiver<Result<T, StoreError>>);

impl<T> Pending<T> {
    /// Returns a write that has completed or failed.
    pub fn ready(result: Result<T, StoreError>) -> Self {
        let (sender, receiver) = oneshot::channel();
        // The receiver exists, so sending cannot fail.
        let _ = sender.send(result);
        Self(receiver)
    }

    /// Waits until the write is durable or has failed. After the time limit, with [`StoreError::Slow`], it may still
    /// become durable.
    pub async fn wait(self) -> Result<T, StoreError> {
        self.within(WRITE_DEADLINE).await
    }

    /// Like [`Pending::wait`], with another time limit.
    pub async fn within(self, deadline: Duration) -> Result<T, StoreError> {
        match tokio::time::timeout(deadline, self.0).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(StoreError::Broken("its writer has stopped".into())),
            Err(_) => Err(StoreError::Slow),
        }
    }
}

impl<T> From<oneshot::Receiver<Result<T, StoreError>>> for Pending<T> {
    /// Returns a write whose result the store sends. It fails if the sender is dropped.
    fn from(result: oneshot::Receiver<Result<T, StoreError>>) -> Self {
        Self(result)
    }
}

/// A store of lease changes.
pub trait Notes: Send + Sync + 'static {
    /// Stores changes of leases in this order, all or none, except those that are [`Noted::Stale`] or [`Noted::Over`].
    fn note(&self, notes: Vec<Note>) -> Pending<Vec<Noted>>;
}

/// Durable state of a manager. Writes take effect in the order of the calls. Each is kept completely or not at all.
///
/// Some stores serve several managers at once. The other managers receive one manager's changes of tenants, bearers,
/// prices and nodes as [`News`]. Only the owner of a node keeps its leases in memory, and the next owner loads them.
/// The methods for several managers do nothing for a single one.
pub trait Store: Notes {
    /// Loads everything except leases that ended before this time.
    fn load(&self, ended_after_ms: u64) -> Pending<Snapshot>;

    /// Registers a node: stores its address and owner, and returns its new epoch. Returns `None` if it is known with
    /// another key. Includes its leases that ended after this time, if it comes from another manager.
    fn register(&self, address: NodeAddress, capacity: Capacity, ended_after_ms: u64) -> Pending<Option<Registered>>;

    /// Books totals of this node's leases under a number of its journal, durably. Returns the last booked number. A
    /// number that is not greater was booked before and changes nothing, whichever manager sends it. The cost of the
    /// leases is added to their tenants' spending in the same transaction.
    fn book(&self, node: NodeId, sequence: u64, totals: Vec<(LeaseId, Metered)>) -> Pending<Booked>;

    /// Charges tenants for their tasks, durably. Idempotent: amounts are growing totals, and a total that was already
    /// charged changes nothing. Returns the tenants that were charged.
    fn charge(&self, totals: Vec<(TenantId, u64)>) -> Pending<Vec<TenantRecord>>;

    /// Records that a node's owner reclaimed it or returned it. Durable.
    fn reclaim(&self, node: NodeId, reclaimed: bool) -> Pending<()>;

    /// Stores a bearer, durably. A client's bearer replaces that tenant's earlier one with the same name and takes over
    /// its leases.
    fn keep(&self, bearer: Bearer) -> Pending<()>;

    /// Deletes a bearer, durably. With [`Leases::Keep`], its leases no longer end with a token; otherwise the owners of
    /// their nodes end them.
    fn revoke(&self, hash: [u8; 32], leases: Leases) -> Pending<()>;

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
    fn trim_audit(&self, trim: AuditTrim) -> Pending<Trimmed>;

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
    fn adopt(&self, _from: PublicKey, _silent: Duration, _ended_after_ms: u64) -> Pending<Adopted> {
        Pending::ready(Ok(Adopted::default()))
    }

    /// Sends news to the other managers.
    fn tell(&self, _news: Vec<News>) {}

    /// Returns a receiver of the other managers' changes from now on. It can be taken once.
    fn news(&self) -> Option<mpsc::Receiver<News>> {
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
