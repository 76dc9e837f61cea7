//! The properties that decide which worker set a task belongs to.

use dayfly_protocol::api::{LoanTerms, Placement, Runtime};
use dayfly_protocol::cores::MilliCores;
use dayfly_protocol::dispatch::Program;
use dayfly_protocol::ids::TenantId;

/// What workers must have in common to belong to one worker set.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WorkerKey {
    pub tenant: TenantId,
    /// Whether the endpoint belongs to another tenant. Then workers are isolated from its files, processes and network,
    /// even if the site runs its owner's functions without a sandbox.
    pub guest: bool,
    /// Owner of the functions. Another tenant's function could leave something in a worker that affects this owner's
    /// results.
    pub owner: TenantId,
    pub runtime: Runtime,
    pub image: Option<String>,
    pub cores: MilliCores,
    pub memory_bytes: u64,
    pub gpus: u16,
    pub ranks: u16,
    pub placement: Placement,
    /// A lease has the same terms for all its calls.
    pub loans: LoanTerms,
}

impl WorkerKey {
    pub fn of(tenant: TenantId, guest: bool, program: &Program) -> Self {
        Self {
            tenant,
            guest,
            owner: program.owner.unwrap_or(tenant),
            runtime: program.runtime.clone(),
            image: program.image.clone(),
            cores: program.resources.cores,
            memory_bytes: program.resources.memory_bytes,
            gpus: program.resources.gpus,
            ranks: program.resources.ranks,
            placement: program.resources.placement,
            loans: program.resources.loans,
        }
    }
}
