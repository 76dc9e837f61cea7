//! What must survive the manager's death, in terms of the domain.
//!
//! Placement decides on what is in memory; the store is its journal and is read at start. Lease changes may lose the
//! last milliseconds in a power cut, because nodes hold the leases and report them again. Bookings and bearers may
//! not: they are on the disk before anybody hears that they are.
//!
//! A manager writes to a [`Store`], and its durable tasks to a [`TaskStore`](tasks::TaskStore). Both return a [`Pending`] at once.
//! One manager has a [`SqliteStore`] and [`SqliteTasks`], or a [`MemoryStore`]; several share a [`PostgresStore`], and one of them at
//! a time takes the [`PostgresTasks`]. `mark` notices a database that lost what it had. With the feature `conformance`,
//! `store_tests!` and `task_store_tests!` test a store of another kind.

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

use dayfly_lease::billing::merge;
use dayfly_lease::quota::{Held, QuotaError};
use dayfly_lease::{Cost, State};
use dayfly_protocol::accounts::{AuditEntry, Prices, Role, TenantSpec};
use dayfly_protocol::api::{Capacity, FunctionUsage, MOST_FUNCTIONS, Metered, Mode, NodeAddress, Sandbox, Usage};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{LeaseId, NodeId, PublicKey, TenantId};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};

pub use memory::MemoryStore;
pub use news::{Adopted, News, Peer, Presence};
pub use postgres::{PostgresStore, PostgresTasks, SharedTasks, TasksOwner};
pub use sqlite::{SqliteStore, SqliteTasks};

/// A write that takes longer is given up: the longest pause of a healthy disk is some seconds of write-back.
const WRITE_DEADLINE: Duration = Duration::from_secs(10);
/// Reading all of it: some hundred thousand leases a second.
pub const LOAD_DEADLINE: Duration = Duration::from_secs(60);

/// Why the store could not do it. Nothing of the write was kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// No room.
    #[error("the store cannot write because its disk is full; free some space, nothing needs a restart")]
    Full,
    /// Held by another process.
    #[error("the store {0} is in use by another manager; stop that one, or choose another state directory")]
    InUse(String),
    /// Written by a later release.
    #[error("the store has schema {found} and this release knows {known}; start the release that wrote it")]
    Schema {
        /// In the file.
        found: i64,
        /// Ours.
        known: i64,
    },
    /// Of this program, when it had another name.
    #[error(
        "the database has tables of Mayfly, as Dayfly was called before; to go on with them, run \
         `ALTER SCHEMA mayfly RENAME TO dayfly` in it"
    )]
    Former,
    /// Anything else that the disk or the database says.
    #[error("the store failed: {0}; check its disk, or restore it from a backup")]
    Broken(String),
    /// It lacks what it had when it was used last.
    #[error("{0}; restore the newest backup, or start once with `--accept-loss` to go on with what is there")]
    Lost(String),
    /// It does not answer.
    #[error("the store did not answer within {} s; check its disk, and the database if it is one", WRITE_DEADLINE.as_secs())]
    Slow,
    /// No connection to the database.
    #[error("the database cannot be reached: {0}; check that it runs, and the address given with `--store`")]
    Unreachable(String),
    /// The address of a database that cannot be used.
    #[error("the store `{address}` cannot be used: {why}")]
    Address {
        /// As given, without its password.
        address: String,
        /// Why not.
        why: String,
    },
    /// Another manager owns the node now.
    #[error("the node belongs to another manager by now; ask again")]
    Stale,
    /// Another manager has the tasks now.
    #[error("another manager has the tasks by now; ask again")]
    Moved,
    /// Leases of all managers together would hold too much.
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

/// A lease in the books.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseRecord {
    /// Which.
    pub lease: LeaseId,
    /// Who pays.
    pub tenant: TenantId,
    /// Where.
    pub node: NodeId,
    /// The key that uses it.
    pub holder: PublicKey,
    /// Where it is in its life.
    pub state: State,
    /// Workers.
    pub workers: u16,
    /// Cores of each.
    pub cores_per_worker: u16,
    /// GPUs of each.
    pub gpus_per_worker: u16,
    /// Hot or warm.
    pub mode: Mode,
    /// How isolated its workers are.
    pub sandbox: Sandbox,
    /// What containers run in, as their node says.
    pub image: Option<String>,
    /// Memory of all of it.
    pub memory_bytes: u64,
    /// Length from first use or last renewal.
    pub duration_ms: u64,
    /// Wall clock, milliseconds since the Unix epoch.
    pub granted_at_ms: u64,
    /// Wall clock; later by the start-by time while it is only granted.
    pub expires_at_ms: u64,
    /// Wall clock; 0 while it lives.
    pub ended_at_ms: u64,
    /// What was booked.
    pub usage: Usage,
    /// Which functions used it, as the node said last.
    pub functions: Vec<FunctionUsage>,
    /// What was agreed when it was granted.
    pub prices: Prices,
    /// SHA-256 of the token that it was granted or last renewed with, and ends with; none where it ends with no token.
    pub bearer: Option<[u8; 32]>,
}

impl LeaseRecord {
    /// GPUs of all workers together.
    pub fn gpus(&self) -> u16 {
        self.workers.saturating_mul(self.gpus_per_worker)
    }

    /// What it holds while it lives.
    pub fn held(&self) -> Held {
        Held::by_one(self.workers, self.cores_per_worker, self.memory_bytes)
    }

    /// More is booked: totals, of which the latest say how they are made up.
    pub fn book(&mut self, used: Metered) {
        self.usage = merge(self.usage, used.usage);
        // A node that was started anew knows nothing of the lease's functions.
        if !used.functions.is_empty() {
            self.functions = used.functions;
            self.functions.truncate(MOST_FUNCTIONS);
        }
    }

    /// What it cost so far.
    pub fn cost(&self) -> Cost {
        Cost::of(&self.prices, &self.usage, self.memory_bytes, self.workers)
    }
}

/// What happens to leases. Each may be repeated without harm; what is said of an ended lease changes nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Offered to its node, which may refuse it yet.
    Offered(Box<LeaseRecord>),
    /// Its node took it, and says whether its workers poll.
    Taken {
        /// Which.
        lease: LeaseId,
        /// Hot or warm.
        mode: Mode,
        /// What containers run in.
        image: Option<String>,
        /// How isolated its workers are.
        sandbox: Sandbox,
    },
    /// Its node refused it: there never was such a lease.
    Refused {
        /// Which.
        lease: LeaseId,
    },
    /// Used for the first time.
    Active {
        /// Which.
        lease: LeaseId,
        /// The expiry from now on.
        expires_at_ms: u64,
    },
    /// Renewed.
    Renewed {
        /// Which.
        lease: LeaseId,
        /// New length.
        duration_ms: u64,
        /// The expiry from now on.
        expires_at_ms: u64,
        /// The token that it ends with from now on.
        bearer: Option<[u8; 32]>,
    },
    /// Ended.
    Ended {
        /// Which.
        lease: LeaseId,
        /// How.
        state: State,
        /// When.
        at_ms: u64,
    },
}

/// A change, by whoever owned the lease's node under this epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// The lease's node.
    pub node: NodeId,
    /// Under which it was owned then. One that is over changes nothing any more.
    pub epoch: u64,
    /// What happened.
    pub change: Change,
}

/// What became of a [`Note`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Noted {
    /// It is in the store, or says nothing new.
    Kept,
    /// The node has another owner: nothing was changed.
    Stale,
    /// A lease that was not kept, as its tenant holds too much of other managers' already.
    Over(QuotaError),
}

/// A node in the books.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Where it was last.
    pub address: NodeAddress,
    /// What it had.
    pub capacity: Capacity,
    /// Last epoch of a manager over it.
    pub epoch: u64,
    /// Last number of its journal that was booked.
    pub booked: u64,
    /// Whether its owner took it back.
    pub reclaimed: bool,
    /// The manager that it connected to last, where the store knows several.
    pub manager: Option<PublicKey>,
}

/// What a node that connects is told of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Registered {
    /// From now on; one more than the last.
    pub epoch: u64,
    /// Last number of its journal that was booked.
    pub booked: u64,
    /// Whether its owner took it back.
    pub reclaimed: bool,
    /// When another manager had it before: its leases that live, or ended lately.
    pub leases: Option<Vec<LeaseRecord>>,
}

/// A tenant in the books.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantRecord {
    /// Which.
    pub id: TenantId,
    /// Its name, which no other has.
    pub name: String,
    /// Its limits and prices.
    pub spec: TenantSpec,
    /// What it was charged so far, in billionths; only bookings and charges change it.
    pub spent: u64,
    /// What of that its tasks cost: the last total that was [charged](Store::charge).
    pub spent_on_tasks: u64,
}

/// What was booked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Booked {
    /// Last number of the node's journal that is in the books.
    pub sequence: u64,
    /// Tenants that this booking charged, and what each has spent now.
    pub spent: Vec<(TenantId, u64)>,
}

/// Which lines of the bill are wanted: of leases that lived within a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BillQuery {
    /// One tenant's; none for everybody's.
    pub tenant: Option<TenantId>,
    /// Wall clock; leases that ended before are left out.
    pub from_ms: u64,
    /// Wall clock; leases granted then or later are left out.
    pub until_ms: u64,
    /// When it was granted, and its id: the last lease of the page before.
    pub after: Option<(u64, LeaseId)>,
    /// Lines at most.
    pub limit: u32,
}

/// Entries of the audit log that are looked at in one step of trimming it.
pub const AUDIT_STEP: u32 = 10_000;
/// Bytes of an entry beside its subject and details, roughly.
pub const AUDIT_ENTRY_BYTES: u64 = 100;

/// One step of trimming the audit log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuditTrim {
    /// Looks at entries with greater numbers.
    pub above: u64,
    /// At so many at most.
    pub step: u32,
    /// Forgets those with this number and smaller ones.
    pub up_to: u64,
    /// Forgets those from before this time.
    pub before_ms: u64,
}

/// What one step of trimming the audit log came by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Trimmed {
    /// Entries that went.
    pub entries: u64,
    /// Above which number to go on, if there may be more.
    pub next: Option<u64>,
}

/// Which entries of the audit log are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuditPage {
    /// With greater numbers than this.
    pub above: u64,
    /// With smaller numbers than this: the last of them. None for the first above the other.
    pub before: Option<u64>,
    /// So many at most.
    pub limit: u32,
}

impl AuditPage {
    /// The bound above, as a number that databases have.
    fn below(&self) -> i64 {
        let most = i64::MAX as u64;
        self.before.unwrap_or(most).min(most) as i64
    }
}

/// For whom a bearer speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum As {
    /// A person or a program that uses the HTTP API.
    Client(Role),
    /// Whoever may become a node, once.
    Join,
    /// The node that it is bound to.
    Node,
    /// The dispatcher of the endpoint that its name is the id of.
    Endpoint,
}

impl As {
    /// Whether a new bearer of this kind replaces the earlier one of the same kind, tenant and name.
    pub fn is_named(self) -> bool {
        matches!(self, Self::Client(_) | Self::Endpoint)
    }

    /// Whether both are of one kind, whatever their roles.
    pub fn is_like(self, other: Self) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }

    /// As it is kept.
    fn name(self) -> &'static str {
        match self {
            Self::Client(role) => role.name(),
            Self::Join => "join",
            Self::Node => "node",
            Self::Endpoint => "endpoint",
        }
    }

    /// Reads [`As::name`].
    fn from_name(name: &str) -> Self {
        match name {
            "join" => Self::Join,
            "endpoint" => Self::Endpoint,
            other => Role::from_name(other).map_or(Self::Node, Self::Client),
        }
    }
}

/// A bearer token, of which only the SHA-256 is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bearer {
    /// SHA-256 of the token.
    pub hash: [u8; 32],
    /// For whom it speaks.
    pub speaks: As,
    /// On whose behalf.
    pub tenant: TenantId,
    /// What it is for, for people; a client's token replaces that tenant's earlier one of the same name, and an endpoint's that
    /// endpoint's earlier one.
    pub name: String,
    /// Whether its bearer may look and not touch.
    pub read_only: bool,
    /// The node that it is bound to, or that used it up.
    pub node: Option<NodeId>,
    /// Wall clock, milliseconds since the Unix epoch.
    pub expires_at_ms: u64,
}

/// What becomes of the leases of a token that is revoked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leases {
    /// They end.
    End,
    /// They go on to their own end.
    Keep,
}

/// All that a starting manager needs to know.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Every node that ever registered.
    pub nodes: Vec<NodeRecord>,
    /// Leases on this manager's nodes that live, or ended lately.
    pub leases: Vec<LeaseRecord>,
    /// Every bearer.
    pub bearers: Vec<Bearer>,
    /// Every tenant.
    pub tenants: Vec<TenantRecord>,
    /// What those pay that have no prices of their own.
    pub prices: Prices,
}

/// A write on its way.
#[derive(Debug)]
pub struct Pending<T>(oneshot::Receiver<Result<T, StoreError>>);

impl<T> Pending<T> {
    /// A write that is done, or failed.
    pub fn ready(result: Result<T, StoreError>) -> Self {
        let (sender, receiver) = oneshot::channel();
        // The receiver is in hand, so that sending cannot fail.
        let _ = sender.send(result);
        Self(receiver)
    }

    /// Waits until it is kept, or is certain not to be (or the deadline passed, when it may yet be kept).
    pub async fn wait(self) -> Result<T, StoreError> {
        self.within(WRITE_DEADLINE).await
    }

    /// The same, of something that may take longer.
    pub async fn within(self, deadline: Duration) -> Result<T, StoreError> {
        match tokio::time::timeout(deadline, self.0).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(StoreError::Broken("its writer has stopped".into())),
            Err(_) => Err(StoreError::Slow),
        }
    }
}

impl<T> From<oneshot::Receiver<Result<T, StoreError>>> for Pending<T> {
    /// A write whose result the store sends. It has failed if the sender is dropped.
    fn from(result: oneshot::Receiver<Result<T, StoreError>>) -> Self {
        Self(result)
    }
}

/// Where changes of leases are noted.
pub trait Notes: Send + Sync + 'static {
    /// Leases changed, in this order, all or none but for those that are [`Noted::Stale`] or [`Noted::Over`].
    fn note(&self, notes: Vec<Note>) -> Pending<Vec<Noted>>;
}

/// The manager's memory. Writes take effect in the order of the calls; each is kept entirely or not at all.
///
/// Some stores serve several managers at once. What one of them changes of tenants, bearers, prices and nodes, the others hear
/// as [`News`]; a node's leases are its owner's alone, and are loaded by the next owner. The methods that only these need do
/// nothing for a single manager.
pub trait Store: Notes {
    /// Everything but leases that ended before this time.
    fn load(&self, ended_after_ms: u64) -> Pending<Snapshot>;

    /// A node connected: keeps its address and owner, and answers its new epoch. None when it is known with another key.
    /// With its leases that ended after this time, if they come from another manager.
    fn register(&self, address: NodeAddress, capacity: Capacity, ended_after_ms: u64) -> Pending<Option<Registered>>;

    /// Books totals of this node's leases under its journal's number, durably. Answers the last number booked: a number
    /// that is not above it was booked before, and changes nothing, whichever manager brings it. What the leases cost is
    /// added, in the same step, to what their tenants have spent: neither is ever without the other.
    fn book(&self, node: NodeId, sequence: u64, totals: Vec<(LeaseId, Metered)>) -> Pending<Booked>;

    /// Charges tenants with what their tasks cost: totals, which grow. What was charged already changes nothing, so that a total may be
    /// said any number of times. Durable. Answers the tenants that were charged.
    fn charge(&self, totals: Vec<(TenantId, u64)>) -> Pending<Vec<TenantRecord>>;

    /// A node was taken back by its owner, or given again. Durable.
    fn reclaim(&self, node: NodeId, reclaimed: bool) -> Pending<()>;

    /// Keeps a bearer, durably. A client's replaces that tenant's earlier one of the same name, whose leases become its own.
    fn keep(&self, bearer: Bearer) -> Pending<()>;

    /// Forgets a bearer, durably. Its leases end with no token any more if they are `kept`; otherwise whoever owns their nodes ends
    /// them.
    fn revoke(&self, hash: [u8; 32], leases: Leases) -> Pending<()>;

    /// Keeps a tenant's limits under its name, durably, with this id if the name is new. What it has spent is as it was.
    fn tenant(&self, new: TenantId, name: String, spec: TenantSpec) -> Pending<TenantRecord>;

    /// Keeps the site's prices, durably.
    fn prices(&self, prices: Prices) -> Pending<()>;

    /// Lines of the bill, in the order of their grants and, among equals, of their ids.
    fn bill(&self, query: BillQuery) -> Pending<Vec<LeaseRecord>>;

    /// Writes an entry into the audit log, durably, under the next number; that of the entry given does not count.
    fn audit(&self, entry: AuditEntry) -> Pending<()>;

    /// A page of the audit log, the oldest entry first.
    fn audited(&self, page: AuditPage) -> Pending<Vec<AuditEntry>>;

    /// The number of the last entry of the audit log that is too much where so many bytes are kept; 0 where none is.
    fn audit_surplus(&self, most_bytes: u64) -> Pending<u64>;

    /// Looks at so many entries of the audit log behind a number, and forgets those up to `up_to` and those from before a time.
    fn trim_audit(&self, trim: AuditTrim) -> Pending<Trimmed>;

    /// Uses up a join token for a node and keeps that node's only credential, durably. False when the token does not
    /// exist, has expired, or was used by another node; the same node may repeat it, for its answer may have been lost.
    fn admit(&self, join_hash: [u8; 32], credential: Bearer, now_ms: u64) -> Pending<bool>;

    /// Says that this manager lives, and answers which others do or did. None where there can be no others.
    fn present(&self, _me: Presence) -> Option<Pending<Vec<Peer>>> {
        None
    }

    /// Makes the nodes of a manager that has been silent for so long this one's own, and answers them.
    fn adopt(&self, _from: PublicKey, _silent: Duration, _ended_after_ms: u64) -> Pending<Adopted> {
        Pending::ready(Ok(Adopted::default()))
    }

    /// Tells the other managers.
    fn tell(&self, _news: Vec<News>) {}

    /// What the other managers changed, from now on. Can be taken once.
    fn news(&self) -> Option<mpsc::Receiver<News>> {
        None
    }

    /// Leases on other managers' nodes that live, or ended after this time: one, or all.
    fn others(&self, _lease: Option<LeaseId>, _ended_after_ms: u64) -> Pending<Vec<LeaseRecord>> {
        Pending::ready(Ok(Vec::new()))
    }

    /// What tenants hold on all managers' nodes together; none where this manager's own memory knows.
    fn held(&self) -> Option<Pending<Vec<(TenantId, Held)>>> {
        None
    }
}
