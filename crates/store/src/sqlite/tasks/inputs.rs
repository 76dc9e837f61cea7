//! What is read of a task and its dependencies: inputs, endings and exceptions.

use dayfly_protocol::contents::Payload;
use dayfly_protocol::exception::Exception;
use dayfly_protocol::ids::{TaskId, TenantId};
use rusqlite::{Connection, OptionalExtension};

use super::task_rows::{OUTCOME, after, failure, payload, ran};
use crate::tasks::{Ending, TaskInputs};

const ARGUMENTS: &str = "SELECT arguments, arguments_content, bytes, after, with_answers FROM tasks LEFT JOIN contents
    ON contents.tenant = tasks.tenant AND contents.content = arguments_content WHERE id = ?1";

/// Returns the inputs of a task's execution.
pub fn task_inputs(connection: &Connection, task: TaskId) -> rusqlite::Result<TaskInputs> {
    let found = connection
        .prepare_cached(ARGUMENTS)?
        .query_row([task.0], |row| {
            let before = if row.get(4)? { after(row, 3)? } else { Vec::new() };
            Ok((payload(row, 0)?, before))
        })
        .optional()?;
    let Some((arguments, before)) = found else {
        return Ok(TaskInputs::default());
    };
    // Most tasks have no dependencies.
    if before.is_empty() {
        return Ok(TaskInputs {
            arguments,
            ..TaskInputs::default()
        });
    }
    let mut answer = connection.prepare_cached(&format!(
        "SELECT {OUTCOME} WHERE id = ?1 AND number IS NOT NULL AND code IS NULL"
    ))?;
    let mut inputs = TaskInputs {
        arguments,
        ..TaskInputs::default()
    };
    for task in &before {
        let found = answer.query_row([task.0], |row| Ok((payload(row, 6)?, ran(row)?)));
        let (answer, ran) = found.optional()?.unzip();
        inputs.answers.push(answer);
        inputs.ran.push(ran);
    }
    Ok(inputs)
}

/// Returns the kept arguments of a failed task.
pub fn kept_arguments(connection: &Connection, task: TaskId) -> rusqlite::Result<Option<Payload>> {
    connection
        .prepare_cached(&format!(
            "{ARGUMENTS} AND code IS NOT NULL AND (arguments IS NOT NULL OR bytes IS NOT NULL)"
        ))?
        .query_row([task.0], |row| payload(row, 0))
        .optional()
}

/// Returns how a task ended, if it has.
pub fn ending(connection: &Connection, task: TaskId) -> rusqlite::Result<Option<Ending>> {
    connection
        .prepare_cached("SELECT tenant, code, message FROM tasks WHERE id = ?1 AND number IS NOT NULL")?
        .query_row([task.0], |row| Ok((TenantId(row.get(0)?), failure(row, 1)?)))
        .optional()
}

/// Returns the exception of a task's function. Lists omit it because it is long.
pub fn exception(connection: &Connection, task: TaskId) -> rusqlite::Result<Option<Box<Exception>>> {
    let json: Option<String> = connection
        .prepare_cached("SELECT exception FROM tasks WHERE id = ?1")?
        .query_row([task.0], |row| row.get(0))?;
    Ok(json.and_then(|json| serde_json::from_str(&json).ok()))
}
