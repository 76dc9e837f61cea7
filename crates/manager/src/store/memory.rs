//! A store that forgets when its process ends: for tests, and for managers that own nothing worth keeping.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use mayfly_lease::State;
use mayfly_lease::billing::merge;
use mayfly_protocol::api::{Capacity, NodeAddress, Usage};
use mayfly_protocol::ids::{LeaseId, NodeId};

use super::{Bearer, Change, LeaseRecord, NodeRecord, Pending, Role, Snapshot, Store, StoreError};

/// Everything in maps behind one lock.
#[derive(Debug, Default)]
pub struct MemoryStore(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    nodes: HashMap<NodeId, NodeRecord>,
    leases: HashMap<LeaseId, LeaseRecord>,
    bearers: HashMap<[u8; 32], Bearer>,
}

impl Kept {
    fn live(&mut self, lease: LeaseId) -> Option<&mut LeaseRecord> {
        self.leases.get_mut(&lease).filter(|record| record.state.is_live())
    }
}

impl MemoryStore {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        // No method panics between two writes, so a poisoned lock still guards consistent maps.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for MemoryStore {
    fn load(&self, ended_after_ms: u64) -> Result<Snapshot, StoreError> {
        let kept = self.kept();
        let lately = |lease: &&LeaseRecord| lease.state.is_live() || lease.ended_at_ms >= ended_after_ms;
        Ok(Snapshot {
            nodes: kept.nodes.values().cloned().collect(),
            leases: kept.leases.values().filter(lately).cloned().collect(),
            bearers: kept.bearers.values().cloned().collect(),
        })
    }

    fn register(&self, address: NodeAddress, capacity: Capacity) -> Pending<u64> {
        let mut kept = self.kept();
        let (epoch, booked, reclaimed) = kept
            .nodes
            .get(&address.id)
            .map_or((0, 0, false), |node| (node.epoch, node.booked, node.reclaimed));
        let epoch = epoch + 1;
        kept.nodes.insert(
            address.id,
            NodeRecord {
                address,
                capacity,
                epoch,
                booked,
                reclaimed,
            },
        );
        Pending::ready(Ok(epoch))
    }

    fn reclaim(&self, node: NodeId, reclaimed: bool) -> Pending<()> {
        if let Some(record) = self.kept().nodes.get_mut(&node) {
            record.reclaimed = reclaimed;
        }
        Pending::ready(Ok(()))
    }

    fn note(&self, changes: Vec<Change>) -> Pending<()> {
        let mut kept = self.kept();
        for change in changes {
            match change {
                Change::Offered(record) => {
                    kept.leases.entry(record.lease).or_insert(*record);
                }
                Change::Taken { lease, mode } => {
                    if let Some(record) = kept.live(lease) {
                        record.mode = mode;
                    }
                }
                Change::Refused { lease } => {
                    if kept.live(lease).is_some() {
                        kept.leases.remove(&lease);
                    }
                }
                Change::Active { lease, expires_at_ms } => {
                    if let Some(record) = kept.live(lease) {
                        record.state = State::Active;
                        record.expires_at_ms = expires_at_ms;
                    }
                }
                Change::Renewed {
                    lease,
                    duration_ms,
                    expires_at_ms,
                } => {
                    if let Some(record) = kept.live(lease) {
                        record.duration_ms = duration_ms;
                        record.expires_at_ms = expires_at_ms;
                    }
                }
                Change::Ended { lease, state, at_ms } => {
                    if let Some(record) = kept.live(lease) {
                        record.state = state;
                        record.ended_at_ms = at_ms;
                    }
                }
            }
        }
        Pending::ready(Ok(()))
    }

    fn book(&self, node: NodeId, sequence: u64, totals: Vec<(LeaseId, Usage)>) -> Pending<u64> {
        let mut kept = self.kept();
        let Some(record) = kept.nodes.get_mut(&node) else {
            return Pending::ready(Ok(0));
        };
        if sequence <= record.booked {
            return Pending::ready(Ok(record.booked));
        }
        record.booked = sequence;
        for (lease, used) in totals {
            if let Some(record) = kept.leases.get_mut(&lease).filter(|record| record.node == node) {
                record.usage = merge(record.usage, used);
            }
        }
        Pending::ready(Ok(sequence))
    }

    fn keep(&self, bearer: Bearer) -> Pending<()> {
        let mut kept = self.kept();
        if bearer.role == Role::Operator {
            kept.bearers.retain(|_, other| other.role != Role::Operator);
        }
        kept.bearers.insert(bearer.hash, bearer);
        Pending::ready(Ok(()))
    }

    fn admit(&self, join_hash: [u8; 32], credential: Bearer, now_ms: u64) -> Pending<bool> {
        let mut kept = self.kept();
        let usable = |join: &&mut Bearer| {
            join.role == Role::Join
                && join.expires_at_ms > now_ms
                && (join.node.is_none() || join.node == credential.node)
        };
        let Some(join) = kept.bearers.get_mut(&join_hash).filter(usable) else {
            return Pending::ready(Ok(false));
        };
        join.node = credential.node;
        kept.bearers
            .retain(|_, other| other.role != Role::Node || other.node != credential.node);
        kept.bearers.insert(credential.hash, credential);
        Pending::ready(Ok(true))
    }
}
