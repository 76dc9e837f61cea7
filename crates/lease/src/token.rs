//! Capabilities: the signed token that is a lease, the signed hello that uses it, the signed verdict that answers.

use dayfly_protocol::WIRE_VERSION;
use dayfly_protocol::api::Sandbox;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::hello::{Hello, MAGIC, Token, Verdict, kind, options, purpose, transport};
use dayfly_protocol::ids::{
    AllowanceId, ChannelId, Incarnation, KeyId, LeaseId, NodeId, PublicKey, TenantId, WorkerIndex,
};
use dayfly_protocol::slot::{Geometry, GeometryError};
use dayfly_protocol::version::RELEASE;
use zerocopy::FromZeros;

use crate::key::{SigningKey, key_id, verify};
use crate::replay::check_age;

/// Precedes what a verdict signs: a node's key also signs tokens when there is no manager, and neither signature may
/// ever pass for the other.
const VERDICT_DOMAIN: &[u8; 16] = b"dayfly verdict 1";

/// Clocks may differ by this much unless a site says otherwise: a minute is what an unattended machine without time
/// synchronisation drifts in a month.
pub const DEFAULT_SKEW_TOLERANCE_MS: u64 = 60_000;

/// Why a token, a hello or a verdict is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Other wire version.
    #[error(
        "the {what} speaks wire version {theirs} and this side {WIRE_VERSION} (Dayfly {RELEASE}); install the same release on both"
    )]
    Version {
        /// `hello`, `token` or `verdict`.
        what: &'static str,
        /// Its version.
        theirs: u16,
    },
    /// The bytes are not what they should be.
    #[error("malformed {0}; the peer is not a Dayfly client of this version")]
    Malformed(&'static str),
    /// Channel geometry.
    #[error("the hello asks for {0}")]
    Geometry(#[from] GeometryError),
    /// No such worker in the lease.
    #[error("the hello asks for worker {worker} of a lease of {workers}; workers count from 0")]
    Worker {
        /// Asked.
        worker: u16,
        /// Leased.
        workers: u16,
    },
    /// An allowance used as a lease.
    #[error("an allowance only permits leasing; ask the node for a lease and open channels with its token")]
    AllowanceOpensNothing,
    /// Issuer.
    #[error("the token was signed by key {issuer}, which this node does not trust; lease again from its manager")]
    UnknownIssuer {
        /// The key.
        issuer: KeyId,
    },
    /// Token's signature.
    #[error("the token's signature is wrong: it was altered or forged; lease again")]
    TokenSignature,
    /// Hello's signature.
    #[error("the hello is not signed by the lease's holder; use the key that the lease was requested with")]
    HelloSignature,
    /// Verdict's signature.
    #[error("the verdict is not signed by the node that the lease names; something stands between, connect elsewhere")]
    VerdictSignature,
    /// Other node.
    #[error("the token or hello is for node {token} and this is node {node}; connect to the address in the grant")]
    WrongNode {
        /// Named by it.
        token: NodeId,
        /// That was asked.
        node: NodeId,
    },
    /// Too early.
    #[error("the token is valid only in {} ms; set the clocks of manager and node alike", not_before_ms - now_ms)]
    NotYetValid {
        /// From when.
        not_before_ms: u64,
        /// The node's clock.
        now_ms: u64,
    },
    /// Too late.
    #[error("the token expired {} ms ago; renew in time or lease again", now_ms - expires_at_ms)]
    Expired {
        /// Until when.
        expires_at_ms: u64,
        /// The node's clock.
        now_ms: u64,
    },
    /// Hello too old, or from the future.
    #[error(
        "the hello's clock is {} ms away from the node's, of which {tolerance_ms} ms are tolerated; \
         set the clocks alike and connect again",
        sent_at_ms.abs_diff(*now_ms)
    )]
    ClockTooFar {
        /// The client's clock.
        sent_at_ms: u64,
        /// The node's clock.
        now_ms: u64,
        /// What is allowed.
        tolerance_ms: u64,
    },
    /// Hello seen before.
    #[error("this hello was used before; draw a new channel id for every connection")]
    Replayed,
    /// Window full.
    #[error(
        "this lease opens more connections than its share of the {capacity} that its node can remember; connect again in a minute"
    )]
    TooManyHellos {
        /// How many.
        capacity: usize,
    },
}

impl TokenError {
    /// The code under which a peer hears of it.
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

/// What a token says, before it is signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claims {
    /// Workers of the lease.
    pub workers: u16,
    /// Cores of each worker.
    pub cores: u16,
    /// Memory of the whole lease.
    pub memory_bytes: u64,
    /// How isolated its workers are; in an allowance, what it permits at least.
    pub sandbox: Sandbox,
    /// The lease; none makes an allowance.
    pub lease: Option<LeaseId>,
    /// Who pays.
    pub tenant: TenantId,
    /// The only node that may honour it.
    pub node: NodeId,
    /// Who may use it.
    pub holder: PublicKey,
    /// The manager's epoch over the node; 0 when a node signs for itself.
    pub epoch: u64,
    /// Start of validity, milliseconds since the Unix epoch.
    pub not_before_ms: u64,
    /// End of validity.
    pub expires_at_ms: u64,
    /// Length of the lease from first use.
    pub duration_ms: u64,
}

impl Claims {
    /// The signed token of an allowance that all nodes of a manager honour.
    pub fn sign_for_all(&self, allowance: AllowanceId, key: &SigningKey) -> Token {
        let mut token = self.sign(key);
        token.kind = kind::ALLOWANCE;
        token.lease = LeaseId(allowance.0);
        token.node = NodeId([0; 16]);
        sign_token(&mut token, key);
        token
    }

    /// The signed token.
    pub fn sign(&self, key: &SigningKey) -> Token {
        let mut token = Token::new_zeroed();
        token.version = WIRE_VERSION.into();
        token.kind = if self.lease.is_some() {
            kind::LEASE
        } else {
            kind::ALLOWANCE
        };
        token.workers = self.workers.into();
        token.cores = self.cores.into();
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

/// The allowance that a token is, if it is a manager's.
pub fn allowance_of(token: &Token) -> Option<AllowanceId> {
    let is_managers = token.kind == kind::ALLOWANCE && token.lease.0 != [0; 16];
    is_managers.then_some(AllowanceId(token.lease.0))
}

/// Fills in the issuer and the signature.
pub fn sign_token(token: &mut Token, key: &SigningKey) {
    token.issuer = key.id();
    token.signature = key.sign(token.signed_bytes());
}

/// Whether this node may honour this token now. The expiry only bounds how long the bytes mean anything; the lease's
/// own length is counted by [`crate::state::Lease`].
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
    // Only now are the fields worth a judgement: whoever holds an unsigned token learns nothing about this node.
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

/// What a client wants of a node, before it is signed.
#[derive(Debug, Clone, Copy)]
pub enum Opening {
    /// A channel.
    Channel {
        /// To which worker.
        worker: WorkerIndex,
        /// One of [`transport`].
        transport: u8,
        /// Its size.
        geometry: Geometry,
        /// Union of [`options`].
        options: u32,
    },
    /// A control connection.
    Control {
        /// Whether both sides go on under TLS after the verdict.
        encrypted: bool,
    },
}

impl Opening {
    /// The signed hello to `node`. `channel` is drawn at random for every connection, also for a control connection.
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

/// Fills in the signature.
pub fn sign_hello(hello: &mut Hello, holder: &SigningKey) {
    hello.signature = holder.sign(hello.signed_bytes());
}

/// Whether this node may serve this hello now, if it did not serve it before, which the [`ReplayWindow`](crate::ReplayWindow)
/// knows; cheap checks first, signatures last. `is_proven` says that the signature of exactly this token was verified before;
/// everything else of it is judged anew. Both clocks may be `tolerance_ms` apart.
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

/// What a node shows for a lease that it granted under a manager's allowance: whether the allowance is one, and its holder really
/// asked this node while it was good.
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

/// An accepting verdict, signed by the node. `options` is a union of
/// [`mod@options`]; `executor_key` is all zero for transports without TLS.
pub fn accept(
    channel: &ChannelId,
    incarnation: Incarnation,
    worker_pid: u32,
    options: u16,
    executor_key: PublicKey,
    node_key: &SigningKey,
) -> Verdict {
    let mut verdict = Verdict::new_zeroed();
    verdict.magic = MAGIC;
    verdict.version = WIRE_VERSION.into();
    verdict.incarnation = incarnation.0.into();
    verdict.worker_pid = worker_pid.into();
    verdict.options = options.into();
    verdict.executor_key = executor_key;
    verdict.signature = node_key.sign(&verdict_bytes(channel, &executor_key));
    verdict
}

/// A refusing verdict. The text is cut at a character's boundary when it is too long.
pub fn refuse(failure: &Failure) -> Verdict {
    let mut verdict = Verdict::new_zeroed();
    verdict.magic = MAGIC;
    verdict.version = WIRE_VERSION.into();
    verdict.code = (failure.code as u16).into();
    let length = failure.message.floor_char_boundary_of(verdict.text.len());
    verdict.text[..length].copy_from_slice(&failure.message.as_bytes()[..length]);
    verdict.text_length = (length as u16).into();
    verdict
}

/// What the node answered: nothing when it accepted and its signature holds.
pub fn check_verdict(verdict: &Verdict, channel: &ChannelId, node_key: &PublicKey) -> Result<(), Failure> {
    if verdict.magic != MAGIC {
        return Err(TokenError::Malformed("verdict").into());
    }
    if verdict.code.get() != 0 {
        let code = Code::from_wire(verdict.code.get()).unwrap_or(Code::Internal);
        return Err(Failure::new(code, verdict.message()));
    }
    if verdict.version.get() != WIRE_VERSION {
        return Err(TokenError::Version {
            what: "verdict",
            theirs: verdict.version.get(),
        }
        .into());
    }
    if !verify(
        node_key,
        &verdict_bytes(channel, &verdict.executor_key),
        &verdict.signature,
    ) {
        return Err(TokenError::VerdictSignature.into());
    }
    Ok(())
}

fn verdict_bytes(channel: &ChannelId, executor_key: &PublicKey) -> [u8; 64] {
    let mut bytes = [0; 64];
    bytes[..16].copy_from_slice(VERDICT_DOMAIN);
    bytes[16..32].copy_from_slice(&channel.0);
    bytes[32..].copy_from_slice(&executor_key.0);
    bytes
}

trait FloorCharBoundary {
    fn floor_char_boundary_of(&self, most: usize) -> usize;
}

impl FloorCharBoundary for str {
    /// The longest length up to `most` that splits no character (the standard one needs a newer compiler).
    fn floor_char_boundary_of(&self, most: usize) -> usize {
        (0..=most.min(self.len()))
            .rev()
            .find(|&at| self.is_char_boundary(at))
            .unwrap_or(0)
    }
}

#[cfg(test)]
#[path = "token_tests.rs"]
mod tests;
