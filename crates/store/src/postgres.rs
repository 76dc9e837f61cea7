//! A store in PostgreSQL that several managers share.
//!
//! Each manager has three connections: one that writes, one that reads, and one that receives notifications.
//! [`lease_batch`] implements grants and bookings; the other operations are rare and simple.

mod commit_mark;
mod connect;
mod faults;
mod lease_batch;
mod listener;
mod nodes;
mod reader;
mod retry_queue;
mod rows;
mod schema;
mod tasks;
mod writer;

#[cfg(any(test, feature = "conformance"))]
pub mod server;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use dayfly_lease::quota::Held;
use dayfly_protocol::api::{Capacity, Metered, NodeAddress};
use dayfly_protocol::ids::{LeaseId, NodeId, PublicKey, TenantId};
use dayfly_protocol::tenancy::{AuditEntry, Prices, TenantSpec};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use self::connect::{Address, Session};
use self::faults::Fault;
use self::lease_batch::{Entry, EntryResult};
use self::listener::NOTIFY;
use self::reader::Reader;
use self::rows::{json, node_columns, signed, tenant_columns};
use self::writer::{Action, Write, WriteKind};
use crate::system::{now_ms, random};
use crate::{
    AUDIT_ENTRY_BYTES, AdoptedNodes, AuditPage, AuditTrim, Bearer, BearerKind, BillQuery, BookingResult, ChangeResult,
    LeaseRecord, LeaseWriter, NodeRegistration, OwnedChange, Peer, PeerUpdate, Pending, Presence, RevokedLeases,
    Snapshot, Store, StoreError, TenantRecord, TrimResult,
};

pub use self::tasks::{PostgresTasks, SharedTasks, TasksOwner};

/// First wait between two attempts to reach the database. Waits double up to [`LAST_WAIT`].
const FIRST_WAIT: Duration = Duration::from_millis(50);
const LAST_WAIT: Duration = Duration::from_secs(1);
/// Time limit of a transaction. The server's own limit for a statement is slightly shorter.
const STATEMENT_DEADLINE: Duration = Duration::from_secs(9);
/// Most updates that wait for the manager.
const MAX_UPDATES: usize = 4_096;

/// A store in a database. Dropping it closes its connections.
pub struct PostgresStore {
    me: PublicKey,
    writes: mpsc::UnboundedSender<Write>,
    reader: Reader,
    updates: Mutex<Option<mpsc::Receiver<PeerUpdate>>>,
    listener: JoinHandle<()>,
    name: String,
    counting: Option<JoinHandle<()>>,
}

impl PostgresStore {
    /// Connects as the manager with this key, and creates missing tables.
    pub async fn open(url: &str, me: PublicKey) -> Result<Self, StoreError> {
        let address = Address::parse(url)?;
        reader::check(&address).await?;
        tracing::info!(database = address.describe(), "connected");
        let (writes, queue) = mpsc::unbounded_channel();
        let (sender, updates) = mpsc::channel(MAX_UPDATES);
        // The task ends when all requested writes are done.
        tokio::spawn(writer::write(address.clone(), me, queue));
        Ok(Self {
            me,
            writes,
            reader: Reader::new(address.clone()),
            updates: Mutex::new(Some(updates)),
            name: address.describe(),
            listener: tokio::spawn(listener::listen(address, me, sender)),
            counting: None,
        })
    }

    /// Refuses a database that is older than, or different from, the one that this state directory knows, unless
    /// `accept_loss` is set.
    pub async fn compare(&mut self, state_dir: &Path, accept_loss: bool) -> Result<(), StoreError> {
        let mark = commit_mark::compare(&self.reader, self.name.clone(), state_dir, accept_loss).await?;
        self.counting = Some(tokio::spawn(commit_mark::keep(self.reader.clone(), mark)));
        Ok(())
    }

    fn push(&self, what: WriteKind) {
        // If the writer has ended, the reply is dropped with the write, and the caller gets an error.
        let _ = self.writes.send(Write {
            since: Instant::now(),
            what,
        });
    }

    /// Queues an entry that is decided here and written together with others.
    fn write_batched<T: Send + 'static>(&self, entry: Entry, read: fn(EntryResult) -> Option<T>) -> Pending<T> {
        let (reply, done) = oneshot::channel();
        self.push(WriteKind::Batched(entry, reply));
        let (sender, receiver) = oneshot::channel();
        tokio::spawn(async move {
            let wrong = || StoreError::Broken("a write got the result of another write".into());
            let done = match done.await {
                Ok(done) => done.and_then(|done| read(done).ok_or_else(wrong)),
                Err(_) => Err(StoreError::Broken("its writer has stopped".into())),
            };
            let _ = sender.send(done);
        });
        Pending(receiver)
    }

    fn write_separately<T, F>(&self, action: F) -> Pending<T>
    where
        T: Send + 'static,
        F: for<'a> Fn(&'a Session) -> BoxFuture<'a, Result<T, Fault>> + Send + 'static,
    {
        let (reply, receiver) = oneshot::channel();
        self.push(WriteKind::Separate(Box::new(Action {
            action,
            outcome: None,
            reply,
        })));
        Pending(receiver)
    }
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        self.listener.abort();
        if let Some(counting) = &self.counting {
            counting.abort();
        }
    }
}

/// Sends updates to the other managers when this transaction commits.
async fn publish(session: &Session, me: PublicKey, updates: &[PeerUpdate]) -> Result<(), Fault> {
    for payload in listener::payloads(me, updates) {
        session.execute(NOTIFY, &[&payload]).await?;
    }
    Ok(())
}

async fn keep(session: &Session, bearer: &Bearer) -> Result<(), Fault> {
    let node = bearer.node.map(|node| node.0.to_vec());
    session
        .execute(
            "INSERT INTO bearers (hash, role, tenant, node, expires_at_ms, name, read_only)
         VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (hash) DO UPDATE SET role = excluded.role,
         tenant = excluded.tenant, node = excluded.node, expires_at_ms = excluded.expires_at_ms, name = excluded.name,
         read_only = excluded.read_only",
            &[
                &bearer.hash.as_slice(),
                &bearer.kind.name(),
                &bearer.tenant.0.as_slice(),
                &node,
                &signed(bearer.expires_at_ms),
                &bearer.name,
                &bearer.read_only,
            ],
        )
        .await?;
    Ok(())
}

impl LeaseWriter for PostgresStore {
    fn change_leases(&self, changes: Vec<OwnedChange>) -> Pending<Vec<ChangeResult>> {
        self.write_batched(Entry::Changes(changes), |done| match done {
            EntryResult::Changed(results) => Some(results),
            _ => None,
        })
    }
}

impl Store for PostgresStore {
    fn load(&self, ended_after_ms: u64) -> Pending<Snapshot> {
        let me = self.me;
        self.reader
            .read(move |session| async move { reader::read_all(&session, me, ended_after_ms).await }.boxed())
    }

    fn register(
        &self,
        address: NodeAddress,
        capacity: Capacity,
        ended_after_ms: u64,
    ) -> Pending<Option<NodeRegistration>> {
        let me = self.me;
        self.write_separately(move |session| {
            let address = address.clone();
            async move { nodes::register(session, me, &address, capacity, ended_after_ms).await }.boxed()
        })
    }

    fn book(&self, node: NodeId, sequence: u64, totals: Vec<(LeaseId, Metered)>) -> Pending<BookingResult> {
        self.write_batched(Entry::Book(node, sequence, totals), |done| match done {
            EntryResult::Charged(booked) => Some(booked),
            _ => None,
        })
    }

    fn charge(&self, mut totals: Vec<(TenantId, u64)>) -> Pending<Vec<TenantRecord>> {
        let me = self.me;
        // In the order in which bookings lock them.
        totals.sort_unstable();
        self.write_separately(move |session| {
            let totals = totals.clone();
            async move {
                let sql = concat!(
                    "UPDATE tenants SET spent = least(spent::NUMERIC + $2::BIGINT - spent_on_tasks, 9223372036854775807)::BIGINT,
                    spent_on_tasks = $2 WHERE id = $1 AND spent_on_tasks < $2 RETURNING ",
                    tenant_columns!()
                );
                let mut charged = Vec::new();
                for (tenant, total) in totals {
                    let found = session.query(sql, &[&tenant.0.as_slice(), &signed(total)]).await?;
                    charged.extend(found.first().map(rows::tenant).transpose()?);
                }
                let updates: Vec<PeerUpdate> = charged.iter().cloned().map(PeerUpdate::Tenant).collect();
                publish(session, me, &updates).await?;
                Ok(charged)
            }
            .boxed()
        })
    }

    fn reclaim(&self, node: NodeId, reclaimed: bool) -> Pending<()> {
        let me = self.me;
        self.write_separately(move |session| {
            async move {
                let sql = concat!(
                    "UPDATE nodes SET reclaimed = $2 WHERE id = $1 RETURNING ",
                    node_columns!()
                );
                let updated = session.query(sql, &[&node.0.as_slice(), &reclaimed]).await?;
                match updated.first() {
                    Some(row) => publish(session, me, &[PeerUpdate::Node(rows::node(row)?)]).await,
                    None => Ok(()),
                }
            }
            .boxed()
        })
    }

    fn keep(&self, bearer: Bearer) -> Pending<()> {
        let me = self.me;
        self.write_separately(move |session| {
            let bearer = bearer.clone();
            async move {
                if bearer.kind.is_named() {
                    let sql = "DELETE FROM bearers WHERE tenant = $1 AND name = $2 AND role NOT IN ('join', 'node', 'session')
                               AND (role = 'endpoint') = $3 RETURNING hash";
                    let of_endpoint = bearer.kind == BearerKind::Endpoint;
                    let replaced = session
                        .query(sql, &[&bearer.tenant.0.as_slice(), &bearer.name, &of_endpoint])
                        .await?;
                    for row in &replaced {
                        let from: [u8; 32] = rows::bytes(row, 0)?;
                        session
                            .execute(rows::REBIND_LEASES, &[&from.as_slice(), &bearer.hash.as_slice()])
                            .await?;
                    }
                }
                if bearer.kind == BearerKind::Session {
                    let sql = "DELETE FROM bearers WHERE role = 'session' AND expires_at_ms <= $1";
                    session.execute(sql, &[&signed(now_ms())]).await?;
                }
                keep(session, &bearer).await?;
                publish(session, me, &[PeerUpdate::Bearer(bearer)]).await
            }
            .boxed()
        })
    }

    fn revoke(&self, hash: [u8; 32], leases: RevokedLeases) -> Pending<()> {
        let me = self.me;
        self.write_separately(move |session| {
            async move {
                session
                    .execute("DELETE FROM bearers WHERE hash = $1", &[&hash.as_slice()])
                    .await?;
                if leases == RevokedLeases::End {
                    return publish(session, me, &[PeerUpdate::Revoked(hash)]).await;
                }
                session
                    .execute(rows::REBIND_LEASES, &[&hash.as_slice(), &None::<Vec<u8>>])
                    .await?;
                publish(session, me, &[PeerUpdate::LeasesKept(hash), PeerUpdate::Revoked(hash)]).await
            }
            .boxed()
        })
    }

    fn tenant(&self, new: TenantId, name: String, spec: TenantSpec) -> Pending<TenantRecord> {
        let me = self.me;
        self.write_separately(move |session| {
            let name = name.clone();
            async move {
                let sql = concat!(
                    "INSERT INTO tenants (id, name, spec) VALUES ($1, $2, $3)
                    ON CONFLICT (name) DO UPDATE SET spec = $3 RETURNING ",
                    tenant_columns!()
                );
                let kept = session.query(sql, &[&new.0.as_slice(), &name, &json(&spec)]).await?;
                let missing = || Fault::Refused(StoreError::Broken("a tenant was not kept".into()));
                let record = rows::tenant(kept.first().ok_or_else(missing)?)?;
                publish(session, me, &[PeerUpdate::Tenant(record.clone())]).await?;
                Ok(record)
            }
            .boxed()
        })
    }

    fn prices(&self, prices: Prices) -> Pending<()> {
        let me = self.me;
        self.write_separately(move |session| {
            async move {
                let sql = "INSERT INTO site (prices) VALUES ($1) ON CONFLICT (one) DO UPDATE SET prices = $1";
                session.execute(sql, &[&json(&prices)]).await?;
                publish(session, me, &[PeerUpdate::Prices(prices)]).await
            }
            .boxed()
        })
    }

    fn bill(&self, query: BillQuery) -> Pending<Vec<LeaseRecord>> {
        self.reader
            .read(move |session| async move { reader::bill(&session, query).await }.boxed())
    }

    fn audit(&self, entry: AuditEntry) -> Pending<()> {
        // Distinguishes a repetition from another entry with the same content.
        let written: [u8; 16] = random();
        self.write_separately(move |session| {
            let entry = entry.clone();
            async move {
                session
                    .execute(
                        "INSERT INTO audit (written, at_ms, tenant, token, action, subject, details)
                     VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (written) DO NOTHING",
                        &[
                            &written.as_slice(),
                            &signed(entry.at_ms),
                            &entry.tenant.0.as_slice(),
                            &entry.token,
                            &entry.action,
                            &entry.subject,
                            &entry.details,
                        ],
                    )
                    .await?;
                Ok(())
            }
            .boxed()
        })
    }

    fn audited(&self, page: AuditPage) -> Pending<Vec<AuditEntry>> {
        self.reader
            .read(move |session| async move { reader::audited(&session, page).await }.boxed())
    }

    fn audit_surplus(&self, most_bytes: u64) -> Pending<u64> {
        // The sum follows the index, so rows behind the first wanted one are not read.
        const SURPLUS: &str = "SELECT number FROM (SELECT number, sum(octet_length(subject) + octet_length(details) + $2::BIGINT)
            OVER (ORDER BY number DESC) AS total FROM audit) AS sums WHERE total > $1::BIGINT ORDER BY number DESC LIMIT 1";
        self.reader.read(move |session| {
            async move {
                let bounds = (signed(most_bytes), signed(AUDIT_ENTRY_BYTES));
                let found = session.query(SURPLUS, &[&bounds.0, &bounds.1]).await?;
                found.first().map_or(Ok(0), |row| rows::unsigned(row, 0))
            }
            .boxed()
        })
    }

    fn trim_audit(&self, trim: AuditTrim) -> Pending<TrimResult> {
        const LIST_STEP: &str =
            "SELECT count(*), max(number) FROM (SELECT number FROM audit WHERE number > $1 ORDER BY number LIMIT $2)
            AS looked_at";
        const TRIM: &str = "DELETE FROM audit WHERE number > $1 AND number <= $2 AND (number <= $3 OR at_ms < $4)";
        self.write_separately(move |session| {
            async move {
                let (above, step) = (signed(trim.above), i64::from(trim.step));
                let found = session.query(LIST_STEP, &[&above, &step]).await?;
                let Some(row) = found.first() else {
                    return Ok(TrimResult::default());
                };
                let (looked_at, last): (i64, Option<i64>) = (row.try_get(0)?, row.try_get(1)?);
                let (up_to, before_ms) = (signed(trim.up_to), signed(trim.before_ms));
                Ok(TrimResult {
                    entries: session.execute(TRIM, &[&above, &last, &up_to, &before_ms]).await?,
                    next: last.filter(|_| looked_at == step).map(i64::unsigned_abs),
                })
            }
            .boxed()
        })
    }

    fn admit(&self, join_hash: [u8; 32], credential: Bearer, now_ms: u64) -> Pending<bool> {
        let me = self.me;
        self.write_separately(move |session| {
            let credential = credential.clone();
            async move {
                let node = credential.node.map(|node| node.0.to_vec());
                let sql = "UPDATE bearers SET node = $2 WHERE hash = $1 AND role = 'join' AND expires_at_ms > $3
                    AND (node IS NULL OR node = $2)";
                let used = session
                    .execute(sql, &[&join_hash.as_slice(), &node, &signed(now_ms)])
                    .await?;
                if used == 0 {
                    return Ok(false);
                }
                session
                    .execute("DELETE FROM bearers WHERE role = 'node' AND node = $1", &[&node])
                    .await?;
                keep(session, &credential).await?;
                publish(session, me, &[PeerUpdate::Bearer(credential)]).await?;
                Ok(true)
            }
            .boxed()
        })
    }

    fn present(&self, presence: Presence) -> Option<Pending<Vec<Peer>>> {
        let me = self.me;
        Some(self.write_separately(move |session| {
            let presence = presence.clone();
            async move { nodes::present(session, me, &presence).await }.boxed()
        }))
    }

    fn adopt(&self, from: PublicKey, silent: Duration, ended_after_ms: u64) -> Pending<AdoptedNodes> {
        let me = self.me;
        self.write_separately(move |session| {
            async move { nodes::adopt(session, me, from, silent, ended_after_ms).await }.boxed()
        })
    }

    fn publish(&self, updates: Vec<PeerUpdate>) {
        let (reply, _) = oneshot::channel();
        self.push(WriteKind::Batched(Entry::Publish(updates), reply));
    }

    fn peer_updates(&self) -> Option<mpsc::Receiver<PeerUpdate>> {
        self.updates.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn others(&self, lease: Option<LeaseId>, ended_after_ms: u64) -> Pending<Vec<LeaseRecord>> {
        let me = self.me;
        self.reader
            .read(move |session| async move { reader::others(&session, me, lease, ended_after_ms).await }.boxed())
    }

    fn held(&self) -> Option<Pending<Vec<(TenantId, Held)>>> {
        Some(
            self.reader
                .read(move |session| async move { reader::held(&session).await }.boxed()),
        )
    }
}
