//! Bearer tokens.

use dayfly_protocol::ids::{NodeId, TenantId};
use dayfly_protocol::tenancy::Role;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The kind of a bearer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum BearerKind {
    /// A person or a program that uses the HTTP API.
    Client(Role),
    /// A future node, once.
    Join,
    /// The node that the bearer is bound to.
    Node,
    /// The dispatcher of the endpoint whose id is the bearer's name.
    Endpoint,
    /// A session of a browser. It is no token: the hash is that of a cookie, and the name is a token that only the
    /// cookie decrypts.
    Session,
}

impl BearerKind {
    /// Whether a new bearer of this kind replaces the earlier one with the same kind, tenant and name.
    pub fn is_named(self) -> bool {
        matches!(self, Self::Client(_) | Self::Endpoint)
    }

    /// Whether both are of the same kind, regardless of their roles.
    pub fn is_same_kind(self, other: Self) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }

    /// The kind's name in the store.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Client(role) => role.name(),
            Self::Join => "join",
            Self::Node => "node",
            Self::Endpoint => "endpoint",
            Self::Session => "session",
        }
    }

    /// Parses [`BearerKind::name`].
    pub(crate) fn from_name(name: &str) -> Self {
        match name {
            "join" => Self::Join,
            "endpoint" => Self::Endpoint,
            "session" => Self::Session,
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
    pub kind: BearerKind,
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
pub enum RevokedLeases {
    /// They end.
    End,
    /// They continue to their own expiry.
    Keep,
}
