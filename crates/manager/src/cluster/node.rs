//! One node: its connection, its free resources, its health, and the requests that it has not answered.

mod offer;
mod profiles;

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use dayfly_lease::health::{Health, Suspension};
use dayfly_lease::placement::View;
use dayfly_protocol::api::{
    Capacity, HarvestStatus, HeldTerms, LeaseState, MAX_HARVEST_WHY_BYTES, Mode, NodeAddress, NodeSandboxes, NodeState,
    NodeStatus,
};
use dayfly_protocol::cores::MilliCores;
use dayfly_protocol::durations::DURATION_BUCKETS;
use dayfly_protocol::error::Failure;
use dayfly_protocol::ids::{LeaseId, NodeId, PublicKey};
use dayfly_protocol::node_messages::ManagerMessage;
use dayfly_store::{LeaseRecord, NodeRecord};
use dayfly_telemetry::traceparent;
use tokio::sync::{mpsc, oneshot};

use self::profiles::ProfileRequests;
use super::pools::{LeaseDemand, NodePools};
use super::{clock_ms, millis};

/// Log a clock difference from here on. It is a tenth of what tokens tolerate.
const NOTABLE_SKEW_MS: i64 = 6_000;

/// A node's response to a request. For a renewal, what the lease holds now.
pub type Reply = Result<Option<Box<HeldTerms>>, Failure>;

/// A node's report when it was reclaimed and has become empty.
#[derive(Debug, Clone, Copy)]
pub struct ReclaimReport {
    /// Leases that were ended.
    pub leases: u32,
    /// Time until the last of them had ended.
    pub duration: Duration,
}

/// A request that a node has not answered.
pub struct PendingRequest {
    /// For an offer, the lease that it becomes when the node accepts. The lease is inserted when the answer arrives, in
    /// the order of the node's messages, so that no heartbeat counts it twice and no end precedes it.
    pub offer: Option<LeaseRecord>,
    /// Receives the node's response.
    pub reply: oneshot::Sender<Reply>,
}

/// The connection of a node.
struct Session {
    /// Distinguishes this connection from earlier ones of the node.
    epoch: u64,
    outgoing: mpsc::Sender<ManagerMessage>,
    pending: HashMap<u64, PendingRequest>,
    profiles: ProfileRequests,
}

/// One node that has registered at some time.
pub struct Node {
    address: NodeAddress,
    capacity: Capacity,
    /// What it could offer, if it has said so.
    most: Option<Capacity>,
    /// Current epoch; every change of the node's leases names it.
    epoch: u64,
    /// The other manager that owns the node. Its connection and leases are at that manager.
    owner: Option<PublicKey>,
    /// Free resources by the last heartbeat, less those granted since.
    free: Capacity,
    session: Option<Session>,
    /// Whether the node announced the end of its last connection.
    has_left: bool,
    /// Whether an operator reclaimed it. A reclaimed node gets no leases.
    is_reclaimed: bool,
    health: Health,
    /// Requests that wait until the node is empty.
    reclaims: HashMap<u64, oneshot::Sender<ReclaimReport>>,
    /// Time of the last message, or of the manager's start.
    last_seen: Instant,
    /// Last entry of the node's journal whose usage is included in the leases here.
    booked: u64,
    /// Number of calls by duration, as last reported.
    durations: [u64; DURATION_BUCKETS],
    /// The node's clock minus the manager's.
    skew_ms: i64,
    /// Leases that were offered and never answered: the node may hold them.
    uncertain: HashSet<LeaseId>,
    sandboxes: Option<NodeSandboxes>,
    harvest: Option<Box<HarvestStatus>>,
    pools: NodePools,
}

/// A node's description of itself when it registers.
pub struct Registration {
    /// Where clients reach it.
    pub address: NodeAddress,
    /// Its resources.
    pub capacity: Capacity,
    /// Its free resources.
    pub free: Capacity,
    /// Levels of isolation that it permits to its owners and to other tenants.
    pub sandboxes: Option<NodeSandboxes>,
    /// Epoch of the connection.
    pub epoch: u64,
    /// Whether an operator has reclaimed it.
    pub is_reclaimed: bool,
    /// Last entry of its journal that is booked.
    pub booked: u64,
    /// Queue to its connection.
    pub outgoing: mpsc::Sender<ManagerMessage>,
}

impl Node {
    /// Returns a node as stored, without a connection.
    pub fn from_record(record: NodeRecord, now: Instant) -> Self {
        Self {
            address: record.address,
            capacity: record.capacity,
            most: None,
            epoch: record.epoch,
            owner: record.manager,
            free: Capacity::default(),
            session: None,
            has_left: false,
            is_reclaimed: record.reclaimed,
            health: Health::default(),
            reclaims: HashMap::new(),
            last_seen: now,
            booked: record.booked,
            durations: [0; DURATION_BUCKETS],
            skew_ms: 0,
            uncertain: HashSet::new(),
            sandboxes: None,
            harvest: None,
            pools: NodePools::default(),
        }
    }

    /// Returns a node that has just connected. It keeps the health and the counters of its earlier connection.
    pub(super) fn registered(registration: Registration, earlier: Option<&mut Node>, now: Instant) -> Self {
        let Registration {
            address,
            capacity,
            free,
            sandboxes,
            epoch,
            is_reclaimed,
            booked,
            outgoing,
        } = registration;
        let (health, durations) = earlier
            .map(|node| (std::mem::take(&mut node.health), node.durations))
            .unwrap_or_default();
        let record = NodeRecord {
            address,
            capacity,
            epoch,
            booked,
            reclaimed: is_reclaimed,
            manager: None,
        };
        Self {
            session: Some(Session {
                epoch,
                outgoing,
                pending: HashMap::new(),
                profiles: ProfileRequests::default(),
            }),
            free,
            health,
            durations,
            sandboxes,
            ..Self::from_record(record, now)
        }
    }

    /// Where clients reach the node.
    pub fn address(&self) -> &NodeAddress {
        &self.address
    }

    /// Its current epoch.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The other manager that owns it, if any.
    pub fn owner(&self) -> Option<PublicKey> {
        self.owner
    }

    /// Time of its last message.
    pub fn last_seen(&self) -> Instant {
        self.last_seen
    }

    /// Last entry of its journal that is booked.
    pub fn booked(&self) -> u64 {
        self.booked
    }

    /// Whether it is connected to this manager.
    pub fn is_connected(&self) -> bool {
        self.session.is_some()
    }

    /// Whether it is connected and not reclaimed.
    pub fn is_in_service(&self) -> bool {
        self.is_connected() && !self.is_reclaimed
    }

    /// Whether it is connected, not reclaimed and not suspended.
    pub fn accepts_leases(&self) -> bool {
        self.is_in_service() && self.health.suspension().is_none()
    }

    /// Epoch of its connection, if it is connected.
    pub fn session_epoch(&self) -> Option<u64> {
        self.session.as_ref().map(|session| session.epoch)
    }

    /// Whether the node may hold this lease although it never answered the offer.
    pub(super) fn is_uncertain(&self, lease: &LeaseId) -> bool {
        self.uncertain.contains(lease)
    }

    /// The node as the placement of a lease sees it. Without a demand, what the node could lend makes no difference.
    pub fn view(&self, demand: Option<&LeaseDemand>) -> View {
        View {
            coverage_percent: demand.map_or(0, |demand| self.pools.coverage_percent(demand)),
            node: self.address.id,
            up: self.accepts_leases(),
            capacity: self.capacity,
            free: self.free,
        }
    }

    /// Returns [`NodeStatus::state`] of a node that holds leases or does not.
    pub(super) fn state(&self, holds_leases: bool) -> NodeState {
        match (&self.session, self.has_left) {
            (Some(_), _) if self.is_reclaimed && holds_leases => NodeState::Leaving,
            (Some(_), _) if self.is_reclaimed => NodeState::Reclaimed,
            (Some(_), _) if self.health.suspension().is_some() => NodeState::Suspended,
            (Some(_), _) => NodeState::Up,
            (None, true) => NodeState::Left,
            (None, false) => NodeState::Lost,
        }
    }

    /// Returns the node's status when it holds this many leases.
    pub(super) fn status(&self, leases: usize, now: Instant) -> NodeStatus {
        let suspension = self.health.suspension();
        let ends_ms = suspension.map_or(0, |suspension| suspension.until_ms);
        NodeStatus {
            suspended_ms: ends_ms.saturating_sub(clock_ms(now)),
            why: suspension.map(|suspension| suspension.why.clone()),
            address: self.address.clone(),
            capacity: self.capacity,
            free: self.free,
            state: self.state(leases > 0),
            heartbeat_age_ms: millis(now.saturating_duration_since(self.last_seen)),
            leases: leases as u32,
            sandboxes: self.sandboxes.clone(),
            harvest: self.harvest.as_deref().cloned(),
        }
    }

    /// Records what the node reports of harvesting.
    pub fn on_harvest(&mut self, mut status: Option<Box<HarvestStatus>>) {
        if let Some(why) = status.as_mut().and_then(|status| status.why.as_mut()) {
            *why = dayfly_protocol::text::line(why, MAX_HARVEST_WHY_BYTES);
        }
        self.harvest = status;
    }

    /// What it could lend, while it lends.
    pub fn pools(&self) -> &NodePools {
        &self.pools
    }

    /// What it could lend, while it lends.
    pub fn pools_mut(&mut self) -> &mut NodePools {
        &mut self.pools
    }

    /// Queues a message. Returns false if the node is not connected or its queue is full.
    pub fn send(&self, message: ManagerMessage) -> bool {
        let session = self.session.as_ref();
        session.is_some_and(|session| session.outgoing.try_send(message).is_ok())
    }

    /// Queues the request with this number, made from the number and the epoch. Returns where its response arrives, or
    /// `None` if the node is not connected or its queue is full.
    pub(super) fn request(
        &mut self,
        number: u64,
        offer: Option<LeaseRecord>,
        message: impl FnOnce(u64, u64) -> ManagerMessage,
    ) -> Option<oneshot::Receiver<Reply>> {
        let session = self.session.as_mut()?;
        session.outgoing.try_send(message(number, session.epoch)).ok()?;
        let (reply, response) = oneshot::channel();
        session.pending.insert(number, PendingRequest { offer, reply });
        Some(response)
    }

    /// Removes a pending request.
    pub fn take_request(&mut self, number: u64) -> Option<PendingRequest> {
        self.session.as_mut()?.pending.remove(&number)
    }

    /// Records a message on the connection with this epoch. Returns false if that connection is over.
    pub(super) fn seen(&mut self, epoch: u64, now: Instant) -> bool {
        let is_current = self.session_epoch() == Some(epoch);
        if is_current {
            self.last_seen = now;
        }
        is_current
    }

    /// Ends the connection: its task ends, and everything that waits for the node fails. Returns whether there was one.
    pub fn disconnect(&mut self) -> bool {
        self.reclaims.clear();
        self.session.take().is_some()
    }

    /// Records that the connection with this epoch ended. Returns false if another one took its place.
    pub fn on_disconnected(&mut self, epoch: u64, has_left: bool) -> bool {
        if self.session_epoch() != Some(epoch) {
            return false;
        }
        self.disconnect();
        self.has_left = has_left;
        true
    }

    /// Sets the free resources that the node reported.
    pub fn set_free(&mut self, free: Capacity) {
        self.free = free;
    }

    /// Records a heartbeat. Returns whether the clocks have begun to differ notably.
    pub fn on_heartbeat(&mut self, free: Capacity, skew_ms: i64) -> bool {
        self.free = free;
        let before = std::mem::replace(&mut self.skew_ms, skew_ms);
        skew_ms.abs() > NOTABLE_SKEW_MS && before.abs() <= NOTABLE_SKEW_MS
    }

    /// Records the number of calls by duration. Returns the increase since the last report.
    pub(super) fn on_durations(&mut self, calls: [u64; DURATION_BUCKETS]) -> [u64; DURATION_BUCKETS] {
        // A node that restarted counts from 0 again.
        let restarted = calls.iter().zip(&self.durations).any(|(now, before)| now < before);
        let before = std::mem::replace(&mut self.durations, calls);
        if restarted {
            return calls;
        }
        std::array::from_fn(|bucket| calls[bucket] - before[bucket])
    }

    /// Records that this entry of its journal is booked. Returns false if it was before.
    pub(super) fn on_booked(&mut self, sequence: u64) -> bool {
        let is_new = sequence > self.booked;
        if is_new {
            self.booked = sequence;
        }
        is_new
    }

    /// Records that an offer of this lease was never answered.
    pub(super) fn mark_uncertain(&mut self, lease: LeaseId) {
        self.uncertain.insert(lease);
    }

    /// Adds a lease to the free resources again.
    pub(super) fn give_back(&mut self, record: &LeaseRecord) {
        self.pools.remove(&record.lease);
        let (cores, workers) = worker_places(record);
        self.free = Capacity {
            cores: self.free.cores.saturating_add(cores).min(self.capacity.cores),
            memory_bytes: self
                .free
                .memory_bytes
                .saturating_add(record.memory_bytes)
                .min(self.capacity.memory_bytes),
            workers: self.free.workers.plus(workers).min(self.capacity.workers),
            gpus: self.free.gpus.saturating_add(record.gpus()).min(self.capacity.gpus),
        };
    }

    /// Subtracts a lease from the free resources.
    pub(super) fn take(&mut self, record: &LeaseRecord) {
        self.pools.add(record);
        let (cores, workers) = worker_places(record);
        self.free = Capacity {
            cores: self.free.cores.saturating_sub(cores),
            memory_bytes: self.free.memory_bytes.saturating_sub(record.memory_bytes),
            workers: self.free.workers.minus(workers),
            gpus: self.free.gpus.saturating_sub(record.gpus()),
        };
    }

    /// Records a failure by the node's own fault. Returns the suspension that begins, if any.
    pub fn record_failure(&mut self, now_ms: u64, why: &str) -> Option<Suspension> {
        self.health.failed(now_ms, why).cloned()
    }

    /// Records that a lease was used and ended normally.
    pub(super) fn record_success(&mut self) {
        self.health.succeeded();
    }

    /// Ends a suspension whose time is over. Returns whether a connected node is in service again.
    pub(super) fn tick(&mut self, now_ms: u64) -> bool {
        self.health.tick(now_ms) && self.session.is_some()
    }

    /// Ends a suspension and forgets all failures. Returns whether the node was reclaimed and whether it was suspended.
    pub fn forgive(&mut self) -> (bool, bool) {
        let was_suspended = self.health.suspension().is_some();
        self.health.forgive();
        (self.is_reclaimed, was_suspended)
    }

    /// Puts a reclaimed node into service again.
    pub fn resume(&mut self) {
        self.is_reclaimed = false;
        self.free = self.capacity;
    }

    /// Reclaims the node and queues this message. Returns where its report arrives, or `None` if it is not connected.
    pub(super) fn reclaim(&mut self, number: u64, message: ManagerMessage) -> Option<oneshot::Receiver<ReclaimReport>> {
        self.is_reclaimed = true;
        self.send(message).then(|| {
            let (reply, report) = oneshot::channel();
            self.reclaims.insert(number, reply);
            report
        })
    }

    /// Passes the report to the request that waits for it. Without a report, only forgets the request.
    pub fn end_reclaim(&mut self, number: u64, report: Option<ReclaimReport>) {
        if let (Some(reply), Some(report)) = (self.reclaims.remove(&number), report) {
            // The request may have been given up.
            let _ = reply.send(report);
        }
    }

    /// Applies a change that another manager stored: the node was reclaimed or resumed.
    pub(super) fn set_reclaimed(&mut self, is_reclaimed: bool) {
        self.is_reclaimed = is_reclaimed;
    }

    /// Applies a newer registration at another manager. Ends the connection here.
    pub(super) fn move_to(&mut self, record: NodeRecord) {
        if self.owner.is_none() {
            tracing::info!(node = %self.address.id, epoch = record.epoch, "it went to another manager");
        }
        self.epoch = record.epoch;
        self.address = record.address;
        self.capacity = record.capacity;
        self.booked = record.booked;
        self.owner = record.manager;
        self.disconnect();
        self.uncertain.clear();
    }
}

/// Returns how many own cores and how many places of warm workers a lease has on its node.
fn worker_places(record: &LeaseRecord) -> (u16, MilliCores) {
    let all = record.cores_per_worker * u32::from(record.workers);
    match record.mode {
        Mode::Hot => (u16::try_from(all.whole_part()).unwrap_or(u16::MAX), MilliCores::ZERO),
        _ => (0, all),
    }
}

/// A node with its id.
pub type Entry<'a> = (&'a NodeId, &'a Node);

/// Returns the message that ends a lease on its node.
pub fn end_message(request: u64, lease: LeaseId, state: LeaseState, grace: Duration) -> ManagerMessage {
    ManagerMessage::End {
        request,
        lease,
        state,
        grace_ms: millis(grace),
        traceparent: traceparent(),
    }
}
