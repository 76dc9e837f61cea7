//! A store in PostgreSQL that several managers share.
//!
//! Each manager has three connections: one that writes, one that reads, and one that receives notifications. [`books`]
//! implements grants and bookings; the other operations are rare and simple.

mod backlog;
mod books;
mod connect;
mod faults;
mod listener;
mod mark;
mod reader;
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

use self::books::{Done, Entry};
use self::connect::{Address, Link};
use self::faults::Fault;
use self::listener::NOTIFY;
use self::reader::Reader;
use self::rows::{json, lease_columns, node_columns, signed, tenant_columns};
use self::writer::{Action, What, Write};
use super::{
    AUDIT_ENTRY_BYTES, Adopted, As, AuditPage, AuditTrim, Bearer, BillQuery, Booked, LeaseRecord, Leases, News, Note,
    Noted, Notes, Peer, Pending, Presence, Registered, Snapshot, Store, StoreError, TenantRecord, Trimmed,
};
use crate::system::random;

pub use self::tasks::{PostgresTasks, SharedTasks, TasksOwner};

/// First wait between two attempts to reach the database. Waits double up to [`LAST_WAIT`].
const FIRST_WAIT: Duration = Duration::from_millis(50);
const LAST_WAIT: Duration = Duration::from_secs(1);
/// Time limit of a transaction. The server's own limit for a statement is slightly shorter.
const STATEMENT_DEADLINE: Duration = Duration::from_secs(9);
/// Most news that wait for the manager.
const MAX_NEWS: usize = 4_096;

/// A store in a database. Dropping it closes its connections.
pub struct PostgresStore {
    me: PublicKey,
    writes: mpsc::UnboundedSender<Write>,
    reader: Reader,
    news: Mutex<Option<mpsc::Receiver<News>>>,
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
        let (told, news) = mpsc::channel(MAX_NEWS);
        // The task ends when all requested writes are done.
        tokio::spawn(writer::write(address.clone(), me, queue));
        Ok(Self {
            me,
            writes,
            reader: Reader::new(address.clone()),
            news: Mutex::new(Some(news)),
            name: address.describe(),
            listener: tokio::spawn(listener::listen(address, me, told)),
            counting: None,
        })
    }

    /// Refuses a database that is older than, or different from, the one that this state directory knows, unless
    /// `accept_loss` is set.
    pub async fn compare(&mut self, state_dir: &Path, accept_loss: bool) -> Result<(), StoreError> {
        let mark = mark::compare(&self.reader, self.name.clone(), state_dir, accept_loss).await?;
        self.counting = Some(tokio::spawn(mark::keep(self.reader.clone(), mark)));
        Ok(())
    }

    fn push(&self, what: What) {
        // If the writer has ended, the reply is dropped with the write, and the caller gets an error.
        let _ = self.writes.send(Write {
            since: Instant::now(),
            what,
        });
    }

    /// Queues an entry that is decided here and written together with others.
    fn together<T: Send + 'static>(&self, entry: Entry, read: fn(Done) -> Option<T>) -> Pending<T> {
        let (reply, done) = oneshot::channel();
        self.push(What::Together(entry, reply));
        let (answer, receiver) = oneshot::channel();
        tokio::spawn(async move {
            let wrong = || StoreError::Broken("a write was answered by another's answer".into());
            let done = match done.await {
                Ok(done) => done.and_then(|done| read(done).ok_or_else(wrong)),
                Err(_) => Err(StoreError::Broken("its writer has stopped".into())),
            };
            let _ = answer.send(done);
        });
        Pending(receiver)
    }

    fn alone<T, F>(&self, action: F) -> Pending<T>
    where
        T: Send + 'static,
        F: for<'a> Fn(&'a Link) -> BoxFuture<'a, Result<T, Fault>> + Send + 'static,
    {
        let (reply, receiver) = oneshot::channel();
        self.push(What::Alone(Box::new(Action {
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

/// Sends news to the other managers when this transaction commits.
async fn tell(link: &Link, me: PublicKey, news: &[News]) -> Result<(), Fault> {
    for payload in listener::payloads(me, news) {
        link.execute(NOTIFY, &[&payload]).await?;
    }
    Ok(())
}

async fn keep(link: &Link, bearer: &Bearer) -> Result<(), Fault> {
    let node = bearer.node.map(|node| node.0.to_vec());
    link.execute(
        "INSERT INTO bearers (hash, role, tenant, node, expires_at_ms, name, read_only)
         VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (hash) DO UPDATE SET role = excluded.role,
         tenant = excluded.tenant, node = excluded.node, expires_at_ms = excluded.expires_at_ms, name = excluded.name,
         read_only = excluded.read_only",
        &[
            &bearer.hash.as_slice(),
            &bearer.speaks.name(),
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

async fn register(
    link: &Link,
    me: PublicKey,
    address: &NodeAddress,
    capacity: Capacity,
    ended_after_ms: u64,
) -> Result<Option<Registered>, Fault> {
    let id = address.id.0.as_slice();
    let owner = me.0.as_slice();
    // The row exists and is locked until the transaction ends, even if other managers want it.
    let sql = "INSERT INTO nodes (id, key, address, capacity, epoch, manager) VALUES ($1, $2, $3, $4, 0, $5)
        ON CONFLICT (id) DO NOTHING";
    let (key, json_address) = (address.key.0.as_slice(), json(address));
    let capacity = json(&capacity);
    let is_new = link
        .execute(sql, &[&id, &key, &json_address, &capacity, &owner])
        .await?
        > 0;
    let known = link
        .query("SELECT key, manager FROM nodes WHERE id = $1 FOR UPDATE", &[&id])
        .await?;
    let Some(known) = known.first() else { return Ok(None) };
    if rows::bytes(known, 0)? != address.key.0 {
        return Ok(None);
    }
    let moved = !is_new && rows::bytes(known, 1)? != me.0;
    let sql = concat!(
        "UPDATE nodes SET address = $2, capacity = $3, manager = $4, epoch = epoch + 1 WHERE id = $1 RETURNING ",
        node_columns!()
    );
    let updated = link.query(sql, &[&id, &json_address, &capacity, &owner]).await?;
    let Some(row) = updated.first() else { return Ok(None) };
    let record = rows::node(row)?;
    let leases = match moved {
        true => {
            let sql = concat!(
                "SELECT ",
                lease_columns!(),
                " FROM leases WHERE node = $1 AND (ended_at_ms = 0 OR ended_at_ms >= $2)"
            );
            let found = link.query(sql, &[&id, &signed(ended_after_ms)]).await?;
            Some(found.iter().map(rows::lease).collect::<Result<_, _>>()?)
        }
        false => None,
    };
    tell(link, me, &[News::Node(record.clone())]).await?;
    Ok(Some(Registered {
        epoch: record.epoch,
        booked: record.booked,
        reclaimed: record.reclaimed,
        leases,
    }))
}

async fn adopt(link: &Link, me: PublicKey, from: PublicKey, silent: Duration, since_ms: u64) -> Result<Adopted, Fault> {
    let silent_ms = signed(u64::try_from(silent.as_millis()).unwrap_or(u64::MAX));
    let sql = concat!(
        "UPDATE nodes SET manager = $1, epoch = epoch + 1 WHERE manager = $2 AND NOT EXISTS (SELECT FROM managers
        WHERE key = $2 AND seen > now() - $3::BIGINT * INTERVAL '1 millisecond') RETURNING ",
        node_columns!()
    );
    let adopted = link
        .query(sql, &[&me.0.as_slice(), &from.0.as_slice(), &silent_ms])
        .await?;
    let nodes = adopted.iter().map(rows::node).collect::<Result<Vec<_>, _>>()?;
    if nodes.is_empty() {
        return Ok(Adopted::default());
    }
    let ids: Vec<Vec<u8>> = nodes.iter().map(|node| node.address.id.0.to_vec()).collect();
    let sql = concat!(
        "SELECT ",
        lease_columns!(),
        " FROM leases WHERE node = ANY($1) AND (ended_at_ms = 0 OR ended_at_ms >= $2)"
    );
    let found = link.query(sql, &[&ids, &signed(since_ms)]).await?;
    let leases = found.iter().map(rows::lease).collect::<Result<_, _>>()?;
    let news: Vec<News> = nodes.iter().cloned().map(News::Node).collect();
    tell(link, me, &news).await?;
    Ok(Adopted { nodes, leases })
}

async fn present(link: &Link, me: PublicKey, said: &Presence) -> Result<Vec<Peer>, Fault> {
    link.execute(
        "INSERT INTO managers (key, url, ca_pem, free, seen) VALUES ($1, $2, $3, $4, now())
         ON CONFLICT (key) DO UPDATE SET url = $2, ca_pem = $3, free = $4, seen = now()",
        &[&me.0.as_slice(), &said.url, &said.ca_pem, &json(&said.free)],
    )
    .await?;
    let sql =
        "SELECT key, url, ca_pem, free, greatest(0, 1000 * extract(epoch FROM now() - seen))::BIGINT FROM managers
        WHERE key <> $1 ORDER BY key";
    let found = link.query(sql, &[&me.0.as_slice()]).await?;
    let peer = |row: &tokio_postgres::Row| {
        Ok(Peer {
            key: PublicKey(rows::bytes(row, 0)?),
            presence: Presence {
                url: row.try_get(1)?,
                ca_pem: row.try_get(2)?,
                free: rows::parsed(row, 3)?,
            },
            silent_ms: rows::unsigned(row, 4)?,
        })
    };
    found.iter().map(peer).collect()
}

impl Notes for PostgresStore {
    fn note(&self, notes: Vec<Note>) -> Pending<Vec<Noted>> {
        self.together(Entry::Notes(notes), |done| match done {
            Done::Noted(noted) => Some(noted),
            _ => None,
        })
    }
}

impl Store for PostgresStore {
    fn load(&self, ended_after_ms: u64) -> Pending<Snapshot> {
        let me = self.me;
        self.reader
            .read(move |link| async move { reader::read_all(&link, me, ended_after_ms).await }.boxed())
    }

    fn register(&self, address: NodeAddress, capacity: Capacity, ended_after_ms: u64) -> Pending<Option<Registered>> {
        let me = self.me;
        self.alone(move |link| {
            let address = address.clone();
            async move { register(link, me, &address, capacity, ended_after_ms).await }.boxed()
        })
    }

    fn book(&self, node: NodeId, sequence: u64, totals: Vec<(LeaseId, Metered)>) -> Pending<Booked> {
        self.together(Entry::Book(node, sequence, totals), |done| match done {
            Done::Booked(booked) => Some(booked),
            _ => None,
        })
    }

    fn charge(&self, mut totals: Vec<(TenantId, u64)>) -> Pending<Vec<TenantRecord>> {
        let me = self.me;
        // In the order in which bookings lock them.
        totals.sort_unstable();
        self.alone(move |link| {
            let totals = totals.clone();
            async move {
                let sql = concat!(
                    "UPDATE tenants SET spent = least(spent::NUMERIC + $2::BIGINT - spent_on_tasks, 9223372036854775807)::BIGINT,
                    spent_on_tasks = $2 WHERE id = $1 AND spent_on_tasks < $2 RETURNING ",
                    tenant_columns!()
                );
                let mut charged = Vec::new();
                for (tenant, total) in totals {
                    let found = link.query(sql, &[&tenant.0.as_slice(), &signed(total)]).await?;
                    charged.extend(found.first().map(rows::tenant).transpose()?);
                }
                let news: Vec<News> = charged.iter().cloned().map(News::Tenant).collect();
                tell(link, me, &news).await?;
                Ok(charged)
            }
            .boxed()
        })
    }

    fn reclaim(&self, node: NodeId, reclaimed: bool) -> Pending<()> {
        let me = self.me;
        self.alone(move |link| {
            async move {
                let sql = concat!(
                    "UPDATE nodes SET reclaimed = $2 WHERE id = $1 RETURNING ",
                    node_columns!()
                );
                let updated = link.query(sql, &[&node.0.as_slice(), &reclaimed]).await?;
                match updated.first() {
                    Some(row) => tell(link, me, &[News::Node(rows::node(row)?)]).await,
                    None => Ok(()),
                }
            }
            .boxed()
        })
    }

    fn keep(&self, bearer: Bearer) -> Pending<()> {
        let me = self.me;
        self.alone(move |link| {
            let bearer = bearer.clone();
            async move {
                if bearer.speaks.is_named() {
                    let sql = "DELETE FROM bearers WHERE tenant = $1 AND name = $2 AND role NOT IN ('join', 'node')
                               AND (role = 'endpoint') = $3 RETURNING hash";
                    let of_endpoint = bearer.speaks == As::Endpoint;
                    let replaced = link
                        .query(sql, &[&bearer.tenant.0.as_slice(), &bearer.name, &of_endpoint])
                        .await?;
                    for row in &replaced {
                        let from: [u8; 32] = rows::bytes(row, 0)?;
                        link.execute(rows::REBIND_LEASES, &[&from.as_slice(), &bearer.hash.as_slice()])
                            .await?;
                    }
                }
                keep(link, &bearer).await?;
                tell(link, me, &[News::Bearer(bearer)]).await
            }
            .boxed()
        })
    }

    fn revoke(&self, hash: [u8; 32], leases: Leases) -> Pending<()> {
        let me = self.me;
        self.alone(move |link| {
            async move {
                link.execute("DELETE FROM bearers WHERE hash = $1", &[&hash.as_slice()])
                    .await?;
                if leases == Leases::End {
                    return tell(link, me, &[News::Revoked(hash)]).await;
                }
                link.execute(rows::REBIND_LEASES, &[&hash.as_slice(), &None::<Vec<u8>>])
                    .await?;
                tell(link, me, &[News::LeasesKept(hash), News::Revoked(hash)]).await
            }
            .boxed()
        })
    }

    fn tenant(&self, new: TenantId, name: String, spec: TenantSpec) -> Pending<TenantRecord> {
        let me = self.me;
        self.alone(move |link| {
            let name = name.clone();
            async move {
                let sql = concat!(
                    "INSERT INTO tenants (id, name, spec) VALUES ($1, $2, $3)
                    ON CONFLICT (name) DO UPDATE SET spec = $3 RETURNING ",
                    tenant_columns!()
                );
                let kept = link.query(sql, &[&new.0.as_slice(), &name, &json(&spec)]).await?;
                let missing = || Fault::Refused(StoreError::Broken("a tenant was not kept".into()));
                let record = rows::tenant(kept.first().ok_or_else(missing)?)?;
                tell(link, me, &[News::Tenant(record.clone())]).await?;
                Ok(record)
            }
            .boxed()
        })
    }

    fn prices(&self, prices: Prices) -> Pending<()> {
        let me = self.me;
        self.alone(move |link| {
            async move {
                let sql = "INSERT INTO site (prices) VALUES ($1) ON CONFLICT (one) DO UPDATE SET prices = $1";
                link.execute(sql, &[&json(&prices)]).await?;
                tell(link, me, &[News::Prices(prices)]).await
            }
            .boxed()
        })
    }

    fn bill(&self, query: BillQuery) -> Pending<Vec<LeaseRecord>> {
        self.reader
            .read(move |link| async move { reader::bill(&link, query).await }.boxed())
    }

    fn audit(&self, entry: AuditEntry) -> Pending<()> {
        // Distinguishes a repetition from another entry with the same content.
        let written: [u8; 16] = random();
        self.alone(move |link| {
            let entry = entry.clone();
            async move {
                link.execute(
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
            .read(move |link| async move { reader::audited(&link, page).await }.boxed())
    }

    fn audit_surplus(&self, most_bytes: u64) -> Pending<u64> {
        // The sum follows the index, so rows behind the first wanted one are not read.
        const SURPLUS: &str = "SELECT number FROM (SELECT number, sum(octet_length(subject) + octet_length(details) + $2::BIGINT)
            OVER (ORDER BY number DESC) AS total FROM audit) AS sums WHERE total > $1::BIGINT ORDER BY number DESC LIMIT 1";
        self.reader.read(move |link| {
            async move {
                let bounds = (signed(most_bytes), signed(AUDIT_ENTRY_BYTES));
                let found = link.query(SURPLUS, &[&bounds.0, &bounds.1]).await?;
                found.first().map_or(Ok(0), |row| rows::unsigned(row, 0))
            }
            .boxed()
        })
    }

    fn trim_audit(&self, trim: AuditTrim) -> Pending<Trimmed> {
        const LOOK: &str =
            "SELECT count(*), max(number) FROM (SELECT number FROM audit WHERE number > $1 ORDER BY number LIMIT $2)
            AS looked_at";
        const TRIM: &str = "DELETE FROM audit WHERE number > $1 AND number <= $2 AND (number <= $3 OR at_ms < $4)";
        self.alone(move |link| {
            async move {
                let (above, step) = (signed(trim.above), i64::from(trim.step));
                let found = link.query(LOOK, &[&above, &step]).await?;
                let Some(row) = found.first() else {
                    return Ok(Trimmed::default());
                };
                let (looked_at, last): (i64, Option<i64>) = (row.try_get(0)?, row.try_get(1)?);
                let (up_to, before_ms) = (signed(trim.up_to), signed(trim.before_ms));
                Ok(Trimmed {
                    entries: link.execute(TRIM, &[&above, &last, &up_to, &before_ms]).await?,
                    next: last.filter(|_| looked_at == step).map(i64::unsigned_abs),
                })
            }
            .boxed()
        })
    }

    fn admit(&self, join_hash: [u8; 32], credential: Bearer, now_ms: u64) -> Pending<bool> {
        let me = self.me;
        self.alone(move |link| {
            let credential = credential.clone();
            async move {
                let node = credential.node.map(|node| node.0.to_vec());
                let sql = "UPDATE bearers SET node = $2 WHERE hash = $1 AND role = 'join' AND expires_at_ms > $3
                    AND (node IS NULL OR node = $2)";
                let used = link
                    .execute(sql, &[&join_hash.as_slice(), &node, &signed(now_ms)])
                    .await?;
                if used == 0 {
                    return Ok(false);
                }
                link.execute("DELETE FROM bearers WHERE role = 'node' AND node = $1", &[&node])
                    .await?;
                keep(link, &credential).await?;
                tell(link, me, &[News::Bearer(credential)]).await?;
                Ok(true)
            }
            .boxed()
        })
    }

    fn present(&self, said: Presence) -> Option<Pending<Vec<Peer>>> {
        let me = self.me;
        Some(self.alone(move |link| {
            let said = said.clone();
            async move { present(link, me, &said).await }.boxed()
        }))
    }

    fn adopt(&self, from: PublicKey, silent: Duration, ended_after_ms: u64) -> Pending<Adopted> {
        let me = self.me;
        self.alone(move |link| async move { adopt(link, me, from, silent, ended_after_ms).await }.boxed())
    }

    fn tell(&self, news: Vec<News>) {
        let (reply, _) = oneshot::channel();
        self.push(What::Together(Entry::Tell(news), reply));
    }

    fn news(&self) -> Option<mpsc::Receiver<News>> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn others(&self, lease: Option<LeaseId>, ended_after_ms: u64) -> Pending<Vec<LeaseRecord>> {
        let me = self.me;
        self.reader
            .read(move |link| async move { reader::others(&link, me, lease, ended_after_ms).await }.boxed())
    }

    fn held(&self) -> Option<Pending<Vec<(TenantId, Held)>>> {
        Some(
            self.reader
                .read(move |link| async move { reader::held(&link).await }.boxed()),
        )
    }
}
