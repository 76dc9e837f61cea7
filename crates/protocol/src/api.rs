//! The manager's HTTP bodies, and what a node and its manager say over the WebSocket that the node opened.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::environment::Environment;
use crate::error::Failure;
use crate::ids::{AllowanceId, LeaseId, NodeId, PublicKey, TenantId};

/// Which runtime the workers need.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Runtime {
    /// Shared libraries with C-ABI symbols.
    Native,
    /// Python callables.
    Python {
        /// Full version of the client's interpreter, such as `3.11.7`; empty where whichever there is will do.
        version: String,
        /// Version of the client's cloudpickle.
        cloudpickle: String,
        /// The client's own interpreter, used when the node runs on the same host as the same user.
        executable: Option<String>,
        /// Directories to put on the workers' module path (same host only).
        #[serde(default)]
        path: Vec<String>,
        /// What functions import; none where the interpreter itself has it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        environment: Option<Environment>,
        /// Digest of the client's own modules, which travel with the function. Tasks of different digests share no worker.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        code: Option<String>,
    },
}

impl Runtime {
    /// Whichever Python the node has: for functions that travel as source.
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

    /// What functions import, where that is said.
    pub fn environment(&self) -> Option<&Environment> {
        match self {
            Self::Python { environment, .. } => environment.as_ref(),
            Self::Native => None,
        }
    }
}

/// Whether workers poll or sleep while they wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Each worker owns its core and polls, for `hot_for_ms` after each invocation.
    Hot,
    /// Workers sleep until woken and share cores.
    Warm,
    /// Hot where the node has the cores, else warm; the grant says which.
    Auto,
}

/// How far a lease's workers are kept from everything else on their host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Sandbox {
    /// Processes of the node's own user: for code that is trusted like its owner.
    Process,
    /// Namespaces, a root directory of their own, no privilege, a system call filter and limits: for other people's code.
    Isolated,
    /// The same with an image in place of the host's programs and libraries.
    Container,
}

impl Sandbox {
    /// All, the most trusting first.
    pub const ALL: [Self; 3] = [Self::Process, Self::Isolated, Self::Container];

    /// As it is written everywhere.
    pub fn name(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Isolated => "isolated",
            Self::Container => "container",
        }
    }

    /// As [`crate::hello::Token`] has it, and the store.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// Reads [`Sandbox::number`].
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|sandbox| sandbox.number() == number)
    }

    /// Reads [`Sandbox::name`].
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
    /// Absolute; workers see it at the same place.
    pub path: String,
    /// Whether they may change it.
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
    /// GPUs of each worker, which sees no others.
    #[serde(default, skip_serializing_if = "is_none")]
    pub gpus_per_worker: u16,
    /// Length in milliseconds from first use.
    #[schema(minimum = 1)]
    pub duration_ms: u64,
    /// Polling or sleeping.
    pub mode: Mode,
    /// Milliseconds a hot worker polls before it sleeps; `4294967295` for ever.
    #[serde(default = "for_ever")]
    pub hot_for_ms: u32,
    /// What the workers run.
    pub runtime: Runtime,
    /// How isolated the workers are; when absent, `container` for a lease that names an image, else what the site has as its
    /// default.
    #[serde(default)]
    pub sandbox: Option<Sandbox>,
    /// For a container, the image: a name or path that the node's owner allows, with `@sha256:...` behind it to insist on that
    /// version. When absent, the first that the owner allows.
    #[serde(default)]
    pub image: Option<String>,
    /// Whether isolated workers share the host's network instead of having none, as far as the site allows.
    #[serde(default)]
    pub network: bool,
    /// What isolated workers see of the host's files beside programs and libraries, as far as the site allows.
    #[serde(default)]
    pub files: Vec<HostPath>,
    /// Whether it is told which call printed what.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub output_by_call: bool,
    /// Ed25519 key whose holder may use the lease.
    pub holder: PublicKey,
    /// Milliseconds after which a lease with no open channel is released, once it had one; 0 for never.
    #[serde(default = "idle_release")]
    pub idle_release_ms: u64,
    /// Wanted node, if any.
    #[serde(default)]
    pub node: Option<NodeId>,
    /// Milliseconds to wait for a place when there is none now; at most 20,000 at a time.
    #[serde(default)]
    pub wait_ms: u64,
}

impl LeaseRequest {
    /// One that wants nothing in particular: single-core workers for shared libraries, with the node's share of memory, on
    /// any node that has room now, for as long as `duration_ms`.
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

    /// The level that it asks for, if it asks for one.
    pub fn wanted_sandbox(&self) -> Option<Sandbox> {
        self.sandbox.or(self.image.as_ref().map(|_| Sandbox::Container))
    }

    /// The same, to be answered without waiting for a place.
    pub fn once(&self) -> Self {
        Self {
            wait_ms: 0,
            ..self.clone()
        }
    }
}

/// Where the ranks of a gang run.
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
    /// All.
    pub const ALL: [Self; 4] = [Self::Together, Self::Packed, Self::Spread, Self::Fabric];

    /// As it is written everywhere.
    pub fn name(self) -> &'static str {
        match self {
            Self::Together => "together",
            Self::Packed => "packed",
            Self::Spread => "spread",
            Self::Fabric => "fabric",
        }
    }

    /// Reads [`Placement::name`].
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|placement| placement.name() == name)
    }
}

/// `POST /v1/gangs`: leases on one node or several whose workers together are so many, or none at all. Answered with the grants, in
/// the order of the ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GangRequest {
    /// What is leased: `workers`, here up to 4,096, and `memory_bytes` are those of the whole gang.
    #[serde(flatten)]
    pub lease: LeaseRequest,
    /// Where.
    #[serde(default)]
    pub placement: Placement,
    /// On none but these nodes; empty for any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub among: Vec<NodeId>,
}

/// No gang has more workers.
pub const MOST_RANKS: u16 = 4_096;

/// A request for a lease waits no longer for a place; whoever wants to wait longer asks again.
pub const MOST_WAIT_MS: u64 = 20_000;

fn one() -> u16 {
    1
}
/// For numbers that are left out where they are 0.
pub(crate) fn is_none<N: Default + PartialEq>(count: &N) -> bool {
    *count == N::default()
}
fn for_ever() -> u32 {
    u32::MAX
}
fn idle_release() -> u64 {
    10_000
}

/// A lease as its holder gets it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Grant {
    /// Its id.
    pub lease: LeaseId,
    /// The signed [`crate::hello::Token`], in hexadecimal.
    pub token: String,
    /// Where to use it.
    pub node: NodeAddress,
    /// Workers granted.
    pub workers: u16,
    /// What `auto` became, or what was asked.
    pub mode: Mode,
    /// How isolated the workers are.
    pub sandbox: Sandbox,
    /// For containers, what exactly they run in: `NAME@sha256:...`, or the path of a directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Memory granted, in bytes.
    pub memory_bytes: u64,
    /// Length in milliseconds.
    pub duration_ms: u64,
    /// Milliseconds since the Unix epoch when the token ends, for people; the node counts by its own clock.
    pub expires_at_ms: u64,
    /// For people: how it differs from what was asked for, such as that it ends earlier, with the bearer token that asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notice: Option<String>,
}

/// How to reach a node and how to know it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeAddress {
    /// Its id.
    pub id: NodeId,
    /// Its name, for people.
    pub name: String,
    /// Boot id of its host: a client with the same one shares its memory.
    pub host: String,
    /// Unix socket for clients of the same host.
    pub unix: Option<String>,
    /// `address:port` for everybody else.
    pub tcp: Option<String>,
    /// Key with which it signs verdicts.
    pub key: PublicKey,
    /// Fabrics that it is on, as its site calls them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fabrics: Vec<String>,
}

/// A node is on no more fabrics.
pub const MOST_FABRICS: usize = 16;
/// Bytes of a fabric's name.
pub const MOST_FABRIC_NAME: usize = 64;

/// What a node has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Capacity {
    /// Cores that leases may take.
    pub cores: u16,
    /// Memory in bytes that leases may take.
    pub memory_bytes: u64,
    /// Warm workers it will run at most.
    pub workers: u16,
    /// GPUs.
    #[serde(default)]
    pub gpus: u16,
}

/// A node as `GET /v1/nodes` shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeStatus {
    /// Where it is.
    pub address: NodeAddress,
    /// What it has.
    pub capacity: Capacity,
    /// What is not leased.
    pub free: Capacity,
    /// `up`; `suspended` when it kept failing and gets no leases for a while; `leaving` while it is taken back and `reclaimed`
    /// when it is empty; `left` when it was stopped in order, else `lost`.
    pub state: String,
    /// For a suspended one, for how many milliseconds more.
    #[serde(default)]
    pub suspended_ms: u64,
    /// For a suspended one, what failed last.
    #[serde(default)]
    pub why: Option<String>,
    /// Milliseconds since its last heartbeat.
    pub heartbeat_age_ms: u64,
    /// Leases it holds.
    pub leases: u32,
    /// How isolated leases are there, as the node said when it connected; absent while it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandboxes: Option<NodeSandboxes>,
}

/// Which levels of isolation a node allows, and to whom. The node decides and enforces this; the manager only shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeSandboxes {
    /// Tenants of the node's owner.
    pub owners: Vec<TenantId>,
    /// Levels for their leases; the first is for leases that name none.
    pub of_owners: Vec<Sandbox>,
    /// Levels for everybody else's.
    pub of_others: Vec<Sandbox>,
}

/// A node has no more owners.
pub const MAX_NODE_OWNERS: usize = 16;

impl NodeSandboxes {
    /// The levels that a tenant's leases may have there.
    pub fn of(&self, tenant: TenantId) -> &[Sandbox] {
        match self.owners.contains(&tenant) {
            true => &self.of_owners,
            false => &self.of_others,
        }
    }
}

/// How it all was at one time, as `GET /v1/history` tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Moment {
    /// When, milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// Nodes that took leases.
    pub nodes_up: u32,
    /// Leases that lived.
    pub leases: u32,
    /// Cores for hot workers on connected nodes.
    pub cores: u64,
    /// Of them, those that leases held.
    pub cores_leased: u64,
    /// Warm workers on connected nodes.
    pub workers: u64,
    /// Of them, those that leases held.
    pub workers_leased: u64,
    /// Memory on connected nodes, in bytes.
    pub memory_bytes: u64,
    /// Of it, what leases held.
    pub memory_leased_bytes: u64,
    /// What was booked from the manager's start up to then.
    pub used: Usage,
}

/// A lease as `GET /v1/leases` shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LeaseStatus {
    /// Its id.
    pub lease: LeaseId,
    /// Who holds it.
    pub tenant: TenantId,
    /// Where.
    pub node: NodeId,
    /// `granted`, `active`, `released`, `expired`, `revoked` or `lost`.
    pub state: String,
    /// Workers.
    pub workers: u16,
    /// Polling or sleeping.
    pub mode: Mode,
    /// How isolated its workers are.
    pub sandbox: Sandbox,
    /// For containers, what exactly they run in: `NAME@sha256:...`, or the path of a directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// When it was granted, milliseconds since the Unix epoch.
    pub granted_at_ms: u64,
    /// When it will end, milliseconds since the Unix epoch.
    pub expires_at_ms: u64,
    /// What it used so far.
    pub usage: Usage,
}

/// What a lease used: the quantities of the papers' bill. All but `calls` and `failures` in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct Usage {
    /// Sum over workers of time spent inside functions.
    pub computing_us: u64,
    /// Sum over workers of time spent polling for work.
    pub polling_us: u64,
    /// Time since first use, times the workers.
    pub allocated_us: u64,
    /// Invocations that ended; a worker's loading of a function, which runs code too, counts as one.
    pub calls: u64,
    /// Of them, those that ended in an error.
    pub failures: u64,
}

/// Functions that are told apart within one lease; what others use counts as one.
pub const MOST_FUNCTIONS: usize = 64;
/// What those others are called.
pub const OTHER_FUNCTIONS: &str = "others";

/// What one function used of its lease's [`Usage`]. The rest was spent on loading functions, and by those that are not told apart.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct FunctionUsage {
    /// Name and the beginning of its code's hash: `stats.mean@5f0c9a1b`.
    pub function: String,
    /// Invocations of it that ended.
    pub calls: u64,
    /// Of them, those that ended in an error.
    pub failures: u64,
    /// Microseconds inside it, over all workers.
    pub computing_us: u64,
}

/// What a lease used, in all and by function.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Metered {
    /// In all.
    #[serde(flatten)]
    pub usage: Usage,
    /// By function, in the order of their names.
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

/// Answer to `GET /v1/rendezvous`: where the ranks of groups meet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RendezvousAddress {
    /// `host:port`.
    pub address: String,
    /// With which it shows that it is the one.
    #[schema(value_type = String)]
    pub key: PublicKey,
    /// The manager's signature, in hexadecimal: by this word nodes join there for ranks that have no network.
    #[serde(default)]
    pub voucher: String,
}

/// Answer to `DELETE /v1/nodes/{id}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Reclaimed {
    /// The node, which is empty.
    pub node: NodeStatus,
    /// Leases that were ended for it.
    pub leases: u32,
    /// Milliseconds from the node's hearing of it until nothing of them was left running.
    pub empty_ms: f64,
}

/// `POST /v1/leases/{id}/renew`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RenewRequest {
    /// New length from now, in milliseconds.
    #[schema(minimum = 1)]
    pub duration_ms: u64,
}

/// Body of every HTTP error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// What happened and what to do.
    pub error: Failure,
}

/// Node to manager.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum NodeMessage {
    /// First message: who I am, what I have, what I already hold.
    Register {
        /// Wire version.
        version: u16,
        /// Where clients reach it.
        address: NodeAddress,
        /// What it has.
        capacity: Capacity,
        /// What is free.
        free: Capacity,
        /// Leases it still holds, from before this connection.
        leases: Vec<crate::node_api::HeldLease>,
        /// Which levels of isolation it allows, and to whom.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sandboxes: Option<NodeSandboxes>,
    },
    /// Every `heartbeat_ms`.
    Heartbeat {
        /// What is free now.
        free: Capacity,
        /// The node's wall clock, milliseconds since the Unix epoch, from which the manager measures skew.
        clock_ms: u64,
    },
    /// Calls by how long they took, as [`crate::durations::duration_bucket`] sorts them, since the node started.
    Durations {
        /// How many.
        calls: [u64; crate::durations::DURATION_BUCKETS],
    },
    /// Answer to [`ManagerMessage::Offer`], `Renew` or `End`.
    Answer {
        /// Which request.
        request: u64,
        /// Why not, if not. For an offer the free capacity follows in the next heartbeat.
        refused: Option<Failure>,
        /// What `auto` became, for offers.
        mode: Option<Mode>,
        /// For offers of containers, as in [`Grant::image`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        image: Option<String>,
        /// For offers, the level of isolation that the node gives the lease.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sandbox: Option<Sandbox>,
    },
    /// A lease ended here, for whatever cause.
    LeaseEnded {
        /// Which.
        lease: LeaseId,
        /// `released`, `expired`, `revoked` or `lost`.
        state: String,
    },
    /// A worker of a lease asked for something that no honest function does, and was refused.
    Incident {
        /// Which lease.
        lease: LeaseId,
        /// What it asked for.
        what: String,
    },
    /// A lease was granted here under a manager's allowance. Sent at once, and again on each connection until
    /// [`ManagerMessage::Adopted`].
    Started {
        /// Which.
        lease: LeaseId,
        /// What it is, and by whose leave.
        start: Box<crate::node_api::DirectStart>,
    },
    /// A lease was used for the first time.
    LeaseActive {
        /// Which.
        lease: LeaseId,
    },
    /// Usage of leases, cumulative per lease, under the node's own growing sequence number; sent again until acknowledged.
    Meters {
        /// Number of this entry in the node's journal.
        sequence: u64,
        /// Lease and all it used so far.
        usage: Vec<(LeaseId, Metered)>,
    },
    /// Answer to [`ManagerMessage::Reclaim`]: the node is empty, and what its leases used is booked as far as it could be told.
    Reclaimed {
        /// Which request.
        request: u64,
        /// Leases that were ended for it.
        leases: u32,
        /// Microseconds from the request's arrival until nothing of them was left running.
        empty_us: u64,
    },
    /// Last message of a node that is stopped in order: it holds no lease any more, and will not be back soon.
    Leaving,
}

/// Manager to node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[allow(
    clippy::large_enum_variant,
    reason = "each lives for one send or one receive, and an offer is the common one"
)]
pub enum ManagerMessage {
    /// Registered: your epoch, and how often to send heartbeats.
    Registered {
        /// Ownership epoch of this manager over the node.
        epoch: u64,
        /// Keys whose tokens to accept.
        signing_keys: Vec<PublicKey>,
        /// Heartbeat interval.
        heartbeat_ms: u64,
        /// In exchange for a join token: the bearer with which this node, and no other, connects from now on. Keep it
        /// with mode 0600; the join token is used up.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        credential: Option<String>,
        /// All managers of the site, where there are several: each will do when this one is gone.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        managers: Vec<ManagerAddress>,
    },
    /// These are all managers of the site now.
    Managers {
        /// Where they are.
        managers: Vec<ManagerAddress>,
    },
    /// Refused to register.
    Refused(Failure),
    /// Take this lease, if there is room.
    Offer {
        /// To be answered under.
        request: u64,
        /// Its id.
        lease: LeaseId,
        /// Who pays.
        tenant: TenantId,
        /// What was asked.
        spec: LeaseRequest,
        /// The manager's level for leases that name none. A node isolates other tenants than its owner's all the same.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        default_sandbox: Option<Sandbox>,
        /// Must equal the epoch of `Registered`.
        epoch: u64,
        /// Milliseconds within which it must be used, or its capacity comes back.
        start_by_ms: u64,
        /// The W3C `traceparent` of the step that this belongs to.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        traceparent: Option<String>,
    },
    /// Count this lease's length anew from now.
    Renew {
        /// To be answered under.
        request: u64,
        /// Which.
        lease: LeaseId,
        /// New length.
        duration_ms: u64,
        /// The W3C `traceparent` of the step that this belongs to.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        traceparent: Option<String>,
    },
    /// End this lease: `released` or `revoked`.
    End {
        /// To be answered under.
        request: u64,
        /// Which.
        lease: LeaseId,
        /// How its record ends.
        state: String,
        /// Milliseconds that its running calls may go on for.
        #[serde(default)]
        grace_ms: u64,
        /// The W3C `traceparent` of the step that this belongs to.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        traceparent: Option<String>,
    },
    /// Take no more leases, end those there are as [`LeaseStatus::state`] `revoked`, and say when the node is empty.
    Reclaim {
        /// To be answered under.
        request: u64,
        /// What running calls get.
        grace_ms: u64,
        /// The W3C `traceparent` of the step that this belongs to.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        traceparent: Option<String>,
    },
    /// Take leases again.
    Resume {
        /// To be answered under.
        request: u64,
    },
    /// Meters up to this sequence number are booked.
    Booked {
        /// Last booked.
        sequence: u64,
    },
    /// A lease that the node granted under an allowance is in the books.
    Adopted {
        /// Which.
        lease: LeaseId,
    },
    /// Nothing more may start under this allowance for now, or again it may.
    Exhausted {
        /// Which.
        allowance: AllowanceId,
        /// Milliseconds for which this must be remembered: then its tokens have expired. 0 to forget it.
        for_ms: u64,
    },
}

/// `POST /v1/allowances`: the wish to lease straight from nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AllowanceRequest {
    /// Key whose holder may use it.
    pub holder: PublicKey,
    /// Workers, of all leases under it together.
    #[schema(minimum = 1)]
    pub workers: u32,
    /// Cores of all of them together; 0 for one each.
    #[serde(default)]
    pub cores: u32,
    /// Their memory in bytes; 0 to leave it to the nodes, where the tenant has no quota of it.
    #[serde(default)]
    pub memory_bytes: u64,
    /// Workers on one node at most; 0 for the manager's choice: twice an even share.
    #[serde(default)]
    pub workers_per_node: u16,
    /// Longest lease in milliseconds.
    #[schema(minimum = 1)]
    pub duration_ms: u64,
    /// How isolated its workers are; when absent, what the site has as its default.
    #[serde(default)]
    pub sandbox: Option<Sandbox>,
}

/// An allowance, and where there is room.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Allowance {
    /// Its id.
    pub allowance: AllowanceId,
    /// The signed [`crate::hello::Token`], in hexadecimal; asking for news in time gets one that lasts longer.
    pub token: String,
    /// Milliseconds that the token lasts from now.
    pub lasts_ms: u64,
    /// Number of this list of nodes; ask for what comes after it.
    pub version: u64,
    /// Nodes that had room, those with most of it first; of many, some at random.
    pub nodes: Vec<Room>,
    /// Workers that may still start.
    pub workers_left: u32,
}

/// A node that has room.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Room {
    /// Where it is.
    pub node: NodeAddress,
    /// What was free, as last heard.
    pub free: Capacity,
}

/// What `GET /v1/events` (WebSocket) tells.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A node registered.
    NodeUp {
        /// Which.
        node: NodeId,
    },
    /// A node's heartbeats stopped or its connection broke.
    NodeLost {
        /// Which.
        node: NodeId,
    },
    /// A node was stopped in order.
    NodeLeft {
        /// Which.
        node: NodeId,
    },
    /// A node was taken back and is empty.
    NodeReclaimed {
        /// Which.
        node: NodeId,
    },
    /// A node kept failing, and gets no leases for a while.
    NodeSuspended {
        /// Which.
        node: NodeId,
        /// For how many milliseconds.
        for_ms: u64,
        /// What failed last.
        why: String,
    },
    /// A lease changed its state.
    Lease {
        /// Which.
        lease: LeaseId,
        /// Where.
        node: NodeId,
        /// As in [`LeaseStatus::state`].
        state: String,
    },
    /// A worker asked for something that no honest function does, and was refused.
    Incident {
        /// Its lease.
        lease: LeaseId,
        /// Where.
        node: NodeId,
        /// What it asked for.
        what: String,
    },
}

/// Where one of a site's managers is, and how to know it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ManagerAddress {
    /// `https://127.0.0.1:7070`.
    pub manager: String,
    /// Its certificate authority's certificate, PEM.
    pub ca_pem: String,
}

/// A manager as `GET /v1/managers` shows it: first the one that was asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ManagerStatus {
    /// Where it is.
    #[serde(flatten)]
    pub address: ManagerAddress,
    /// The key that its tokens are signed with.
    pub key: PublicKey,
    /// `up`, or `silent` when it has said nothing for some seconds.
    pub state: String,
    /// Milliseconds since it said something.
    pub silent_ms: u64,
}

/// On every answer of a manager that is one of several: changes when they do. Whoever sees another one than last time may ask
/// `GET /v1/managers`.
pub const MANAGERS_HEADER: &str = "dayfly-managers";

/// What a daemon writes into its state directory (mode 0600) so that clients of the same user find it, and what
/// `DAYFLY_MANAGER` may name the path of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Connection {
    /// `https://127.0.0.1:7070`.
    pub manager: String,
    /// The certificate authority's certificate, PEM.
    pub ca_pem: String,
    /// Bearer token; empty in the file with which one logs in.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub token: String,
    /// The site's other managers, of which each will do as well.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<ManagerAddress>,
}

impl Connection {
    /// All managers, first the one that is named first.
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
    /// Milliseconds after which an unused token means nothing; an hour when absent.
    #[serde(default = "an_hour")]
    pub valid_for_ms: u64,
}

fn an_hour() -> u64 {
    3_600_000
}

/// Answer to [`JoinTokenRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JoinToken {
    /// Bearer for one first connection to `/v1/nodes/connect`.
    pub token: String,
    /// `https://127.0.0.1:7070`.
    pub manager: String,
    /// The certificate authority's certificate, PEM.
    pub ca_pem: String,
    /// When it ends, milliseconds since the Unix epoch.
    pub expires_at_ms: u64,
    /// The tenant that made it, who owns the nodes that join with it: no other tenant's code runs there as the node's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<TenantId>,
    /// The site's other managers, of which each will do as well.
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
    /// What the store said last, while degraded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store_error: Option<String>,
}
