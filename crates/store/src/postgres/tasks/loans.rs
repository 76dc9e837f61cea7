//! What ended tasks lent and borrowed.

use dayfly_protocol::api::LoanSeries;
use dayfly_protocol::ids::TaskId;
use tokio_postgres::types::ToSql;

use super::task_rows::{ids, numbers};
use crate::postgres::connect::Session;
use crate::postgres::faults::Fault;
use crate::tasks::StoredLoans;

/// Stores the loans of the last executions of tasks that have ended. Each task may be there once.
pub async fn keep(session: &Session, loans: &[StoredLoans]) -> Result<(), Fault> {
    // The tasks do not change meanwhile, because there is only one writer.
    const KEEP: &str = "INSERT INTO task_loans SELECT new.task, new.series
        FROM unnest($1::BYTEA[], $2::BYTEA[], $3::BIGINT[], $4::BYTEA[]) AS new (task, endpoint, attempt, series)
        JOIN tasks ON id = new.task AND tasks.endpoint = new.endpoint AND attempts = new.attempt
        WHERE number IS NOT NULL ON CONFLICT (task) DO UPDATE SET series = excluded.series";
    let packed: Vec<Vec<u8>> = loans.iter().map(StoredLoans::packed).collect();
    let values: [&(dyn ToSql + Sync); 4] = [
        &ids(loans, |one| &one.attempt.task.0),
        &ids(loans, |one| &one.endpoint.0),
        &numbers(loans, |one| one.attempt.number),
        &packed,
    ];
    session.execute(KEEP, &values).await?;
    Ok(())
}

/// The loans of a task.
pub async fn find(session: &Session, task: TaskId) -> Result<Option<LoanSeries>, Fault> {
    let found = session
        .query("SELECT series FROM task_loans WHERE task = $1", &[&task.0.as_slice()])
        .await?;
    let Some(row) = found.first() else { return Ok(None) };
    Ok(StoredLoans::unpacked(row.try_get(0)?))
}
