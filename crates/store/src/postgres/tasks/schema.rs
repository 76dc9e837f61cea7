//! The tables of tasks, and their upgrades.

/// The tables of tasks, created after all others.
macro_rules! tables {
    () => {
        "
CREATE TABLE dayfly.tasks_owner (
    one BOOLEAN PRIMARY KEY DEFAULT true CHECK (one), manager BYTEA, epoch BIGINT NOT NULL DEFAULT 0,
    written BIGINT NOT NULL DEFAULT 0, contents BYTEA
) WITH (fillfactor = 20);
INSERT INTO dayfly.tasks_owner DEFAULT VALUES;
CREATE TABLE dayfly.functions (
    id BYTEA PRIMARY KEY, tenant BYTEA NOT NULL, name BYTEA, version BIGINT NOT NULL, hash BYTEA NOT NULL, spec TEXT NOT NULL,
    registered_at_ms BIGINT NOT NULL, code BYTEA NOT NULL
);
CREATE UNIQUE INDEX functions_by_name ON dayfly.functions (tenant, name, version) WHERE name IS NOT NULL;
CREATE TABLE dayfly.endpoints (id BYTEA PRIMARY KEY, name TEXT NOT NULL UNIQUE, tenant BYTEA NOT NULL, spec TEXT NOT NULL,
    instance BYTEA);
CREATE TABLE dayfly.tasks (
    id BYTEA PRIMARY KEY, tenant BYTEA NOT NULL, function BYTEA NOT NULL, endpoint BYTEA NOT NULL, tag BYTEA NOT NULL,
    priority BIGINT NOT NULL, walltime_ms BIGINT NOT NULL, repeatable BOOLEAN NOT NULL, deadline_at_ms BIGINT NOT NULL,
    submitted_at_ms BIGINT NOT NULL, attempts BIGINT NOT NULL, retries_left BIGINT NOT NULL, faults BIGINT NOT NULL,
    number BIGINT, started_at_ms BIGINT NOT NULL DEFAULT 0, ended_at_ms BIGINT NOT NULL DEFAULT 0,
    code BIGINT, message BYTEA, raised BOOLEAN NOT NULL DEFAULT false, arguments BYTEA, answer BYTEA,
    arguments_content BYTEA, answer_content BYTEA, after BYTEA, with_answers BOOLEAN NOT NULL DEFAULT false
);
ALTER TABLE dayfly.tasks ALTER COLUMN arguments SET STORAGE EXTERNAL, ALTER COLUMN answer SET STORAGE EXTERNAL;
CREATE UNIQUE INDEX tasks_by_end ON dayfly.tasks (tenant, tag, number) WHERE number IS NOT NULL;
CREATE INDEX tasks_by_arguments ON dayfly.tasks (tenant, arguments_content) WHERE arguments_content IS NOT NULL;
CREATE INDEX tasks_by_answer ON dayfly.tasks (tenant, answer_content) WHERE answer_content IS NOT NULL;
CREATE TABLE dayfly.contents (
    tenant BYTEA NOT NULL, content BYTEA NOT NULL, bytes BIGINT NOT NULL, used_at_ms BIGINT NOT NULL,
    going BOOLEAN NOT NULL DEFAULT false, PRIMARY KEY (tenant, content)
);
CREATE INDEX contents_by_use ON dayfly.contents (used_at_ms);
CREATE TABLE dayfly.triggers (
    id BYTEA PRIMARY KEY, tenant BYTEA NOT NULL, name TEXT NOT NULL, spec TEXT NOT NULL, watched_at BYTEA, token BYTEA NOT NULL,
    created_at_ms BIGINT NOT NULL, expires_at_ms BIGINT NOT NULL, done_until_ms BIGINT NOT NULL,
    events BIGINT NOT NULL DEFAULT 0, started BIGINT NOT NULL DEFAULT 0, refused BIGINT NOT NULL DEFAULT 0,
    UNIQUE (tenant, name)
);
CREATE TABLE dayfly.events (
    trigger_id BYTEA NOT NULL, number BIGINT NOT NULL, key BYTEA NOT NULL, at_ms BIGINT NOT NULL, event TEXT NOT NULL,
    state BIGINT NOT NULL DEFAULT 0, error TEXT, PRIMARY KEY (trigger_id, number), UNIQUE (trigger_id, key)
);
CREATE INDEX events_waiting ON dayfly.events (trigger_id, number) WHERE state = 0;
CREATE TABLE dayfly.flows (
    id BYTEA PRIMARY KEY, tenant BYTEA NOT NULL, name BYTEA NOT NULL, request TEXT NOT NULL, error TEXT,
    steps TEXT NOT NULL DEFAULT '[]', started_at_ms BIGINT NOT NULL, ended_at_ms BIGINT NOT NULL DEFAULT 0
);
CREATE INDEX flows_by_tenant ON dayfly.flows (tenant, started_at_ms);
CREATE INDEX flows_by_end ON dayfly.flows (ended_at_ms);
CREATE TABLE dayfly.teams (name TEXT PRIMARY KEY, owner BYTEA NOT NULL, spec TEXT NOT NULL, removed BOOLEAN NOT NULL);
CREATE TABLE dayfly.usage (
    day BIGINT NOT NULL, tenant BYTEA NOT NULL, function BYTEA NOT NULL, endpoint BYTEA NOT NULL, tasks BIGINT NOT NULL,
    failed BIGINT NOT NULL, took_us BIGINT NOT NULL, PRIMARY KEY (day, tenant, function, endpoint)
);
"
    };
}
pub(in crate::postgres) use tables;

/// Upgrade: adds the cost of tasks.
macro_rules! costs {
    () => {
        "
ALTER TABLE dayfly.usage ADD COLUMN cost BIGINT NOT NULL DEFAULT 0;
CREATE TABLE dayfly.costs (tenant BYTEA PRIMARY KEY, total BIGINT NOT NULL);
"
    };
}
pub(in crate::postgres) use costs;

/// Upgrade: adds the times at which tasks entered their states.
macro_rules! times {
    () => {
        "
ALTER TABLE dayfly.tasks ADD COLUMN waiting_at_ms BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN environment_at_ms BIGINT NOT NULL DEFAULT 0;
"
    };
}
pub(in crate::postgres) use times;

/// Upgrade: adds the delay between a task's executions.
macro_rules! waits {
    () => {
        "ALTER TABLE dayfly.tasks ADD COLUMN retry_wait_ms BIGINT NOT NULL DEFAULT 0;"
    };
}
pub(in crate::postgres) use waits;

/// Upgrade: adds the hash of memoized tasks.
macro_rules! memos {
    () => {
        "
ALTER TABLE dayfly.tasks ADD COLUMN memo BYTEA;
CREATE INDEX tasks_by_memo ON dayfly.tasks (number) WHERE memo IS NOT NULL AND number IS NOT NULL;
"
    };
}
pub(in crate::postgres) use memos;

/// Upgrade: adds an index of failed tasks.
macro_rules! failed {
    () => {
        "CREATE INDEX tasks_failed ON dayfly.tasks (id) WHERE code IS NOT NULL;"
    };
}
pub(in crate::postgres) use failed;

/// Upgrade: adds functions' exceptions as text.
macro_rules! exceptions {
    () => {
        "ALTER TABLE dayfly.tasks ADD COLUMN exception TEXT;"
    };
}
pub(in crate::postgres) use exceptions;

/// Upgrade: adds the output of tasks.
macro_rules! output {
    () => {
        "CREATE TABLE dayfly.printed (task BYTEA PRIMARY KEY, first BIGINT NOT NULL, pieces BYTEA NOT NULL);"
    };
}
pub(in crate::postgres) use output;

/// Upgrade: adds what tasks lent and borrowed.
macro_rules! loans {
    () => {
        "CREATE TABLE dayfly.task_loans (task BYTEA PRIMARY KEY, series BYTEA NOT NULL);"
    };
}
pub(in crate::postgres) use loans;

/// Upgrade: adds the sizes of arguments, and when contents were stored.
macro_rules! sizes {
    () => {
        "
ALTER TABLE dayfly.tasks ADD COLUMN argument_bytes BIGINT;
ALTER TABLE dayfly.contents ADD COLUMN since_ms BIGINT NOT NULL DEFAULT 0;
"
    };
}
pub(in crate::postgres) use sizes;
