//! The records of leases that are live or ended recently. Only [`super::Cluster`] changes them, since most changes
//! concern the node and the tenant too.

use std::collections::HashMap;

use dayfly_lease::billing;
use dayfly_protocol::api::{HeldTerms, LeaseState, LeaseStatus, Metered, Usage};
use dayfly_protocol::ids::{LeaseId, NodeId, TenantId};
use dayfly_store::LeaseRecord;

/// A renewal that a node carried out.
pub struct Renewal {
    /// New length in milliseconds.
    pub duration_ms: u64,
    /// New expiry, in milliseconds since the Unix epoch.
    pub expires_at_ms: u64,
    /// The token that it was requested with.
    pub bearer: Option<[u8; 32]>,
}

/// Leases that are live or ended recently.
#[derive(Default)]
pub struct Leases(HashMap<LeaseId, LeaseRecord>);

impl Leases {
    pub(super) fn from_records(records: Vec<LeaseRecord>) -> Self {
        Self(records.into_iter().map(|record| (record.lease, record)).collect())
    }

    /// Returns the lease with this id.
    pub fn get(&self, lease: &LeaseId) -> Option<&LeaseRecord> {
        self.0.get(lease)
    }

    /// Iterates over all leases.
    pub fn values(&self) -> impl Iterator<Item = &LeaseRecord> {
        self.0.values()
    }

    /// Iterates over live leases.
    pub fn live(&self) -> impl Iterator<Item = &LeaseRecord> {
        self.values().filter(|record| record.state.is_live())
    }

    pub(super) fn insert(&mut self, record: LeaseRecord) {
        self.0.insert(record.lease, record);
    }

    /// Ends a lease. Returns `None` if it had ended before; the earlier cause remains.
    pub(super) fn end(&mut self, lease: LeaseId, state: LeaseState, at_ms: u64) -> Option<&LeaseRecord> {
        let record = self.0.get_mut(&lease).filter(|record| record.state.is_live())?;
        record.state = state;
        record.ended_at_ms = at_ms;
        Some(record)
    }

    /// Records the first use of a lease on this node. Returns when it expires now, or `None` if it is not `granted`.
    pub(super) fn activate(&mut self, lease: LeaseId, node: NodeId, now_ms: u64) -> Option<u64> {
        let record = self.0.get_mut(&lease).filter(|record| record.node == node)?;
        if record.state != LeaseState::Granted {
            return None;
        }
        record.state = LeaseState::Active;
        record.expires_at_ms = now_ms.saturating_add(record.duration_ms);
        Some(record.expires_at_ms)
    }

    /// Renews a lease under this token.
    pub(super) fn renew(
        &mut self,
        lease: LeaseId,
        renewal: &Renewal,
        bearer: Option<[u8; 32]>,
    ) -> Option<&LeaseRecord> {
        let record = self.0.get_mut(&lease)?;
        record.duration_ms = renewal.duration_ms;
        record.expires_at_ms = renewal.expires_at_ms;
        record.bearer = bearer;
        Some(record)
    }

    /// Records what a live lease of this node holds now. Returns the records before and after, or `None` without a
    /// change. A worker never has more memory than it was granted.
    pub(super) fn change(&mut self, node: NodeId, terms: &HeldTerms) -> Option<(LeaseRecord, LeaseRecord)> {
        let record = self.0.get_mut(&terms.lease)?;
        if record.node != node || !record.state.is_live() || !terms.are_possible() {
            return None;
        }
        let before = record.clone();
        let most_bytes = before
            .memory_bytes
            .div_ceil(before.workers.max(1).into())
            .saturating_mul(terms.workers.into());
        record.workers = terms.workers;
        record.mode = terms.mode;
        record.memory_bytes = terms.memory_bytes.min(most_bytes);
        (*record != before).then(|| (before, record.clone()))
    }

    pub(super) fn set_expiry(&mut self, lease: &LeaseId, expires_at_ms: u64) {
        if let Some(record) = self.0.get_mut(lease) {
            record.expires_at_ms = expires_at_ms;
        }
    }

    pub(super) fn set_bearer(&mut self, lease: &LeaseId, bearer: Option<[u8; 32]>) {
        if let Some(record) = self.0.get_mut(lease) {
            record.bearer = bearer;
        }
    }

    /// Binds the leases of one token to another one, or to none. Returns the live ones.
    pub(super) fn rebind(&mut self, from: [u8; 32], to: Option<[u8; 32]>) -> Vec<LeaseId> {
        let mut live = Vec::new();
        for record in self.0.values_mut().filter(|record| record.bearer == Some(from)) {
            record.bearer = to;
            if record.state.is_live() {
                live.push(record.lease);
            }
        }
        live
    }

    /// Adds booked usage to a lease of this node. Returns the lease's tenant and the increase.
    pub(super) fn add_usage(&mut self, node: NodeId, lease: &LeaseId, used: &Metered) -> Option<(TenantId, Usage)> {
        let record = self.0.get_mut(lease).filter(|record| record.node == node)?;
        let merged = billing::merge(record.usage, used.usage);
        let added = billing::subtract(merged, record.usage);
        record.usage = merged;
        Some((record.tenant, added))
    }

    /// Removes the leases of a node. Returns those that were live.
    pub(super) fn remove_of(&mut self, node: NodeId) -> Vec<LeaseRecord> {
        let removed = self.0.extract_if(|_, record| record.node == node);
        removed
            .map(|(_, record)| record)
            .filter(|record| record.state.is_live())
            .collect()
    }

    /// Removes leases that ended before this time. The store keeps them.
    pub(super) fn forget_ended(&mut self, before_ms: u64) {
        self.0
            .retain(|_, record| record.state.is_live() || record.ended_at_ms >= before_ms);
    }
}

/// Returns a lease's status.
pub fn lease_status(record: &LeaseRecord) -> LeaseStatus {
    LeaseStatus {
        lease: record.lease,
        tenant: record.tenant,
        node: record.node,
        state: record.state,
        workers: record.workers,
        cores_per_worker: record.cores_per_worker,
        mode: record.mode,
        sandbox: record.sandbox,
        image: record.image.clone(),
        memory_bytes: record.memory_bytes,
        granted_at_ms: record.granted_at_ms,
        expires_at_ms: record.expires_at_ms,
        usage: record.usage,
    }
}
