//! Bodies of the manager's HTTP API, and the messages between nodes and their manager over the WebSocket that the node
//! opens.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::environment::Environment;
use crate::error::Failure;
use crate::ids::{AllowanceId, LeaseId, NodeId, PublicKey, TenantId};

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

/// Whether waiting workers poll or sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Each worker owns its cores and polls for `hot_for_ms` after each invocation.
    Hot,
    /// Workers sleep until woken and share cores.
    Warm,
    /// Hot if the node has free cores, else warm. The grant contains the choice.
    Auto,
}

/// Level of isolation between a lease's workers and the rest of their host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Sandbox {
    /// Processes of the node's own user. For code as trusted as that user.
    Process,
    /// Namespaces, a separate root directory, no privileges, a system call filter and resource limits. For untrusted
    /// code.
    Isolated,
    /// Like `isolated`, with a container image in place of the host's programs and libraries.
    Container,
}

impl Sandbox {
    /// All levels, from the least isolated.
    pub const ALL: [Self; 3] = [Self::Process, Self::Isolated, Self::Container];

    /// The level's name in JSON and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Isolated => "isolated",
            Self::Container => "container",
        }
    }

    /// The level's number in [`crate::hello::Token`] and in the store.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// Returns the level with this [`Sandbox::number`], or `None`.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|sandbox| sandbox.number() == number)
    }

    /// Returns the level with this [`Sandbox::name`], or `None`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|sandbox| sandbox.name() == name)
    }
}

impl std::fmt::Display for Sandbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
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
    /// Cores of each worker.
    #[serde(default = "one")]
    #[schema(minimum = 1)]
    pub cores_per_worker: u16,
    /// Memory of the whole lease in bytes; 0 for the node's share per worker.
    #[serde(default)]
    pub memory_bytes: u64,
    /// GPUs of each worker. The worker sees no others.
    #[serde(default, skip_serializing_if = "is_none")]
    pub gpus_per_worker: u16,
    /// Length in milliseconds from first use.
    #[schema(minimum = 1)]
    pub duration_ms: u64,
    /// Whether waiting workers poll or sleep.
    pub mode: Mode,
    /// Milliseconds that a hot worker polls before it sleeps; `4294967295` for no limit.
    #[serde(default = "for_ever")]
    pub hot_for_ms: u32,
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
            cores_per_worker: one(),
            memory_bytes: 0,
            gpus_per_worker: 0,
            duration_ms,
            mode,
            hot_for_ms: for_ever(),
            runtime: Runtime::Native,
            sandbox: None,
            image: None,
            network: false,
            files: Vec::new(),
            output_by_call: false,
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
    pub fn once(&self) -> Self {
        Self {
            wait_ms: 0,
            ..self.clone()
        }
    }
}

/// Placement of a gang's ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// On one node.
    Together,
    /// On as few nodes as possible.
    #[default]
    Packed,
    /// On as many nodes as possible, evenly.
    Spread,
    /// On nodes of one fabric, and on as few of them as possible.
    Fabric,
}

impl Placement {
    pub const ALL: [Self; 4] = [Self::Together, Self::Packed, Self::Spread, Self::Fabric];

    /// The placement's name in JSON and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Together => "together",
            Self::Packed => "packed",
            Self::Spread => "spread",
            Self::Fabric => "fabric",
        }
    }

    /// Returns the placement with this [`Placement::name`], or `None`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|placement| placement.name() == name)
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

/// Most workers of a gang.
pub const MAX_RANKS: u16 = 4_096;

/// Longest wait of a lease request, in milliseconds. A client that wants to wait longer repeats the request.
pub const MAX_WAIT_MS: u64 = 20_000;

fn one() -> u16 {
    1
}
/// For serde: whether a number is 0 and is left out.
pub(crate) fn is_none<N: Default + PartialEq>(count: &N) -> bool {
    *count == N::default()
}
fn for_ever() -> u32 {
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

/// Addresses and key of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeAddress {
    /// Id of the node.
    pub id: NodeId,
    /// Display name.
    pub name: String,
    /// Boot id of its host. A client with the same boot id shares its memory.
    pub host: String,
    /// Unix socket for clients on the same host.
    pub unix: Option<String>,
    /// `address:port` for all other clients.
    pub tcp: Option<String>,
    /// Key that signs its verdicts.
    pub key: PublicKey,
    /// Fabrics of the node, by the site's names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fabrics: Vec<String>,
}

/// Most fabrics of a node.
pub const MAX_FABRICS: usize = 16;
/// Longest name of a fabric, in bytes.
pub const MAX_FABRIC_NAME: usize = 64;

/// Resources of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Capacity {
    /// Cores that leases may use.
    pub cores: u16,
    /// Memory that leases may use, in bytes.
    pub memory_bytes: u64,
    /// Most warm workers.
    pub workers: u16,
    /// GPUs that leases may use.
    #[serde(default)]
    pub gpus: u16,
}

/// A node, as in `GET /v1/nodes`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeStatus {
    /// Addresses and key.
    pub address: NodeAddress,
    /// Total resources.
    pub capacity: Capacity,
    /// Resources that are not leased.
    pub free: Capacity,
    /// `up`; `suspended` after repeated failures, when it gets no leases for a while; `leaving` while it is being
    /// reclaimed and `reclaimed` once it is empty; `left` after an orderly stop; else `lost`.
    pub state: String,
    /// Remaining milliseconds of a suspension.
    #[serde(default)]
    pub suspended_ms: u64,
    /// Last failure of a suspended node.
    #[serde(default)]
    pub why: Option<String>,
    /// Milliseconds since its last heartbeat.
    pub heartbeat_age_ms: u64,
    /// Number of leases on the node.
    pub leases: u32,
    /// Isolation levels, as the node reported when it connected; absent while unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandboxes: Option<NodeSandboxes>,
}

/// The isolation levels that a node allows, by tenant. The node decides and enforces them; the manager only shows them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeSandboxes {
    /// Tenants that own the node.
    pub owners: Vec<TenantId>,
    /// Levels for the owners' leases. The first is the default.
    pub of_owners: Vec<Sandbox>,
    /// Levels for all other tenants' leases.
    pub of_others: Vec<Sandbox>,
}

/// Most owners of a node.
pub const MAX_NODE_OWNERS: usize = 16;

impl NodeSandboxes {
    /// Returns the levels that a tenant's leases may have on the node.
    pub fn of(&self, tenant: TenantId) -> &[Sandbox] {
        match self.owners.contains(&tenant) {
            true => &self.of_owners,
            false => &self.of_others,
        }
    }
}

/// Use of the site at one moment, as in `GET /v1/history`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Moment {
    /// Time, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// Nodes that accepted leases.
    pub nodes_up: u32,
    /// Leases that were alive.
    pub leases: u32,
    /// Cores for hot workers on connected nodes.
    pub cores: u64,
    /// The part of `cores` that was leased.
    pub cores_leased: u64,
    /// Warm workers on connected nodes.
    pub workers: u64,
    /// The part of `workers` that was leased.
    pub workers_leased: u64,
    /// Memory on connected nodes, in bytes.
    pub memory_bytes: u64,
    /// The part of `memory_bytes` that was leased.
    pub memory_leased_bytes: u64,
    /// Usage booked from the manager's start to this moment.
    pub used: Usage,
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
    /// `granted`, `active`, `released`, `expired`, `revoked` or `lost`.
    pub state: String,
    /// Number of workers.
    pub workers: u16,
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

/// Metered usage of a lease: the quantities that a bill is computed from. All but `calls` and `failures` are in
/// microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct Usage {
    /// Sum over workers of time spent inside functions.
    pub computing_us: u64,
    /// Sum over workers of time spent polling for work.
    pub polling_us: u64,
    /// Time since first use, multiplied by the number of workers.
    pub allocated_us: u64,
    /// Invocations that ended. Loading a function runs code and counts as one.
    pub calls: u64,
    /// The part of `calls` that ended in an error.
    pub failures: u64,
}

/// Most functions that are metered separately in one lease. All others are metered together.
pub const MAX_FUNCTIONS: usize = 64;
/// Name under which all other functions are metered.
pub const OTHER_FUNCTIONS: &str = "others";

/// Usage of one function, part of its lease's [`Usage`]. Loading of functions and functions that are not metered
/// separately account for the difference.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct FunctionUsage {
    /// Name and the beginning of its code's hash, such as `stats.mean@5f0c9a1b`.
    pub function: String,
    /// Invocations of the function that ended.
    pub calls: u64,
    /// The part of `calls` that ended in an error.
    pub failures: u64,
    /// Microseconds inside the function, over all workers.
    pub computing_us: u64,
}

/// Usage of a lease, in total and by function.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Metered {
    /// Total usage.
    #[serde(flatten)]
    pub usage: Usage,
    /// Usage by function, in the order of their names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub functions: Vec<FunctionUsage>,
}

impl From<Usage> for Metered {
    fn from(usage: Usage) -> Self {
        Self {
            usage,
            functions: Vec::new(),
        }
    }
}

/// Response to `GET /v1/rendezvous`: where the ranks of groups meet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RendezvousAddress {
    /// Address as `host:port`.
    pub address: String,
    /// Key with which the server authenticates.
    #[schema(value_type = String)]
    pub key: PublicKey,
    /// The manager's signature, in hexadecimal. Authorises nodes to join for ranks that have no network.
    #[serde(default)]
    pub voucher: String,
}

/// Response to `DELETE /v1/nodes/{id}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Reclaimed {
    /// Status of the empty node.
    pub node: NodeStatus,
    /// Leases that were ended.
    pub leases: u32,
    /// Milliseconds from the request's arrival at the node until none of their processes was left.
    pub empty_ms: f64,
}

/// `POST /v1/leases/{id}/renew`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RenewRequest {
    /// New length from now, in milliseconds.
    #[schema(minimum = 1)]
    pub duration_ms: u64,
}

/// Body of every HTTP error response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// Code, what happened and what to do.
    pub error: Failure,
}

/// Messages from node to manager.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum NodeMessage {
    /// First message of a connection.
    Register {
        /// Wire version.
        version: u16,
        /// Addresses and key for clients.
        address: NodeAddress,
        /// Total resources.
        capacity: Capacity,
        /// Free resources.
        free: Capacity,
        /// Leases that the node still holds from before this connection.
        leases: Vec<crate::node_api::HeldLease>,
        /// The isolation levels that it allows, by tenant.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sandboxes: Option<NodeSandboxes>,
    },
    /// Sent every `heartbeat_ms`.
    Heartbeat {
        /// Free resources.
        free: Capacity,
        /// The node's wall clock in milliseconds since the Unix epoch, from which the manager measures clock skew.
        clock_ms: u64,
    },
    /// Calls by duration since the node started, in the buckets of [`crate::durations::duration_bucket`].
    Durations {
        /// Number of calls in each bucket.
        calls: [u64; crate::durations::DURATION_BUCKETS],
    },
    /// Response to [`ManagerMessage::Offer`], `Renew` or `End`.
    Answer {
        /// Number of the request.
        request: u64,
        /// Why it was refused; absent if accepted. After an offer, the next heartbeat reports the free resources.
        refused: Option<Failure>,
        /// For offers, the mode that `auto` resolved to.
        mode: Option<Mode>,
        /// For offers of containers, the exact image, as in [`Grant::image`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        image: Option<String>,
        /// For offers, the isolation level of the lease.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sandbox: Option<Sandbox>,
    },
    /// A lease ended on the node.
    LeaseEnded {
        /// Id of the lease.
        lease: LeaseId,
        /// `released`, `expired`, `revoked` or `lost`.
        state: String,
    },
    /// A worker attempted something that no legitimate function does, and was refused.
    Incident {
        /// Id of the lease.
        lease: LeaseId,
        /// What it attempted.
        what: String,
    },
    /// The node granted a lease under a manager's allowance. Sent at once, and on each new connection until
    /// [`ManagerMessage::Adopted`].
    Started {
        /// Id of the lease.
        lease: LeaseId,
        /// The lease's properties, and proof of the allowance.
        start: Box<crate::node_api::DirectStart>,
    },
    /// A lease was used for the first time.
    LeaseActive { lease: LeaseId },
    /// Cumulative usage of leases, under the node's growing sequence number. Sent again until acknowledged.
    Meters {
        /// Sequence number in the node's journal.
        sequence: u64,
        /// Leases and their total usage so far.
        usage: Vec<(LeaseId, Metered)>,
    },
    /// Response to [`ManagerMessage::Reclaim`]: the node is empty. Its leases' usage is booked as far as it is known.
    Reclaimed {
        /// Number of the request.
        request: u64,
        /// Leases that were ended.
        leases: u32,
        /// Microseconds from the request's arrival until none of their processes was left.
        empty_us: u64,
    },
    /// Last message of a node that is stopped in order. It holds no leases and will not reconnect soon.
    Leaving,
}

/// Messages from manager to node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[allow(
    clippy::large_enum_variant,
    reason = "each lives for one send or one receive, and an offer is the common one"
)]
pub enum ManagerMessage {
    /// The node is registered.
    Registered {
        /// Ownership epoch of this manager over the node.
        epoch: u64,
        /// Keys whose tokens the node must accept.
        signing_keys: Vec<PublicKey>,
        /// Interval between heartbeats in milliseconds.
        heartbeat_ms: u64,
        /// In exchange for a join token: the bearer token with which only this node connects from now on. The node
        /// stores it with mode 0600. The join token is used up.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        credential: Option<String>,
        /// All managers of the site, if there are several. The node may connect to any of them.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        managers: Vec<ManagerAddress>,
    },
    /// The list of the site's managers has changed.
    Managers {
        /// All managers of the site.
        managers: Vec<ManagerAddress>,
    },
    /// Registration is refused.
    Refused(Failure),
    /// Asks the node to take a lease.
    Offer {
        /// Number of the request; the response repeats it.
        request: u64,
        /// Id of the lease.
        lease: LeaseId,
        /// Tenant that pays.
        tenant: TenantId,
        /// The client's request.
        spec: LeaseRequest,
        /// The manager's default isolation level. A node isolates tenants other than its owners in any case.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        default_sandbox: Option<Sandbox>,
        /// Must equal the epoch in `Registered`.
        epoch: u64,
        /// Milliseconds within which the lease must be used. After that the node frees its resources.
        start_by_ms: u64,
        /// W3C `traceparent` of the calling span.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        traceparent: Option<String>,
    },
    /// Restarts a lease's duration from now.
    Renew {
        /// Number of the request; the response repeats it.
        request: u64,
        /// Id of the lease.
        lease: LeaseId,
        /// New length in milliseconds.
        duration_ms: u64,
        /// W3C `traceparent` of the calling span.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        traceparent: Option<String>,
    },
    /// Ends a lease.
    End {
        /// Number of the request; the response repeats it.
        request: u64,
        /// Id of the lease.
        lease: LeaseId,
        /// Final state: `released` or `revoked`.
        state: String,
        /// Milliseconds that running calls may still take.
        #[serde(default)]
        grace_ms: u64,
        /// W3C `traceparent` of the calling span.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        traceparent: Option<String>,
    },
    /// Stops accepting leases, ends the existing ones as `revoked`, and reports when the node is empty.
    Reclaim {
        /// Number of the request; the response repeats it.
        request: u64,
        /// Milliseconds that running calls may still take.
        grace_ms: u64,
        /// W3C `traceparent` of the calling span.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        traceparent: Option<String>,
    },
    /// Accepts leases again.
    Resume {
        /// Number of the request; the response repeats it.
        request: u64,
    },
    /// Acknowledges meters up to a sequence number as booked.
    Booked {
        /// Last booked sequence number.
        sequence: u64,
    },
    /// A lease that the node granted under an allowance is now in the ledger.
    Adopted {
        /// Id of the lease.
        lease: LeaseId,
    },
    /// Stops or resumes new leases under an allowance.
    Exhausted {
        /// Id of the allowance.
        allowance: AllowanceId,
        /// Milliseconds for which the node must refuse them, after which all tokens of the allowance have expired. 0 to
        /// resume.
        for_ms: u64,
    },
}

/// `POST /v1/allowances`: requests the right to lease from nodes directly.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AllowanceRequest {
    /// Ed25519 key whose owner may use it.
    pub holder: PublicKey,
    /// Total workers of all leases under it.
    #[schema(minimum = 1)]
    pub workers: u32,
    /// Total cores of all leases; 0 for one per worker.
    #[serde(default)]
    pub cores: u32,
    /// Total memory in bytes; 0 for the nodes' defaults, if the tenant has no memory quota.
    #[serde(default)]
    pub memory_bytes: u64,
    /// Most workers on one node; 0 for the manager's default of twice an even share.
    #[serde(default)]
    pub workers_per_node: u16,
    /// Longest lease in milliseconds.
    #[schema(minimum = 1)]
    pub duration_ms: u64,
    /// Isolation of its workers; if absent, the site's default.
    #[serde(default)]
    pub sandbox: Option<Sandbox>,
}

/// An allowance, and the nodes with free resources.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Allowance {
    /// Id of the allowance.
    pub allowance: AllowanceId,
    /// The signed [`crate::hello::Token`], in hexadecimal. A request for updates before it expires returns a newer
    /// token.
    pub token: String,
    /// Remaining validity of the token in milliseconds.
    pub lasts_ms: u64,
    /// Version of the list of nodes. The next request names it to get newer ones.
    pub version: u64,
    /// Nodes with free resources, those with the most first. Of many nodes, a random sample.
    pub nodes: Vec<Room>,
    /// Workers that may still start.
    pub workers_left: u32,
}

/// A node with free resources.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Room {
    /// Addresses and key.
    pub node: NodeAddress,
    /// Free resources, as last reported.
    pub free: Capacity,
}

/// Events of `GET /v1/events` (WebSocket).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A node registered.
    NodeUp {
        /// Id of the node.
        node: NodeId,
    },
    /// A node's heartbeats stopped or its connection was lost.
    NodeLost {
        /// Id of the node.
        node: NodeId,
    },
    /// A node was stopped in order.
    NodeLeft {
        /// Id of the node.
        node: NodeId,
    },
    /// A node was reclaimed and is empty.
    NodeReclaimed {
        /// Id of the node.
        node: NodeId,
    },
    /// A node failed repeatedly and gets no leases for a while.
    NodeSuspended {
        /// Id of the node.
        node: NodeId,
        /// Length of the suspension in milliseconds.
        for_ms: u64,
        /// Last failure.
        why: String,
    },
    /// A lease changed its state.
    Lease {
        /// Id of the lease.
        lease: LeaseId,
        /// Node of the lease.
        node: NodeId,
        /// New state, as in [`LeaseStatus::state`].
        state: String,
    },
    /// A worker attempted something that no legitimate function does, and was refused.
    Incident {
        /// Lease of the worker.
        lease: LeaseId,
        /// Node of the worker.
        node: NodeId,
        /// What it attempted.
        what: String,
    },
}

/// Address of a site's manager, and how to authenticate it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ManagerAddress {
    /// URL, such as `https://127.0.0.1:7070`.
    pub manager: String,
    /// The certificate authority's certificate, as PEM.
    pub ca_pem: String,
}

/// A manager, as in `GET /v1/managers`. The responding manager comes first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ManagerStatus {
    /// URL and certificate authority.
    #[serde(flatten)]
    pub address: ManagerAddress,
    /// Key that signs its tokens.
    pub key: PublicKey,
    /// `up`, or `silent` if it has sent nothing for some seconds.
    pub state: String,
    /// Milliseconds since its last message.
    pub silent_ms: u64,
}

/// Header on every response of a manager that is one of several. Its value changes with the list of managers; a client
/// that sees a new value may request `GET /v1/managers`.
pub const MANAGERS_HEADER: &str = "dayfly-managers";

/// Connection file. A daemon writes it into its state directory (mode 0600) for clients of the same user, and
/// `DAYFLY_MANAGER` may name its path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Connection {
    /// URL of the manager, such as `https://127.0.0.1:7070`.
    pub manager: String,
    /// The certificate authority's certificate, as PEM.
    pub ca_pem: String,
    /// Bearer token; empty in a file that is used to log in.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub token: String,
    /// The site's other managers. Clients may use any of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<ManagerAddress>,
}

impl Connection {
    /// Returns all managers. The first is the one that the file names directly.
    pub fn managers(&self) -> Vec<ManagerAddress> {
        let first = ManagerAddress {
            manager: self.manager.clone(),
            ca_pem: self.ca_pem.clone(),
        };
        std::iter::once(first).chain(self.others.iter().cloned()).collect()
    }
}

/// `POST /v1/nodes/join-tokens`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JoinTokenRequest {
    /// Milliseconds until an unused token expires; one hour if absent.
    #[serde(default = "an_hour")]
    pub valid_for_ms: u64,
}

fn an_hour() -> u64 {
    3_600_000
}

/// Response to [`JoinTokenRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JoinToken {
    /// Bearer token for one first connection to `/v1/nodes/connect`.
    pub token: String,
    /// URL of the manager, such as `https://127.0.0.1:7070`.
    pub manager: String,
    /// The certificate authority's certificate, as PEM.
    pub ca_pem: String,
    /// Expiry, in milliseconds since the Unix epoch.
    pub expires_at_ms: u64,
    /// The tenant that made the token. It owns the nodes that join with it, and no other tenant's code runs there as
    /// the node's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<TenantId>,
    /// The site's other managers. Nodes may use any of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<ManagerAddress>,
}

/// `GET /v1/version`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VersionInfo {
    /// Release of the manager.
    pub version: String,
    /// Its [`crate::WIRE_VERSION`].
    pub wire_version: u16,
}

/// `GET /v1/health`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// `ok`, or `degraded` while the store cannot write.
    pub status: String,
    /// Nodes that are up.
    pub nodes_up: u32,
    /// Leases that are granted or active.
    pub leases: u32,
    /// Last error of the store, while degraded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store_error: Option<String>,
}
