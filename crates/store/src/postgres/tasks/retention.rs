//! Deletion of ended tasks, when they are old or their owner requests it.

use std::collections::{HashMap, HashSet};

use dayfly_protocol::ids::{FunctionId, TaskId, TenantId};
use tokio_postgres::Row;

use super::task_rows::ids;
use super::{optional, text};
use crate::postgres::connect::Session;
use crate::postgres::faults::Fault;
use crate::postgres::rows::{self, signed};
use crate::tasks::{DeletedTask, ExpiryStep, counted_bytes};

/// Tasks that one step examines.
const STEP: usize = 2_000;

/// Deletes tasks that ended before this time, in one step that begins after `from`.
pub async fn delete_expired(session: &Session, before_ms: u64, from: TaskId) -> Result<ExpiryStep, Fault> {
    let sql = "SELECT id, function FROM tasks WHERE id > $1 ORDER BY id LIMIT $2";
    let found = session.query(sql, &[&from.0.as_slice(), &(STEP as i64)]).await?;
    let Some(last) = found.last() else {
        return Ok(ExpiryStep::default());
    };
    let last = TaskId(rows::bytes(last, 0)?);
    let function = |row: &Row| Ok(FunctionId(rows::bytes(row, 1)?));
    let functions = found.iter().map(function).collect::<Result<HashSet<_>, Fault>>()?;
    let sql = "DELETE FROM printed USING tasks WHERE task = id AND id > $1 AND id <= $2 AND number IS NOT NULL
        AND ended_at_ms < $3 RETURNING tenant, octet_length(pieces)::BIGINT";
    let output_bytes = session
        .query(sql, &[&from.0.as_slice(), &last.0.as_slice(), &signed(before_ms)])
        .await?;
    let bytes_of = |row: &Row| Ok((TenantId(rows::bytes(row, 0)?), rows::unsigned(row, 1)?));
    let mut freed_bytes = output_bytes.iter().map(bytes_of).collect::<Result<Vec<_>, Fault>>()?;
    let sql = "DELETE FROM task_loans USING tasks WHERE task = id AND id > $1 AND id <= $2 AND number IS NOT NULL
        AND ended_at_ms < $3";
    session
        .execute(sql, &[&from.0.as_slice(), &last.0.as_slice(), &signed(before_ms)])
        .await?;
    let sql = "DELETE FROM tasks WHERE id > $1 AND id <= $2 AND number IS NOT NULL AND ended_at_ms < $3
        RETURNING tenant, coalesce(octet_length(arguments), 0)::BIGINT";
    let deleted = session
        .query(sql, &[&from.0.as_slice(), &last.0.as_slice(), &signed(before_ms)])
        .await?;
    for (tenant, bytes) in deleted.iter().map(bytes_of).collect::<Result<Vec<_>, Fault>>()? {
        if counted_bytes(bytes) > 0 {
            freed_bytes.push((tenant, bytes));
        }
    }
    Ok(ExpiryStep {
        next: (found.len() == STEP).then_some(last),
        functions: functions.into_iter().collect(),
        freed_bytes,
    })
}

/// Returns ended tasks of a tag between two numbers.
pub async fn ended(
    session: &Session,
    tenant: TenantId,
    tag: &str,
    [after, up_to]: [u64; 2],
    most: u32,
) -> Result<Vec<(u64, TaskId)>, Fault> {
    let sql = "SELECT number, id FROM tasks WHERE tenant = $1 AND tag = $2 AND number IS NOT NULL AND number > $3
        AND number <= $4 ORDER BY number LIMIT $5";
    let (tenant, tag) = (tenant.0.as_slice(), tag.as_bytes());
    let found = session
        .query(sql, &[&tenant, &tag, &signed(after), &signed(up_to), &i64::from(most)])
        .await?;
    let one = |row: &Row| Ok((rows::unsigned(row, 0)?, TaskId(rows::bytes(row, 1)?)));
    found.iter().map(one).collect()
}

/// Deletes those of `tasks` that ended with numbers up to `up_to`, except tasks with the tags in `but`.
pub async fn delete_tasks(
    session: &Session,
    tenant: TenantId,
    tasks: &[TaskId],
    up_to: u64,
    but: &[String],
) -> Result<Vec<DeletedTask>, Fault> {
    let sql = "DELETE FROM tasks WHERE id = ANY($1) AND tenant = $2 AND number IS NOT NULL AND number <= $3
        AND NOT tag = ANY($4) RETURNING id, tag, memo, coalesce(octet_length(arguments), 0)::BIGINT";
    let but: Vec<&[u8]> = but.iter().map(String::as_bytes).collect();
    let gone = session
        .query(
            sql,
            &[&ids(tasks, |task| &task.0), &tenant.0.as_slice(), &signed(up_to), &but],
        )
        .await?;
    let one = |row: &Row| {
        Ok(DeletedTask {
            id: TaskId(rows::bytes(row, 0)?),
            tag: text(row, 1)?,
            memo: optional(row, 2)?,
            freed_bytes: counted_bytes(rows::unsigned(row, 3)?),
        })
    };
    let mut gone = gone.iter().map(one).collect::<Result<Vec<_>, Fault>>()?;
    let sql = "DELETE FROM printed WHERE task = ANY($1) RETURNING task, octet_length(pieces)::BIGINT";
    let output_bytes = session.query(sql, &[&ids(&gone, |one| &one.id.0)]).await?;
    let sql = "DELETE FROM task_loans WHERE task = ANY($1)";
    session.execute(sql, &[&ids(&gone, |one| &one.id.0)]).await?;
    let bytes_of = |row: &Row| Ok((TaskId(rows::bytes(row, 0)?), rows::unsigned(row, 1)?));
    let output_bytes = output_bytes
        .iter()
        .map(bytes_of)
        .collect::<Result<HashMap<_, _>, Fault>>()?;
    for one in &mut gone {
        one.freed_bytes += output_bytes.get(&one.id).copied().unwrap_or_default();
    }
    Ok(gone)
}
