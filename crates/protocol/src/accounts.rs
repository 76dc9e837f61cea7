//! Who may do what, and who pays: tenants, tokens, prices and bills, as the manager's HTTP API has them.
//!
//! Amounts are whole billionths of the site's unit of account, whatever that is: nothing is ever rounded twice.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::api::{FunctionUsage, ManagerAddress, Mode, Usage};
use crate::ids::{LeaseId, NodeId, TenantId};

/// What the bearer of a token may do. Each role may do what those before it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Lease workers, and see what that costs.
    User,
    /// Take nodes and give them, and see and revoke everybody's leases.
    Operator,
    /// Make tenants and tokens, and set prices.
    Administrator,
}

impl Role {
    /// All of them, the least first.
    pub const ALL: [Self; 3] = [Self::User, Self::Operator, Self::Administrator];

    /// As users write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Operator => "operator",
            Self::Administrator => "administrator",
        }
    }

    /// Reads [`Role::name`].
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Prices of a site: the constants of the papers' C = Ca ta + Cc tc + Ch th.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct Prices {
    /// Ca: for one GiB held for one second.
    #[schema(maximum = 9_223_372_036_854_u64)]
    pub allocation_per_gib_s: u64,
    /// Cc: for one second inside functions.
    #[schema(maximum = 9_223_372_036_854_u64)]
    pub computing_per_s: u64,
    /// Ch: for one second of polling.
    #[schema(maximum = 9_223_372_036_854_u64)]
    pub polling_per_s: u64,
}

/// The most that a tenant may hold at a time; none for no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct Quota {
    /// Leases.
    #[serde(default)]
    pub leases: Option<u32>,
    /// Workers of all of them.
    #[serde(default)]
    pub workers: Option<u32>,
    /// Cores of all workers, whether they own or share them.
    #[serde(default)]
    pub cores: Option<u32>,
    /// Memory of all of them, in bytes.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
}

/// `PUT /v1/tenants/{name}`: everything that may be said of a tenant; what is left out has no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct TenantSpec {
    /// The most that it may hold.
    #[serde(default)]
    pub quota: Quota,
    /// The most that it may spend, in billionths, from its beginning.
    #[serde(default)]
    pub budget: Option<u64>,
    /// Prices of its own; when absent, the site's.
    #[serde(default)]
    pub prices: Option<Prices>,
    /// Whether it gets nothing for now.
    #[serde(default)]
    pub suspended: bool,
}

/// A tenant: who holds leases, and pays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Tenant {
    /// Its id.
    pub id: TenantId,
    /// Its name, which no other has.
    pub name: String,
    /// Its limits and prices.
    #[serde(flatten)]
    pub spec: TenantSpec,
    /// What it has spent, in billionths.
    pub spent: u64,
    /// What of that durable tasks cost at others' endpoints elsewhere; the rest is what leases cost.
    #[serde(default)]
    pub spent_on_tasks: u64,
    /// Leases that it holds now.
    pub leases: u32,
    /// Workers of all of them.
    pub workers: u32,
}

/// `POST /v1/tokens`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenRequest {
    /// Whose it is to be; when absent, of whoever asks.
    #[serde(default)]
    pub tenant: Option<String>,
    /// What it is for, for people; it replaces that tenant's earlier token of this name.
    #[schema(pattern = "^[A-Za-z0-9._@-]{1,64}$")]
    pub name: String,
    /// What its bearer may do; not more than whoever asks.
    pub role: Role,
    /// Whether its bearer may look and not touch.
    #[serde(default)]
    pub read_only: bool,
    /// Milliseconds until it expires.
    #[schema(minimum = 1, maximum = 315_360_000_000_u64)]
    pub valid_for_ms: u64,
}

/// A token as it is shown once, when it is made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NewToken {
    /// The secret itself, of which the manager keeps only a hash.
    pub token: String,
    /// The manager's URL, as clients should use it.
    pub manager: String,
    /// The certificate authority that they should trust, PEM.
    pub ca_pem: String,
    /// The site's other managers, of which each will do as well.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<ManagerAddress>,
    /// What is known of it.
    #[serde(flatten)]
    pub status: TokenStatus,
}

/// `GET /v1/login`: with which OpenID Connect provider one logs in, and how.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LoginInfo {
    /// Its name.
    pub issuer: String,
    /// Under which it knows this site, as a public client.
    pub client_id: String,
    /// What to ask for.
    pub scopes: Vec<String>,
    /// Where codes are exchanged for ID tokens.
    pub token_endpoint: String,
    /// Where people log in with a browser on the same machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authorization_endpoint: Option<String>,
    /// Where those begin who have their browser on another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_authorization_endpoint: Option<String>,
    /// Its certificate authority, PEM, if it is none of the public ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_pem: Option<String>,
}

/// `POST /v1/login`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LoginRequest {
    /// An ID token of the provider's, for its client of this site.
    pub id_token: String,
}

/// What is known of a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenStatus {
    /// With which it is revoked; says nothing about the secret.
    pub id: String,
    /// Whose it is.
    pub tenant: String,
    /// What it is for.
    pub name: String,
    /// What its bearer may do.
    pub role: Role,
    /// Whether its bearer may look and not touch.
    pub read_only: bool,
    /// Milliseconds since the Unix epoch.
    pub expires_at_ms: u64,
}

/// `DELETE /v1/tokens/{id}`: a token that is worth nothing any more, and what became of its leases.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RevokedToken {
    /// What was known of it.
    #[serde(flatten)]
    pub token: TokenStatus,
    /// Leases that were granted or last renewed with it, and ended with it.
    pub leases_ended: u32,
    /// Leases of it that go on to their own end.
    pub leases_kept: u32,
}

/// What one lease cost so far. The sums are in billionths.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BillLine {
    /// Which.
    pub lease: LeaseId,
    /// Who pays.
    pub tenant: TenantId,
    /// Name of who pays.
    pub tenant_name: String,
    /// Where.
    pub node: NodeId,
    /// `granted`, `active`, or how it ended.
    pub state: String,
    /// Milliseconds since the Unix epoch.
    pub granted_at_ms: u64,
    /// The same; 0 while it lives.
    pub ended_at_ms: u64,
    /// Workers.
    pub workers: u16,
    /// Memory of all of them, in bytes.
    pub memory_bytes: u64,
    /// Hot or warm.
    pub mode: Mode,
    /// What it used.
    pub usage: Usage,
    /// Which functions that was.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub functions: Vec<FunctionUsage>,
    /// What was agreed when it was granted.
    pub prices: Prices,
    /// Ca ta.
    pub allocation: u64,
    /// Cc tc.
    pub computing: u64,
    /// Ch th.
    pub polling: u64,
    /// C: their sum.
    pub total: u64,
}

/// `GET /v1/bill`: lines in the order of their grants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BillPage {
    /// Some.
    pub lines: Vec<BillLine>,
    /// Give it as `after` for the rest; absent on the last page.
    pub next: Option<String>,
}

/// Something that somebody did to accounts, prices, nodes or other people's leases.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditEntry {
    /// Grows by one with each.
    pub number: u64,
    /// Milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// Whose token it was done with.
    pub tenant: TenantId,
    /// Id of that token.
    pub token: String,
    /// What was done, such as `token.create`.
    pub action: String,
    /// What it was done to.
    pub subject: String,
    /// How, as JSON.
    pub details: String,
}
