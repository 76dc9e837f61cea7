//! Functions and tasks in a separate SQLite file, so that a lease never waits for a million tasks.
//!
//! A task is one row from its acceptance until it is deleted. Most ids begin with the time, so new rows go to the end
//! of the table. The only index that contains all tasks covers the ended ones, in the order in which outcomes are
//! requested.

use std::collections::HashSet;
use std::path::Path;

use dayfly_protocol::blob::Blob;
use dayfly_protocol::contents::{Content, Payload};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::exception::Exception;
use dayfly_protocol::ids::{CodeHash, ContentHash, EndpointId, FunctionId, TaskId, TenantId};
use dayfly_protocol::tasks::{OutputPiece, ResultOrigin, TaskCounts, TaskOutcome};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension, Row, params};
use zerocopy::IntoBytes;

use super::writer::{MEMORY, Schema, Writer};
use super::{accounts, flows, json, looking, parsed, signed, triggers, unsigned};
use crate::accounts::{Usage, UsageKey};
use crate::tasks::{
    EndedTask, Ending, EndpointRecord, FunctionRecord, FunctionSpec, Given, Gone, KeptOutput, Like, Memoized, NewTask,
    PAGE_BYTES, Passed, TaskPage, TaskQuery, TaskRecord, TaskSnapshot, TaskSpec, TaskStore, Tries,
};
use crate::{Pending, StoreError};

const SCHEMA: Schema = Schema {
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
    retry_wait_ms INTEGER NOT NULL DEFAULT 0, memo BLOB, exception TEXT
) WITHOUT ROWID;
CREATE TABLE printed (task BLOB PRIMARY KEY, first INTEGER NOT NULL, pieces BLOB NOT NULL);
CREATE INDEX tasks_by_memo ON tasks (number) WHERE memo IS NOT NULL AND number IS NOT NULL;
CREATE UNIQUE INDEX tasks_by_end ON tasks (tenant, tag, number) WHERE number IS NOT NULL;
CREATE INDEX tasks_failed ON tasks (id) WHERE code IS NOT NULL;
CREATE INDEX tasks_by_arguments ON tasks (tenant, arguments_content) WHERE arguments_content IS NOT NULL;
CREATE INDEX tasks_by_answer ON tasks (tenant, answer_content) WHERE answer_content IS NOT NULL;
CREATE TABLE contents (
    tenant BLOB NOT NULL, content BLOB NOT NULL, bytes INTEGER NOT NULL, used_at_ms INTEGER NOT NULL,
    going INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (tenant, content)
) WITHOUT ROWID;
CREATE INDEX contents_by_use ON contents (used_at_ms)", triggers::TABLES, flows::TABLES, accounts::TABLES, accounts::COSTS],
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
        accounts::TABLES,
        "ALTER TABLE endpoints ADD COLUMN instance BLOB",
        accounts::COSTS,
        "ALTER TABLE tasks ADD COLUMN waiting_at_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE tasks ADD COLUMN environment_at_ms INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE tasks ADD COLUMN retry_wait_ms INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE tasks ADD COLUMN memo BLOB;
CREATE INDEX tasks_by_memo ON tasks (number) WHERE memo IS NOT NULL AND number IS NOT NULL",
        "CREATE INDEX tasks_failed ON tasks (id) WHERE code IS NOT NULL",
        "ALTER TABLE tasks ADD COLUMN exception TEXT",
        "CREATE TABLE printed (task BLOB PRIMARY KEY, first INTEGER NOT NULL, pieces BLOB NOT NULL)",
    ],
};

/// Unused contents processed in one step.
const UNUSED: u32 = 500;
/// Ended tasks that one step of deleting examines.
const FORGET: u32 = 2_000;
/// Bytes in the log that count as one row: see [`Writer::write`].
const PAGE_BYTES_IN_LOG: usize = 4 << 10;

/// A store of tasks in a file. Dropping it commits waiting writes and closes the file.
pub struct SqliteTasks(pub(super) Writer);

impl SqliteTasks {
    /// Opens or creates the file, or a database in memory without a path. A file that lacks data is opened only with
    /// `accept_loss`.
    pub fn open(path: Option<&Path>, most_pages: Option<u32>, accept_loss: bool) -> Result<Self, StoreError> {
        Writer::open(path.unwrap_or(Path::new(MEMORY)), &SCHEMA, most_pages, accept_loss).map(Self)
    }
}

impl TaskStore for SqliteTasks {
    fn load(&self) -> Pending<TaskSnapshot> {
        self.0.read(|connection| {
            let functions = connection
                .prepare(&format!("SELECT {FUNCTION} FROM functions"))?
                .query_map([], function_of)?
                .collect::<rusqlite::Result<_>>()?;
            let endpoints = connection
                .prepare(&format!("SELECT {ENDPOINT} FROM endpoints"))?
                .query_map([], endpoint_of)?
                .collect::<rusqlite::Result<_>>()?;
            let instances = connection
                .prepare("SELECT id, instance FROM endpoints WHERE instance IS NOT NULL")?
                .query_map([], |row| Ok((EndpointId(row.get(0)?), u64::from_le_bytes(row.get(1)?))))?
                .collect::<rusqlite::Result<_>>()?;
            let tasks = connection
                .prepare(&format!("SELECT {TASK} FROM tasks WHERE number IS NULL ORDER BY id"))?
                .query_map([], task_of)?
                .collect::<rusqlite::Result<Vec<TaskRecord>>>()?;
            let last_number =
                connection.query_row("SELECT coalesce(max(number), 0) FROM tasks", [], |row| unsigned(row, 0))?;
            let before: HashSet<TaskId> = tasks.iter().flat_map(|task| &task.spec.after).copied().collect();
            let mut endings = Vec::new();
            for task in before {
                if let Some((_, failure)) = ending(connection, task)? {
                    endings.push((task, failure));
                }
            }
            let contents = connection
                .prepare("SELECT tenant, sum(bytes) FROM contents GROUP BY tenant")?
                .query_map([], |row| Ok((TenantId(row.get(0)?), unsigned(row, 1)?)))?
                .collect::<rusqlite::Result<_>>()?;
            let printed = connection
                .prepare("SELECT tenant, sum(length(pieces)) FROM printed JOIN tasks ON id = task GROUP BY tenant")?
                .query_map([], |row| Ok((TenantId(row.get(0)?), unsigned(row, 1)?)))?
                .collect::<rusqlite::Result<_>>()?;
            let costs = connection
                .prepare("SELECT tenant, total FROM costs")?
                .query_map([], |row| Ok((TenantId(row.get(0)?), unsigned(row, 1)?)))?
                .collect::<rusqlite::Result<_>>()?;
            Ok(TaskSnapshot {
                functions,
                endpoints,
                instances,
                tasks,
                last_number,
                endings,
                contents,
                printed,
                costs,
            })
        })
    }

    fn register(&self, function: FunctionRecord, code: Blob) -> Pending<FunctionRecord> {
        self.0.write(true, 1, move |transaction| {
            let known = transaction
                .prepare_cached(&format!("SELECT {FUNCTION} FROM functions WHERE id = ?1"))?
                .query_row([function.id.0], function_of)
                .optional()?;
            if let Some(known) = known {
                return Ok(known);
            }
            let mut function = function.clone();
            if let Some(name) = &function.name {
                function.version = transaction
                    .prepare_cached(
                        "SELECT coalesce(max(version), 0) + 1 FROM functions WHERE tenant = ?1 AND name = ?2",
                    )?
                    .query_row(params![function.tenant.0, name], |row| row.get(0))?;
            }
            transaction
                .prepare_cached(
                    "INSERT INTO functions (id, tenant, name, version, hash, spec, registered_at_ms, code)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
                )?
                .execute(params![
                    function.id.0,
                    function.tenant.0,
                    function.name,
                    function.version,
                    function.hash.0,
                    json(&function.spec)?,
                    signed(function.registered_at_ms),
                    &code[..]
                ])?;
            Ok(function)
        })
    }

    fn change(&self, functions: Vec<(FunctionId, FunctionSpec)>) -> Pending<()> {
        self.0.write(true, functions.len(), move |transaction| {
            let mut change = transaction.prepare_cached("UPDATE functions SET spec = ?2 WHERE id = ?1")?;
            for (function, spec) in &functions {
                change.execute(params![function.0, json(spec)?])?;
            }
            Ok(())
        })
    }

    fn remove_functions(&self, functions: Vec<FunctionId>) -> Pending<()> {
        self.0.write(true, functions.len(), move |transaction| {
            let mut remove = transaction.prepare_cached("DELETE FROM functions WHERE id = ?1")?;
            for function in &functions {
                remove.execute([function.0])?;
            }
            Ok(())
        })
    }

    fn code(&self, function: FunctionId) -> Pending<Option<Blob>> {
        self.0.read(move |connection| {
            connection
                .prepare_cached("SELECT code FROM functions WHERE id = ?1")?
                .query_row([function.0], |row| blob(row, 0))
                .optional()
        })
    }

    fn endpoint(&self, endpoint: EndpointRecord) -> Pending<EndpointRecord> {
        self.0.write(true, 1, move |transaction| {
            transaction.execute(
                "INSERT INTO endpoints (id, name, tenant, spec) VALUES (?1, ?2, ?3, ?4)
                 ON CONFLICT (name) DO UPDATE SET spec = ?4 WHERE tenant = ?3",
                params![endpoint.id.0, endpoint.name, endpoint.tenant.0, json(&endpoint.kept())?],
            )?;
            transaction.query_row(
                &format!("SELECT {ENDPOINT} FROM endpoints WHERE name = ?1"),
                [&endpoint.name],
                endpoint_of,
            )
        })
    }

    fn instance(&self, endpoint: EndpointId, instance: u64) -> Pending<()> {
        self.0.write(true, 1, move |transaction| {
            transaction
                .prepare_cached("UPDATE endpoints SET instance = ?2 WHERE id = ?1")?
                .execute(params![endpoint.0, instance.to_le_bytes()])?;
            Ok(())
        })
    }

    fn remove_endpoint(&self, endpoint: EndpointId) -> Pending<()> {
        self.0.write(true, 1, move |transaction| {
            transaction.execute("DELETE FROM endpoints WHERE id = ?1", [endpoint.0])?;
            Ok(())
        })
    }

    fn enqueue(&self, tasks: Vec<NewTask>) -> Pending<Vec<bool>> {
        self.0.write(true, tasks.len(), move |transaction| {
            let mut insert = transaction.prepare_cached(
                "INSERT INTO tasks (id, tenant, function, endpoint, tag, priority, walltime_ms, repeatable, deadline_at_ms,
                 submitted_at_ms, attempts, retries_left, faults, arguments, arguments_content, after, with_answers,
                 retry_wait_ms, memo)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)
                 ON CONFLICT (id) DO NOTHING",
            )?;
            let keep = |NewTask { spec, tries, arguments }: &NewTask| {
                let (here, stored) = columns(arguments);
                let after = (!spec.after.is_empty()).then(|| spec.after.as_bytes());
                let kept = insert.execute(params![
                    spec.id.0,
                    spec.tenant.0,
                    spec.function.0,
                    spec.endpoint.0,
                    spec.tag,
                    spec.priority,
                    spec.walltime_ms,
                    spec.repeatable,
                    signed(spec.deadline_at_ms),
                    signed(spec.submitted_at_ms),
                    tries.attempts,
                    tries.retries_left,
                    tries.faults,
                    here,
                    stored,
                    after,
                    spec.with_answers,
                    spec.retry_wait_ms,
                    spec.memo
                ])?;
                Ok(kept > 0)
            };
            tasks.iter().map(keep).collect()
        })
    }

    fn begin(&self, tasks: Vec<(TaskId, Tries, bool)>) -> Pending<Vec<Given>> {
        self.0.write(true, tasks.len(), move |transaction| {
            let mut begin = transaction.prepare_cached(
                "UPDATE tasks SET attempts = ?2, retries_left = ?3, faults = ?4 WHERE id = ?1 AND number IS NULL",
            )?;
            let mut found = Vec::new();
            for (task, tries, wanted) in &tasks {
                begin.execute(params![task.0, tries.attempts, tries.retries_left, tries.faults])?;
                if *wanted {
                    found.push(given(transaction, *task)?);
                }
            }
            Ok(found)
        })
    }

    fn endings(&self, tasks: Vec<TaskId>) -> Pending<Vec<Option<Ending>>> {
        self.0
            .read(move |connection| tasks.iter().map(|task| ending(connection, *task)).collect())
    }

    fn end(&self, tasks: Vec<EndedTask>, usage: Vec<(UsageKey, Usage)>) -> Pending<()> {
        self.0.write(true, tasks.len(), move |transaction| {
            let mut end = transaction.prepare_cached(
                "UPDATE tasks SET number = ?2, attempts = ?3, started_at_ms = ?4, ended_at_ms = ?5, code = ?6, message = ?7,
                 raised = ?8, answer = ?9, answer_content = ?10, arguments = NULL, arguments_content = NULL,
                 waiting_at_ms = ?11, environment_at_ms = ?12, exception = ?13
                 WHERE id = ?1 AND number IS NULL",
            )?;
            let mut ended = 0;
            for task in &tasks {
                let outcome = &task.outcome;
                let answer = outcome.payload();
                let (here, stored) = columns(&answer);
                ended += end.execute(params![
                    outcome.id.0,
                    signed(outcome.number),
                    outcome.attempts,
                    signed(task.started_at_ms),
                    signed(task.ended_at_ms),
                    outcome.error.as_ref().map(|failure| failure.code as u16),
                    outcome.error.as_ref().map(|failure| &failure.message),
                    outcome.raised,
                    here,
                    stored,
                    signed(task.waiting_at_ms),
                    signed(task.environment_at_ms),
                    outcome.error.as_ref().and_then(Failure::exception_json)
                ])?;
            }
            // Usage is counted together with the first write of the outcomes, so a repetition adds none.
            if ended > 0 || tasks.is_empty() {
                accounts::add_usage(transaction, &usage)?;
            }
            Ok(())
        })
    }

    fn keep_printed(&self, printed: Vec<KeptOutput>, full: Vec<TenantId>) -> Pending<Vec<(TenantId, i64)>> {
        let packed: Vec<(KeptOutput, Vec<u8>)> = printed
            .into_iter()
            .map(|one| {
                let pieces = one.packed();
                (one, pieces)
            })
            .collect();
        let pages = packed
            .iter()
            .map(|(_, bytes)| 1 + bytes.len() / PAGE_BYTES_IN_LOG)
            .sum();
        // Losing it in a power cut is acceptable: the output was shown, and the outcome is stored.
        self.0.write(false, pages, move |transaction| {
            let mut find = transaction.prepare_cached(
                "SELECT tenant, coalesce((SELECT length(pieces) FROM printed WHERE task = id), 0) FROM tasks
                 WHERE id = ?1 AND endpoint = ?2 AND number IS NOT NULL",
            )?;
            let mut keep = transaction.prepare_cached("INSERT OR REPLACE INTO printed VALUES (?1, ?2, ?3)")?;
            let mut more = Vec::new();
            for (one, pieces) in &packed {
                let found = find.query_row(params![one.task.0, one.endpoint.0], |row| {
                    Ok((TenantId(row.get(0)?), row.get::<_, i64>(1)?))
                });
                if let Some((tenant, before)) = found.optional()?.filter(|(tenant, _)| !full.contains(tenant)) {
                    keep.execute(params![one.task.0, signed(one.first), pieces])?;
                    more.push((tenant, signed(pieces.len() as u64) - before));
                }
            }
            Ok(more)
        })
    }

    fn printed(&self, task: TaskId) -> Pending<Option<(u64, Vec<OutputPiece>)>> {
        self.0.read(move |connection| {
            connection
                .prepare_cached("SELECT first, pieces FROM printed WHERE task = ?1")?
                .query_row([task.0], |row| {
                    let pieces = row.get_ref(1)?.as_blob()?;
                    Ok((unsigned(row, 0)?, KeptOutput::unpacked(pieces)))
                })
                .optional()
        })
    }

    fn outcomes(&self, tenant: TenantId, tag: String, after: u64, limit: u32) -> Pending<Vec<TaskOutcome>> {
        self.0.read(move |connection| {
            let mut statement = connection.prepare_cached(&format!(
                "SELECT {OUTCOME} WHERE tasks.tenant = ?1 AND tag = ?2 AND number > ?3 AND number IS NOT NULL
                 ORDER BY number LIMIT ?4"
            ))?;
            let mut rows = statement.query(params![tenant.0, tag, signed(after), limit])?;
            let (mut found, mut bytes) = (Vec::new(), 0);
            while bytes < PAGE_BYTES
                && let Some(row) = rows.next()?
            {
                let outcome = outcome_of(row)?;
                bytes += outcome.answer.len();
                found.push(outcome);
            }
            Ok(found)
        })
    }

    fn outcome(&self, task: TaskId) -> Pending<Option<TaskOutcome>> {
        self.0.read(move |connection| {
            let mut found = connection
                .prepare_cached(&format!("SELECT {OUTCOME} WHERE id = ?1 AND number IS NOT NULL"))?
                .query_row([task.0], outcome_of)
                .optional()?;
            if let Some(failure) = found.as_mut().and_then(|outcome| outcome.error.as_mut()) {
                failure.exception = exception(connection, task)?;
            }
            Ok(found)
        })
    }

    fn task(&self, task: TaskId) -> Pending<Option<TaskRecord>> {
        self.0.read(move |connection| {
            let mut found = connection
                .prepare_cached(&format!("SELECT {TASK} FROM tasks WHERE id = ?1"))?
                .query_row([task.0], task_of)
                .optional()?;
            if let Some((_, Some(failure))) = found.as_mut().and_then(|task| task.ended.as_mut()) {
                failure.exception = exception(connection, task)?;
            }
            Ok(found)
        })
    }

    fn like(&self, like: Like) -> Pending<(Vec<TaskId>, Option<TaskId>)> {
        self.0.read(move |connection| looking::like(connection, &like))
    }

    fn tasks(&self, query: TaskQuery) -> Pending<TaskPage> {
        self.0.read(move |connection| looking::page(connection, query))
    }

    fn tally(&self, tenant: TenantId, tag: String, after: u64, up_to: u64) -> Pending<(TaskCounts, Option<u64>)> {
        self.0
            .read(move |connection| looking::tally(connection, tenant, &tag, after, up_to))
    }

    fn keep_content(&self, tenant: TenantId, content: Content, now_ms: u64) -> Pending<bool> {
        self.0.write(true, 1, move |transaction| {
            let known = transaction
                .prepare_cached("UPDATE contents SET used_at_ms = ?3, going = 0 WHERE tenant = ?1 AND content = ?2")?
                .execute(params![tenant.0, content.hash.0, signed(now_ms)])?;
            if known > 0 {
                return Ok(false);
            }
            transaction
                .prepare_cached("INSERT INTO contents (tenant, content, bytes, used_at_ms) VALUES (?1, ?2, ?3, ?4)")?
                .execute(params![tenant.0, content.hash.0, signed(content.bytes), signed(now_ms)])?;
            Ok(true)
        })
    }

    fn use_contents(&self, tenant: TenantId, hashes: Vec<ContentHash>, now_ms: u64) -> Pending<Vec<Option<Content>>> {
        // Do not wait for the disk: nothing is deleted soon after a start.
        self.0.write(false, hashes.len(), move |transaction| {
            let mut used = transaction.prepare_cached(
                "UPDATE contents SET used_at_ms = ?3 WHERE tenant = ?1 AND content = ?2 AND NOT going RETURNING bytes",
            )?;
            let find = |hash: &ContentHash| {
                let found = used.query_row(params![tenant.0, hash.0, signed(now_ms)], |row| unsigned(row, 0));
                Ok(found.optional()?.map(|bytes| Content { hash: *hash, bytes }))
            };
            hashes.iter().map(find).collect()
        })
    }

    fn unused_contents(&self, unused_since_ms: u64) -> Pending<Vec<(TenantId, Content)>> {
        self.0.write(true, UNUSED as usize, move |transaction| {
            let unused = "used_at_ms < ?1
                AND NOT EXISTS (SELECT 1 FROM tasks WHERE tasks.tenant = c.tenant AND arguments_content = c.content)
                AND NOT EXISTS (SELECT 1 FROM tasks WHERE tasks.tenant = c.tenant AND answer_content = c.content)";
            transaction
                .prepare_cached(&format!(
                    "UPDATE contents SET going = 1 WHERE (tenant, content) IN
                     (SELECT tenant, content FROM contents AS c WHERE going OR ({unused}) LIMIT ?2)
                     RETURNING tenant, content, bytes"
                ))?
                .query_map(params![signed(unused_since_ms), UNUSED], |row| {
                    let content = Content {
                        hash: ContentHash(row.get(1)?),
                        bytes: unsigned(row, 2)?,
                    };
                    Ok((TenantId(row.get(0)?), content))
                })?
                .collect()
        })
    }

    fn drop_contents(&self, contents: Vec<(TenantId, Content)>) -> Pending<()> {
        self.0.write(true, contents.len(), move |transaction| {
            let mut drop =
                transaction.prepare_cached("DELETE FROM contents WHERE tenant = ?1 AND content = ?2 AND going")?;
            for (tenant, content) in &contents {
                drop.execute(params![tenant.0, content.hash.0])?;
            }
            Ok(())
        })
    }

    fn forget(&self, ended_before_ms: u64, from: TaskId) -> Pending<Passed> {
        self.0.write(false, FORGET as usize, move |transaction| {
            let found = transaction
                .prepare_cached("SELECT id, function FROM tasks WHERE id > ?1 ORDER BY id LIMIT ?2")?
                .query_map(params![from.0, FORGET], |row| {
                    Ok((TaskId(row.get(0)?), FunctionId(row.get(1)?)))
                })?
                .collect::<rusqlite::Result<Vec<_>>>()?;
            let Some((last, _)) = found.last().copied() else {
                return Ok(Passed::default());
            };
            let printed = transaction
                .prepare_cached(
                    "DELETE FROM printed WHERE task IN (SELECT id FROM tasks WHERE id > ?1 AND id <= ?2
                     AND number IS NOT NULL AND ended_at_ms < ?3)
                     RETURNING (SELECT tenant FROM tasks WHERE id = task), length(pieces)",
                )?
                .query_map(params![from.0, last.0, signed(ended_before_ms)], |row| {
                    Ok((TenantId(row.get(0)?), unsigned(row, 1)?))
                })?
                .collect::<rusqlite::Result<Vec<_>>>()?;
            transaction
                .prepare_cached(
                    "DELETE FROM tasks WHERE id > ?1 AND id <= ?2 AND number IS NOT NULL AND ended_at_ms < ?3",
                )?
                .execute(params![from.0, last.0, signed(ended_before_ms)])?;
            let functions: HashSet<FunctionId> = found.iter().map(|(_, function)| *function).collect();
            Ok(Passed {
                next: (found.len() == FORGET as usize).then_some(last),
                functions: functions.into_iter().collect(),
                printed,
            })
        })
    }

    fn ended(&self, tenant: TenantId, tag: String, after: u64, up_to: u64, most: u32) -> Pending<Vec<(u64, TaskId)>> {
        self.0.read(move |connection| {
            connection
                .prepare_cached(
                    "SELECT number, id FROM tasks WHERE tenant = ?1 AND tag = ?2 AND number IS NOT NULL AND number > ?3
                     AND number <= ?4 ORDER BY number LIMIT ?5",
                )?
                .query_map(params![tenant.0, tag, signed(after), signed(up_to), most], |row| {
                    Ok((unsigned(row, 0)?, TaskId(row.get(1)?)))
                })?
                .collect()
        })
    }

    fn forget_these(&self, tenant: TenantId, tasks: Vec<TaskId>, up_to: u64, but: Vec<String>) -> Pending<Vec<Gone>> {
        self.0.write(true, tasks.len(), move |transaction| {
            let mut find = transaction.prepare_cached(
                "SELECT tag, memo FROM tasks WHERE id = ?1 AND tenant = ?2 AND number IS NOT NULL AND number <= ?3",
            )?;
            let mut delete = transaction.prepare_cached("DELETE FROM tasks WHERE id = ?1")?;
            let mut delete_printed =
                transaction.prepare_cached("DELETE FROM printed WHERE task = ?1 RETURNING length(pieces)")?;
            let mut gone = Vec::new();
            for id in &tasks {
                let found = find.query_row(params![id.0, tenant.0, signed(up_to)], |row| {
                    Ok(Gone {
                        id: *id,
                        tag: row.get(0)?,
                        memo: row.get(1)?,
                        printed_bytes: 0,
                    })
                });
                if let Some(mut found) = found.optional()?.filter(|found| !but.contains(&found.tag)) {
                    delete.execute([id.0])?;
                    let printed = delete_printed.query_row([id.0], |row| unsigned(row, 0)).optional()?;
                    found.printed_bytes = printed.unwrap_or_default();
                    gone.push(found);
                }
            }
            Ok(gone)
        })
    }

    fn memoized(&self, ended_since_ms: u64, most: u32, most_bytes: u64) -> Pending<Vec<Memoized>> {
        self.0.read(move |connection| {
            let mut statement = connection.prepare_cached(
                "SELECT memo, ended_at_ms, answer, answer_content, bytes FROM tasks LEFT JOIN contents
                 ON contents.tenant = tasks.tenant AND contents.content = answer_content
                 WHERE memo IS NOT NULL AND number IS NOT NULL AND code IS NULL AND ended_at_ms >= ?1
                 ORDER BY number DESC LIMIT ?2",
            )?;
            let mut rows = statement.query(params![signed(ended_since_ms), most])?;
            let (mut found, mut bytes) = (Vec::new(), 0);
            while bytes < most_bytes
                && let Some(row) = rows.next()?
            {
                let answer = payload(row, 2)?;
                bytes += answer.inline_bytes() as u64;
                found.push(Memoized {
                    memo: row.get(0)?,
                    answer,
                    ended_at_ms: unsigned(row, 1)?,
                });
            }
            Ok(found)
        })
    }
}

const FUNCTION: &str = "id, tenant, name, version, hash, spec, registered_at_ms";

fn function_of(row: &Row<'_>) -> rusqlite::Result<FunctionRecord> {
    Ok(FunctionRecord {
        id: FunctionId(row.get(0)?),
        tenant: TenantId(row.get(1)?),
        name: row.get(2)?,
        version: row.get(3)?,
        hash: CodeHash(row.get(4)?),
        spec: parsed(row, 5)?,
        registered_at_ms: unsigned(row, 6)?,
    })
}

const ENDPOINT: &str = "id, name, tenant, spec";

fn endpoint_of(row: &Row<'_>) -> rusqlite::Result<EndpointRecord> {
    let (id, tenant) = (EndpointId(row.get(0)?), TenantId(row.get(2)?));
    Ok(EndpointRecord::of_kept(id, row.get(1)?, tenant, parsed(row, 3)?))
}

pub(super) const TASK: &str =
    "id, tenant, function, endpoint, tag, priority, walltime_ms, repeatable, deadline_at_ms, submitted_at_ms,
    attempts, retries_left, faults, number, code, message, started_at_ms, ended_at_ms, after, with_answers,
    waiting_at_ms, environment_at_ms, retry_wait_ms, memo, coalesce(length(arguments), 0)";

pub(super) fn task_of(row: &Row<'_>) -> rusqlite::Result<TaskRecord> {
    let number: Option<i64> = row.get(13)?;
    let error = failure(row, 14)?;
    Ok(TaskRecord {
        spec: TaskSpec {
            id: TaskId(row.get(0)?),
            tenant: TenantId(row.get(1)?),
            function: FunctionId(row.get(2)?),
            endpoint: EndpointId(row.get(3)?),
            tag: row.get(4)?,
            priority: row.get(5)?,
            walltime_ms: row.get(6)?,
            repeatable: row.get(7)?,
            retry_wait_ms: row.get(22)?,
            deadline_at_ms: unsigned(row, 8)?,
            submitted_at_ms: unsigned(row, 9)?,
            after: after(row, 18)?,
            with_answers: row.get(19)?,
            memo: row.get(23)?,
        },
        tries: Tries {
            attempts: row.get(10)?,
            retries_left: row.get(11)?,
            faults: row.get(12)?,
        },
        ended: number.map(|number| (number.unsigned_abs(), error)),
        waiting_at_ms: unsigned(row, 20)?,
        environment_at_ms: unsigned(row, 21)?,
        started_at_ms: unsigned(row, 16)?,
        ended_at_ms: unsigned(row, 17)?,
        inline_bytes: unsigned(row, 24)?,
    })
}

const ARGUMENTS: &str = "SELECT arguments, arguments_content, bytes, after, with_answers FROM tasks LEFT JOIN contents
    ON contents.tenant = tasks.tenant AND contents.content = arguments_content WHERE id = ?1";

const OUTCOME: &str =
    "id, number, code, message, raised, attempts, answer, answer_content, bytes, tasks.tenant, function, endpoint
    FROM tasks LEFT JOIN contents
    ON contents.tenant = tasks.tenant AND contents.content = answer_content";

fn outcome_of(row: &Row<'_>) -> rusqlite::Result<TaskOutcome> {
    let (answer, content) = payload(row, 6)?.split();
    Ok(TaskOutcome {
        id: TaskId(row.get(0)?),
        number: unsigned(row, 1)?,
        error: failure(row, 2)?,
        raised: row.get(4)?,
        attempts: row.get(5)?,
        answer,
        content,
        result: None,
        foreign: Vec::new(),
        ran: Some(ran(row)?),
    })
}

/// Returns the origin of a result.
fn ran(row: &Row<'_>) -> rusqlite::Result<ResultOrigin> {
    Ok(ResultOrigin {
        tenant: TenantId(row.get(9)?),
        function: FunctionId(row.get(10)?),
        endpoint: EndpointId(row.get(11)?),
    })
}

/// Decodes the ids in one column.
fn after(row: &Row<'_>, column: usize) -> rusqlite::Result<Vec<TaskId>> {
    let bytes = blob(row, column)?;
    Ok(bytes.as_chunks::<16>().0.iter().map(|id| TaskId(*id)).collect())
}

/// Returns the inputs of a task's execution.
fn given(connection: &Connection, task: TaskId) -> rusqlite::Result<Given> {
    let found = connection
        .prepare_cached(ARGUMENTS)?
        .query_row([task.0], |row| {
            let before = if row.get(4)? { after(row, 3)? } else { Vec::new() };
            Ok((payload(row, 0)?, before))
        })
        .optional()?;
    let Some((arguments, before)) = found else {
        return Ok(Given::default());
    };
    // Most tasks have no dependencies.
    if before.is_empty() {
        return Ok(Given {
            arguments,
            ..Given::default()
        });
    }
    let mut answer = connection.prepare_cached(&format!(
        "SELECT {OUTCOME} WHERE id = ?1 AND number IS NOT NULL AND code IS NULL"
    ))?;
    let mut given = Given {
        arguments,
        ..Given::default()
    };
    for task in &before {
        let found = answer.query_row([task.0], |row| Ok((payload(row, 6)?, ran(row)?)));
        let (answer, ran) = found.optional()?.unzip();
        given.answers.push(answer);
        given.ran.push(ran);
    }
    Ok(given)
}

fn ending(connection: &Connection, task: TaskId) -> rusqlite::Result<Option<Ending>> {
    connection
        .prepare_cached("SELECT tenant, code, message FROM tasks WHERE id = ?1 AND number IS NOT NULL")?
        .query_row([task.0], |row| Ok((TenantId(row.get(0)?), failure(row, 1)?)))
        .optional()
}

/// Decodes an error code and a message from two columns.
fn failure(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<Failure>> {
    let Some(code) = row.get::<_, Option<u16>>(column)? else {
        return Ok(None);
    };
    // A later release may have written an unknown code.
    let code = Code::from_wire(code).unwrap_or(Code::Internal);
    let message: Option<String> = row.get(column + 1)?;
    Ok(Some(Failure::new(code, message.unwrap_or_default())))
}

/// Returns the exception of a task's function. Lists omit it because it is long.
fn exception(connection: &Connection, task: TaskId) -> rusqlite::Result<Option<Box<Exception>>> {
    let json: Option<String> = connection
        .prepare_cached("SELECT exception FROM tasks WHERE id = ?1")?
        .query_row([task.0], |row| row.get(0))?;
    Ok(json.and_then(|json| serde_json::from_str(&json).ok()))
}

/// Encodes a payload for two columns: the bytes, or their hash.
fn columns(payload: &Payload) -> (&[u8], Option<[u8; 32]>) {
    match payload {
        Payload::Inline(bytes) => (&bytes[..], None),
        Payload::Stored(content) => (&[], Some(content.hash.0)),
    }
}

/// Decodes [`columns`], with a content's length in a third column.
fn payload(row: &Row<'_>, column: usize) -> rusqlite::Result<Payload> {
    let Some(hash) = row.get(column + 1)? else {
        return Ok(Payload::Inline(blob(row, column)?));
    };
    // A deleted content has no length; its reader gets an error.
    let bytes: Option<i64> = row.get(column + 2)?;
    Ok(Payload::Stored(Content {
        hash: ContentHash(hash),
        bytes: bytes.unwrap_or_default().unsigned_abs(),
    }))
}

fn blob(row: &Row<'_>, column: usize) -> rusqlite::Result<Blob> {
    Ok(match row.get_ref(column)? {
        ValueRef::Null => Blob::default(),
        bytes => bytes.as_blob()?.to_vec().into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::tasks::{ENDPOINT, ended, function, task};
    use dayfly_protocol::endpoints::EndpointSpec;

    #[tokio::test]
    async fn all_of_it_is_there_when_the_file_is_opened_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tasks.db");
        let store = SqliteTasks::open(Some(&path), None, false).unwrap();
        store.register(function(1, "f"), Blob::default()).wait().await.unwrap();
        let endpoint = EndpointRecord {
            id: ENDPOINT,
            name: "here".into(),
            tenant: TenantId([1; 16]),
            spec: EndpointSpec::default(),
            of: None,
        };
        store.endpoint(endpoint.clone()).wait().await.unwrap();
        let described = |tenant| EndpointRecord {
            id: EndpointId([9; 16]),
            tenant: TenantId([tenant; 16]),
            spec: EndpointSpec {
                description: "mine".into(),
                ..EndpointSpec::default()
            },
            ..endpoint.clone()
        };
        // Another tenant cannot change an endpoint. Its owner can, and the endpoint keeps its id.
        assert_eq!(store.endpoint(described(2)).wait().await, Ok(endpoint.clone()));
        let mine = EndpointRecord {
            id: ENDPOINT,
            ..described(1)
        };
        assert_eq!(store.endpoint(described(1)).wait().await, Ok(mine));
        store.enqueue(vec![task(1, "a"), task(2, "a")]).wait().await.unwrap();
        store.end(vec![ended(1, 1, None)], Vec::new()).wait().await.unwrap();
        let before = store.load().wait().await.unwrap();
        assert!(matches!(
            SqliteTasks::open(Some(&path), None, false),
            Err(StoreError::InUse(_))
        ));
        drop(store);
        let store = SqliteTasks::open(Some(&path), None, false).unwrap();
        assert_eq!(store.load().wait().await.unwrap(), before);
        assert_eq!(
            store.outcome(TaskId([1; 16])).wait().await,
            Ok(Some(ended(1, 1, None).outcome))
        );
        assert_eq!(store.outcome(TaskId([2; 16])).wait().await, Ok(None));
    }

    #[tokio::test]
    async fn a_full_disk_keeps_nothing_of_a_submission() {
        let directory = tempfile::tempdir().unwrap();
        let store = SqliteTasks::open(Some(&directory.path().join("tasks.db")), Some(64), false).unwrap();
        let large = NewTask {
            arguments: Payload::Inline(vec![0; 1 << 20].into()),
            ..task(2, "a")
        };
        assert_eq!(
            store.enqueue(vec![task(1, "a"), large]).wait().await,
            Err(StoreError::Full)
        );
        assert_eq!(store.load().wait().await.unwrap().tasks, []);
        assert_eq!(store.enqueue(vec![task(1, "a")]).wait().await, Ok(vec![true]));
    }
}
