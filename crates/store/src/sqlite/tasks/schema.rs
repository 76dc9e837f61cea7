//! The tables of a file of tasks, and their upgrades.

use super::{flows, loans, teams, triggers};
use crate::sqlite::writer::Schema;

/// The tables of tasks, with those of flows, triggers and teams.
pub const SCHEMA: Schema = Schema {
    tables: &["
CREATE TABLE functions (
    id BLOB PRIMARY KEY, tenant BLOB NOT NULL, name TEXT, version INTEGER NOT NULL, hash BLOB NOT NULL, spec TEXT NOT NULL,
    registered_at_ms INTEGER NOT NULL, code BLOB NOT NULL
);
CREATE UNIQUE INDEX functions_by_name ON functions (tenant, name, version) WHERE name IS NOT NULL;
CREATE TABLE endpoints (
    id BLOB PRIMARY KEY, name TEXT NOT NULL UNIQUE, tenant BLOB NOT NULL, spec TEXT NOT NULL, instance BLOB
) WITHOUT ROWID;
CREATE TABLE tasks (
    id BLOB PRIMARY KEY, tenant BLOB NOT NULL, function BLOB NOT NULL, endpoint BLOB NOT NULL, tag TEXT NOT NULL,
    priority INTEGER NOT NULL, walltime_ms INTEGER NOT NULL, repeatable INTEGER NOT NULL, deadline_at_ms INTEGER NOT NULL,
    submitted_at_ms INTEGER NOT NULL, attempts INTEGER NOT NULL, retries_left INTEGER NOT NULL, faults INTEGER NOT NULL,
    number INTEGER, started_at_ms INTEGER NOT NULL DEFAULT 0, ended_at_ms INTEGER NOT NULL DEFAULT 0,
    code INTEGER, message TEXT, raised INTEGER NOT NULL DEFAULT 0, arguments BLOB, answer BLOB,
    arguments_content BLOB, answer_content BLOB, after BLOB, with_answers INTEGER NOT NULL DEFAULT 0,
    waiting_at_ms INTEGER NOT NULL DEFAULT 0, environment_at_ms INTEGER NOT NULL DEFAULT 0,
    retry_wait_ms INTEGER NOT NULL DEFAULT 0, memo BLOB, exception TEXT, argument_bytes INTEGER
) WITHOUT ROWID;
CREATE TABLE printed (task BLOB PRIMARY KEY, first INTEGER NOT NULL, pieces BLOB NOT NULL);
CREATE INDEX tasks_by_memo ON tasks (number) WHERE memo IS NOT NULL AND number IS NOT NULL;
CREATE UNIQUE INDEX tasks_by_end ON tasks (tenant, tag, number) WHERE number IS NOT NULL;
CREATE INDEX tasks_failed ON tasks (id) WHERE code IS NOT NULL;
CREATE INDEX tasks_by_arguments ON tasks (tenant, arguments_content) WHERE arguments_content IS NOT NULL;
CREATE INDEX tasks_by_answer ON tasks (tenant, answer_content) WHERE answer_content IS NOT NULL;
CREATE TABLE contents (
    tenant BLOB NOT NULL, content BLOB NOT NULL, bytes INTEGER NOT NULL, used_at_ms INTEGER NOT NULL,
    going INTEGER NOT NULL DEFAULT 0, since_ms INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (tenant, content)
) WITHOUT ROWID;
CREATE INDEX contents_by_use ON contents (used_at_ms)", triggers::TABLES, flows::TABLES, teams::TABLES, teams::COSTS,
        loans::TABLE],
    upgrades: &[
        "ALTER TABLE endpoints ADD COLUMN tenant BLOB NOT NULL DEFAULT x'00000000000000000000000000000000';
ALTER TABLE endpoints ADD COLUMN spec TEXT NOT NULL DEFAULT '{}'",
        "ALTER TABLE tasks ADD COLUMN arguments_content BLOB;
ALTER TABLE tasks ADD COLUMN answer_content BLOB;
ALTER TABLE tasks ADD COLUMN after BLOB;
ALTER TABLE tasks ADD COLUMN with_answers INTEGER NOT NULL DEFAULT 0;
CREATE INDEX tasks_by_arguments ON tasks (tenant, arguments_content) WHERE arguments_content IS NOT NULL;
CREATE INDEX tasks_by_answer ON tasks (tenant, answer_content) WHERE answer_content IS NOT NULL;
CREATE TABLE contents (
    tenant BLOB NOT NULL, content BLOB NOT NULL, bytes INTEGER NOT NULL, used_at_ms INTEGER NOT NULL,
    going INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (tenant, content)
) WITHOUT ROWID;
CREATE INDEX contents_by_use ON contents (used_at_ms)",
        triggers::TABLES,
        flows::TABLES,
        teams::TABLES,
        "ALTER TABLE endpoints ADD COLUMN instance BLOB",
        teams::COSTS,
        "ALTER TABLE tasks ADD COLUMN waiting_at_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE tasks ADD COLUMN environment_at_ms INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE tasks ADD COLUMN retry_wait_ms INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE tasks ADD COLUMN memo BLOB;
CREATE INDEX tasks_by_memo ON tasks (number) WHERE memo IS NOT NULL AND number IS NOT NULL",
        "CREATE INDEX tasks_failed ON tasks (id) WHERE code IS NOT NULL",
        "ALTER TABLE tasks ADD COLUMN exception TEXT",
        "CREATE TABLE printed (task BLOB PRIMARY KEY, first INTEGER NOT NULL, pieces BLOB NOT NULL)",
        loans::TABLE,
        "ALTER TABLE tasks ADD COLUMN argument_bytes INTEGER;
ALTER TABLE contents ADD COLUMN since_ms INTEGER NOT NULL DEFAULT 0",
    ],
};
