//! What must survive of who shares with whom, and of what tasks cost.

use dayfly_protocol::ids::{EndpointId, FunctionId, TenantId};
use dayfly_protocol::tasks::TeamSpec;

use super::Pending;

/// A team in the books.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TeamRecord {
    /// Its name, which no other has.
    pub name: String,
    /// Who changes it.
    pub owner: TenantId,
    /// Who is in it.
    pub spec: TeamSpec,
    /// Whether it was removed: its name stays its owner's, for things may be shared with it still.
    pub removed: bool,
}

/// Which tasks are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UsageKey {
    /// The day on which they ended, counted from the Unix epoch.
    pub day: u32,
    /// Whose.
    pub tenant: TenantId,
    /// What.
    pub function: FunctionId,
    /// Where.
    pub endpoint: EndpointId,
}

/// What they cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tasks that ended.
    pub tasks: u64,
    /// Of those, not well.
    pub failed: u64,
    /// Microseconds on workers, of all their executions.
    pub took_us: u64,
    /// What of that is charged, in billionths of the site's unit of account. It is added to the tenant's total in the same step.
    pub cost: u64,
}

/// The manager's memory of teams, and of what tasks cost.
pub trait SharingStore {
    /// Every team.
    fn teams(&self) -> Pending<Vec<TeamRecord>>;

    /// Keeps a team. One that has the name already changes only for its owner; answers what is kept.
    fn team(&self, team: TeamRecord) -> Pending<TeamRecord>;

    /// What tasks cost that ended from one day on and before another, of one tenant or of all; so many lines at most.
    fn usage(&self, from: u32, until: u32, tenant: Option<TenantId>, most: u32) -> Pending<Vec<(UsageKey, Usage)>>;

    /// Forgets what tasks cost that ended before this day.
    fn forget_usage(&self, before: u32) -> Pending<()>;
}
