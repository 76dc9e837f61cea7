//! The tables, and their creation and upgrades.

use tokio_postgres::Client;

use super::faults::Fault;
use super::{commit_mark, tasks};
use crate::StoreError;

/// Version of these tables.
pub const SCHEMA: i64 = 18;

/// Schema of the tables when this program had another name.
const FORMER_SCHEMA: &str = "mayfly";

/// Serialises the creation of tables. The number is arbitrary and unique to Dayfly.
const LOCK: &str = "SELECT pg_advisory_xact_lock(7092581043)";

const TABLES: &str = "
CREATE SCHEMA IF NOT EXISTS dayfly;
CREATE TABLE dayfly.version (version BIGINT NOT NULL);
INSERT INTO dayfly.version VALUES (18);
CREATE TABLE dayfly.managers (
    key BYTEA PRIMARY KEY, url TEXT NOT NULL, ca_pem TEXT NOT NULL, free TEXT NOT NULL, seen TIMESTAMPTZ NOT NULL
);
CREATE TABLE dayfly.nodes (
    id BYTEA PRIMARY KEY, key BYTEA NOT NULL, address TEXT NOT NULL, capacity TEXT NOT NULL, epoch BIGINT NOT NULL,
    manager BYTEA NOT NULL, booked BIGINT NOT NULL DEFAULT 0, reclaimed BOOLEAN NOT NULL DEFAULT false
) WITH (fillfactor = 50);
CREATE INDEX nodes_by_manager ON dayfly.nodes (manager);
CREATE TABLE dayfly.leases (
    id BYTEA PRIMARY KEY, tenant BYTEA NOT NULL, node BYTEA NOT NULL, holder BYTEA NOT NULL, state TEXT NOT NULL,
    workers BIGINT NOT NULL, milli_cores_per_worker BIGINT NOT NULL, hot BOOLEAN NOT NULL,
    memory_bytes BIGINT NOT NULL,
    duration_ms BIGINT NOT NULL, granted_at_ms BIGINT NOT NULL, expires_at_ms BIGINT NOT NULL,
    ended_at_ms BIGINT NOT NULL, computing_us BIGINT NOT NULL, polling_us BIGINT NOT NULL,
    allocated_us BIGINT NOT NULL, calls BIGINT NOT NULL, failures BIGINT NOT NULL, sandbox BIGINT NOT NULL,
    allocation_price BIGINT NOT NULL, computing_price BIGINT NOT NULL, polling_price BIGINT NOT NULL,
    image TEXT, functions TEXT NOT NULL DEFAULT '[]', gpus_per_worker BIGINT NOT NULL DEFAULT 0,
    bearer BYTEA, loans TEXT NOT NULL DEFAULT '{}', borrowed_core_price BIGINT NOT NULL DEFAULT 0,
    borrowed_memory_price BIGINT NOT NULL DEFAULT 0, core_price BIGINT NOT NULL DEFAULT 0,
    gpu_price BIGINT NOT NULL DEFAULT 0
) WITH (fillfactor = 70);
CREATE INDEX leases_by_node ON dayfly.leases (node, ended_at_ms);
CREATE INDEX leases_by_end ON dayfly.leases (ended_at_ms);
CREATE INDEX leases_by_grant ON dayfly.leases (granted_at_ms, id);
CREATE INDEX leases_by_bearer ON dayfly.leases (bearer) WHERE ended_at_ms = 0;
CREATE TABLE dayfly.bearers (
    hash BYTEA PRIMARY KEY, role TEXT NOT NULL, tenant BYTEA NOT NULL, node BYTEA, expires_at_ms BIGINT NOT NULL,
    name TEXT NOT NULL, read_only BOOLEAN NOT NULL
);
CREATE INDEX bearers_by_tenant ON dayfly.bearers (tenant, name);
CREATE INDEX bearers_by_node ON dayfly.bearers (node);
CREATE TABLE dayfly.tenants (
    id BYTEA PRIMARY KEY, name TEXT NOT NULL UNIQUE, spec TEXT NOT NULL, spent BIGINT NOT NULL DEFAULT 0,
    spent_on_tasks BIGINT NOT NULL DEFAULT 0, leases BIGINT NOT NULL DEFAULT 0, workers BIGINT NOT NULL DEFAULT 0,
    milli_cores BIGINT NOT NULL DEFAULT 0,
    memory_bytes BIGINT NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
CREATE TABLE dayfly.site (one BOOLEAN PRIMARY KEY DEFAULT true CHECK (one), prices TEXT NOT NULL);
CREATE TABLE dayfly.audit (
    number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, written BYTEA NOT NULL UNIQUE, at_ms BIGINT NOT NULL,
    tenant BYTEA NOT NULL, token TEXT NOT NULL, action TEXT NOT NULL, subject TEXT NOT NULL, details TEXT NOT NULL
);
";

/// Statements that upgrade tables from each version to the next, beginning with the first.
const UPGRADES: [&str; 17] = [
    "ALTER TABLE dayfly.leases ADD COLUMN functions TEXT NOT NULL DEFAULT '[]'; UPDATE dayfly.version SET version = 2;",
    concat!(tasks::schema::tables!(), "UPDATE dayfly.version SET version = 3;"),
    "ALTER TABLE dayfly.leases ADD COLUMN gpus_per_worker BIGINT NOT NULL DEFAULT 0; UPDATE dayfly.version SET version = 4;",
    concat!(
        "ALTER TABLE dayfly.tenants ADD COLUMN spent_on_tasks BIGINT NOT NULL DEFAULT 0;",
        tasks::schema::costs!(),
        "UPDATE dayfly.version SET version = 5;"
    ),
    concat!(tasks::schema::times!(), "UPDATE dayfly.version SET version = 6;"),
    concat!(tasks::schema::waits!(), "UPDATE dayfly.version SET version = 7;"),
    concat!(tasks::schema::memos!(), "UPDATE dayfly.version SET version = 8;"),
    concat!(tasks::schema::failed!(), "UPDATE dayfly.version SET version = 9;"),
    "ALTER TABLE dayfly.leases ADD COLUMN bearer BYTEA;
    CREATE INDEX leases_by_bearer ON dayfly.leases (bearer) WHERE ended_at_ms = 0;
    UPDATE dayfly.version SET version = 10;",
    concat!(commit_mark::mark_table!(), "UPDATE dayfly.version SET version = 11;"),
    concat!(tasks::schema::exceptions!(), "UPDATE dayfly.version SET version = 12;"),
    concat!(tasks::schema::output!(), "UPDATE dayfly.version SET version = 13;"),
    "ALTER TABLE dayfly.leases ADD COLUMN loans TEXT NOT NULL DEFAULT '{}',
    ADD COLUMN borrowed_core_price BIGINT NOT NULL DEFAULT 0, ADD COLUMN borrowed_memory_price BIGINT NOT NULL DEFAULT 0;
    UPDATE dayfly.version SET version = 14;",
    "ALTER TABLE dayfly.leases RENAME COLUMN cores_per_worker TO milli_cores_per_worker;
    UPDATE dayfly.leases SET milli_cores_per_worker = 1000 * milli_cores_per_worker;
    ALTER TABLE dayfly.tenants RENAME COLUMN cores TO milli_cores;
    UPDATE dayfly.tenants SET milli_cores = 1000 * milli_cores;
    UPDATE dayfly.version SET version = 15;",
    concat!(tasks::schema::loans!(), "UPDATE dayfly.version SET version = 16;"),
    concat!(tasks::schema::sizes!(), "UPDATE dayfly.version SET version = 17;"),
    "ALTER TABLE dayfly.leases ADD COLUMN core_price BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN gpu_price BIGINT NOT NULL DEFAULT 0; UPDATE dayfly.version SET version = 18;",
];

/// Creates missing tables and upgrades those of an earlier release. Does not change those of a later one.
pub async fn bring_up_to_date(client: &Client) -> Result<(), Fault> {
    if version(client).await? == Some(SCHEMA) {
        return Ok(());
    }
    client.batch_execute(&format!("BEGIN; {LOCK};")).await?;
    // Another manager may have created them meanwhile.
    let made = match version(client).await? {
        Some(older @ 1..SCHEMA) => {
            let upgrades = UPGRADES[older as usize - 1..].concat();
            client.batch_execute(&upgrades).await.map_err(Fault::from)
        }
        Some(found) => known(found),
        None if has_versions_of(client, FORMER_SCHEMA).await? => Err(Fault::Refused(StoreError::Former)),
        None => {
            let tables = [
                TABLES,
                tasks::schema::tables!(),
                tasks::schema::costs!(),
                tasks::schema::times!(),
                tasks::schema::waits!(),
                tasks::schema::memos!(),
                tasks::schema::failed!(),
                commit_mark::mark_table!(),
                tasks::schema::exceptions!(),
                tasks::schema::output!(),
                tasks::schema::loans!(),
                tasks::schema::sizes!(),
            ]
            .concat();
            client.batch_execute(&tables).await.map_err(Fault::from)
        }
    };
    client
        .batch_execute(if made.is_ok() { "COMMIT" } else { "ROLLBACK" })
        .await?;
    made
}

/// Whether a schema contains tables of this program.
async fn has_versions_of(client: &Client, schema: &str) -> Result<bool, Fault> {
    // Query the catalogue and not the name: a session caches for a while that a name does not exist.
    let sql = "SELECT EXISTS (SELECT FROM pg_catalog.pg_tables WHERE schemaname = $1 AND tablename = 'version')";
    Ok(client.query_one(sql, &[&schema]).await?.try_get(0)?)
}

async fn version(client: &Client) -> Result<Option<i64>, Fault> {
    if !has_versions_of(client, "dayfly").await? {
        return Ok(None);
    }
    let row = client.query_one("SELECT version FROM dayfly.version", &[]).await?;
    Ok(Some(row.try_get(0)?))
}

fn known(found: i64) -> Result<(), Fault> {
    match found {
        SCHEMA => Ok(()),
        found => Err(Fault::Refused(StoreError::Schema { found, known: SCHEMA })),
    }
}
