//! The nodes, leases, tenants, tokens and allowances that the manager knows, in memory behind one lock.
//!
//! The lock is never held over an await. Each part is a module that alone changes its state; [`Cluster`] makes the
//! changes that concern several parts.

mod allowances;
mod leases;
mod node;
mod nodes;
mod pools;
mod summary;
mod tenants;

use std::collections::HashMap;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use dayfly_lease::billing;
use dayfly_protocol::api::{HeldTerms, LeaseState, Metered, NodeStatus, Usage};
use dayfly_protocol::durations::DURATION_BUCKETS;
use dayfly_protocol::error::Failure;
use dayfly_protocol::hello::Token;
use dayfly_protocol::ids::{AllowanceId, LeaseId, NodeId, PublicKey, TenantId};
use dayfly_protocol::node_messages::ManagerMessage;
use dayfly_store::{Bearer, BearerKind, Change, LeaseRecord, NodeRecord, OwnedChange, Snapshot, TenantRecord};

pub use self::allowances::{ALLOWANCE_LIFETIME, Allowances, MAX_REPORT_DELAY, NewAllowance};
pub use self::leases::{Leases, Renewal, lease_status};
pub use self::node::{Node, ReclaimReport, Registration, Reply, end_message};
pub use self::nodes::{AskedNode, Nodes};
pub use self::pools::{LeaseDemand, LendingReport};
pub use self::summary::{CapacityTotal, Summary};
pub use self::tenants::{Account, Tenants};
use crate::token_registry::TokenRegistry;

/// A node ends its expired leases itself. The manager ends them in its place only this long after their expiry, when
/// the node's own grace and the heartbeats that would report the end are over.
const OVERDUE_MS: u64 = 60_000;

/// Everything that the manager knows.
#[derive(Default)]
pub struct Cluster {
    nodes: Nodes,
    leases: Leases,
    tenants: Tenants,
    tokens: TokenRegistry,
    allowances: Allowances,
    /// Usage that was booked since this manager started.
    used: Usage,
    /// Calls by duration on all nodes since this manager started.
    durations: [u64; DURATION_BUCKETS],
}

impl Cluster {
    /// Returns the cluster as stored, with no node connected.
    pub fn from_snapshot(snapshot: Snapshot, now: Instant) -> Self {
        let mut tenants = Tenants::from_records(snapshot.tenants, snapshot.prices);
        for record in snapshot.leases.iter().filter(|record| record.state.is_live()) {
            tenants.hold(record);
        }
        Self {
            nodes: Nodes::from_records(snapshot.nodes, now),
            leases: Leases::from_records(snapshot.leases),
            tenants,
            tokens: TokenRegistry::of(snapshot.bearers),
            ..Self::default()
        }
    }

    /// The nodes.
    pub fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    /// The nodes.
    pub fn nodes_mut(&mut self) -> &mut Nodes {
        &mut self.nodes
    }

    /// The leases.
    pub fn leases(&self) -> &Leases {
        &self.leases
    }

    /// The tenants.
    pub fn tenants(&self) -> &Tenants {
        &self.tenants
    }

    /// The tenants.
    pub fn tenants_mut(&mut self) -> &mut Tenants {
        &mut self.tenants
    }

    /// The tokens.
    pub fn tokens(&self) -> &TokenRegistry {
        &self.tokens
    }

    /// The tokens.
    pub fn tokens_mut(&mut self) -> &mut TokenRegistry {
        &mut self.tokens
    }

    /// The allowances.
    pub fn allowances(&self) -> &Allowances {
        &self.allowances
    }

    /// The allowances.
    pub fn allowances_mut(&mut self) -> &mut Allowances {
        &mut self.allowances
    }

    /// Usage that was booked since this manager started.
    pub fn used(&self) -> Usage {
        self.used
    }

    /// Calls by duration on all nodes since this manager started.
    pub fn durations(&self) -> &[u64; DURATION_BUCKETS] {
        &self.durations
    }

    /// Adds a granted lease. Its reservation ends.
    pub fn insert_lease(&mut self, record: LeaseRecord) {
        self.tenants.release_reservation(record.lease);
        self.tenants.hold(&record);
        if let Some(node) = self.nodes.get_mut(&record.node) {
            node.take(&record);
        }
        self.leases.insert(record);
    }

    /// Ends a lease. Returns its node, or `None` if it had ended before.
    pub fn end_lease(&mut self, lease: LeaseId, state: LeaseState, at_ms: u64) -> Option<NodeId> {
        let was_active = self.leases.get(&lease)?.state == LeaseState::Active;
        let record = self.leases.end(lease, state, at_ms)?;
        let id = record.node;
        self.tenants.release(record);
        if let Some(node) = self.nodes.get_mut(&id) {
            node.give_back(record);
            if was_active && matches!(state, LeaseState::Released | LeaseState::Expired) {
                node.record_success();
            }
        }
        if let Some((allowance, message)) = self.allowances.on_lease_ended(lease, at_ms) {
            self.reserve_unused(allowance);
            if let Some(message) = message {
                self.nodes.send_to_all(&message);
            }
        }
        Some(id)
    }

    /// Records the first use of a lease on this node. Returns when it expires now, or `None` if it is not `granted`.
    pub fn activate_lease(&mut self, lease: LeaseId, node: NodeId, now_ms: u64) -> Option<u64> {
        self.leases.activate(lease, node, now_ms)
    }

    /// Renews a lease. Returns its record and the note for the store, or `None` if it is unknown.
    pub fn renew_lease(&mut self, lease: LeaseId, renewal: &Renewal) -> Option<(LeaseRecord, OwnedChange)> {
        // The token may have been replaced while the node was asked.
        let bearer = self.tokens.current(renewal.bearer);
        let record = self.leases.renew(lease, renewal, bearer)?.clone();
        Some((record, self.renewal(lease)?))
    }

    /// Records what a lease holds, as its node reports it. Returns the note for the store, or `None` without a change.
    pub fn change_lease(&mut self, node: NodeId, terms: &HeldTerms) -> Option<OwnedChange> {
        let (before, after) = self.leases.change(node, terms)?;
        self.tenants.release(&before);
        self.tenants.hold(&after);
        if let Some(node) = self.nodes.get_mut(&node) {
            node.give_back(&before);
            node.take(&after);
        }
        self.renewal(terms.lease)
    }

    /// Returns the note that stores the terms, the expiry and the token of a lease.
    pub fn renewal(&self, lease: LeaseId) -> Option<OwnedChange> {
        let record = self.leases.get(&lease)?;
        Some(OwnedChange {
            node: record.node,
            epoch: self.nodes.epoch(record.node),
            change: Change::Renewed {
                lease,
                duration_ms: record.duration_ms,
                expires_at_ms: record.expires_at_ms,
                bearer: record.bearer,
                workers: record.workers,
                mode: record.mode,
                memory_bytes: record.memory_bytes,
            },
        })
    }

    /// Live leases on this manager's nodes whose token is no longer valid.
    pub fn leases_without_token(&self) -> Vec<LeaseId> {
        let invalid = self
            .leases
            .live()
            .filter(|record| self.tokens.is_invalid(record.bearer));
        invalid.map(|record| record.lease).collect()
    }

    /// Leases that must have ended although their node reported no end: they are overdue, or their node is lost.
    pub fn overdue_leases(&self, now: Instant, wall_ms: u64, lease_lost_after: Duration) -> Vec<(LeaseId, LeaseState)> {
        let mut overdue = Vec::new();
        for record in self.leases.live() {
            let node = self.nodes.get(&record.node);
            let silence = node.map_or(Duration::MAX, |node| now.saturating_duration_since(node.last_seen()));
            if wall_ms > record.expires_at_ms.saturating_add(OVERDUE_MS) {
                overdue.push((record.lease, LeaseState::Expired));
            } else if !node.is_some_and(Node::is_connected) && silence > lease_lost_after {
                overdue.push((record.lease, LeaseState::Lost));
            }
        }
        overdue
    }

    /// Forgets leases that ended before `ended_before_ms`, and allowances and tokens that have expired.
    pub fn forget_expired(&mut self, wall_ms: u64, ended_before_ms: u64) {
        self.leases.forget_ended(ended_before_ms);
        for allowance in self.allowances.expire(wall_ms) {
            self.reserve_unused(allowance);
        }
        self.tokens.retain(|bearer| bearer.expires_at_ms > wall_ms);
    }

    /// Adds a token. Leases and allowances of a client token that it replaces become its own. Returns the notes for the
    /// store.
    #[must_use]
    pub fn add_token(&mut self, bearer: Bearer) -> Vec<OwnedChange> {
        let (hash, kind) = (bearer.hash, bearer.kind);
        let replaced = self.tokens.keep(bearer);
        if !matches!(kind, BearerKind::Client(_)) {
            return Vec::new();
        }
        let rebound = replaced.into_iter().flat_map(|old| self.rebind(old, Some(hash)));
        rebound.collect()
    }

    /// Binds the leases and allowances of one token to another one, or to none. Returns the notes for the store: it
    /// does the same, but a change with the earlier token may reach it afterwards.
    #[must_use]
    pub fn rebind(&mut self, from: [u8; 32], to: Option<[u8; 32]>) -> Vec<OwnedChange> {
        self.allowances.rebind(from, to);
        self.tokens.record_replacement(from, to);
        let live = self.leases.rebind(from, to);
        live.into_iter().filter_map(|lease| self.renewal(lease)).collect()
    }

    /// Reserves the resources of a new allowance and adds it.
    pub fn add_allowance(&mut self, id: AllowanceId, new: NewAllowance, now_ms: u64) -> Result<(), Failure> {
        self.tenants.reserve(LeaseId(id.0), new.tenant, new.total)?;
        let bearer = self.tokens.current(new.bearer);
        self.allowances.insert(id, NewAllowance { bearer, ..new }, now_ms);
        Ok(())
    }

    /// Ends an allowance of this tenant and informs the nodes. Returns false if it had ended before.
    pub fn end_allowance(&mut self, id: AllowanceId, tenant: TenantId, now_ms: u64) -> bool {
        let Some(message) = self.allowances.end(id, tenant, now_ms) else {
            return false;
        };
        self.tenants.release_reservation(LeaseId(id.0));
        self.nodes.send_to_all(&message);
        true
    }

    /// Adds a lease that a node granted under the allowance in this token. Returns whether the allowance is
    /// exhausted now; the nodes are informed of that.
    pub fn add_direct_lease(
        &mut self,
        allowance: AllowanceId,
        token: &Token,
        record: LeaseRecord,
        now_ms: u64,
    ) -> Result<bool, Failure> {
        let message = self.allowances.start(allowance, token, &record, now_ms)?;
        self.insert_lease(record);
        self.reserve_unused(allowance);
        if let Some(message) = &message {
            self.nodes.send_to_all(message);
        }
        Ok(message.is_some())
    }

    /// Reserves the part of an allowance that no lease holds; nothing for one that has ended.
    fn reserve_unused(&mut self, allowance: AllowanceId) {
        let key = LeaseId(allowance.0);
        self.tenants.release_reservation(key);
        if let Some((tenant, unused)) = self.allowances.unused(allowance) {
            self.tenants.reserve_unchecked(key, tenant, unused);
        }
    }

    /// Registers a node that holds these leases, with the milliseconds that they have left. `inherited` are the node's
    /// leases if another manager owned it before. The node must end leases that are over here. Returns the leases
    /// that it should hold and does not.
    pub fn register_node(
        &mut self,
        registration: Registration,
        held: &HashMap<LeaseId, u64>,
        inherited: Option<Vec<LeaseRecord>>,
        now_ms: u64,
    ) -> Vec<LeaseId> {
        let id = registration.address.id;
        let booked = match inherited {
            Some(inherited) => {
                self.inherit(id, inherited);
                registration.booked
            }
            // The usage of the leases here may lag behind the store.
            None => self.nodes.get(&id).map_or(registration.booked, Node::booked),
        };
        let outgoing = &registration.outgoing;
        if registration.is_reclaimed {
            // It may have been disconnected when it was reclaimed, or have restarted since.
            let _ = outgoing.try_send(ManagerMessage::Reclaim {
                request: 0,
                grace_ms: 0,
                traceparent: None,
            });
        }
        for message in self.allowances.exhausted(now_ms) {
            let _ = outgoing.try_send(message);
        }
        let earlier = self.nodes.get_mut(&id);
        for (lease, remaining_ms) in held {
            let state = match self.leases.get(lease) {
                Some(record) if record.node == id && record.state.is_live() => {
                    self.leases.set_expiry(lease, now_ms.saturating_add(*remaining_ms));
                    continue;
                }
                // It ended while the node was disconnected.
                Some(record) if record.node == id => record.state,
                _ if earlier.as_ref().is_some_and(|node| node.is_uncertain(lease)) => LeaseState::Revoked,
                // The node granted it by itself.
                _ => continue,
            };
            let _ = outgoing.try_send(end_message(0, *lease, state, Duration::ZERO));
        }
        let own = self.leases.live().filter(|record| record.node == id);
        let missing = own.filter(|record| !held.contains_key(&record.lease));
        let missing = missing.map(|record| record.lease).collect();
        let registration = Registration { booked, ..registration };
        let node = Node::registered(registration, earlier, Instant::now());
        self.nodes.insert(id, node);
        missing
    }

    /// Replaces the leases of a node that comes from another manager.
    fn inherit(&mut self, node: NodeId, leases: Vec<LeaseRecord>) {
        self.forget_leases_of(node);
        for record in leases {
            if record.state.is_live() {
                self.tenants.hold(&record);
            }
            self.leases.insert(record);
        }
    }

    /// Forgets the leases of a node that another manager owns.
    fn forget_leases_of(&mut self, node: NodeId) {
        for record in self.leases.remove_of(node) {
            self.tenants.release(&record);
        }
    }

    /// Takes over a node of a dead manager, with its leases. Returns without effect if the node has registered
    /// somewhere since.
    pub fn adopt_node(&mut self, record: NodeRecord, leases: Vec<LeaseRecord>, now: Instant) {
        let id = record.address.id;
        if record.epoch < self.nodes.epoch(id) {
            return;
        }
        let adopted = NodeRecord {
            manager: None,
            ..record
        };
        self.nodes.insert(id, Node::from_record(adopted, now));
        self.inherit(id, leases);
    }

    /// Applies a node's row that another manager changed. Ignores an older epoch than the known one. `own_key` is the
    /// key of this manager.
    pub fn apply_node(&mut self, own_key: PublicKey, record: NodeRecord) {
        let id = record.address.id;
        let epoch = self.nodes.epoch(id);
        if record.epoch < epoch {
            return;
        }
        let is_own = record.manager.is_none_or(|manager| manager == own_key);
        match self.nodes.get_mut(&id) {
            // The rest of an own node's state is newer here than in the store.
            Some(node) if is_own && node.owner().is_none() => node.set_reclaimed(record.reclaimed),
            // The node's registration or adoption brings its leases.
            _ if is_own => {}
            Some(node) => {
                node.set_reclaimed(record.reclaimed);
                if record.epoch > epoch {
                    node.move_to(record);
                    self.forget_leases_of(id);
                }
            }
            None => self.nodes.insert(id, Node::from_record(record, Instant::now())),
        }
    }

    /// Applies the full state of the store. Returns its tenants.
    pub fn apply_snapshot(&mut self, own_key: PublicKey, snapshot: Snapshot) -> Vec<TenantRecord> {
        let Snapshot {
            nodes,
            leases,
            bearers,
            tenants,
            prices,
        } = snapshot;
        for record in nodes {
            self.apply_node(own_key, record);
        }
        self.tokens.replace_stored(bearers);
        for stored in leases {
            // The store binds leases to another token when theirs is replaced, or revoked without its leases. A valid
            // token here stays: the change that it came with may be on its way to the store.
            let known = self.leases.get(&stored.lease);
            if known.is_some_and(|record| self.tokens.is_invalid(record.bearer))
                && !self.tokens.is_invalid(stored.bearer)
            {
                self.leases.set_bearer(&stored.lease, stored.bearer);
            }
        }
        self.tenants.set_default_prices(prices);
        tenants
    }

    /// Records that the store booked an entry of a node's journal, now or earlier. Returns the increase by tenant.
    pub fn on_booked(&mut self, id: NodeId, sequence: u64, totals: &[(LeaseId, Metered)]) -> Vec<(TenantId, Usage)> {
        if !self.nodes.get_mut(&id).is_some_and(|node| node.on_booked(sequence)) {
            return Vec::new();
        }
        let mut increases = Vec::new();
        for (lease, used) in totals {
            if let Some((tenant, added)) = self.leases.add_usage(id, lease, used) {
                self.used = billing::add(self.used, added);
                increases.push((tenant, added));
            }
        }
        increases
    }

    /// Adds a node's number of calls by duration.
    pub fn on_durations(&mut self, id: NodeId, calls: [u64; DURATION_BUCKETS]) {
        if let Some(node) = self.nodes.get_mut(&id) {
            for (sum, increase) in self.durations.iter_mut().zip(node.on_durations(calls)) {
                *sum = sum.saturating_add(increase);
            }
        }
    }

    /// Statuses of this manager's nodes, by name and id.
    pub fn node_statuses(&self, now: Instant) -> Vec<NodeStatus> {
        let mut statuses = self.statuses_where(now, |node| node.owner().is_none());
        statuses.sort_by(|a, b| (&a.address.name, a.address.id).cmp(&(&b.address.name, b.address.id)));
        statuses
    }

    /// Statuses of other managers' nodes, as far as known.
    pub fn foreign_statuses(&self, now: Instant) -> Vec<NodeStatus> {
        self.statuses_where(now, |node| node.owner().is_some())
    }

    fn statuses_where(&self, now: Instant, is_wanted: impl Fn(&Node) -> bool) -> Vec<NodeStatus> {
        let wanted = self.nodes.in_order().filter(|(_, node)| is_wanted(node));
        wanted.filter_map(|(id, _)| self.node_status(id, now)).collect()
    }

    /// Status of one node.
    pub fn node_status(&self, id: &NodeId, now: Instant) -> Option<NodeStatus> {
        let leases = self.leases.live().filter(|record| record.node == *id).count();
        Some(self.nodes.get(id)?.status(leases, now))
    }
}

/// Returns milliseconds by a clock that never goes back. It begins at some time before this manager.
pub fn clock_ms(now: Instant) -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    millis(now.saturating_duration_since(*START))
}

/// Whole milliseconds of a duration.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
