//! Deletion of ended tasks, when they are old or their owner requests it.

use std::collections::HashSet;

use dayfly_protocol::ids::{FunctionId, TaskId, TenantId};
use rusqlite::{Connection, OptionalExtension, Transaction, params};

use crate::sqlite::rows::{signed, unsigned};
use crate::tasks::{DeletedTask, ExpiryStep, counted_bytes};

/// Ended tasks that one step of deleting examines.
pub const STEP: u32 = 2_000;

/// Deletes tasks that ended before this time, in one step that begins after `from`.
pub fn delete_expired(
    transaction: &Transaction<'_>,
    ended_before_ms: u64,
    from: TaskId,
) -> rusqlite::Result<ExpiryStep> {
    let found = transaction
        .prepare_cached("SELECT id, function FROM tasks WHERE id > ?1 ORDER BY id LIMIT ?2")?
        .query_map(params![from.0, STEP], |row| {
            Ok((TaskId(row.get(0)?), FunctionId(row.get(1)?)))
        })?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    let Some((last, _)) = found.last().copied() else {
        return Ok(ExpiryStep::default());
    };
    let mut freed_bytes = transaction
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
            "DELETE FROM task_loans WHERE task IN (SELECT id FROM tasks WHERE id > ?1 AND id <= ?2
             AND number IS NOT NULL AND ended_at_ms < ?3)",
        )?
        .execute(params![from.0, last.0, signed(ended_before_ms)])?;
    let mut delete = transaction.prepare_cached(
        "DELETE FROM tasks WHERE id > ?1 AND id <= ?2 AND number IS NOT NULL AND ended_at_ms < ?3
         RETURNING tenant, coalesce(length(arguments), 0)",
    )?;
    let mut deleted = delete.query(params![from.0, last.0, signed(ended_before_ms)])?;
    while let Some(row) = deleted.next()? {
        let bytes = counted_bytes(unsigned(row, 1)?);
        if bytes > 0 {
            freed_bytes.push((TenantId(row.get(0)?), bytes));
        }
    }
    let functions: HashSet<FunctionId> = found.iter().map(|(_, function)| *function).collect();
    Ok(ExpiryStep {
        next: (found.len() == STEP as usize).then_some(last),
        functions: functions.into_iter().collect(),
        freed_bytes,
    })
}

/// Returns ended tasks of a tenant's tag with numbers above the first and up to the second of `numbers`, in order.
pub fn ended(
    connection: &Connection,
    tenant: TenantId,
    tag: &str,
    numbers: [u64; 2],
    most: u32,
) -> rusqlite::Result<Vec<(u64, TaskId)>> {
    let [after, up_to] = numbers.map(signed);
    connection
        .prepare_cached(
            "SELECT number, id FROM tasks WHERE tenant = ?1 AND tag = ?2 AND number IS NOT NULL AND number > ?3
             AND number <= ?4 ORDER BY number LIMIT ?5",
        )?
        .query_map(params![tenant.0, tag, after, up_to, most], |row| {
            Ok((unsigned(row, 0)?, TaskId(row.get(1)?)))
        })?
        .collect()
}

/// Deletes those of `tasks` that belong to the tenant and ended with numbers up to `up_to`, except tasks with the tags
/// in `but`.
pub fn delete_tasks(
    transaction: &Transaction<'_>,
    tenant: TenantId,
    tasks: &[TaskId],
    up_to: u64,
    but: &[String],
) -> rusqlite::Result<Vec<DeletedTask>> {
    let mut find = transaction.prepare_cached(
        "SELECT tag, memo, coalesce(length(arguments), 0) FROM tasks WHERE id = ?1 AND tenant = ?2 AND number IS NOT NULL AND number <= ?3",
    )?;
    let mut delete = transaction.prepare_cached("DELETE FROM tasks WHERE id = ?1")?;
    let mut delete_output =
        transaction.prepare_cached("DELETE FROM printed WHERE task = ?1 RETURNING length(pieces)")?;
    let mut delete_loans = transaction.prepare_cached("DELETE FROM task_loans WHERE task = ?1")?;
    let mut gone = Vec::new();
    for id in tasks {
        let found = find.query_row(params![id.0, tenant.0, signed(up_to)], |row| {
            Ok(DeletedTask {
                id: *id,
                tag: row.get(0)?,
                memo: row.get(1)?,
                freed_bytes: counted_bytes(unsigned(row, 2)?),
            })
        });
        if let Some(mut found) = found.optional()?.filter(|found| !but.contains(&found.tag)) {
            delete.execute([id.0])?;
            delete_loans.execute([id.0])?;
            let bytes = delete_output.query_row([id.0], |row| unsigned(row, 0)).optional()?;
            found.freed_bytes += bytes.unwrap_or_default();
            gone.push(found);
        }
    }
    Ok(gone)
}
