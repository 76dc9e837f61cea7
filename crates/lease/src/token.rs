//! Capabilities: the signed token that represents a lease, the signed hello that uses it, and the node's signed
//! verdict.

mod verdict;

use dayfly_protocol::WIRE_VERSION;
use dayfly_protocol::api::Sandbox;
use dayfly_protocol::cores::MilliCores;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::hello::{Hello, MAGIC, Token, kind, options, purpose, transport};
use dayfly_protocol::ids::{AllowanceId, ChannelId, KeyId, LeaseId, NodeId, PublicKey, TenantId, WorkerIndex};
use dayfly_protocol::slot::{Geometry, GeometryError};
use dayfly_protocol::version::RELEASE;
use zerocopy::FromZeros;

pub use self::verdict::{accept, check_verdict, refuse};
use crate::key::{SigningKey, key_id, verify};
use crate::replay::check_age;

/// Default clock difference that is tolerated. An unattended host without time synchronisation drifts about a minute in
/// a month.
pub const DEFAULT_SKEW_TOLERANCE_MS: u64 = 60_000;

/// Why a token, a hello or a verdict is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The peer uses another wire version.
    #[error(
        "the {what} speaks wire version {theirs} and this side {WIRE_VERSION} (Dayfly {RELEASE}); install the same release on both"
    )]
    Version {
        /// `hello`, `token` or `verdict`.
        what: &'static str,
        /// The peer's version.
        theirs: u16,
    },
    /// The bytes are malformed.
    #[error("malformed {0}; the peer is not a Dayfly client of this version")]
    Malformed(&'static str),
    /// The channel geometry is out of bounds.
    #[error("the hello asks for {0}")]
    Geometry(#[from] GeometryError),
    /// The lease has no such worker.
    #[error("the hello asks for worker {worker} of a lease of {workers}; workers count from 0")]
    Worker {
        /// Requested worker.
        worker: u16,
        /// Number of workers of the lease.
        workers: u16,
    },
    /// An allowance was used to open a channel.
    #[error("an allowance only permits leasing; ask the node for a lease and open channels with its token")]
    AllowanceOpensNothing,
    /// The node does not trust the token's issuer.
    #[error("the token was signed by key {issuer}, which this node does not trust; lease again from its manager")]
    UnknownIssuer {
        /// Id of the issuer's key.
        issuer: KeyId,
    },
    /// The token's signature is invalid.
    #[error("the token's signature is wrong: it was altered or forged; lease again")]
    TokenSignature,
    /// The hello's signature is invalid.
    #[error("the hello is not signed by the lease's holder; use the key that the lease was requested with")]
    HelloSignature,
    /// The verdict's signature is invalid.
    #[error("the verdict is not signed by the node that the lease names; something stands between, connect elsewhere")]
    VerdictSignature,
    /// The token or the hello is for another node.
    #[error("the token or hello is for node {token} and this is node {node}; connect to the address in the grant")]
    WrongNode {
        /// The node named in the token or hello.
        token: NodeId,
        /// The node that received it.
        node: NodeId,
    },
    /// The token is not yet valid.
    #[error("the token is valid only in {} ms; set the clocks of manager and node alike", not_before_ms - now_ms)]
    NotYetValid {
        /// Start of validity.
        not_before_ms: u64,
        /// The node's clock.
        now_ms: u64,
    },
    /// The token has expired.
    #[error("the token expired {} ms ago; renew in time or lease again", now_ms - expires_at_ms)]
    Expired {
        /// End of validity.
        expires_at_ms: u64,
        /// The node's clock.
        now_ms: u64,
    },
    /// The hello's timestamp is too far from the node's clock.
    #[error(
        "the hello's clock is {} ms away from the node's, of which {tolerance_ms} ms are tolerated; \
         set the clocks alike and connect again",
        sent_at_ms.abs_diff(*now_ms)
    )]
    ClockTooFar {
        /// Time in the hello.
        sent_at_ms: u64,
        /// The node's clock.
        now_ms: u64,
        /// Tolerated difference.
        tolerance_ms: u64,
    },
    /// The hello was used before.
    #[error("this hello was used before; draw a new channel id for every connection")]
    Replayed,
    /// The lease has used up its share of the replay window.
    #[error(
        "this lease opens more connections than its share of the {capacity} that its node can remember; connect again in a minute"
    )]
    TooManyHellos {
        /// Capacity of the replay window, in hellos.
        capacity: usize,
    },
}

impl TokenError {
    /// The error code that a peer receives.
    pub fn code(&self) -> Code {
        match self {
            Self::Version { .. } => Code::VersionMismatch,
            Self::Malformed(_) => Code::ProtocolViolation,
            Self::Geometry(_) => Code::InvalidRequest,
            Self::Worker { .. } => Code::NotFound,
            Self::AllowanceOpensNothing
            | Self::UnknownIssuer { .. }
            | Self::TokenSignature
            | Self::HelloSignature
            | Self::VerdictSignature
            | Self::WrongNode { .. }
            | Self::NotYetValid { .. } => Code::Unauthorized,
            Self::Expired { .. } => Code::LeaseExpired,
            Self::ClockTooFar { .. } | Self::Replayed => Code::Replayed,
            Self::TooManyHellos { .. } => Code::NoCapacity,
        }
    }
}

impl From<TokenError> for Failure {
    fn from(error: TokenError) -> Self {
        Failure::new(error.code(), error.to_string())
    }
}

/// The contents of a token before it is signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claims {
    /// Workers of the lease; above its highest number if it has given workers back.
    pub workers: u16,
    /// Cores of each worker; in an allowance, those of all workers on one node.
    pub cores: MilliCores,
    /// Memory of the whole lease in bytes.
    pub memory_bytes: u64,
    /// Isolation of its workers; in an allowance, the least isolation that it permits.
    pub sandbox: Sandbox,
    /// The lease; `None` for an allowance.
    pub lease: Option<LeaseId>,
    /// The tenant that pays.
    pub tenant: TenantId,
    /// The only node that may accept it.
    pub node: NodeId,
    /// The key that may use it.
    pub holder: PublicKey,
    /// The manager's epoch over the node; 0 if the node signs it itself.
    pub epoch: u64,
    /// Start of validity, milliseconds since the Unix epoch.
    pub not_before_ms: u64,
    /// End of validity, in milliseconds since the Unix epoch.
    pub expires_at_ms: u64,
    /// Length of the lease from first use, in milliseconds.
    pub duration_ms: u64,
}

impl Claims {
    /// Returns the signed token of an allowance that all nodes of a manager accept.
    pub fn sign_for_all(&self, allowance: AllowanceId, key: &SigningKey) -> Token {
        let mut token = self.sign(key);
        token.kind = kind::ALLOWANCE;
        token.lease = LeaseId(allowance.0);
        token.node = NodeId([0; 16]);
        sign_token(&mut token, key);
        token
    }

    /// Returns the signed token.
    pub fn sign(&self, key: &SigningKey) -> Token {
        let mut token = Token::new_zeroed();
        token.version = WIRE_VERSION.into();
        token.kind = if self.lease.is_some() {
            kind::LEASE
        } else {
            kind::ALLOWANCE
        };
        token.workers = self.workers.into();
        token.milli_cores = self.cores.thousandths().into();
        token.memory_bytes = self.memory_bytes.into();
        token.sandbox = self.sandbox.number();
        token.lease = self.lease.unwrap_or(LeaseId([0; 16]));
        token.tenant = self.tenant;
        token.node = self.node;
        token.holder = self.holder;
        token.epoch = self.epoch.into();
        token.not_before_ms = self.not_before_ms.into();
        token.expires_at_ms = self.expires_at_ms.into();
        token.duration_ms = self.duration_ms.into();
        sign_token(&mut token, key);
        token
    }
}

/// Returns the id of a manager's allowance, or `None` for any other token.
pub fn allowance_of(token: &Token) -> Option<AllowanceId> {
    let is_managers = token.kind == kind::ALLOWANCE && token.lease.0 != [0; 16];
    is_managers.then_some(AllowanceId(token.lease.0))
}

/// Sets the issuer and the signature.
pub fn sign_token(token: &mut Token, key: &SigningKey) {
    token.issuer = key.id();
    token.signature = key.sign(token.signed_bytes());
}

/// Checks that this node may accept the token now. The expiry only bounds how long the signed bytes are valid;
/// [`crate::state::Lease`] counts the lease's own length.
pub fn check_token(
    token: &Token,
    now_ms: u64,
    skew_tolerance_ms: u64,
    node: &NodeId,
    trusted: &[PublicKey],
) -> Result<(), TokenError> {
    judge_token(token, false, now_ms, skew_tolerance_ms, node, trusted)
}

fn judge_token(
    token: &Token,
    is_proven: bool,
    now_ms: u64,
    skew_tolerance_ms: u64,
    node: &NodeId,
    trusted: &[PublicKey],
) -> Result<(), TokenError> {
    if token.version.get() != WIRE_VERSION {
        return Err(TokenError::Version {
            what: "token",
            theirs: token.version.get(),
        });
    }
    let issuer = trusted
        .iter()
        .find(|key| key_id(key) == token.issuer)
        .ok_or(TokenError::UnknownIssuer { issuer: token.issuer })?;
    if !is_proven && !verify(issuer, token.signed_bytes(), &token.signature) {
        return Err(TokenError::TokenSignature);
    }
    // Check the fields only after the signature, so that a forged token reveals nothing about this node.
    if !matches!(token.kind, kind::LEASE | kind::ALLOWANCE) || Sandbox::from_number(token.sandbox).is_none() {
        return Err(TokenError::Malformed("token"));
    }
    let for_all = token.node.0 == [0; 16] && allowance_of(token).is_some();
    if token.node != *node && !for_all {
        return Err(TokenError::WrongNode {
            token: token.node,
            node: *node,
        });
    }
    let not_before_ms = token.not_before_ms.get();
    if not_before_ms > now_ms.saturating_add(skew_tolerance_ms) {
        return Err(TokenError::NotYetValid { not_before_ms, now_ms });
    }
    let expires_at_ms = token.expires_at_ms.get();
    if expires_at_ms.saturating_add(skew_tolerance_ms) < now_ms {
        return Err(TokenError::Expired { expires_at_ms, now_ms });
    }
    Ok(())
}

/// The contents of a hello before it is signed.
#[derive(Debug, Clone, Copy)]
pub enum Opening {
    /// Opens a channel.
    Channel {
        /// The worker to connect to.
        worker: WorkerIndex,
        /// One of [`transport`].
        transport: u8,
        /// Wanted geometry.
        geometry: Geometry,
        /// Bit set of [`options`].
        options: u32,
    },
    /// Opens a control connection.
    Control {
        /// Whether both sides continue under TLS after the verdict.
        encrypted: bool,
    },
}

impl Opening {
    /// Returns the signed hello to `node`. Every connection, including a control connection, needs a new random
    /// `channel`.
    pub fn sign(self, node: NodeId, token: Token, channel: ChannelId, now_ms: u64, holder: &SigningKey) -> Hello {
        let mut hello = Hello::new_zeroed();
        hello.magic = MAGIC;
        hello.version = WIRE_VERSION.into();
        match self {
            Self::Channel {
                worker,
                transport,
                geometry,
                options,
            } => {
                hello.purpose = purpose::CHANNEL;
                hello.transport = transport;
                hello.options = options.into();
                hello.worker = worker.0.into();
                hello.slots = geometry.slots.into();
                hello.stride_bytes = geometry.stride_bytes.into();
                hello.bulk_bytes = geometry.bulk_bytes.into();
            }
            Self::Control { encrypted } => {
                hello.purpose = purpose::CONTROL;
                hello.transport = if encrypted { transport::TLS } else { 0 };
            }
        }
        hello.channel = channel;
        hello.sent_at_ms = now_ms.into();
        hello.node = node;
        hello.token = token;
        sign_hello(&mut hello, holder);
        hello
    }
}

/// Sets the signature.
pub fn sign_hello(hello: &mut Hello, holder: &SigningKey) {
    hello.signature = holder.sign(hello.signed_bytes());
}

/// Checks that this node may serve the hello, except for replays, which [`ReplayWindow`](crate::ReplayWindow) detects.
/// Cheap checks come first, signatures last. `is_proven` states that the signature of exactly this token was verified
/// before; everything else is checked again. The clocks may differ by `tolerance_ms`.
pub fn check_hello(
    hello: &Hello,
    is_proven: bool,
    now_ms: u64,
    tolerance_ms: u64,
    node: &NodeId,
    trusted: &[PublicKey],
) -> Result<(), TokenError> {
    if hello.magic != MAGIC || hello.options.get() & !options::CLIENT_NEVER_SLEEPS != 0 {
        return Err(TokenError::Malformed("hello"));
    }
    if hello.version.get() != WIRE_VERSION {
        return Err(TokenError::Version {
            what: "hello",
            theirs: hello.version.get(),
        });
    }
    if hello.node != *node {
        return Err(TokenError::WrongNode {
            token: hello.node,
            node: *node,
        });
    }
    check_age(hello.sent_at_ms.get(), now_ms, tolerance_ms)?;
    judge_token(&hello.token, is_proven, now_ms, tolerance_ms, node, trusted)?;
    if !verify(&hello.token.holder, hello.signed_bytes(), &hello.signature) {
        return Err(TokenError::HelloSignature);
    }
    match (hello.purpose, hello.transport) {
        (purpose::CHANNEL, transport::SHM | transport::TCP | transport::TLS | transport::LIBFABRIC) => {
            if hello.token.kind != kind::LEASE {
                return Err(TokenError::AllowanceOpensNothing);
            }
            hello.geometry().check()?;
            let (worker, workers) = (hello.worker.get(), hello.token.workers.get());
            if worker >= workers {
                return Err(TokenError::Worker { worker, workers });
            }
        }
        (purpose::CONTROL, 0 | transport::TLS) => {}
        _ => return Err(TokenError::Malformed("hello")),
    }
    Ok(())
}

/// Checks the evidence for a lease that a node granted under a manager's allowance: the allowance is genuine, and its
/// holder asked this node while it was valid. Returns the allowance.
pub fn check_evidence(
    hello: &Hello,
    skew_tolerance_ms: u64,
    node: &NodeId,
    trusted: &[PublicKey],
) -> Result<AllowanceId, TokenError> {
    let allowance = allowance_of(&hello.token).ok_or(TokenError::Malformed("allowance"))?;
    if hello.magic != MAGIC || hello.purpose != purpose::CONTROL {
        return Err(TokenError::Malformed("hello"));
    }
    if hello.node != *node {
        return Err(TokenError::WrongNode {
            token: hello.node,
            node: *node,
        });
    }
    check_token(&hello.token, hello.sent_at_ms.get(), skew_tolerance_ms, node, trusted)?;
    if !verify(&hello.token.holder, hello.signed_bytes(), &hello.signature) {
        return Err(TokenError::HelloSignature);
    }
    Ok(allowance)
}

#[cfg(test)]
#[path = "token_tests.rs"]
mod tests;
