//! The public state of a lease.

use dayfly_executor::meter::Reading;
use dayfly_protocol::api::{LeaseState, LoanUsage, Mode, Sandbox, Usage};
use dayfly_protocol::ids::{Incarnation, LeaseId, TenantId};

/// What a worker does.
#[derive(Debug, Clone, Copy)]
pub struct WorkerActivity {
    /// Its process; `None` while it is replaced.
    pub pid: Option<u32>,
    /// Number of its process.
    pub incarnation: Incarnation,
    /// Its meter, which it may have falsified.
    pub reading: Reading,
}

/// A row of `dayfly top`.
#[derive(Debug, Clone, serde::Serialize)]
pub struct LeaseView {
    pub lease: LeaseId,
    /// The tenant that pays.
    pub tenant: TenantId,
    /// Whether workers are hot or warm.
    pub mode: Mode,
    /// Isolation of its workers.
    pub sandbox: Sandbox,
    /// Number of workers.
    pub workers: u16,
    /// Cores that the lease owns.
    pub cores: Vec<u16>,
    pub memory_bytes: u64,
    /// State of the lease.
    pub state: LeaseState,
    pub remaining_ms: u64,
    /// Number of open channels.
    pub channels: u32,
    /// Process ids of its workers; 0 for one that is being replaced.
    pub pids: Vec<u32>,
    /// Usage so far.
    pub usage: Usage,
    /// What its calls lent and borrowed.
    #[serde(skip_serializing_if = "is_none")]
    pub loans: LoanUsage,
}

fn is_none(loans: &LoanUsage) -> bool {
    *loans == LoanUsage::default()
}
