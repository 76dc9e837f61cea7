//! Sharing of functions and endpoints with other tenants and with teams.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Prefix of a team's name in a sharing list.
pub const TEAM: &str = "team:";
/// Most members of a team.
pub const MAX_MEMBERS: usize = 10_000;
/// Most teams of one owner.
pub const MAX_TEAMS: usize = 1_000;
/// Most bytes of a body that lists tenants to share with.
pub const MAX_SHARING_BODY_BYTES: usize = 2 << 20;

/// Replaces the list of tenants that may run a function of the caller's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FunctionSharing {
    /// Names of tenants, `team:NAME` for a team, `*` for everyone. Empty for the owner alone.
    pub shared_with: Vec<String>,
}

/// A named group of tenants. Functions and endpoints are shared with it as `team:NAME`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct TeamSpec {
    /// Description, for display.
    #[schema(max_length = 1_024)]
    pub description: String,
    /// Names of the member tenants.
    #[schema(max_items = 10_000)]
    pub members: Vec<String>,
}

/// A team.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Team {
    /// Unique name.
    pub name: String,
    /// Name of the owner, who may change the team.
    pub owner: String,
    /// Description and members.
    #[serde(flatten)]
    pub spec: TeamSpec,
}
