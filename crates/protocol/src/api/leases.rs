//! Leases and gangs of leases: what a client requests, and what it is granted.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{LoanTerms, NodeAddress, Usage, is_default};
use crate::cores::MilliCores;
use crate::environment::Environment;
use crate::ids::{LeaseId, NodeId, PublicKey, TenantId};
use crate::named::named_enum;

/// The runtime that the workers need.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Runtime {
    /// Shared libraries with C-ABI symbols.
    Native,
    /// Python callables.
    Python {
        /// Full version of the client's interpreter, such as `3.11.7`. Empty for any version.
        version: String,
        /// Version of the client's cloudpickle.
        cloudpickle: String,
        /// The client's own interpreter, used when the node runs on the same host as the same user.
        executable: Option<String>,
        /// Directories to put on the workers' module path (same host only).
        #[serde(default)]
        path: Vec<String>,
        /// Packages that functions import; absent if the interpreter already has them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        environment: Option<Environment>,
        /// Digest of the client's own modules, which travel with the function. Tasks with different digests share no
        /// worker.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        code: Option<String>,
    },
}

impl Runtime {
    /// Returns the runtime for functions that travel as source: any Python that the node has.
    pub fn any_python() -> Self {
        Self::Python {
            version: String::new(),
            cloudpickle: String::new(),
            executable: None,
            path: Vec::new(),
            environment: None,
            code: None,
        }
    }

    /// The environment, if one is set.
    pub fn environment(&self) -> Option<&Environment> {
        match self {
            Self::Python { environment, .. } => environment.as_ref(),
            Self::Native => None,
        }
    }
}

named_enum! {
    /// Whether waiting workers poll or sleep.
    Mode, "a mode" {
        /// Each worker owns its cores and polls for `hot_for_ms` after each invocation.
        Hot = "hot",
        /// Workers sleep until woken and share cores.
        Warm = "warm",
        /// Hot if the node has free cores, else warm. The grant contains the choice.
        Auto = "auto",
    }
}

named_enum! {
    /// Level of isolation between a lease's workers and the rest of their host.
    Sandbox, "an isolation level" {
        /// Processes of the node's own user. For code as trusted as that user.
        Process = "process",
        /// Namespaces, a separate root directory, no privileges, a system call filter and resource limits. For
        /// untrusted code.
        Isolated = "isolated",
        /// Like `isolated`, with a container image in place of the host's programs and libraries.
        Container = "container",
    }
}

impl Sandbox {
    /// The level's number in [`crate::hello::Token`] and in the store.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// Returns the level with this [`Sandbox::number`], or `None`.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|sandbox| sandbox.number() == number)
    }
}

/// A file or directory of the host that a lease needs.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
pub struct HostPath {
    /// Absolute path, the same on the host and for the workers.
    pub path: String,
    /// Whether the workers may write.
    #[serde(default)]
    pub writable: bool,
}

/// `POST /v1/leases`, and `lease` on a node's control connection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LeaseRequest {
    /// Number of workers, 1 to 1,024.
    #[schema(minimum = 1)]
    pub workers: u16,
    /// Cores of each worker: for a warm worker at least 0.01, for a hot one a whole number.
    #[serde(default = "one_core")]
    #[schema(value_type = f64, minimum = 0.01, maximum = 4_294_967_295.0, multiple_of = 0.001)]
    pub cores_per_worker: MilliCores,
    /// Memory of the whole lease in bytes; 0 for the node's share per worker.
    #[serde(default)]
    pub memory_bytes: u64,
    /// GPUs of each worker. The worker sees no others.
    #[serde(default, skip_serializing_if = "is_default")]
    pub gpus_per_worker: u16,
    /// Length in milliseconds from first use.
    #[schema(minimum = 1)]
    pub duration_ms: u64,
    /// Whether waiting workers poll or sleep.
    pub mode: Mode,
    /// Milliseconds that a hot worker polls before it sleeps; `4294967295` for no limit.
    #[serde(default = "no_limit")]
    pub hot_for_ms: u32,
    /// Microseconds that a warm worker polls after a call before it sleeps; at most 10,000. Billed as polling.
    #[serde(default, skip_serializing_if = "is_default")]
    #[schema(maximum = 10_000)]
    pub poll_for_us: u32,
    /// Runtime that the workers need.
    pub runtime: Runtime,
    /// Isolation of the workers. If absent, `container` for a lease that names an image, else the site's default.
    #[serde(default)]
    pub sandbox: Option<Sandbox>,
    /// Container image: a name or path that the node's owner allows, optionally followed by `@sha256:...` to require
    /// that version. If absent, the first image that the owner allows.
    #[serde(default)]
    pub image: Option<String>,
    /// Whether isolated workers use the host's network instead of none. The site may forbid it.
    #[serde(default)]
    pub network: bool,
    /// Host paths that isolated workers see besides programs and libraries. The site may forbid them.
    #[serde(default)]
    pub files: Vec<HostPath>,
    /// Whether output is attributed to the call that printed it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub output_by_call: bool,
    /// What its calls lend and borrow. Hot workers do neither.
    #[serde(flatten)]
    pub loans: LoanTerms,
    /// Whether its workers are ranks that wait for each other. They lend what all of them can, and borrow all or none.
    /// It is set for the leases of a gang.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_gang: bool,
    /// Ed25519 key whose owner may use the lease.
    pub holder: PublicKey,
    /// Milliseconds after which a lease whose last channel has closed is released; 0 for never.
    #[serde(default = "idle_release")]
    pub idle_release_ms: u64,
    /// The wanted node, if any.
    #[serde(default)]
    pub node: Option<NodeId>,
    /// Milliseconds to wait for capacity; at most 20,000 per request.
    #[serde(default)]
    pub wait_ms: u64,
}

impl LeaseRequest {
    /// Returns a request with defaults: single-core workers for shared libraries, the node's share of memory, and any
    /// node that has capacity now. `duration_ms` is the length in milliseconds.
    pub fn native(workers: u16, mode: Mode, duration_ms: u64, holder: PublicKey) -> Self {
        Self {
            workers,
            cores_per_worker: MilliCores::ONE,
            memory_bytes: 0,
            gpus_per_worker: 0,
            duration_ms,
            mode,
            hot_for_ms: no_limit(),
            poll_for_us: 0,
            runtime: Runtime::Native,
            sandbox: None,
            image: None,
            network: false,
            files: Vec::new(),
            output_by_call: false,
            loans: LoanTerms::default(),
            is_gang: false,
            holder,
            idle_release_ms: 0,
            node: None,
            wait_ms: 0,
        }
    }

    /// Returns the level that it asks for, or `None` for the site's default.
    pub fn wanted_sandbox(&self) -> Option<Sandbox> {
        self.sandbox.or(self.image.as_ref().map(|_| Sandbox::Container))
    }

    /// Returns the same request without waiting for capacity.
    pub fn without_wait(&self) -> Self {
        Self {
            wait_ms: 0,
            ..self.clone()
        }
    }
}

named_enum! {
    /// Placement of a gang's ranks.
    #[derive(Default)]
    Placement, "a placement" {
        /// On one node.
        Together = "together",
        /// On as few nodes as possible.
        #[default]
        Packed = "packed",
        /// On as many nodes as possible, evenly.
        Spread = "spread",
        /// On nodes of one fabric, and on as few of them as possible.
        Fabric = "fabric",
    }
}

/// `POST /v1/gangs`: leases on one or several nodes that together have the given number of workers, or none at all. The
/// response contains the grants in the order of the ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GangRequest {
    /// The lease. `workers` (here up to 4,096) and `memory_bytes` are those of the whole gang.
    #[serde(flatten)]
    pub lease: LeaseRequest,
    /// Placement of the ranks.
    #[serde(default)]
    pub placement: Placement,
    /// Allowed nodes; empty for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub among: Vec<NodeId>,
}

/// Most workers of a lease.
pub const MAX_WORKERS: u16 = 1_024;
/// Longest [`LeaseRequest::poll_for_us`]. Warm workers share cores, so that longer polling would delay others.
pub const MAX_POLL_FOR_US: u32 = 10_000;
/// Most workers of a gang.
pub const MAX_RANKS: u16 = 4_096;
/// Longest wait of a lease request, in milliseconds. A client that wants to wait longer repeats the request.
pub const MAX_WAIT_MS: u64 = 20_000;

fn one_core() -> MilliCores {
    MilliCores::ONE
}

fn no_limit() -> u32 {
    u32::MAX
}

fn idle_release() -> u64 {
    10_000
}

/// A granted lease, for its holder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Grant {
    /// Id of the lease.
    pub lease: LeaseId,
    /// The signed [`crate::hello::Token`], in hexadecimal.
    pub token: String,
    /// Address of the lease's node.
    pub node: NodeAddress,
    /// Workers granted.
    pub workers: u16,
    /// Numbers of the workers, in ascending order, if they are not those from 0 on. A lease that gave workers back has
    /// gaps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub numbers: Vec<u16>,
    /// The mode that `auto` resolved to, or the requested one.
    pub mode: Mode,
    /// Isolation of the workers.
    pub sandbox: Sandbox,
    /// For containers, the exact image: `NAME@sha256:...`, or the path of a directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Memory granted, in bytes.
    pub memory_bytes: u64,
    /// Length in milliseconds.
    pub duration_ms: u64,
    /// Expiry of the token in milliseconds since the Unix epoch, for display. The node uses its own clock.
    pub expires_at_ms: u64,
    /// For display: how the grant differs from the request, for example an earlier end because the bearer token
    /// expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notice: Option<String>,
}

named_enum! {
    /// State of a lease.
    LeaseState, "a lease state" {
        /// Resources are held, and the lease has not been used.
        Granted = "granted",
        /// Used at least once.
        Active = "active",
        /// Released by its holder, or idle for too long.
        Released = "released",
        /// Its time is over, or it was not used in time.
        Expired = "expired",
        /// Ended by an operator.
        Revoked = "revoked",
        /// Its node or its executor was lost.
        Lost = "lost",
    }
}

impl LeaseState {
    /// Whether the lease holds resources.
    pub fn is_live(self) -> bool {
        matches!(self, Self::Granted | Self::Active)
    }
}

/// A lease, as in `GET /v1/leases`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LeaseStatus {
    /// Id of the lease.
    pub lease: LeaseId,
    /// Tenant that holds it.
    pub tenant: TenantId,
    /// Node of the lease.
    pub node: NodeId,
    /// State of the lease.
    pub state: LeaseState,
    /// Number of workers.
    pub workers: u16,
    /// Cores of each worker.
    pub cores_per_worker: MilliCores,
    /// Whether waiting workers poll or sleep.
    pub mode: Mode,
    /// Isolation of its workers.
    pub sandbox: Sandbox,
    /// For containers, the exact image: `NAME@sha256:...`, or the path of a directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Time of the grant, in milliseconds since the Unix epoch.
    pub granted_at_ms: u64,
    /// Expected end, in milliseconds since the Unix epoch.
    pub expires_at_ms: u64,
    /// Usage so far.
    pub usage: Usage,
}

/// What a renewal changes besides the length. What is absent stays as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct LeaseChange {
    /// Number of workers. Memory follows in proportion. Fewer workers take the idle ones first; a running call may
    /// finish within the node's grace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub workers: Option<u16>,
    /// The fewest workers to accept if there is no room for `workers`. If absent, the renewal is refused then, and the
    /// lease stays as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub min_workers: Option<u16>,
    /// Whether waiting workers poll or sleep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Milliseconds that a hot worker polls before it sleeps; `4294967295` for no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hot_for_ms: Option<u32>,
    /// Microseconds that a warm worker polls after a call before it sleeps; at most 10,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 10_000)]
    pub poll_for_us: Option<u32>,
}

impl LeaseChange {
    /// Whether it changes nothing.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// `POST /v1/leases/{id}/renew`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RenewRequest {
    /// New length from now, in milliseconds.
    #[schema(minimum = 1)]
    pub duration_ms: u64,
    /// What changes besides.
    #[serde(flatten)]
    pub change: LeaseChange,
}

/// What a lease holds since its last change, as reported by its node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldTerms {
    /// Id of the lease.
    pub lease: LeaseId,
    /// Number of workers.
    pub workers: u16,
    /// As in [`Grant::numbers`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub numbers: Vec<u16>,
    /// Never [`Mode::Auto`].
    pub mode: Mode,
    /// Memory of the whole lease in bytes.
    pub memory_bytes: u64,
}

impl HeldTerms {
    /// Whether a lease can have these terms.
    pub fn are_possible(&self) -> bool {
        self.workers > 0
            && self.workers <= MAX_WORKERS
            && self.mode != Mode::Auto
            && are_numbers_of(&self.numbers, self.workers)
    }
}

/// The first number that none of so many workers with these [`Grant::numbers`] has.
pub fn worker_bound(numbers: &[u16], workers: u16) -> u16 {
    numbers.last().map_or(workers, |last| last.saturating_add(1))
}

/// Whether these can be the [`Grant::numbers`] of so many workers.
pub fn are_numbers_of(numbers: &[u16], workers: u16) -> bool {
    numbers.is_empty()
        || numbers.len() == usize::from(workers)
            && numbers.is_sorted_by(|lower, higher| lower < higher)
            && numbers.iter().all(|number| *number < MAX_WORKERS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_workers_ascend_below_the_bound() {
        for (numbers, workers, are_valid) in [
            (&[][..], 3, true),
            (&[0, 2, 5], 3, true),
            (&[1, 1023], 2, true),
            (&[0, 2], 3, false),
            (&[2, 0], 2, false),
            (&[1, 1], 2, false),
            (&[1, 1024], 2, false),
        ] {
            assert_eq!(are_numbers_of(numbers, workers), are_valid, "{numbers:?}");
        }
    }

    #[test]
    fn impossible_terms_are_recognised() {
        let terms = HeldTerms {
            lease: LeaseId([1; 16]),
            workers: 2,
            numbers: Vec::new(),
            mode: Mode::Hot,
            memory_bytes: 1 << 30,
        };
        assert!(terms.are_possible());
        for wrong in [
            HeldTerms {
                workers: 0,
                ..terms.clone()
            },
            HeldTerms {
                workers: 1_025,
                ..terms.clone()
            },
            HeldTerms {
                mode: Mode::Auto,
                ..terms.clone()
            },
            HeldTerms {
                numbers: vec![1],
                ..terms.clone()
            },
        ] {
            assert!(!wrong.are_possible(), "{wrong:?}");
        }
    }
}
