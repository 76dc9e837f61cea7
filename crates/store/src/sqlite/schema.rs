//! The tables of a manager's file, and their upgrades.

use super::writer::Schema;

/// The tables of leases, nodes, bearers, tenants and the audit log.
pub const SCHEMA: Schema = Schema {
    tables: &[TABLES],
    upgrades: &UPGRADES,
};

const TABLES: &str = "
CREATE TABLE nodes (
    id BLOB PRIMARY KEY, address TEXT NOT NULL, capacity TEXT NOT NULL,
    epoch INTEGER NOT NULL, booked INTEGER NOT NULL DEFAULT 0, reclaimed INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE TABLE leases (
    id BLOB PRIMARY KEY, tenant BLOB NOT NULL, node BLOB NOT NULL, holder BLOB NOT NULL, state TEXT NOT NULL,
    workers INTEGER NOT NULL, milli_cores_per_worker INTEGER NOT NULL, hot INTEGER NOT NULL,
    memory_bytes INTEGER NOT NULL,
    duration_ms INTEGER NOT NULL, granted_at_ms INTEGER NOT NULL, expires_at_ms INTEGER NOT NULL,
    ended_at_ms INTEGER NOT NULL DEFAULT 0,
    computing_us INTEGER NOT NULL DEFAULT 0, polling_us INTEGER NOT NULL DEFAULT 0,
    allocated_us INTEGER NOT NULL DEFAULT 0, calls INTEGER NOT NULL DEFAULT 0, failures INTEGER NOT NULL DEFAULT 0,
    sandbox INTEGER NOT NULL DEFAULT 0, allocation_price INTEGER NOT NULL DEFAULT 0,
    computing_price INTEGER NOT NULL DEFAULT 0, polling_price INTEGER NOT NULL DEFAULT 0, image TEXT,
    functions TEXT NOT NULL DEFAULT '[]', gpus_per_worker INTEGER NOT NULL DEFAULT 0, bearer BLOB,
    loans TEXT NOT NULL DEFAULT '{}', borrowed_core_price INTEGER NOT NULL DEFAULT 0,
    borrowed_memory_price INTEGER NOT NULL DEFAULT 0, core_price INTEGER NOT NULL DEFAULT 0,
    gpu_price INTEGER NOT NULL DEFAULT 0
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

const UPGRADES: [&str; 10] = [
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
    "ALTER TABLE leases ADD COLUMN loans TEXT NOT NULL DEFAULT '{}';
    ALTER TABLE leases ADD COLUMN borrowed_core_price INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE leases ADD COLUMN borrowed_memory_price INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE leases RENAME COLUMN cores_per_worker TO milli_cores_per_worker;
    UPDATE leases SET milli_cores_per_worker = 1000 * milli_cores_per_worker",
    "ALTER TABLE leases ADD COLUMN core_price INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE leases ADD COLUMN gpu_price INTEGER NOT NULL DEFAULT 0",
];
