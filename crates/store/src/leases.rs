//! Leases and their changes.

use dayfly_lease::Cost;
use dayfly_lease::billing::merge;
use dayfly_lease::quota::{Held, QuotaError};
use dayfly_protocol::api::{FunctionUsage, LeaseState, LoanUsage, MAX_FUNCTIONS, Metered, Mode, Sandbox, Usage};
use dayfly_protocol::cores::MilliCores;
use dayfly_protocol::ids::{LeaseId, NodeId, PublicKey, TenantId};
use dayfly_protocol::tenancy::Prices;

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
    pub cores_per_worker: MilliCores,
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
    /// What its calls lent and borrowed.
    pub loans: LoanUsage,
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
        self.loans = self.loans.merged(used.loans);
        // A restarted node does not know the lease's functions.
        if !used.functions.is_empty() {
            self.functions = used.functions;
            self.functions.truncate(MAX_FUNCTIONS);
        }
    }

    /// Returns the cost so far.
    pub fn cost(&self) -> Cost {
        Cost::of(
            &self.prices,
            &self.usage,
            self.memory_bytes,
            self.workers,
            self.cores_per_worker,
            self.gpus_per_worker,
        )
        .with_loans(&self.prices, &self.loans)
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
        /// Number of workers from now on.
        workers: u16,
        /// Mode from now on.
        mode: Mode,
        /// Memory of the whole lease from now on, in bytes.
        memory_bytes: u64,
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

impl Change {
    /// Returns the lease that a change concerns.
    pub fn lease(&self) -> LeaseId {
        match self {
            Self::Offered(record) => record.lease,
            Self::Taken { lease, .. }
            | Self::Refused { lease }
            | Self::Active { lease, .. }
            | Self::Renewed { lease, .. }
            | Self::Ended { lease, .. } => *lease,
        }
    }

    /// Returns the changed record, or `None` if the lease does not exist afterwards. An ended lease stays unchanged.
    pub fn apply(&self, record: Option<LeaseRecord>) -> Option<LeaseRecord> {
        let Some(mut record) = record else {
            return match self {
                Self::Offered(record) => Some((**record).clone()),
                _ => None,
            };
        };
        if !record.state.is_live() {
            return Some(record);
        }
        match self {
            Self::Offered(_) => {}
            Self::Refused { .. } => return None,
            Self::Taken {
                mode, image, sandbox, ..
            } => {
                record.mode = *mode;
                record.sandbox = *sandbox;
                record.image.clone_from(image);
            }
            Self::Active { expires_at_ms, .. } => {
                record.state = LeaseState::Active;
                record.expires_at_ms = *expires_at_ms;
            }
            Self::Renewed {
                duration_ms,
                expires_at_ms,
                bearer,
                workers,
                mode,
                memory_bytes,
                ..
            } => {
                record.workers = *workers;
                record.mode = *mode;
                record.memory_bytes = *memory_bytes;
                record.duration_ms = *duration_ms;
                record.expires_at_ms = *expires_at_ms;
                record.bearer = *bearer;
            }
            Self::Ended { state, at_ms, .. } => {
                record.state = *state;
                record.ended_at_ms = *at_ms;
            }
        }
        Some(record)
    }
}

/// A change, made by the manager that owned the lease's node in this epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedChange {
    /// The lease's node.
    pub node: NodeId,
    /// Epoch of the ownership. A change of an earlier epoch has no effect.
    pub epoch: u64,
    pub change: Change,
}

/// Result of a [`OwnedChange`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangeResult {
    /// The change is stored, or was stored before.
    Kept,
    /// Another manager owns the node. Nothing was changed.
    Stale,
    /// The lease was not stored, because its tenant already holds too much at other managers.
    OverQuota(QuotaError),
}
