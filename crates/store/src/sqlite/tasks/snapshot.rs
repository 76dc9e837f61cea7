//! What a manager reads of tasks when it starts.

use std::collections::HashSet;

use dayfly_protocol::ids::{EndpointId, TaskId, TenantId};
use rusqlite::Connection;

use super::inputs::ending;
use super::task_rows::{ENDPOINT, FUNCTION, TASK, endpoint_of, function_of, task_of};
use crate::sqlite::rows::unsigned;
use crate::tasks::{MAX_SHORT_ARGUMENTS, TaskRecord, TaskSnapshot};

/// Reads all but ended tasks.
pub fn of(connection: &Connection) -> rusqlite::Result<TaskSnapshot> {
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
    let last_number = connection.query_row("SELECT coalesce(max(number), 0) FROM tasks", [], |row| unsigned(row, 0))?;
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
    // The first scan is over the index of failed tasks.
    let kept_bytes = connection
        .prepare(
            "SELECT tenant, sum(length(arguments)) FROM tasks WHERE code IS NOT NULL AND length(arguments) > ?1
             GROUP BY tenant
             UNION ALL SELECT tenant, sum(length(pieces)) FROM printed JOIN tasks ON id = task GROUP BY tenant",
        )?
        .query_map([MAX_SHORT_ARGUMENTS], |row| {
            Ok((TenantId(row.get(0)?), unsigned(row, 1)?))
        })?
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
        kept_bytes,
        costs,
    })
}
