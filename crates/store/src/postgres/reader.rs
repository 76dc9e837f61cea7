//! Reads, on a separate connection, so that no writer waits for a long bill.

use std::sync::Arc;

use dayfly_lease::quota::Held;
use dayfly_protocol::ids::{LeaseId, PublicKey, TenantId};
use dayfly_protocol::tenancy::{AuditEntry, Prices};
use futures_util::future::BoxFuture;
use tokio::sync::{Mutex, oneshot};
use tokio::time::Instant;

use super::connect::{Address, Session};
use super::faults::Fault;
use super::rows::{self, lease_columns, node_columns, signed, tenant_columns};
use super::{FIRST_WAIT, STATEMENT_DEADLINE};
use crate::{AuditPage, BillQuery, LeaseRecord, Pending, Snapshot, StoreError, WRITE_DEADLINE};

/// Runs reads one after the other.
#[derive(Clone)]
pub struct Reader {
    address: Address,
    session: Arc<Mutex<Option<Arc<Session>>>>,
}

impl Reader {
    /// Returns a reader that connects at the first read.
    pub fn new(address: Address) -> Self {
        Self {
            address,
            session: Arc::default(),
        }
    }

    /// Runs a read. Opens a new connection if the last one was lost.
    pub fn read<T: Send + 'static>(
        &self,
        read: impl Fn(Arc<Session>) -> BoxFuture<'static, Result<T, Fault>> + Send + Sync + 'static,
    ) -> Pending<T> {
        let (reply, receiver) = oneshot::channel();
        let reader = self.clone();
        tokio::spawn(async move {
            let until = Instant::now() + WRITE_DEADLINE;
            let result = loop {
                match reader.attempt(&read).await {
                    Ok(done) => break Ok(done),
                    Err(Fault::Refused(error)) => break Err(error),
                    Err(fault) if Instant::now() >= until || reply.is_closed() => break Err(fault.to_error()),
                    Err(_) => tokio::time::sleep(FIRST_WAIT).await,
                }
            };
            // The caller may have stopped waiting.
            let _ = reply.send(result);
        });
        Pending(receiver)
    }

    async fn attempt<T>(
        &self,
        read: &(impl Fn(Arc<Session>) -> BoxFuture<'static, Result<T, Fault>> + Sync),
    ) -> Result<T, Fault> {
        let session = {
            let mut kept = self.session.lock().await;
            match kept.as_ref().filter(|session| !session.is_closed()) {
                Some(session) => session.clone(),
                None => {
                    let session = Arc::new(Session::open(&self.address, None).await?);
                    *kept = Some(session.clone());
                    session
                }
            }
        };
        let done = tokio::time::timeout(STATEMENT_DEADLINE, read(session)).await;
        let done = done.unwrap_or_else(|_| Err(Fault::Lost("it does not respond".into())));
        if matches!(done, Err(Fault::Lost(_))) {
            *self.session.lock().await = None;
        }
        done
    }
}

/// Returns the state that a manager keeps in memory, including leases of its nodes that are alive or ended after this
/// time.
pub async fn read_all(session: &Session, me: PublicKey, ended_after_ms: u64) -> Result<Snapshot, Fault> {
    let nodes = session
        .query(concat!("SELECT ", node_columns!(), " FROM nodes"), &[])
        .await?;
    let sql = "SELECT hash, role, tenant, node, expires_at_ms, name, read_only FROM bearers";
    let bearers = session.query(sql, &[]).await?;
    // Read leases after bearers. A lease may then name a bearer that later updates announce, but never one that was
    // already replaced.
    let sql = concat!(
        "SELECT ",
        lease_columns!(),
        " FROM leases WHERE (ended_at_ms = 0 OR ended_at_ms >= $1)
        AND node IN (SELECT id FROM nodes WHERE manager = $2)"
    );
    let since_ms = signed(ended_after_ms);
    let leases = session.query(sql, &[&since_ms, &me.0.as_slice()]).await?;
    let tenants = session
        .query(concat!("SELECT ", tenant_columns!(), " FROM tenants"), &[])
        .await?;
    let prices = session.query("SELECT prices FROM site", &[]).await?;
    Ok(Snapshot {
        nodes: nodes.iter().map(rows::node).collect::<Result<_, _>>()?,
        leases: leases.iter().map(rows::lease).collect::<Result<_, _>>()?,
        bearers: bearers.iter().map(rows::bearer).collect::<Result<_, _>>()?,
        tenants: tenants.iter().map(rows::tenant).collect::<Result<_, _>>()?,
        prices: match prices.first() {
            Some(row) => rows::parsed(row, 0)?,
            None => Prices::default(),
        },
    })
}

/// Implements [`crate::Store::bill`].
pub async fn bill(session: &Session, query: BillQuery) -> Result<Vec<LeaseRecord>, Fault> {
    let (after_ms, after) = query.after.unwrap_or((0, LeaseId([0; 16])));
    let tenant = query.tenant.map(|tenant| tenant.0.to_vec());
    let sql = concat!(
        "SELECT ",
        lease_columns!(),
        " FROM leases WHERE (granted_at_ms, id) > ($1, $2) AND granted_at_ms < $3
        AND (ended_at_ms = 0 OR ended_at_ms >= $4) AND ($5::BYTEA IS NULL OR tenant = $5)
        ORDER BY granted_at_ms, id LIMIT $6"
    );
    let found = session
        .query(
            sql,
            &[
                &signed(after_ms),
                &after.0.as_slice(),
                &signed(query.until_ms),
                &signed(query.from_ms),
                &tenant,
                &i64::from(query.limit),
            ],
        )
        .await?;
    found.iter().map(rows::lease).collect()
}

/// Implements [`crate::Store::audited`].
pub async fn audited(session: &Session, page: AuditPage) -> Result<Vec<AuditEntry>, Fault> {
    // Earlier releases had no length limits.
    macro_rules! entries {
        () => {
            "SELECT number, at_ms, tenant, token, action, left(subject, 4096), left(details, 8192) FROM audit
             WHERE number > $1 AND number < $2 ORDER BY number"
        };
    }
    let sql = match page.before {
        None => concat!(entries!(), " LIMIT $3"),
        Some(_) => concat!("SELECT * FROM (", entries!(), " DESC LIMIT $3) AS last ORDER BY number"),
    };
    let (above, below, limit) = (signed(page.above), page.below(), i64::from(page.limit));
    let found = session.query(sql, &[&above, &below, &limit]).await?;
    let entry = |row: &tokio_postgres::Row| {
        Ok(AuditEntry {
            number: rows::unsigned(row, 0)?,
            at_ms: rows::unsigned(row, 1)?,
            tenant: TenantId(rows::bytes(row, 2)?),
            token: row.try_get(3)?,
            action: row.try_get(4)?,
            subject: row.try_get(5)?,
            details: row.try_get(6)?,
        })
    };
    found.iter().map(entry).collect()
}

/// Implements [`crate::Store::others`].
pub async fn others(
    session: &Session,
    me: PublicKey,
    lease: Option<LeaseId>,
    ended_after_ms: u64,
) -> Result<Vec<LeaseRecord>, Fault> {
    let me = me.0.as_slice();
    let since_ms = signed(ended_after_ms);
    let found = match lease {
        Some(lease) => {
            let sql = concat!("SELECT ", lease_columns!(), " FROM leases WHERE id = $1");
            session.query(sql, &[&lease.0.as_slice()]).await?
        }
        None => {
            let sql = concat!(
                "SELECT ",
                lease_columns!(),
                " FROM leases WHERE (ended_at_ms = 0 OR ended_at_ms >= $1)
                AND node NOT IN (SELECT id FROM nodes WHERE manager = $2)"
            );
            session.query(sql, &[&since_ms, &me]).await?
        }
    };
    found.iter().map(rows::lease).collect()
}

/// Implements [`crate::Store::held`].
pub async fn held(session: &Session) -> Result<Vec<(TenantId, Held)>, Fault> {
    let sql = "SELECT id, leases, workers, milli_cores, memory_bytes FROM tenants";
    let found = session.query(sql, &[]).await?;
    let one = |row: &tokio_postgres::Row| Ok((TenantId(rows::bytes(row, 0)?), rows::held(row, 1)?));
    found.iter().map(one).collect()
}

/// Checks that the database responds and has this program's tables.
pub async fn check(address: &Address) -> Result<(), StoreError> {
    Session::open(address, None)
        .await
        .map(drop)
        .map_err(|fault| fault.to_error())
}
