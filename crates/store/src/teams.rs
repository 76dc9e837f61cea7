//! Durable state of teams and of the cost of tasks.

use dayfly_protocol::ids::{EndpointId, FunctionId, TenantId};
use dayfly_protocol::sharing::TeamSpec;

use super::Pending;

/// A stored team.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TeamRecord {
    /// Unique name.
    pub name: String,
    /// Tenant that may change it.
    pub owner: TenantId,
    /// Description and members.
    pub spec: TeamSpec,
    /// Whether it was removed. Its name stays reserved for its owner, because functions and endpoints may still be
    /// shared with it.
    pub removed: bool,
}

/// Groups tasks in the usage statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UsageKey {
    /// The day on which they ended, in days since the Unix epoch.
    pub day: u32,
    /// Tenant of the tasks.
    pub tenant: TenantId,
    /// Function of the tasks.
    pub function: FunctionId,
    /// Endpoint of the tasks.
    pub endpoint: EndpointId,
}

/// Usage and cost of a group of tasks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tasks that ended.
    pub tasks: u64,
    /// The part of `tasks` that failed.
    pub failed: u64,
    /// Microseconds on workers, for all executions.
    pub took_us: u64,
    /// Amount charged, in billionths of the site's unit of account. It is added to the tenant's total in the same
    /// transaction.
    pub cost: u64,
}

/// Durable state of teams and of the cost of tasks.
pub trait TeamStore {
    /// Returns all teams.
    fn teams(&self) -> Pending<Vec<TeamRecord>>;

    /// Stores a team and returns the stored one. Only the owner can change an existing team.
    fn team(&self, team: TeamRecord) -> Pending<TeamRecord>;

    /// Returns usage of tasks that ended from day `from` up to, but excluding, day `until`, of one tenant or of all; at
    /// most `most` lines.
    fn usage(&self, from: u32, until: u32, tenant: Option<TenantId>, most: u32) -> Pending<Vec<(UsageKey, Usage)>>;

    /// Deletes usage of tasks that ended before this day.
    fn delete_usage(&self, before: u32) -> Pending<()>;
}
