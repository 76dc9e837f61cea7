//! Messages between a node and its manager, over the WebSocket that the node opens.

use serde::{Deserialize, Serialize};

use crate::api::{
    Capacity, HarvestMode, HarvestStatus, HeldTerms, LearntProfile, LeaseChange, LeaseRequest, LeaseState,
    ManagerAddress, Metered, Mode, NodeAddress, NodeResize, NodeSandboxes, Sandbox,
};
use crate::call_samples::CallSample;
use crate::error::Failure;
use crate::ids::{AllowanceId, LeaseId, PublicKey, TenantId};

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
        /// Harvesting on the node; absent while it is off.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        harvest: Option<Box<HarvestStatus>>,
        /// What the node could lend now; absent while it lends nothing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pools: Option<Box<LendablePools>>,
    },
    /// What the node offers has changed, or is less than what it could offer. In the second case it follows the
    /// registration.
    Capacity {
        /// Total resources.
        capacity: Capacity,
        /// Free resources.
        free: Capacity,
        /// What the node could offer.
        most: Capacity,
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
        /// For offers of containers, the exact image, as in [`Grant::image`](crate::api::Grant::image).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        image: Option<String>,
        /// For offers, the isolation level of the lease.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sandbox: Option<Sandbox>,
        /// For renewals, what the lease holds now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        terms: Option<Box<HeldTerms>>,
    },
    /// A lease ended on the node.
    LeaseEnded {
        /// Id of the lease.
        lease: LeaseId,
        /// Final state.
        state: LeaseState,
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
    /// Response to [`ManagerMessage::Profiles`].
    Profiles {
        /// Number of the request.
        request: u64,
        /// What the node learnt about the functions of this name, at most [`MAX_PROFILES`](crate::api::MAX_PROFILES).
        profiles: Vec<LearntProfile>,
    },
    /// What calls of a function used, for nodes that have not run it. Sent only to managers that keep samples, at most
    /// [`MAX_REPORTED_SAMPLES`](crate::call_samples::MAX_REPORTED_SAMPLES) between two heartbeats.
    Samples {
        /// The node's last lease that ran the function; its tenant is theirs.
        lease: LeaseId,
        /// The function's label in the meters of workers.
        function: String,
        /// What its calls used, oldest first.
        samples: Vec<CallSample>,
    },
    /// Asks for the samples of a function that a lease of the node runs.
    SamplesWanted {
        /// The lease.
        lease: LeaseId,
        /// The function's label.
        function: String,
    },
    /// Last message of a node that is stopped in order. It holds no leases and will not reconnect soon.
    Leaving,
}

/// What a node could lend to another call, for its placement. Only managers receive it: a tenant could learn from it what
/// others leave idle.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LendablePools {
    /// Idle processor time that running calls own, by the time for which they are expected to run on. At most 16 steps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cpu: Vec<PoolStep>,
    /// Idle memory that running calls own. At most 16 steps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<PoolStep>,
    /// Thousandths of a core that no running call owns and nobody has borrowed.
    #[serde(default)]
    pub unowned_milli_cores: u64,
    /// Bytes of memory that no running call owns and nobody has borrowed.
    #[serde(default)]
    pub unowned_bytes: u64,
}

/// So much of a resource is left for so long. Each step of a pool ends later than the one before, and has less.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolStep {
    /// The step ends this many microseconds after the message.
    pub remaining_us: u64,
    /// Thousandths of a core, or bytes.
    pub units: u64,
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
        /// Whether it keeps samples of calls.
        #[serde(default)]
        keeps_samples: bool,
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
        /// What changes besides. The node then responds with the terms.
        #[serde(default, skip_serializing_if = "LeaseChange::is_none")]
        change: LeaseChange,
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
        state: LeaseState,
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
    /// Offers more or fewer resources. What is absent stays as it is, except that the places of warm workers follow the
    /// cores. The node responds when no lease holds more than it offers, with [`NodeMessage::Capacity`] before that.
    Resize {
        /// Number of the request; the response repeats it.
        request: u64,
        /// The change.
        change: NodeResize,
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
    /// Switches harvesting.
    Harvest {
        /// Number of the request; the response repeats it.
        request: u64,
        /// What the node does from now on.
        mode: HarvestMode,
    },
    /// Asks for the profiles of a function. Sent only to nodes that report harvesting.
    Profiles {
        /// Number of the request; the response repeats it.
        request: u64,
        /// The tenant whose calls the node learnt from.
        tenant: TenantId,
        /// The function, as [`is_named`](crate::api::is_named) understands it.
        function: String,
    },
    /// Response to [`NodeMessage::SamplesWanted`].
    Samples {
        /// The tenant of the lease.
        tenant: TenantId,
        /// The function's label.
        function: String,
        /// What its last calls on other nodes used, oldest first; at most
        /// [`MAX_SAMPLES`](crate::call_samples::MAX_SAMPLES).
        samples: Vec<CallSample>,
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
