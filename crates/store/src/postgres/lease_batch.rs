//! One transaction for many lease changes and bookings: the rows are locked and read, changed here by the common lease
//! policy, and written back. It takes two round trips, whatever the number of entries.
//!
//! All managers take locks in the same order (nodes, then tenants, each by id), so there are no deadlocks. A node's row
//! is locked while its leases change, and its epoch is read under that lock. A manager that lost the node therefore
//! cannot change it, and its new owner sees all earlier changes.

use std::collections::{BTreeMap, BTreeSet};

use dayfly_lease::quota::{self, Held};
use dayfly_protocol::api::Metered;
use dayfly_protocol::ids::{LeaseId, NodeId, PublicKey, TenantId};
use futures_util::future::{join, maybe_done, try_join_all};
use tokio_postgres::types::ToSql;

use super::connect::Session;
use super::faults::Fault;
use super::listener::{self, NOTIFY};
use super::rows::{self, Params, lease_columns, signed, tenant_columns};
use crate::{BookingResult, Change, ChangeResult, LeaseRecord, OwnedChange, PeerUpdate, TenantRecord};

/// An entry of the common transaction.
#[derive(Debug, Clone)]
pub enum Entry {
    /// Lease changes.
    Changes(Vec<OwnedChange>),
    /// Totals under a number of a node's journal.
    Book(NodeId, u64, Vec<(LeaseId, Metered)>),
    /// Updates for the other managers.
    Publish(Vec<PeerUpdate>),
}

/// Result of an [`Entry`].
#[derive(Debug)]
pub enum EntryResult {
    /// Results of the notes.
    Changed(Vec<ChangeResult>),
    /// Result of a booking.
    Charged(BookingResult),
    /// The updates were sent.
    Published,
}

const LOCK_NODES: &str = "SELECT id, epoch, booked FROM nodes WHERE id = ANY($1) ORDER BY id FOR UPDATE";
const READ_LEASES: &str = concat!("SELECT ", lease_columns!(), " FROM leases WHERE id = ANY($1)");
const LOCK_TENANTS: &str = concat!(
    "SELECT ",
    tenant_columns!(),
    ", leases, workers, milli_cores, memory_bytes FROM tenants
    WHERE id = ANY($1) OR id IN (SELECT tenant FROM leases WHERE id = ANY($2)) ORDER BY id FOR UPDATE"
);
const DELETE_LEASE: &str = "DELETE FROM leases WHERE id = $1";
const UPDATE_NODE: &str = "UPDATE nodes SET booked = $2 WHERE id = $1";
const UPDATE_TENANT: &str =
    "UPDATE tenants SET spent = $2, leases = $3, workers = $4, milli_cores = $5, memory_bytes = $6
    WHERE id = $1";

struct Node {
    epoch: u64,
    booked: u64,
    changed: bool,
}

struct Lease {
    record: Option<LeaseRecord>,
    was_there: bool,
    changed: bool,
    /// Whether a renewal changed its bearer.
    is_rebound: bool,
}

struct Tenant {
    record: TenantRecord,
    held: Held,
    changed: bool,
}

/// The rows of a group, as read under locks and changed since.
#[derive(Default)]
struct LockedRows {
    nodes: BTreeMap<NodeId, Node>,
    leases: BTreeMap<LeaseId, Lease>,
    tenants: BTreeMap<TenantId, Tenant>,
    updates: Vec<PeerUpdate>,
}

/// Writes all entries, or none.
pub async fn write(session: &Session, me: PublicKey, group: &[Entry]) -> Result<Vec<EntryResult>, Fault> {
    for sql in [LOCK_NODES, READ_LEASES, LOCK_TENANTS] {
        session.statement(sql).await?;
    }
    let mut locked = read(session, group).await?;
    let done = group.iter().map(|entry| locked.write(entry)).collect();
    commit(session, me, locked).await?;
    Ok(done)
}

async fn read(session: &Session, group: &[Entry]) -> Result<LockedRows, Fault> {
    let (mut nodes, mut leases, mut tenants) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for entry in group {
        match entry {
            Entry::Changes(changes) => {
                for owned in changes {
                    nodes.insert(owned.node);
                    leases.insert(owned.change.lease());
                    if let Change::Offered(record) = &owned.change {
                        tenants.insert(record.tenant);
                    }
                }
            }
            Entry::Book(node, _, totals) => {
                nodes.insert(*node);
                leases.extend(totals.iter().map(|(lease, _)| *lease));
            }
            Entry::Publish(_) => {}
        }
    }
    if nodes.is_empty() {
        session.batch("BEGIN").await?;
        return Ok(LockedRows::default());
    }
    let nodes: Vec<Vec<u8>> = nodes.iter().map(|id| id.0.to_vec()).collect();
    let lease_ids: Vec<Vec<u8>> = leases.iter().map(|id| id.0.to_vec()).collect();
    let tenants: Vec<Vec<u8>> = tenants.iter().map(|id| id.0.to_vec()).collect();
    let node_params: [&(dyn ToSql + Sync); 1] = [&nodes];
    let lease_params: [&(dyn ToSql + Sync); 1] = [&lease_ids];
    let tenant_params: [&(dyn ToSql + Sync); 2] = [&tenants, &lease_ids];
    // Sent together: each takes effect after the previous one.
    let (begun, rest) = join(
        session.batch("BEGIN"),
        try_join_all([
            session.query(LOCK_NODES, &node_params),
            session.query(READ_LEASES, &lease_params),
            session.query(LOCK_TENANTS, &tenant_params),
        ]),
    )
    .await;
    begun?;
    let [nodes, found, tenants] = <[_; 3]>::try_from(rest?).unwrap_or_default();
    let mut locked = LockedRows::default();
    for row in &nodes {
        let node = Node {
            epoch: rows::unsigned(row, 1)?,
            booked: rows::unsigned(row, 2)?,
            changed: false,
        };
        locked.nodes.insert(NodeId(rows::bytes(row, 0)?), node);
    }
    let unknown = |lease| {
        let none = Lease {
            record: None,
            was_there: false,
            changed: false,
            is_rebound: false,
        };
        (lease, none)
    };
    locked.leases = leases.into_iter().map(unknown).collect();
    for row in &found {
        let record = rows::lease(row)?;
        let lease = Lease {
            record: Some(record.clone()),
            was_there: true,
            changed: false,
            is_rebound: false,
        };
        locked.leases.insert(record.lease, lease);
    }
    for row in &tenants {
        let tenant = Tenant {
            record: rows::tenant(row)?,
            held: rows::held(row, 5)?,
            changed: false,
        };
        locked.tenants.insert(tenant.record.id, tenant);
    }
    Ok(locked)
}

fn live(record: Option<&LeaseRecord>) -> Option<(TenantId, Held)> {
    let record = record.filter(|record| record.state.is_live())?;
    Some((record.tenant, record.held()))
}

impl LockedRows {
    fn write(&mut self, entry: &Entry) -> EntryResult {
        match entry {
            Entry::Changes(changes) => EntryResult::Changed(changes.iter().map(|change| self.change(change)).collect()),
            Entry::Book(node, sequence, totals) => EntryResult::Charged(self.book(*node, *sequence, totals)),
            Entry::Publish(updates) => {
                self.updates.extend(updates.iter().cloned());
                EntryResult::Published
            }
        }
    }

    fn change(&mut self, owned: &OwnedChange) -> ChangeResult {
        if self.nodes.get(&owned.node).is_none_or(|node| node.epoch != owned.epoch) {
            return ChangeResult::Stale;
        }
        let Some(lease) = self.leases.get_mut(&owned.change.lease()) else {
            return ChangeResult::Stale;
        };
        if lease.record.as_ref().is_some_and(|record| record.node != owned.node) {
            return ChangeResult::Stale;
        }
        let before = live(lease.record.as_ref());
        if let (None, Change::Offered(wanted)) = (&lease.record, &owned.change)
            && let Some(tenant) = self.tenants.get(&wanted.tenant)
            && let Err(quota) = quota::may_hold(&tenant.record.name, &tenant.record.spec, tenant.held, wanted.held())
        {
            return ChangeResult::OverQuota(quota);
        }
        let after = owned.change.apply(lease.record.clone());
        lease.is_rebound |= matches!(owned.change, Change::Renewed { .. });
        lease.changed |= after != lease.record;
        lease.record = after;
        let after = live(lease.record.as_ref());
        if before != after {
            for ((id, held), gives) in before.map(|b| (b, true)).into_iter().chain(after.map(|a| (a, false))) {
                if let Some(tenant) = self.tenants.get_mut(&id) {
                    tenant.changed = true;
                    tenant.held = if gives {
                        tenant.held.minus(held)
                    } else {
                        tenant.held.plus(held)
                    };
                }
            }
        }
        ChangeResult::Kept
    }

    fn book(&mut self, id: NodeId, sequence: u64, totals: &[(LeaseId, Metered)]) -> BookingResult {
        let Some(node) = self.nodes.get_mut(&id) else {
            return BookingResult::default();
        };
        let mut booked = BookingResult {
            sequence: node.booked,
            spent: Vec::new(),
        };
        if sequence <= node.booked {
            return booked;
        }
        node.booked = sequence;
        node.changed = true;
        booked.sequence = sequence;
        for (lease, used) in totals {
            let lease = self.leases.get_mut(lease);
            let Some(Lease {
                record: Some(record),
                changed,
                ..
            }) = lease.filter(|lease| lease.record.as_ref().is_some_and(|record| record.node == id))
            else {
                continue;
            };
            let before = record.cost().total();
            record.book(used.clone());
            *changed = true;
            let charge = record.cost().total().saturating_sub(before);
            if let Some(tenant) = self.tenants.get_mut(&record.tenant) {
                tenant.record.spent = tenant.record.spent.saturating_add(charge);
                tenant.changed |= charge > 0;
                booked.spent.retain(|(id, _)| *id != tenant.record.id);
                booked.spent.push((tenant.record.id, tenant.record.spent));
            }
        }
        self.updates.extend(
            booked
                .spent
                .iter()
                .map(|(tenant, spent)| PeerUpdate::Spent(*tenant, *spent)),
        );
        booked
    }

    /// Returns the statements that write the changes.
    fn statements(&self, me: PublicKey) -> Vec<(&'static str, Params)> {
        let mut all: Vec<(&'static str, Params)> = Vec::new();
        for (id, lease) in self.leases.iter().filter(|(_, lease)| lease.changed) {
            match (&lease.record, lease.was_there) {
                (Some(record), true) => {
                    all.push((rows::UPDATE_LEASE, rows::lease_changes(record)));
                    if lease.is_rebound {
                        all.push((rows::REBIND_LEASE, rows::lease_bearer(record)));
                    }
                }
                (Some(record), false) => all.push((rows::INSERT_LEASE, rows::lease_parameters(record))),
                (None, true) => all.push((DELETE_LEASE, vec![Box::new(id.0.to_vec())])),
                (None, false) => {}
            }
        }
        for (id, node) in self.nodes.iter().filter(|(_, node)| node.changed) {
            all.push((
                UPDATE_NODE,
                vec![Box::new(id.0.to_vec()), Box::new(signed(node.booked))],
            ));
        }
        for (id, tenant) in self.tenants.iter().filter(|(_, tenant)| tenant.changed) {
            let params: Params = vec![
                Box::new(id.0.to_vec()),
                Box::new(signed(tenant.record.spent)),
                Box::new(i64::from(tenant.held.leases)),
                Box::new(i64::from(tenant.held.workers)),
                Box::new(signed(tenant.held.cores.get())),
                Box::new(signed(tenant.held.memory_bytes)),
            ];
            all.push((UPDATE_TENANT, params));
        }
        for payload in listener::payloads(me, &self.updates) {
            all.push((NOTIFY, vec![Box::new(payload)]));
        }
        all
    }
}

async fn commit(session: &Session, me: PublicKey, locked: LockedRows) -> Result<(), Fault> {
    let statements = locked.statements(me);
    for (sql, _) in &statements {
        session.statement(sql).await?;
    }
    let params: Vec<Vec<&(dyn ToSql + Sync)>> = statements
        .iter()
        .map(|(_, params)| params.iter().map(|param| &**param as &(dyn ToSql + Sync)).collect())
        .collect();
    let writes = statements
        .iter()
        .zip(&params)
        .map(|((sql, _), params)| session.execute(sql, params));
    // Sent together, the commit last. If a statement fails, so do the following ones, and the commit rolls back the
    // previous ones without reporting an error.
    let (written, committed) = join(join_in_order(writes), session.batch("COMMIT")).await;
    for result in written {
        result?;
    }
    Ok(committed?)
}

/// Polls the futures in this order, which is the order in which they are sent, and waits for all.
async fn join_in_order<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.map(|future| Box::pin(maybe_done(future))).collect();
    std::future::poll_fn(|context| {
        for future in &mut futures {
            let _ = future.as_mut().poll(context);
        }
        std::task::Poll::Ready(())
    })
    .await;
    let mut outputs = Vec::with_capacity(futures.len());
    for mut future in futures {
        future.as_mut().await;
        outputs.extend(future.as_mut().take_output());
    }
    outputs
}
