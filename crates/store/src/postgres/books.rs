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

use super::connect::Link;
use super::faults::Fault;
use super::listener::{self, NOTIFY};
use super::rows::{self, Params, lease_columns, signed, tenant_columns};
use crate::apply::{apply, lease_of};
use crate::{Booked, Change, LeaseRecord, News, Note, Noted, TenantRecord};

/// An entry of the common transaction.
#[derive(Debug, Clone)]
pub enum Entry {
    /// Lease changes.
    Notes(Vec<Note>),
    /// Totals under a number of a node's journal.
    Book(NodeId, u64, Vec<(LeaseId, Metered)>),
    /// News for the other managers.
    Tell(Vec<News>),
}

/// Result of an [`Entry`].
#[derive(Debug)]
pub enum Done {
    /// Results of the notes.
    Noted(Vec<Noted>),
    /// Result of a booking.
    Booked(Booked),
    /// The news were sent.
    Told,
}

const LOCK_NODES: &str = "SELECT id, epoch, booked FROM nodes WHERE id = ANY($1) ORDER BY id FOR UPDATE";
const READ_LEASES: &str = concat!("SELECT ", lease_columns!(), " FROM leases WHERE id = ANY($1)");
const LOCK_TENANTS: &str = concat!(
    "SELECT ",
    tenant_columns!(),
    ", leases, workers, cores, memory_bytes FROM tenants
    WHERE id = ANY($1) OR id IN (SELECT tenant FROM leases WHERE id = ANY($2)) ORDER BY id FOR UPDATE"
);
const DELETE_LEASE: &str = "DELETE FROM leases WHERE id = $1";
const UPDATE_NODE: &str = "UPDATE nodes SET booked = $2 WHERE id = $1";
const UPDATE_TENANT: &str = "UPDATE tenants SET spent = $2, leases = $3, workers = $4, cores = $5, memory_bytes = $6
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
struct Pages {
    nodes: BTreeMap<NodeId, Node>,
    leases: BTreeMap<LeaseId, Lease>,
    tenants: BTreeMap<TenantId, Tenant>,
    news: Vec<News>,
}

/// Writes all entries, or none.
pub async fn write(link: &Link, me: PublicKey, group: &[Entry]) -> Result<Vec<Done>, Fault> {
    for sql in [LOCK_NODES, READ_LEASES, LOCK_TENANTS] {
        link.statement(sql).await?;
    }
    let mut pages = read(link, group).await?;
    let done = group.iter().map(|entry| pages.write(entry)).collect();
    commit(link, me, pages).await?;
    Ok(done)
}

async fn read(link: &Link, group: &[Entry]) -> Result<Pages, Fault> {
    let (mut nodes, mut leases, mut tenants) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for entry in group {
        match entry {
            Entry::Notes(notes) => {
                for note in notes {
                    nodes.insert(note.node);
                    leases.insert(lease_of(&note.change));
                    if let Change::Offered(record) = &note.change {
                        tenants.insert(record.tenant);
                    }
                }
            }
            Entry::Book(node, _, totals) => {
                nodes.insert(*node);
                leases.extend(totals.iter().map(|(lease, _)| *lease));
            }
            Entry::Tell(_) => {}
        }
    }
    if nodes.is_empty() {
        link.batch("BEGIN").await?;
        return Ok(Pages::default());
    }
    let nodes: Vec<Vec<u8>> = nodes.iter().map(|id| id.0.to_vec()).collect();
    let lease_ids: Vec<Vec<u8>> = leases.iter().map(|id| id.0.to_vec()).collect();
    let tenants: Vec<Vec<u8>> = tenants.iter().map(|id| id.0.to_vec()).collect();
    let node_params: [&(dyn ToSql + Sync); 1] = [&nodes];
    let lease_params: [&(dyn ToSql + Sync); 1] = [&lease_ids];
    let tenant_params: [&(dyn ToSql + Sync); 2] = [&tenants, &lease_ids];
    // Sent together: each takes effect after the previous one.
    let (begun, rest) = join(
        link.batch("BEGIN"),
        try_join_all([
            link.query(LOCK_NODES, &node_params),
            link.query(READ_LEASES, &lease_params),
            link.query(LOCK_TENANTS, &tenant_params),
        ]),
    )
    .await;
    begun?;
    let [nodes, found, tenants] = <[_; 3]>::try_from(rest?).unwrap_or_default();
    let mut pages = Pages::default();
    for row in &nodes {
        let node = Node {
            epoch: rows::unsigned(row, 1)?,
            booked: rows::unsigned(row, 2)?,
            changed: false,
        };
        pages.nodes.insert(NodeId(rows::bytes(row, 0)?), node);
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
    pages.leases = leases.into_iter().map(unknown).collect();
    for row in &found {
        let record = rows::lease(row)?;
        let lease = Lease {
            record: Some(record.clone()),
            was_there: true,
            changed: false,
            is_rebound: false,
        };
        pages.leases.insert(record.lease, lease);
    }
    for row in &tenants {
        let tenant = Tenant {
            record: rows::tenant(row)?,
            held: rows::held(row, 5)?,
            changed: false,
        };
        pages.tenants.insert(tenant.record.id, tenant);
    }
    Ok(pages)
}

fn live(record: Option<&LeaseRecord>) -> Option<(TenantId, Held)> {
    let record = record.filter(|record| record.state.is_live())?;
    Some((record.tenant, record.held()))
}

impl Pages {
    fn write(&mut self, entry: &Entry) -> Done {
        match entry {
            Entry::Notes(notes) => Done::Noted(notes.iter().map(|note| self.note(note)).collect()),
            Entry::Book(node, sequence, totals) => Done::Booked(self.book(*node, *sequence, totals)),
            Entry::Tell(news) => {
                self.news.extend(news.iter().cloned());
                Done::Told
            }
        }
    }

    fn note(&mut self, note: &Note) -> Noted {
        if self.nodes.get(&note.node).is_none_or(|node| node.epoch != note.epoch) {
            return Noted::Stale;
        }
        let Some(lease) = self.leases.get_mut(&lease_of(&note.change)) else {
            return Noted::Stale;
        };
        if lease.record.as_ref().is_some_and(|record| record.node != note.node) {
            return Noted::Stale;
        }
        let before = live(lease.record.as_ref());
        if let (None, Change::Offered(wanted)) = (&lease.record, &note.change)
            && let Some(tenant) = self.tenants.get(&wanted.tenant)
            && let Err(quota) = quota::may_hold(&tenant.record.name, &tenant.record.spec, tenant.held, wanted.held())
        {
            return Noted::Over(quota);
        }
        let after = apply(lease.record.clone(), &note.change);
        lease.is_rebound |= matches!(note.change, Change::Renewed { .. });
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
        Noted::Kept
    }

    fn book(&mut self, id: NodeId, sequence: u64, totals: &[(LeaseId, Metered)]) -> Booked {
        let Some(node) = self.nodes.get_mut(&id) else {
            return Booked::default();
        };
        let mut booked = Booked {
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
        self.news
            .extend(booked.spent.iter().map(|(tenant, spent)| News::Spent(*tenant, *spent)));
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
                Box::new(i64::from(tenant.held.cores)),
                Box::new(signed(tenant.held.memory_bytes)),
            ];
            all.push((UPDATE_TENANT, params));
        }
        for payload in listener::payloads(me, &self.news) {
            all.push((NOTIFY, vec![Box::new(payload)]));
        }
        all
    }
}

async fn commit(link: &Link, me: PublicKey, pages: Pages) -> Result<(), Fault> {
    let statements = pages.statements(me);
    for (sql, _) in &statements {
        link.statement(sql).await?;
    }
    let params: Vec<Vec<&(dyn ToSql + Sync)>> = statements
        .iter()
        .map(|(_, params)| params.iter().map(|param| &**param as &(dyn ToSql + Sync)).collect())
        .collect();
    let writes = statements
        .iter()
        .zip(&params)
        .map(|((sql, _), params)| link.execute(sql, params));
    // Sent together, the commit last. If a statement fails, so do the following ones, and the commit rolls back the
    // previous ones without reporting an error.
    let (written, committed) = join(join_in_order(writes), link.batch("COMMIT")).await;
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
