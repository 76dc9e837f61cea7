//! Roles, tenants, tokens, prices and bills, as in the manager's HTTP API.
//!
//! Amounts are whole billionths of the site's unit of account, so that repeated rounding cannot occur.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::api::{FunctionUsage, LeaseState, LoanUsage, ManagerAddress, Mode, Usage, is_default};
use crate::cores::MilliCores;
use crate::ids::{LeaseId, NodeId, TenantId};
use crate::named::named_enum;

named_enum! {
    /// What the bearer of a token may do. Each role includes the rights of the previous ones.
    Role, "a role" {
        /// Lease workers and see their cost.
        User = "user",
        /// Add and remove nodes, and see and revoke the leases of all tenants.
        Operator = "operator",
        /// Create tenants and tokens, and set prices.
        Administrator = "administrator",
    }
}

/// Prices of a site: the constants of C = Ca ta + Cc tc + Ch th, and the prices of loans. Ca has a price for each resource
/// that a lease holds. Lending has no price: what a
/// tenant has spent never falls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct Prices {
    /// Ca: price of one GiB held for one second.
    #[schema(maximum = 9_223_372_036_854_u64)]
    pub allocation_per_gib_s: u64,
    /// Cc: price of one second of computing inside functions, for each core that the worker owns.
    #[schema(maximum = 9_223_372_036_854_u64)]
    pub computing_per_s: u64,
    /// Ch: price of one second of polling, for each core that the worker owns.
    #[schema(maximum = 9_223_372_036_854_u64)]
    pub polling_per_s: u64,
    /// Price of one core that a worker owns for one second, whether a call runs or not.
    #[serde(default, skip_serializing_if = "is_default")]
    #[schema(maximum = 9_223_372_036_854_u64)]
    pub core_per_s: u64,
    /// Price of one GPU that a worker owns for one second, whether a call runs or not.
    #[serde(default, skip_serializing_if = "is_default")]
    #[schema(maximum = 9_223_372_036_854_u64)]
    pub gpu_per_s: u64,
    /// Price of one borrowed core for one second.
    #[serde(default, skip_serializing_if = "is_default")]
    #[schema(maximum = 9_223_372_036_854_u64)]
    pub borrowed_core_per_s: u64,
    /// Price of one borrowed GiB for one second.
    #[serde(default, skip_serializing_if = "is_default")]
    #[schema(maximum = 9_223_372_036_854_u64)]
    pub borrowed_per_gib_s: u64,
}

/// Limits on what a tenant may hold at a time. An absent field means no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct Quota {
    /// Number of leases.
    #[serde(default)]
    pub leases: Option<u32>,
    /// Workers of all leases.
    #[serde(default)]
    pub workers: Option<u32>,
    /// Cores of all workers, both exclusive and shared.
    #[serde(default)]
    pub cores: Option<u32>,
    /// Memory of all leases, in bytes.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
}

/// `PUT /v1/tenants/{name}`: settings of a tenant. An absent limit means no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct TenantSpec {
    /// Limits on what it may hold at a time.
    #[serde(default)]
    pub quota: Quota,
    /// Limit on its total spending, in billionths.
    #[serde(default)]
    pub budget: Option<u64>,
    /// The tenant's own prices; if absent, the site's.
    #[serde(default)]
    pub prices: Option<Prices>,
    /// Whether the tenant is refused new leases and tasks.
    #[serde(default)]
    pub suspended: bool,
}

/// A tenant: the account that holds leases and pays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Tenant {
    /// Id of the tenant.
    pub id: TenantId,
    /// Unique name.
    pub name: String,
    /// Limits and prices.
    #[serde(flatten)]
    pub spec: TenantSpec,
    /// Total spending, in billionths.
    pub spent: u64,
    /// The part of `spent` for tasks at other tenants' remote endpoints. Leases cost the rest.
    #[serde(default)]
    pub spent_on_tasks: u64,
    /// Leases that it holds at present.
    pub leases: u32,
    /// Workers of these leases.
    pub workers: u32,
}

/// `POST /v1/tokens`: a token to create.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenRequest {
    /// Tenant of the token; if absent, the caller's tenant.
    #[serde(default)]
    pub tenant: Option<String>,
    /// Purpose, for display. Replaces the tenant's earlier token with this name.
    #[schema(pattern = "^[A-Za-z0-9._@-]{1,64}$")]
    pub name: String,
    /// Rights of the bearer; at most those of the caller.
    pub role: Role,
    /// Whether the bearer may only read.
    #[serde(default)]
    pub read_only: bool,
    /// Milliseconds until it expires.
    #[schema(minimum = 1, maximum = 315_360_000_000_u64)]
    pub valid_for_ms: u64,
}

/// A new token. The secret is shown only once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NewToken {
    /// The secret. The manager keeps only its hash.
    pub token: String,
    /// The manager's URL for clients.
    pub manager: String,
    /// The certificate authority that clients should trust, as PEM.
    pub ca_pem: String,
    /// The site's other managers. Clients may use any of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<ManagerAddress>,
    /// The token's properties without the secret.
    #[serde(flatten)]
    pub status: TokenStatus,
}

/// `GET /v1/login`: the OpenID Connect provider of the site, and its parameters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LoginInfo {
    /// Issuer name of the provider.
    pub issuer: String,
    /// The site's client id at the provider, as a public client.
    pub client_id: String,
    /// Scopes to request.
    pub scopes: Vec<String>,
    /// Endpoint that exchanges codes for ID tokens.
    pub token_endpoint: String,
    /// Endpoint for users with a browser on the same host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authorization_endpoint: Option<String>,
    /// Endpoint for users whose browser runs on another host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_authorization_endpoint: Option<String>,
    /// The provider's certificate authority as PEM, if it is not a public one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_pem: Option<String>,
}

/// `POST /v1/login`: exchanges an ID token for a Dayfly token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LoginRequest {
    /// An ID token from the provider for the site's client id.
    pub id_token: String,
}

/// `POST /v1/session`: what a browser opens a session with. Exactly one of the fields.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionRequest {
    /// A token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// A ticket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ticket: Option<String>,
}

/// `POST /v1/session/tickets`: a secret that opens one session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionTicket {
    /// The secret.
    pub ticket: String,
    /// URL of the manager that knows it.
    pub manager: String,
    /// Expiry, in milliseconds since the Unix epoch.
    pub expires_at_ms: u64,
}

/// Properties of a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenStatus {
    /// Identifies the token, for example to revoke it. Reveals nothing about the secret.
    pub id: String,
    /// Tenant of the token.
    pub tenant: String,
    /// Purpose of the token.
    pub name: String,
    /// Rights of the bearer.
    pub role: Role,
    /// Whether the bearer may only read.
    pub read_only: bool,
    /// Expiry, in milliseconds since the Unix epoch.
    pub expires_at_ms: u64,
}

/// `DELETE /v1/tokens/{id}`: the revoked token and the fate of its leases.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RevokedToken {
    /// Properties of the revoked token.
    #[serde(flatten)]
    pub token: TokenStatus,
    /// Leases that were granted or last renewed with it and were ended.
    pub leases_ended: u32,
    /// Leases of the token that continue to their own expiry.
    pub leases_kept: u32,
}

/// Cost of one lease so far. Amounts are in billionths.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BillLine {
    pub lease: LeaseId,
    /// Id of the tenant that pays.
    pub tenant: TenantId,
    /// Name of the tenant that pays.
    pub tenant_name: String,
    /// Node of the lease.
    pub node: NodeId,
    /// State of the lease.
    pub state: LeaseState,
    /// Time of the grant, in milliseconds since the Unix epoch.
    pub granted_at_ms: u64,
    /// End of the lease, in milliseconds since the Unix epoch; 0 while it is alive.
    pub ended_at_ms: u64,
    /// Number of workers.
    pub workers: u16,
    /// Cores of each worker.
    pub cores_per_worker: MilliCores,
    /// Memory of all workers, in bytes.
    pub memory_bytes: u64,
    pub mode: Mode,
    /// Metered usage.
    pub usage: Usage,
    /// Usage by function.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub functions: Vec<FunctionUsage>,
    /// What its calls lent and borrowed.
    #[serde(default, skip_serializing_if = "is_default")]
    pub loans: LoanUsage,
    /// Prices agreed at the time of the grant.
    pub prices: Prices,
    /// Cost of memory: Ca ta.
    pub allocation: u64,
    /// Cost of computing: Cc tc, times the cores of a worker.
    pub computing: u64,
    /// Cost of polling: Ch th, times the cores of a worker.
    pub polling: u64,
    /// Cost of borrowed resources.
    #[serde(default, skip_serializing_if = "is_default")]
    pub borrowing: u64,
    /// Total cost: C, with that of loans.
    pub total: u64,
}

/// `GET /v1/bill`: lines in the order of their grants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BillPage {
    /// Lines of this page.
    pub lines: Vec<BillLine>,
    /// Pass it as `after` for the next page; absent on the last page.
    pub next: Option<String>,
}

/// A change that a user made to accounts, prices, nodes or other tenants' leases.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditEntry {
    /// Sequence number; grows by one with each entry.
    pub number: u64,
    /// Time of the change, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// Tenant of the token that was used.
    pub tenant: TenantId,
    /// Id of the token that was used.
    pub token: String,
    /// The action, such as `token.create`.
    pub action: String,
    /// The object of the action.
    pub subject: String,
    /// Details as JSON.
    pub details: String,
}
