//! A store in one SQLite file.
//!
//! Bookings and bearers are synced to the disk before they are confirmed; changes of leases are not.

mod accounts;
mod flows;
mod looking;
mod mark;
mod tasks;
mod triggers;
mod writer;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;

use dayfly_protocol::api::{Capacity, LeaseState, Metered, Mode, NodeAddress, Sandbox, Usage};
use dayfly_protocol::ids::{LeaseId, NodeId, PublicKey, TenantId};
use dayfly_protocol::tenancy::{AuditEntry, Prices, TenantSpec};
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};

use super::{
    AUDIT_ENTRY_BYTES, As, AuditPage, AuditTrim, Bearer, BillQuery, Booked, Change, LeaseRecord, Leases, NodeRecord,
    Note, Noted, Notes, Pending, Registered, Snapshot, Store, StoreError, TenantRecord, Trimmed,
};

pub use tasks::SqliteTasks;
use writer::{Schema, Writer};

const TABLES: &str = "
CREATE TABLE nodes (
    id BLOB PRIMARY KEY, address TEXT NOT NULL, capacity TEXT NOT NULL,
    epoch INTEGER NOT NULL, booked INTEGER NOT NULL DEFAULT 0, reclaimed INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE TABLE leases (
    id BLOB PRIMARY KEY, tenant BLOB NOT NULL, node BLOB NOT NULL, holder BLOB NOT NULL, state TEXT NOT NULL,
    workers INTEGER NOT NULL, cores_per_worker INTEGER NOT NULL, hot INTEGER NOT NULL, memory_bytes INTEGER NOT NULL,
    duration_ms INTEGER NOT NULL, granted_at_ms INTEGER NOT NULL, expires_at_ms INTEGER NOT NULL,
    ended_at_ms INTEGER NOT NULL DEFAULT 0,
    computing_us INTEGER NOT NULL DEFAULT 0, polling_us INTEGER NOT NULL DEFAULT 0,
    allocated_us INTEGER NOT NULL DEFAULT 0, calls INTEGER NOT NULL DEFAULT 0, failures INTEGER NOT NULL DEFAULT 0,
    sandbox INTEGER NOT NULL DEFAULT 0, allocation_price INTEGER NOT NULL DEFAULT 0,
    computing_price INTEGER NOT NULL DEFAULT 0, polling_price INTEGER NOT NULL DEFAULT 0, image TEXT,
    functions TEXT NOT NULL DEFAULT '[]', gpus_per_worker INTEGER NOT NULL DEFAULT 0, bearer BLOB
) WITHOUT ROWID;
CREATE INDEX leases_by_end ON leases (ended_at_ms);
CREATE INDEX leases_by_grant ON leases (granted_at_ms, id);
CREATE INDEX leases_by_bearer ON leases (bearer) WHERE ended_at_ms = 0;
CREATE TABLE bearers (
    hash BLOB PRIMARY KEY, role TEXT NOT NULL, tenant BLOB NOT NULL, node BLOB, expires_at_ms INTEGER NOT NULL,
    name TEXT NOT NULL DEFAULT '', read_only INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE TABLE tenants (
    id BLOB PRIMARY KEY, name TEXT NOT NULL UNIQUE, spec TEXT NOT NULL, spent INTEGER NOT NULL DEFAULT 0,
    spent_on_tasks INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE TABLE site (one INTEGER PRIMARY KEY CHECK (one = 1), prices TEXT NOT NULL);
CREATE TABLE audit (
    number INTEGER PRIMARY KEY AUTOINCREMENT, at_ms INTEGER NOT NULL, tenant BLOB NOT NULL, token TEXT NOT NULL,
    action TEXT NOT NULL, subject TEXT NOT NULL, details TEXT NOT NULL
);
";

const SCHEMA: Schema = Schema {
    tables: &[TABLES],
    upgrades: &UPGRADES,
};

const UPGRADES: [&str; 7] = [
    "ALTER TABLE leases ADD COLUMN sandbox INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE nodes ADD COLUMN reclaimed INTEGER NOT NULL DEFAULT 0",
    // The bearer of the former single token becomes one tenant of several, and the administrator.
    "ALTER TABLE leases ADD COLUMN allocation_price INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE leases ADD COLUMN computing_price INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE leases ADD COLUMN polling_price INTEGER NOT NULL DEFAULT 0;
    CREATE INDEX leases_by_grant ON leases (granted_at_ms, id);
    ALTER TABLE bearers ADD COLUMN name TEXT NOT NULL DEFAULT '';
    ALTER TABLE bearers ADD COLUMN read_only INTEGER NOT NULL DEFAULT 0;
    UPDATE bearers SET role = 'administrator', name = 'connection.json' WHERE role = 'operator';
    CREATE TABLE tenants (
        id BLOB PRIMARY KEY, name TEXT NOT NULL UNIQUE, spec TEXT NOT NULL, spent INTEGER NOT NULL DEFAULT 0
    ) WITHOUT ROWID;
    CREATE TABLE site (one INTEGER PRIMARY KEY CHECK (one = 1), prices TEXT NOT NULL);
    CREATE TABLE audit (
        number INTEGER PRIMARY KEY AUTOINCREMENT, at_ms INTEGER NOT NULL, tenant BLOB NOT NULL, token TEXT NOT NULL,
        action TEXT NOT NULL, subject TEXT NOT NULL, details TEXT NOT NULL
    )",
    "ALTER TABLE leases ADD COLUMN image TEXT",
    "ALTER TABLE leases ADD COLUMN functions TEXT NOT NULL DEFAULT '[]'",
    "ALTER TABLE leases ADD COLUMN gpus_per_worker INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE tenants ADD COLUMN spent_on_tasks INTEGER NOT NULL DEFAULT 0",
    // Leases of earlier releases end with no token.
    "ALTER TABLE leases ADD COLUMN bearer BLOB;
    CREATE INDEX leases_by_bearer ON leases (bearer) WHERE ended_at_ms = 0",
];

/// A store in a file. Dropping it commits waiting writes and closes the file.
pub struct SqliteStore(Writer);

impl SqliteStore {
    /// Opens or creates the file. `most_pages` of 4 KiB limit its size, if given. A file that lacks data is opened only
    /// with `accept_loss`.
    pub fn open(path: &Path, most_pages: Option<u32>, accept_loss: bool) -> Result<Self, StoreError> {
        Writer::open(path, &SCHEMA, most_pages, accept_loss).map(Self)
    }

    fn write<T: Send + 'static>(
        &self,
        durable: bool,
        action: impl FnMut(&Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Pending<T> {
        self.0.write(durable, 1, action)
    }
}

impl Notes for SqliteStore {
    fn note(&self, notes: Vec<Note>) -> Pending<Vec<Noted>> {
        self.write(false, move |transaction| {
            notes.iter().map(|note| apply(transaction, note)).collect()
        })
    }
}

impl Store for SqliteStore {
    fn load(&self, ended_after_ms: u64) -> Pending<Snapshot> {
        self.0.read(move |connection| read_all(connection, ended_after_ms))
    }

    fn register(&self, address: NodeAddress, capacity: Capacity, _: u64) -> Pending<Option<Registered>> {
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
                    Ok(Some(Registered {
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

    fn book(&self, node: NodeId, sequence: u64, totals: Vec<(LeaseId, Metered)>) -> Pending<Booked> {
        self.write(true, move |transaction| {
            let booked = transaction
                .prepare_cached("SELECT booked FROM nodes WHERE id = ?1")?
                .query_row([node.0], |row| unsigned(row, 0))
                .optional()?;
            let Some(booked) = booked else {
                return Ok(Booked::default());
            };
            if sequence <= booked {
                return Ok(Booked {
                    sequence: booked,
                    spent: Vec::new(),
                });
            }
            transaction
                .prepare_cached("UPDATE nodes SET booked = ?2 WHERE id = ?1")?
                .execute(params![node.0, signed(sequence)])?;
            let mut charges: BTreeMap<TenantId, u64> = BTreeMap::new();
            for (lease, used) in &totals {
                let charge = charge(transaction, node, *lease, used.clone())?;
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
            Ok(Booked { sequence, spent })
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
            if bearer.speaks.is_named() {
                let replaced: Vec<[u8; 32]> = transaction
                    .prepare_cached(
                        "DELETE FROM bearers WHERE tenant = ?1 AND name = ?2 AND role NOT IN ('join', 'node')
                         AND (role = 'endpoint') = ?3 RETURNING hash",
                    )?
                    .query_map(
                        params![bearer.tenant.0, bearer.name, bearer.speaks == As::Endpoint],
                        |row| row.get(0),
                    )?
                    .collect::<rusqlite::Result<_>>()?;
                for hash in replaced {
                    rebind(transaction, hash, Some(bearer.hash))?;
                }
            }
            keep(transaction, &bearer)
        })
    }

    fn revoke(&self, hash: [u8; 32], leases: Leases) -> Pending<()> {
        self.write(true, move |transaction| {
            transaction.execute("DELETE FROM bearers WHERE hash = ?1", [hash])?;
            match leases {
                Leases::Keep => rebind(transaction, hash, None),
                Leases::End => Ok(()),
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

    fn trim_audit(&self, trim: AuditTrim) -> Pending<Trimmed> {
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
            Ok(Trimmed {
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

/// Raises the usage of a lease of this node. Returns the tenant that pays, and the cost of the difference.
fn charge(
    transaction: &Transaction<'_>,
    node: NodeId,
    lease: LeaseId,
    used: Metered,
) -> rusqlite::Result<Option<(TenantId, u64)>> {
    let before = transaction
        .prepare_cached(&format!("SELECT {LEASE} FROM leases WHERE id = ?1 AND node = ?2"))?
        .query_row(params![lease.0, node.0], lease_of)
        .optional()?;
    let Some(before) = before else { return Ok(None) };
    let mut after = before.clone();
    after.book(used);
    transaction
        .prepare_cached(
            "UPDATE leases SET computing_us = ?2, polling_us = ?3, allocated_us = ?4, calls = ?5, failures = ?6,
             functions = ?7
             WHERE id = ?1",
        )?
        .execute(params![
            lease.0,
            signed(after.usage.computing_us),
            signed(after.usage.polling_us),
            signed(after.usage.allocated_us),
            signed(after.usage.calls),
            signed(after.usage.failures),
            json(&after.functions)?
        ])?;
    let amount = after.cost().total().saturating_sub(before.cost().total());
    Ok(Some((after.tenant, amount)))
}

fn apply(transaction: &Transaction<'_>, note: &Note) -> rusqlite::Result<Noted> {
    const LIVE: &str = "state IN ('granted', 'active')";
    let epoch = transaction
        .prepare_cached("SELECT epoch FROM nodes WHERE id = ?1")?
        .query_row([note.node.0], |row| unsigned(row, 0))
        .optional()?;
    if epoch != Some(note.epoch) {
        return Ok(Noted::Stale);
    }
    match &note.change {
        Change::Offered(record) => transaction
            .prepare_cached(
                "INSERT INTO leases (id, tenant, node, holder, state, workers, cores_per_worker, hot, memory_bytes,
                 duration_ms, granted_at_ms, expires_at_ms, sandbox, allocation_price, computing_price, polling_price,
                 gpus_per_worker, bearer)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18)
                 ON CONFLICT (id) DO NOTHING",
            )?
            .execute(params![
                record.lease.0,
                record.tenant.0,
                record.node.0,
                record.holder.0,
                record.state.name(),
                record.workers,
                record.cores_per_worker,
                record.mode == Mode::Hot,
                signed(record.memory_bytes),
                signed(record.duration_ms),
                signed(record.granted_at_ms),
                signed(record.expires_at_ms),
                record.sandbox.number(),
                signed(record.prices.allocation_per_gib_s),
                signed(record.prices.computing_per_s),
                signed(record.prices.polling_per_s),
                record.gpus_per_worker,
                record.bearer
            ])?,
        Change::Taken {
            lease,
            mode,
            image,
            sandbox,
        } => transaction
            .prepare_cached(&format!(
                "UPDATE leases SET hot = ?2, image = ?3, sandbox = ?4 WHERE id = ?1 AND {LIVE}"
            ))?
            .execute(params![lease.0, *mode == Mode::Hot, image, sandbox.number()])?,
        Change::Refused { lease } => transaction
            .prepare_cached(&format!("DELETE FROM leases WHERE id = ?1 AND {LIVE}"))?
            .execute(params![lease.0])?,
        Change::Active { lease, expires_at_ms } => transaction
            .prepare_cached(&format!(
                "UPDATE leases SET state = 'active', expires_at_ms = ?2 WHERE id = ?1 AND {LIVE}"
            ))?
            .execute(params![lease.0, signed(*expires_at_ms)])?,
        Change::Renewed {
            lease,
            duration_ms,
            expires_at_ms,
            bearer,
        } => transaction
            .prepare_cached(&format!(
                "UPDATE leases SET duration_ms = ?2, expires_at_ms = ?3, bearer = ?4 WHERE id = ?1 AND {LIVE}"
            ))?
            .execute(params![lease.0, signed(*duration_ms), signed(*expires_at_ms), bearer])?,
        Change::Ended { lease, state, at_ms } => transaction
            .prepare_cached(&format!(
                "UPDATE leases SET state = ?2, ended_at_ms = ?3 WHERE id = ?1 AND {LIVE}"
            ))?
            .execute(params![lease.0, state.name(), signed(*at_ms)])?,
    };
    Ok(Noted::Kept)
}

/// Moves the live leases of one bearer to another one, or to none.
fn rebind(transaction: &Transaction<'_>, from: [u8; 32], to: Option<[u8; 32]>) -> rusqlite::Result<()> {
    transaction
        .prepare_cached("UPDATE leases SET bearer = ?2 WHERE bearer = ?1 AND ended_at_ms = 0")?
        .execute(params![from, to])?;
    Ok(())
}

fn keep(transaction: &Transaction<'_>, bearer: &Bearer) -> rusqlite::Result<()> {
    transaction.execute(
        "INSERT OR REPLACE INTO bearers (hash, role, tenant, node, expires_at_ms, name, read_only)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        params![
            bearer.hash,
            bearer.speaks.name(),
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
                speaks: As::from_name(row.get_ref(1)?.as_str()?),
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

/// Columns in the order in which [`tenant_of`] reads them.
const TENANT: &str = "id, name, spec, spent, spent_on_tasks";

fn tenant_of(row: &Row<'_>) -> rusqlite::Result<TenantRecord> {
    Ok(TenantRecord {
        id: TenantId(row.get(0)?),
        name: row.get(1)?,
        spec: parsed(row, 2)?,
        spent: unsigned(row, 3)?,
        spent_on_tasks: unsigned(row, 4)?,
    })
}

/// Columns in the order in which [`lease_of`] reads them.
const LEASE: &str = "id, tenant, node, holder, state, workers, cores_per_worker, hot, memory_bytes, duration_ms,
    granted_at_ms, expires_at_ms, ended_at_ms, computing_us, polling_us, allocated_us, calls, failures, sandbox,
    allocation_price, computing_price, polling_price, image, functions, gpus_per_worker, bearer";

fn lease_of(row: &Row<'_>) -> rusqlite::Result<LeaseRecord> {
    Ok(LeaseRecord {
        lease: LeaseId(row.get(0)?),
        tenant: TenantId(row.get(1)?),
        node: NodeId(row.get(2)?),
        holder: PublicKey(row.get(3)?),
        state: LeaseState::from_name(row.get_ref(4)?.as_str()?).unwrap_or(LeaseState::Lost),
        workers: row.get(5)?,
        cores_per_worker: row.get(6)?,
        mode: if row.get(7)? { Mode::Hot } else { Mode::Warm },
        memory_bytes: unsigned(row, 8)?,
        duration_ms: unsigned(row, 9)?,
        granted_at_ms: unsigned(row, 10)?,
        expires_at_ms: unsigned(row, 11)?,
        ended_at_ms: unsigned(row, 12)?,
        usage: Usage {
            computing_us: unsigned(row, 13)?,
            polling_us: unsigned(row, 14)?,
            allocated_us: unsigned(row, 15)?,
            calls: unsigned(row, 16)?,
            failures: unsigned(row, 17)?,
        },
        // An unknown level of a later release counts as isolated, which permits nothing.
        sandbox: Sandbox::from_number(row.get(18)?).unwrap_or(Sandbox::Isolated),
        prices: Prices {
            allocation_per_gib_s: unsigned(row, 19)?,
            computing_per_s: unsigned(row, 20)?,
            polling_per_s: unsigned(row, 21)?,
        },
        image: row.get(22)?,
        functions: parsed(row, 23)?,
        gpus_per_worker: row.get(24)?,
        bearer: row.get(25)?,
    })
}

/// SQLite's integers are signed; nothing that Dayfly counts honestly comes near the difference.
fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn unsigned(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    Ok(row.get::<_, i64>(column)?.unsigned_abs())
}

fn json(value: &impl serde::Serialize) -> rusqlite::Result<String> {
    serde_json::to_string(value).map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))
}

fn parsed<T: serde::de::DeserializeOwned>(row: &Row<'_>, column: usize) -> rusqlite::Result<T> {
    serde_json::from_str(row.get_ref(column)?.as_str()?).map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, Box::new(error))
    })
}
