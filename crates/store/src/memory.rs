//! A store in memory only, for tests and for managers without state worth keeping.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dayfly_protocol::api::{Capacity, Metered, NodeAddress};
use dayfly_protocol::ids::{LeaseId, NodeId, TenantId};
use dayfly_protocol::tenancy::{AuditEntry, Prices, TenantSpec};

use super::system::now_ms;
use super::{
    AUDIT_ENTRY_BYTES, AuditPage, AuditTrim, Bearer, BearerKind, BillQuery, BookingResult, ChangeResult, LeaseRecord,
    LeaseWriter, NodeRecord, NodeRegistration, OwnedChange, Pending, RevokedLeases, Snapshot, Store, TenantRecord,
    TrimResult,
};

/// Maps behind one lock.
#[derive(Debug, Default)]
pub struct MemoryStore(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    nodes: HashMap<NodeId, NodeRecord>,
    leases: HashMap<LeaseId, LeaseRecord>,
    bearers: HashMap<[u8; 32], Bearer>,
    tenants: HashMap<TenantId, TenantRecord>,
    prices: Prices,
    audit: Vec<AuditEntry>,
}

impl State {
    /// Moves the live leases of one bearer to another one, or to none.
    fn rebind(&mut self, from: [u8; 32], to: Option<[u8; 32]>) {
        let its = |record: &&mut LeaseRecord| record.state.is_live() && record.bearer == Some(from);
        self.leases
            .values_mut()
            .filter(its)
            .for_each(|record| record.bearer = to);
    }
}

impl MemoryStore {
    fn state(&self) -> MutexGuard<'_, State> {
        // Ignore poisoning: no method panics between two writes, so the maps are consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LeaseWriter for MemoryStore {
    fn change_leases(&self, changes: Vec<OwnedChange>) -> Pending<Vec<ChangeResult>> {
        let mut state = self.state();
        let mut results = Vec::with_capacity(changes.len());
        for OwnedChange { node, epoch, change } in changes {
            if state.nodes.get(&node).is_none_or(|node| node.epoch != epoch) {
                results.push(ChangeResult::Stale);
                continue;
            }
            let lease = change.lease();
            let before = state.leases.remove(&lease);
            if let Some(record) = change.apply(before) {
                state.leases.insert(lease, record);
            }
            results.push(ChangeResult::Kept);
        }
        Pending::ready(Ok(results))
    }
}

impl Store for MemoryStore {
    fn load(&self, ended_after_ms: u64) -> Pending<Snapshot> {
        let state = self.state();
        let lately = |lease: &&LeaseRecord| lease.state.is_live() || lease.ended_at_ms >= ended_after_ms;
        Pending::ready(Ok(Snapshot {
            nodes: state.nodes.values().cloned().collect(),
            leases: state.leases.values().filter(lately).cloned().collect(),
            bearers: state.bearers.values().cloned().collect(),
            tenants: state.tenants.values().cloned().collect(),
            prices: state.prices,
        }))
    }

    fn register(&self, address: NodeAddress, capacity: Capacity, _: u64) -> Pending<Option<NodeRegistration>> {
        let mut state = self.state();
        let known = state.nodes.get(&address.id);
        if known.is_some_and(|node| node.address.key != address.key) {
            return Pending::ready(Ok(None));
        }
        let (epoch, booked, reclaimed) = known.map_or((0, 0, false), |node| (node.epoch, node.booked, node.reclaimed));
        let epoch = epoch + 1;
        state.nodes.insert(
            address.id,
            NodeRecord {
                address,
                capacity,
                epoch,
                booked,
                reclaimed,
                manager: None,
            },
        );
        Pending::ready(Ok(Some(NodeRegistration {
            epoch,
            booked,
            reclaimed,
            leases: None,
        })))
    }

    fn reclaim(&self, node: NodeId, reclaimed: bool) -> Pending<()> {
        if let Some(record) = self.state().nodes.get_mut(&node) {
            record.reclaimed = reclaimed;
        }
        Pending::ready(Ok(()))
    }

    fn book(&self, node: NodeId, sequence: u64, totals: Vec<(LeaseId, Metered)>) -> Pending<BookingResult> {
        let mut state = self.state();
        let State {
            nodes, leases, tenants, ..
        } = &mut *state;
        let Some(record) = nodes.get_mut(&node) else {
            return Pending::ready(Ok(BookingResult::default()));
        };
        let mut booked = BookingResult {
            sequence: record.booked,
            spent: Vec::new(),
        };
        if sequence <= record.booked {
            return Pending::ready(Ok(booked));
        }
        record.booked = sequence;
        booked.sequence = sequence;
        for (lease, used) in totals {
            let Some(record) = leases.get_mut(&lease).filter(|record| record.node == node) else {
                continue;
            };
            let before = record.cost().total();
            record.book(used);
            let charge = record.cost().total().saturating_sub(before);
            if let Some(tenant) = tenants.get_mut(&record.tenant) {
                tenant.spent = tenant.spent.saturating_add(charge);
                booked.spent.retain(|(id, _)| *id != tenant.id);
                booked.spent.push((tenant.id, tenant.spent));
            }
        }
        Pending::ready(Ok(booked))
    }

    fn charge(&self, totals: Vec<(TenantId, u64)>) -> Pending<Vec<TenantRecord>> {
        let mut state = self.state();
        let mut charged = Vec::new();
        for (id, total) in totals {
            if let Some(tenant) = state
                .tenants
                .get_mut(&id)
                .filter(|tenant| tenant.spent_on_tasks < total)
            {
                tenant.spent = tenant.spent.saturating_add(total - tenant.spent_on_tasks);
                tenant.spent_on_tasks = total;
                charged.push(tenant.clone());
            }
        }
        Pending::ready(Ok(charged))
    }

    fn keep(&self, bearer: Bearer) -> Pending<()> {
        let mut state = self.state();
        let is_replaced = |other: &Bearer| {
            bearer.kind.is_named()
                && other.kind.is_same_kind(bearer.kind)
                && (other.tenant, &other.name) == (bearer.tenant, &bearer.name)
        };
        let replaced = state.bearers.values().filter(|other| is_replaced(other));
        for hash in replaced.map(|other| other.hash).collect::<Vec<_>>() {
            state.bearers.remove(&hash);
            state.rebind(hash, Some(bearer.hash));
        }
        if bearer.kind == BearerKind::Session {
            let now_ms = now_ms();
            let is_kept = |other: &Bearer| other.kind != BearerKind::Session || other.expires_at_ms > now_ms;
            state.bearers.retain(|_, other| is_kept(other));
        }
        state.bearers.insert(bearer.hash, bearer);
        Pending::ready(Ok(()))
    }

    fn revoke(&self, hash: [u8; 32], leases: RevokedLeases) -> Pending<()> {
        let mut state = self.state();
        state.bearers.remove(&hash);
        if leases == RevokedLeases::Keep {
            state.rebind(hash, None);
        }
        Pending::ready(Ok(()))
    }

    fn tenant(&self, new: TenantId, name: String, spec: TenantSpec) -> Pending<TenantRecord> {
        let mut state = self.state();
        let known = state.tenants.values().find(|tenant| tenant.name == name);
        let record = match known.cloned() {
            Some(known) => TenantRecord { spec, ..known },
            None => TenantRecord {
                id: new,
                name,
                spec,
                spent: 0,
                spent_on_tasks: 0,
            },
        };
        state.tenants.insert(record.id, record.clone());
        Pending::ready(Ok(record))
    }

    fn prices(&self, prices: Prices) -> Pending<()> {
        self.state().prices = prices;
        Pending::ready(Ok(()))
    }

    fn bill(&self, query: BillQuery) -> Pending<Vec<LeaseRecord>> {
        let state = self.state();
        let wanted = |record: &&LeaseRecord| {
            query.tenant.is_none_or(|tenant| tenant == record.tenant)
                && (record.state.is_live() || record.ended_at_ms >= query.from_ms)
                && record.granted_at_ms < query.until_ms
                && query
                    .after
                    .is_none_or(|after| (record.granted_at_ms, record.lease) > after)
        };
        let mut lines: Vec<LeaseRecord> = state.leases.values().filter(wanted).cloned().collect();
        lines.sort_by_key(|record| (record.granted_at_ms, record.lease));
        lines.truncate(query.limit as usize);
        Pending::ready(Ok(lines))
    }

    fn audit(&self, entry: AuditEntry) -> Pending<()> {
        let mut state = self.state();
        let number = state.audit.last().map_or(1, |last| last.number + 1);
        state.audit.push(AuditEntry { number, ..entry });
        Pending::ready(Ok(()))
    }

    fn audited(&self, page: AuditPage) -> Pending<Vec<AuditEntry>> {
        let state = self.state();
        let within = |entry: &&AuditEntry| entry.number > page.above && page.before.is_none_or(|n| entry.number < n);
        let mut found: Vec<AuditEntry> = state.audit.iter().filter(within).cloned().collect();
        let more = found.len().saturating_sub(page.limit as usize);
        match page.before {
            Some(_) => drop(found.drain(..more)),
            None => found.truncate(page.limit as usize),
        }
        Pending::ready(Ok(found))
    }

    fn audit_surplus(&self, most_bytes: u64) -> Pending<u64> {
        let state = self.state();
        let mut bytes = 0;
        let surplus = state.audit.iter().rev().find(|entry| {
            bytes += AUDIT_ENTRY_BYTES + (entry.subject.len() + entry.details.len()) as u64;
            bytes > most_bytes
        });
        Pending::ready(Ok(surplus.map_or(0, |entry| entry.number)))
    }

    fn trim_audit(&self, trim: AuditTrim) -> Pending<TrimResult> {
        let mut state = self.state();
        let behind = state.audit.iter().filter(|entry| entry.number > trim.above);
        let looked_at: Vec<u64> = behind.map(|entry| entry.number).take(trim.step as usize).collect();
        let last = looked_at.last().copied().unwrap_or_default();
        let all = state.audit.len();
        state.audit.retain(|entry| {
            entry.number <= trim.above
                || entry.number > last
                || (entry.number > trim.up_to && entry.at_ms >= trim.before_ms)
        });
        Pending::ready(Ok(TrimResult {
            entries: (all - state.audit.len()) as u64,
            next: (looked_at.len() == trim.step as usize).then_some(last),
        }))
    }

    fn admit(&self, join_hash: [u8; 32], credential: Bearer, now_ms: u64) -> Pending<bool> {
        let mut state = self.state();
        let usable = |join: &&mut Bearer| {
            join.kind == BearerKind::Join
                && join.expires_at_ms > now_ms
                && (join.node.is_none() || join.node == credential.node)
        };
        let Some(join) = state.bearers.get_mut(&join_hash).filter(usable) else {
            return Pending::ready(Ok(false));
        };
        join.node = credential.node;
        state
            .bearers
            .retain(|_, other| other.kind != BearerKind::Node || other.node != credential.node);
        state.bearers.insert(credential.hash, credential);
        Pending::ready(Ok(true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn store() -> Option<((), MemoryStore)> {
        Some(((), MemoryStore::default()))
    }

    crate::store_tests!(store);
}
