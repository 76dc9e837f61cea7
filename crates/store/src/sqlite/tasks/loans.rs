//! What ended tasks lent and borrowed.

use dayfly_protocol::api::LoanSeries;
use dayfly_protocol::ids::TaskId;
use rusqlite::{Connection, OptionalExtension, Transaction, params};

use crate::tasks::StoredLoans;

/// The table.
pub const TABLE: &str = "CREATE TABLE task_loans (task BLOB PRIMARY KEY, series BLOB NOT NULL)";

/// Stores the loans of the last executions of tasks that have ended.
pub fn keep(transaction: &Transaction<'_>, loans: &[(StoredLoans, Vec<u8>)]) -> rusqlite::Result<()> {
    let mut keep = transaction.prepare_cached(
        "INSERT OR REPLACE INTO task_loans SELECT id, ?4 FROM tasks
         WHERE id = ?1 AND endpoint = ?2 AND attempts = ?3 AND number IS NOT NULL",
    )?;
    for (one, series) in loans {
        keep.execute(params![one.attempt.task.0, one.endpoint.0, one.attempt.number, series])?;
    }
    Ok(())
}

/// The loans of a task.
pub fn find(connection: &Connection, task: TaskId) -> rusqlite::Result<Option<LoanSeries>> {
    let found = connection
        .prepare_cached("SELECT series FROM task_loans WHERE task = ?1")?
        .query_row([task.0], |row| Ok(StoredLoans::unpacked(row.get_ref(0)?.as_blob()?)))
        .optional()?;
    Ok(found.flatten())
}
