//! Lists and counts of tasks in steps, so that a writer waits only for one step.

use dayfly_protocol::ids::{TaskId, TenantId};
use dayfly_protocol::tasks::{TaskCounts, TaskTimes};
use rusqlite::{Connection, OptionalExtension, params};

use super::task_rows::{TASK, task_of};
use crate::sqlite::rows::{signed, unsigned};
use crate::tasks::{IdQuery, LIST_STEP, OutcomeFilter, TALLY_STEP, TaskPage, TaskQuery};

/// Counts and times, as in `TaskTimes::between`.
const TALLY: &str = "SELECT count(*), count(code), coalesce(max(number), 0),
    coalesce(sum(max(coalesce(nullif(waiting, 0), nullif(environment, 0), nullif(started, 0), ended) - submitted, 0)), 0),
    coalesce(sum(iif(waiting > 0, max(coalesce(nullif(environment, 0), nullif(started, 0), ended) - waiting, 0), 0)), 0),
    coalesce(sum(iif(environment > 0, max(coalesce(nullif(started, 0), ended) - environment, 0), 0)), 0),
    coalesce(sum(iif(started > 0, max(ended - started, 0), 0)), 0)
    FROM (SELECT number, code, submitted_at_ms AS submitted, waiting_at_ms AS waiting, environment_at_ms AS environment,
        started_at_ms AS started, ended_at_ms AS ended FROM tasks
        WHERE tenant = ?1 AND tag = ?2 AND number > ?3 AND number <= ?4 AND number IS NOT NULL ORDER BY number LIMIT ?5)";

/// Returns tasks among the next [`LIST_STEP`].
pub fn page(connection: &Connection, query: TaskQuery) -> rusqlite::Result<TaskPage> {
    let before = query.before.unwrap_or(TaskId([0xff; 16]));
    // Failed tasks are usually few, and have an index.
    let (tasks, looked_at, how) = match query.ended {
        None => ("tasks", "", ""),
        Some(OutcomeFilter::Any) => ("tasks", "", "AND number IS NOT NULL"),
        Some(OutcomeFilter::Succeeded) => ("tasks", "", "AND number IS NOT NULL AND code IS NULL"),
        Some(OutcomeFilter::Failed) => (
            "tasks INDEXED BY tasks_failed",
            "AND code IS NOT NULL",
            "AND code IS NOT NULL",
        ),
    };
    let next = connection
        .prepare_cached(&format!(
            "SELECT id FROM {tasks} WHERE id < ?1 {looked_at} ORDER BY id DESC LIMIT 1 OFFSET ?2"
        ))?
        .query_row(params![before.0, LIST_STEP - 1], |row| row.get(0).map(TaskId))
        .optional()?;
    let functions = query.functions.map(|functions| {
        let names = functions.iter().map(|function| hex::encode_upper(function.0));
        serde_json::Value::from_iter(names).to_string()
    });
    let found = connection
        .prepare_cached(&format!(
            "SELECT {TASK} FROM {tasks} WHERE id < ?1 AND id >= ?2 AND (?3 IS NULL OR tenant = ?3)
             AND (?4 IS NULL OR tag = ?4) AND (?5 IS NULL OR endpoint = ?5)
             AND (?6 IS NULL OR hex(function) IN (SELECT value FROM json_each(?6))) {how} ORDER BY id DESC LIMIT ?7"
        ))?
        .query_map(
            params![
                before.0,
                next.unwrap_or(TaskId([0; 16])).0,
                query.tenant.map(|tenant| tenant.0),
                query.tag,
                query.endpoint.map(|endpoint| endpoint.0),
                functions,
                query.limit
            ],
            task_of,
        )?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    Ok(TaskPage {
        next: next.filter(|_| found.len() < query.limit as usize),
        tasks: found,
    })
}

/// Returns the ids that begin or end as given among the next [`LIST_STEP`].
pub fn find_ids(connection: &Connection, wanted: &IdQuery) -> rusqlite::Result<(Vec<TaskId>, Option<TaskId>)> {
    let next = connection
        .prepare_cached("SELECT id FROM tasks WHERE id < ?1 AND id >= ?2 ORDER BY id DESC LIMIT 1 OFFSET ?3")?
        .query_row(params![wanted.before.0, wanted.from.0, LIST_STEP - 1], |row| {
            row.get(0).map(TaskId)
        })
        .optional()?;
    let found = connection
        .prepare_cached(
            "SELECT id FROM tasks WHERE id < ?1 AND id >= ?2 AND (?3 IS NULL OR tenant = ?3)
             AND (hex(id) LIKE ?4 || '%' OR hex(id) LIKE '%' || ?4)",
        )?
        .query_map(
            params![
                wanted.before.0,
                next.unwrap_or(wanted.from).0,
                wanted.tenant.map(|tenant| tenant.0),
                wanted.digits
            ],
            |row| row.get(0).map(TaskId),
        )?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    Ok((found, next))
}

/// Counts the outcomes among the next [`TALLY_STEP`] of a tag.
pub fn tally(
    connection: &Connection,
    tenant: TenantId,
    tag: &str,
    after: u64,
    up_to: u64,
) -> rusqlite::Result<(TaskCounts, Option<u64>)> {
    let numbers = params![tenant.0, tag, signed(after), signed(up_to), TALLY_STEP];
    connection.prepare_cached(TALLY)?.query_row(numbers, |row| {
        let counts = TaskCounts {
            done: unsigned(row, 0)?,
            failed: unsigned(row, 1)?,
            times: TaskTimes {
                queued_ms: unsigned(row, 3)?,
                waiting_ms: unsigned(row, 4)?,
                environment_ms: unsigned(row, 5)?,
                running_ms: unsigned(row, 6)?,
            },
            ..TaskCounts::default()
        };
        let is_full = counts.done == u64::from(TALLY_STEP);
        Ok((counts, is_full.then(|| unsigned(row, 2)).transpose()?))
    })
}
