//! A store in one SQLite file.
//!
//! Bookings and bearers are synced to the disk before they are confirmed; changes of leases are not.

mod commit_mark;
mod leases;
mod rows;
mod schema;
mod tasks;
mod writer;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;

use dayfly_protocol::api::{Capacity, Metered, NodeAddress};
use dayfly_protocol::ids::{LeaseId, NodeId, TenantId};
use dayfly_protocol::tenancy::{AuditEntry, Prices, TenantSpec};
use rusqlite::{Connection, OptionalExtension, Transaction, params};

use self::rows::{LEASE, TENANT, json, lease_of, parsed, signed, tenant_of, unsigned};
use self::writer::Writer;
use crate::system::now_ms;
use crate::{
    AUDIT_ENTRY_BYTES, AuditPage, AuditTrim, Bearer, BearerKind, BillQuery, BookingResult, ChangeResult, LeaseRecord,
    LeaseWriter, NodeRecord, NodeRegistration, OwnedChange, Pending, RevokedLeases, Snapshot, Store, StoreError,
    TenantRecord, TrimResult,
};

pub use tasks::SqliteTasks;

/// A store in a file. Dropping it commits waiting writes and closes the file.
pub struct SqliteStore(Writer);

impl SqliteStore {
    /// Opens or creates the file. `most_pages` of 4 KiB limit its size, if given. A file that lacks data is opened only
    /// with `accept_loss`.
    pub fn open(path: &Path, most_pages: Option<u32>, accept_loss: bool) -> Result<Self, StoreError> {
        Writer::open(path, &schema::SCHEMA, most_pages, accept_loss).map(Self)
    }

    fn write<T: Send + 'static>(
        &self,
        durable: bool,
        action: impl FnMut(&Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Pending<T> {
        self.0.write(durable, 1, action)
    }
}

impl LeaseWriter for SqliteStore {
    fn change_leases(&self, changes: Vec<OwnedChange>) -> Pending<Vec<ChangeResult>> {
        self.write(false, move |transaction| {
            changes
                .iter()
                .map(|change| leases::apply(transaction, change))
                .collect()
        })
    }
}

impl Store for SqliteStore {
    fn load(&self, ended_after_ms: u64) -> Pending<Snapshot> {
        self.0.read(move |connection| read_all(connection, ended_after_ms))
    }

    fn register(&self, address: NodeAddress, capacity: Capacity, _: u64) -> Pending<Option<NodeRegistration>> {
        self.write(false, move |transaction| {
            let known: Option<NodeAddress> = transaction
                .prepare_cached("SELECT address FROM nodes WHERE id = ?1")?
                .query_row([address.id.0], |row| parsed(row, 0))
                .optional()?;
            if known.is_some_and(|known| known.key != address.key) {
                return Ok(None);
            }
            transaction
                .prepare_cached(
                    "INSERT INTO nodes (id, address, capacity, epoch) VALUES (?1, ?2, ?3, 1)
                     ON CONFLICT (id) DO UPDATE SET address = ?2, capacity = ?3, epoch = epoch + 1
                     RETURNING epoch, booked, reclaimed",
                )?
                .query_row(params![address.id.0, json(&address)?, json(&capacity)?], |row| {
                    Ok(Some(NodeRegistration {
                        epoch: unsigned(row, 0)?,
                        booked: unsigned(row, 1)?,
                        reclaimed: row.get(2)?,
                        leases: None,
                    }))
                })
        })
    }

    fn reclaim(&self, node: NodeId, reclaimed: bool) -> Pending<()> {
        self.write(true, move |transaction| {
            transaction
                .prepare_cached("UPDATE nodes SET reclaimed = ?2 WHERE id = ?1")?
                .execute(params![node.0, reclaimed])?;
            Ok(())
        })
    }

    fn book(&self, node: NodeId, sequence: u64, totals: Vec<(LeaseId, Metered)>) -> Pending<BookingResult> {
        self.write(true, move |transaction| {
            let booked = transaction
                .prepare_cached("SELECT booked FROM nodes WHERE id = ?1")?
                .query_row([node.0], |row| unsigned(row, 0))
                .optional()?;
            let Some(booked) = booked else {
                return Ok(BookingResult::default());
            };
            if sequence <= booked {
                return Ok(BookingResult {
                    sequence: booked,
                    spent: Vec::new(),
                });
            }
            transaction
                .prepare_cached("UPDATE nodes SET booked = ?2 WHERE id = ?1")?
                .execute(params![node.0, signed(sequence)])?;
            let mut charges: BTreeMap<TenantId, u64> = BTreeMap::new();
            for (lease, used) in &totals {
                let charge = leases::charge(transaction, node, *lease, used.clone())?;
                if let Some((tenant, amount)) = charge {
                    let sum = charges.entry(tenant).or_default();
                    *sum = sum.saturating_add(amount);
                }
            }
            let mut pay = transaction.prepare_cached(
                "UPDATE tenants SET spent = min(spent + ?2, 9223372036854775807) WHERE id = ?1 RETURNING spent",
            )?;
            let mut spent = Vec::with_capacity(charges.len());
            for (tenant, amount) in charges {
                let sum = pay
                    .query_row(params![tenant.0, signed(amount)], |row| unsigned(row, 0))
                    .optional()?;
                spent.extend(sum.map(|sum| (tenant, sum)));
            }
            Ok(BookingResult { sequence, spent })
        })
    }

    fn charge(&self, totals: Vec<(TenantId, u64)>) -> Pending<Vec<TenantRecord>> {
        self.write(true, move |transaction| {
            let mut charge = transaction.prepare_cached(&format!(
                "UPDATE tenants SET spent = min(spent + ?2 - spent_on_tasks, 9223372036854775807), spent_on_tasks = ?2
                 WHERE id = ?1 AND spent_on_tasks < ?2 RETURNING {TENANT}"
            ))?;
            let mut charged = Vec::new();
            for (tenant, total) in &totals {
                let found = charge
                    .query_row(params![tenant.0, signed(*total)], tenant_of)
                    .optional()?;
                charged.extend(found);
            }
            Ok(charged)
        })
    }

    fn keep(&self, bearer: Bearer) -> Pending<()> {
        self.write(true, move |transaction| {
            if bearer.kind.is_named() {
                let replaced: Vec<[u8; 32]> = transaction
                    .prepare_cached(
                        "DELETE FROM bearers WHERE tenant = ?1 AND name = ?2 AND role NOT IN ('join', 'node', 'session')
                         AND (role = 'endpoint') = ?3 RETURNING hash",
                    )?
                    .query_map(
                        params![bearer.tenant.0, bearer.name, bearer.kind == BearerKind::Endpoint],
                        |row| row.get(0),
                    )?
                    .collect::<rusqlite::Result<_>>()?;
                for hash in replaced {
                    leases::rebind(transaction, hash, Some(bearer.hash))?;
                }
            }
            if bearer.kind == BearerKind::Session {
                transaction.execute(
                    "DELETE FROM bearers WHERE role = 'session' AND expires_at_ms <= ?1",
                    [signed(now_ms())],
                )?;
            }
            keep(transaction, &bearer)
        })
    }

    fn revoke(&self, hash: [u8; 32], leases: RevokedLeases) -> Pending<()> {
        self.write(true, move |transaction| {
            transaction.execute("DELETE FROM bearers WHERE hash = ?1", [hash])?;
            match leases {
                RevokedLeases::Keep => leases::rebind(transaction, hash, None),
                RevokedLeases::End => Ok(()),
            }
        })
    }

    fn tenant(&self, new: TenantId, name: String, spec: TenantSpec) -> Pending<TenantRecord> {
        self.write(true, move |transaction| {
            transaction.query_row(
                &format!(
                    "INSERT INTO tenants (id, name, spec) VALUES (?1, ?2, ?3)
                     ON CONFLICT (name) DO UPDATE SET spec = ?3 RETURNING {TENANT}"
                ),
                params![new.0, name, json(&spec)?],
                tenant_of,
            )
        })
    }

    fn prices(&self, prices: Prices) -> Pending<()> {
        self.write(true, move |transaction| {
            transaction.execute(
                "INSERT INTO site (one, prices) VALUES (1, ?1) ON CONFLICT (one) DO UPDATE SET prices = ?1",
                [json(&prices)?],
            )?;
            Ok(())
        })
    }

    fn bill(&self, query: BillQuery) -> Pending<Vec<LeaseRecord>> {
        self.write(false, move |transaction| {
            let (after_ms, after) = query.after.unwrap_or((0, LeaseId([0; 16])));
            transaction
                .prepare_cached(&format!(
                    "SELECT {LEASE} FROM leases WHERE (granted_at_ms, id) > (?1, ?2) AND granted_at_ms < ?3
                     AND (ended_at_ms = 0 OR ended_at_ms >= ?4) AND (?5 IS NULL OR tenant = ?5)
                     ORDER BY granted_at_ms, id LIMIT ?6"
                ))?
                .query_map(
                    params![
                        signed(after_ms),
                        after.0,
                        signed(query.until_ms),
                        signed(query.from_ms),
                        query.tenant.map(|tenant| tenant.0),
                        query.limit
                    ],
                    lease_of,
                )?
                .collect()
        })
    }

    fn audit(&self, entry: AuditEntry) -> Pending<()> {
        self.write(true, move |transaction| {
            transaction.execute(
                "INSERT INTO audit (at_ms, tenant, token, action, subject, details) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                params![
                    signed(entry.at_ms),
                    entry.tenant.0,
                    entry.token,
                    entry.action,
                    entry.subject,
                    entry.details
                ],
            )?;
            Ok(())
        })
    }

    fn audited(&self, page: AuditPage) -> Pending<Vec<AuditEntry>> {
        self.write(false, move |transaction| {
            // Earlier releases had no length limits.
            let entries =
                "SELECT number, at_ms, tenant, token, action, substr(subject, 1, 4096), substr(details, 1, 8192)
                FROM audit WHERE number > ?1 AND number < ?2 ORDER BY number";
            let sql = match page.before {
                None => format!("{entries} LIMIT ?3"),
                Some(_) => format!("SELECT * FROM ({entries} DESC LIMIT ?3) ORDER BY number"),
            };
            transaction
                .prepare_cached(&sql)?
                .query_map(params![signed(page.above), page.below(), page.limit], |row| {
                    Ok(AuditEntry {
                        number: unsigned(row, 0)?,
                        at_ms: unsigned(row, 1)?,
                        tenant: TenantId(row.get(2)?),
                        token: row.get(3)?,
                        action: row.get(4)?,
                        subject: row.get(5)?,
                        details: row.get(6)?,
                    })
                })?
                .collect()
        })
    }

    fn audit_surplus(&self, most_bytes: u64) -> Pending<u64> {
        self.0.read(move |connection| {
            let mut newest_first = connection.prepare_cached(
                "SELECT number, octet_length(subject) + octet_length(details) FROM audit ORDER BY number DESC",
            )?;
            let (mut rows, mut bytes) = (newest_first.query([])?, 0);
            while let Some(row) = rows.next()? {
                bytes += AUDIT_ENTRY_BYTES + unsigned(row, 1)?;
                if bytes > most_bytes {
                    return unsigned(row, 0);
                }
            }
            Ok(0)
        })
    }

    fn trim_audit(&self, trim: AuditTrim) -> Pending<TrimResult> {
        self.0.write(false, trim.step as usize, move |transaction| {
            let (looked_at, last): (u32, Option<i64>) = transaction
                .prepare_cached(
                    "SELECT count(*), max(number) FROM (SELECT number FROM audit WHERE number > ?1 ORDER BY number LIMIT ?2)",
                )?
                .query_row(params![signed(trim.above), trim.step], |row| {
                    Ok((row.get(0)?, row.get(1)?))
                })?;
            let entries = transaction
                .prepare_cached(
                    "DELETE FROM audit WHERE number > ?1 AND number <= ?2 AND (number <= ?3 OR at_ms < ?4)",
                )?
                .execute(params![
                    signed(trim.above),
                    last,
                    signed(trim.up_to),
                    signed(trim.before_ms)
                ])?;
            Ok(TrimResult {
                entries: entries as u64,
                next: last.filter(|_| looked_at == trim.step).map(i64::unsigned_abs),
            })
        })
    }

    fn admit(&self, join_hash: [u8; 32], credential: Bearer, now_ms: u64) -> Pending<bool> {
        self.write(true, move |transaction| {
            let node = credential.node.map(|node| node.0);
            let used = transaction.execute(
                "UPDATE bearers SET node = ?2 WHERE hash = ?1 AND role = 'join' AND expires_at_ms > ?3
                 AND (node IS NULL OR node = ?2)",
                params![join_hash, node, signed(now_ms)],
            )?;
            if used == 0 {
                return Ok(false);
            }
            transaction.execute("DELETE FROM bearers WHERE role = 'node' AND node = ?1", [node])?;
            keep(transaction, &credential)?;
            Ok(true)
        })
    }
}

fn keep(transaction: &Transaction<'_>, bearer: &Bearer) -> rusqlite::Result<()> {
    transaction.execute(
        "INSERT OR REPLACE INTO bearers (hash, role, tenant, node, expires_at_ms, name, read_only)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        params![
            bearer.hash,
            bearer.kind.name(),
            bearer.tenant.0,
            bearer.node.map(|node| node.0),
            signed(bearer.expires_at_ms),
            bearer.name,
            bearer.read_only
        ],
    )?;
    Ok(())
}

fn read_all(connection: &Connection, ended_after_ms: u64) -> rusqlite::Result<Snapshot> {
    let nodes = connection
        .prepare("SELECT address, capacity, epoch, booked, reclaimed FROM nodes")?
        .query_map([], |row| {
            Ok(NodeRecord {
                address: parsed(row, 0)?,
                capacity: parsed(row, 1)?,
                epoch: unsigned(row, 2)?,
                booked: unsigned(row, 3)?,
                reclaimed: row.get(4)?,
                manager: None,
            })
        })?
        .collect::<rusqlite::Result<_>>()?;
    let leases = connection
        .prepare(&format!(
            "SELECT {LEASE} FROM leases WHERE ended_at_ms = 0 OR ended_at_ms >= ?1"
        ))?
        .query_map([signed(ended_after_ms)], lease_of)?
        .collect::<rusqlite::Result<_>>()?;
    let bearers = connection
        .prepare("SELECT hash, role, tenant, node, expires_at_ms, name, read_only FROM bearers")?
        .query_map([], |row| {
            Ok(Bearer {
                hash: row.get(0)?,
                kind: BearerKind::from_name(row.get_ref(1)?.as_str()?),
                tenant: TenantId(row.get(2)?),
                node: row.get::<_, Option<[u8; 16]>>(3)?.map(NodeId),
                expires_at_ms: unsigned(row, 4)?,
                name: row.get(5)?,
                read_only: row.get(6)?,
            })
        })?
        .collect::<rusqlite::Result<_>>()?;
    let tenants = connection
        .prepare(&format!("SELECT {TENANT} FROM tenants"))?
        .query_map([], tenant_of)?
        .collect::<rusqlite::Result<_>>()?;
    let prices = connection
        .query_row("SELECT prices FROM site", [], |row| parsed(row, 0))
        .optional()?
        .unwrap_or_default();
    Ok(Snapshot {
        nodes,
        leases,
        bearers,
        tenants,
        prices,
    })
}
