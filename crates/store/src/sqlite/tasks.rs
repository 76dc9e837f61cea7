//! Functions and tasks in a separate SQLite file, so that a lease never waits for a million tasks.
//!
//! A task is one row from its acceptance until it is deleted. Most ids begin with the time, so new rows go to the end
//! of the table. The only index that contains all tasks covers the ended ones, in the order in which outcomes are
//! requested.

mod contents;
mod flows;
mod inputs;
mod loans;
mod queries;
mod retention;
mod schema;
mod snapshot;
mod task_rows;
mod teams;
mod triggers;

use std::path::Path;

use dayfly_protocol::api::LoanSeries;
use dayfly_protocol::blob::Blob;
use dayfly_protocol::contents::{Content, Payload};
use dayfly_protocol::error::Failure;
use dayfly_protocol::ids::{ContentHash, EndpointId, FunctionId, TaskId, TenantId};
use dayfly_protocol::tasks::{OutputPiece, TaskCounts, TaskOutcome};
use rusqlite::{OptionalExtension, params};
use zerocopy::IntoBytes;

use self::inputs::{ending, exception, kept_arguments, task_inputs};
use self::task_rows::{
    ENDPOINT, FUNCTION, OUTCOME, TASK, blob, columns, endpoint_of, function_of, outcome_of, payload, task_of,
};
use crate::sqlite::rows::{json, signed, unsigned};
use crate::sqlite::writer::{MEMORY, Writer};
use crate::tasks::{
    DeletedTask, EndedTask, Ending, EndpointRecord, ExpiryStep, FunctionRecord, FunctionSpec, IdQuery, ListedContent,
    MAX_SHORT_ARGUMENTS, Memoized, NewTask, PAGE_BYTES, StoredLoans, StoredOutput, TaskInputs, TaskPage, TaskQuery,
    TaskRecord, TaskSnapshot, TaskStore, Tries,
};
use crate::teams::{Usage, UsageKey};
use crate::{Pending, StoreError};

/// Bytes in the log that count as one row: see [`Writer::write`].
const PAGE_BYTES_IN_LOG: usize = 4 << 10;

/// A store of tasks in a file. Dropping it commits waiting writes and closes the file.
pub struct SqliteTasks(Writer);

impl SqliteTasks {
    /// Opens or creates the file, or a database in memory without a path. A file that lacks data is opened only with
    /// `accept_loss`.
    pub fn open(path: Option<&Path>, most_pages: Option<u32>, accept_loss: bool) -> Result<Self, StoreError> {
        Writer::open(
            path.unwrap_or(Path::new(MEMORY)),
            &schema::SCHEMA,
            most_pages,
            accept_loss,
        )
        .map(Self)
    }
}

impl TaskStore for SqliteTasks {
    fn load(&self) -> Pending<TaskSnapshot> {
        self.0.read(snapshot::of)
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
                params![
                    endpoint.id.0,
                    endpoint.name,
                    endpoint.tenant.0,
                    json(&endpoint.stored())?
                ],
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
                 retry_wait_ms, memo, argument_bytes)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20)
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
                    spec.memo,
                    signed(arguments.bytes())
                ])?;
                Ok(kept > 0)
            };
            tasks.iter().map(keep).collect()
        })
    }

    fn begin(&self, tasks: Vec<(TaskId, Tries, bool)>) -> Pending<Vec<TaskInputs>> {
        self.0.write(true, tasks.len(), move |transaction| {
            let mut begin = transaction.prepare_cached(
                "UPDATE tasks SET attempts = ?2, retries_left = ?3, faults = ?4 WHERE id = ?1 AND number IS NULL",
            )?;
            let mut found = Vec::new();
            for (task, tries, wanted) in &tasks {
                begin.execute(params![task.0, tries.attempts, tries.retries_left, tries.faults])?;
                if *wanted {
                    found.push(task_inputs(transaction, *task)?);
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
                 raised = ?8, answer = ?9, answer_content = ?10, arguments = CASE WHEN ?6 IS NOT NULL
                 AND arguments_content IS NULL AND (?15 OR length(arguments) <= ?14) THEN arguments END,
                 arguments_content = CASE WHEN ?6 IS NOT NULL AND ?15 THEN arguments_content END,
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
                    outcome.error.as_ref().and_then(Failure::exception_json),
                    MAX_SHORT_ARGUMENTS,
                    task.keeps_arguments
                ])?;
            }
            // Usage is counted together with the first write of the outcomes, so a repetition adds none.
            if ended > 0 || tasks.is_empty() {
                teams::add_usage(transaction, &usage)?;
            }
            Ok(())
        })
    }

    fn kept_arguments(&self, task: TaskId) -> Pending<Option<Payload>> {
        self.0.read(move |connection| kept_arguments(connection, task))
    }

    fn keep_output(&self, outputs: Vec<StoredOutput>, full: Vec<TenantId>) -> Pending<Vec<(TenantId, i64)>> {
        let packed: Vec<(StoredOutput, Vec<u8>)> = outputs
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

    fn output(&self, task: TaskId) -> Pending<Option<(u64, Vec<OutputPiece>)>> {
        self.0.read(move |connection| {
            connection
                .prepare_cached("SELECT first, pieces FROM printed WHERE task = ?1")?
                .query_row([task.0], |row| {
                    let pieces = row.get_ref(1)?.as_blob()?;
                    Ok((unsigned(row, 0)?, StoredOutput::unpacked(pieces)))
                })
                .optional()
        })
    }

    fn keep_loans(&self, loans: Vec<StoredLoans>) -> Pending<()> {
        let packed = loans.into_iter().map(|one| {
            let series = one.packed();
            (one, series)
        });
        let packed: Vec<(StoredLoans, Vec<u8>)> = packed.collect();
        // As for output, losing it in a power cut is acceptable.
        self.0.write(false, packed.len(), move |transaction| {
            loans::keep(transaction, &packed)
        })
    }

    fn loans(&self, task: TaskId) -> Pending<Option<LoanSeries>> {
        self.0.read(move |connection| loans::find(connection, task))
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

    fn find_ids(&self, wanted: IdQuery) -> Pending<(Vec<TaskId>, Option<TaskId>)> {
        self.0.read(move |connection| queries::find_ids(connection, &wanted))
    }

    fn tasks(&self, query: TaskQuery) -> Pending<TaskPage> {
        self.0.read(move |connection| queries::page(connection, query))
    }

    fn tally(&self, tenant: TenantId, tag: String, after: u64, up_to: u64) -> Pending<(TaskCounts, Option<u64>)> {
        self.0
            .read(move |connection| queries::tally(connection, tenant, &tag, after, up_to))
    }

    fn keep_content(&self, tenant: TenantId, content: Content, now_ms: u64) -> Pending<bool> {
        self.0.write(true, 1, move |transaction| {
            contents::keep(transaction, tenant, content, now_ms)
        })
    }

    fn use_contents(&self, tenant: TenantId, hashes: Vec<ContentHash>, now_ms: u64) -> Pending<Vec<Option<Content>>> {
        // Do not wait for the disk: nothing is deleted soon after a start.
        self.0.write(false, hashes.len(), move |transaction| {
            contents::used(transaction, tenant, &hashes, now_ms)
        })
    }

    fn unused_contents(&self, unused_since_ms: u64) -> Pending<Vec<(TenantId, Content)>> {
        self.0.write(true, contents::UNUSED_STEP as usize, move |transaction| {
            contents::unused(transaction, unused_since_ms)
        })
    }

    fn list_contents(&self, tenant: TenantId, after: Option<ContentHash>, limit: u32) -> Pending<Vec<ListedContent>> {
        self.0
            .read(move |connection| contents::list(connection, tenant, after, limit))
    }

    fn drop_contents(&self, contents: Vec<(TenantId, Content)>) -> Pending<()> {
        self.0.write(true, contents.len(), move |transaction| {
            contents::delete(transaction, &contents)
        })
    }

    fn delete_expired(&self, ended_before_ms: u64, from: TaskId) -> Pending<ExpiryStep> {
        self.0.write(false, retention::STEP as usize, move |transaction| {
            retention::delete_expired(transaction, ended_before_ms, from)
        })
    }

    fn ended(&self, tenant: TenantId, tag: String, after: u64, up_to: u64, most: u32) -> Pending<Vec<(u64, TaskId)>> {
        self.0
            .read(move |connection| retention::ended(connection, tenant, &tag, [after, up_to], most))
    }

    fn delete_tasks(
        &self,
        tenant: TenantId,
        tasks: Vec<TaskId>,
        up_to: u64,
        but: Vec<String>,
    ) -> Pending<Vec<DeletedTask>> {
        self.0.write(true, tasks.len(), move |transaction| {
            retention::delete_tasks(transaction, tenant, &tasks, up_to, &but)
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

#[cfg(test)]
mod tests {
    use dayfly_protocol::contents::Payload;
    use dayfly_protocol::endpoints::EndpointSpec;

    use super::*;
    use crate::conformance::tasks::{ENDPOINT, ended, function, task};

    #[tokio::test]
    async fn reopened_task_file_has_everything() {
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
    async fn full_disk_keeps_nothing_of_a_submission() {
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
