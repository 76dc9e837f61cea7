//! Lists and counts of tasks, in steps.

use dayfly_protocol::ids::{TaskId, TenantId};
use dayfly_protocol::tasks::{TaskCounts, TaskTimes};

use super::missing;
use super::task_rows::{ids, task, task_of};
use crate::postgres::connect::Session;
use crate::postgres::faults::Fault;
use crate::postgres::rows::{self, signed};
use crate::tasks::{IdQuery, LIST_STEP, OutcomeFilter, TALLY_STEP, TaskPage, TaskQuery};

/// The last task that a step examines.
const LAST: &str = "SELECT id FROM tasks WHERE id < $1 ORDER BY id DESC OFFSET $2 LIMIT 1";
/// The last failed task that a step examines. Failed tasks are usually few, and have an index.
const LAST_FAILED: &str = "SELECT id FROM tasks WHERE id < $1 AND code IS NOT NULL ORDER BY id DESC OFFSET $2 LIMIT 1";

/// Selects a page of tasks.
macro_rules! page {
    ($how:literal) => {
        task!(
            "WHERE id < $1 AND id >= $2 AND ($3::BYTEA IS NULL OR tenant = $3) AND ($4::BYTEA IS NULL OR tag = $4)
             AND ($5::BYTEA IS NULL OR endpoint = $5) AND ($6::BYTEA[] IS NULL OR function = ANY($6)) ",
            $how,
            " ORDER BY id DESC LIMIT $7"
        )
    };
}

/// Counts and times, as in `TaskTimes::between`.
const TALLY: &str = "SELECT count(*), count(code), coalesce(max(number), 0),
    coalesce(sum(greatest(coalesce(nullif(waiting, 0), nullif(environment, 0), nullif(started, 0), ended) - submitted, 0)), 0)::BIGINT,
    coalesce(sum(greatest(coalesce(nullif(environment, 0), nullif(started, 0), ended) - waiting, 0))
        FILTER (WHERE waiting > 0), 0)::BIGINT,
    coalesce(sum(greatest(coalesce(nullif(started, 0), ended) - environment, 0)) FILTER (WHERE environment > 0), 0)::BIGINT,
    coalesce(sum(greatest(ended - started, 0)) FILTER (WHERE started > 0), 0)::BIGINT
    FROM (SELECT number, code, submitted_at_ms AS submitted, waiting_at_ms AS waiting, environment_at_ms AS environment,
        started_at_ms AS started, ended_at_ms AS ended FROM tasks
        WHERE tenant = $1 AND tag = $2 AND number > $3 AND number <= $4 AND number IS NOT NULL
        ORDER BY number LIMIT $5) AS ended";

/// Returns tasks among the next [`LIST_STEP`].
pub async fn page(session: &Session, query: &TaskQuery) -> Result<TaskPage, Fault> {
    const ALL: &str = page!("");
    const ENDED: &str = page!("AND number IS NOT NULL");
    const WELL: &str = page!("AND number IS NOT NULL AND code IS NULL");
    const FAILED: &str = page!("AND code IS NOT NULL");
    let (last, page) = match query.ended {
        None => (LAST, ALL),
        Some(OutcomeFilter::Any) => (LAST, ENDED),
        Some(OutcomeFilter::Succeeded) => (LAST, WELL),
        Some(OutcomeFilter::Failed) => (LAST_FAILED, FAILED),
    };
    let before = query.before.unwrap_or(TaskId([0xff; 16]));
    let before = before.0.as_slice();
    let next = session.query(last, &[&before, &i64::from(LIST_STEP - 1)]).await?;
    let next = next.first().map(|row| rows::bytes(row, 0).map(TaskId)).transpose()?;
    let from = next.unwrap_or(TaskId([0; 16]));
    let tenant = query.tenant.as_ref().map(|tenant| tenant.0.as_slice());
    let tag = query.tag.as_ref().map(|tag| tag.as_bytes());
    let endpoint = query.endpoint.as_ref().map(|endpoint| endpoint.0.as_slice());
    let functions = query
        .functions
        .as_ref()
        .map(|functions| ids(functions, |function| &function.0));
    let limit = i64::from(query.limit);
    let found = session
        .query(
            page,
            &[
                &before,
                &from.0.as_slice(),
                &tenant,
                &tag,
                &endpoint,
                &functions,
                &limit,
            ],
        )
        .await?;
    Ok(TaskPage {
        next: next.filter(|_| found.len() < query.limit as usize),
        tasks: found.iter().map(task_of).collect::<Result<_, _>>()?,
    })
}

/// Returns the ids that begin or end as given among the next [`LIST_STEP`].
pub async fn find_ids(session: &Session, wanted: &IdQuery) -> Result<(Vec<TaskId>, Option<TaskId>), Fault> {
    const NEXT: &str = "SELECT id FROM tasks WHERE id < $1 AND id >= $2 ORDER BY id DESC OFFSET $3 LIMIT 1";
    const FOUND: &str = "SELECT id FROM tasks WHERE id < $1 AND id >= $2 AND ($3::BYTEA IS NULL OR tenant = $3)
        AND (encode(id, 'hex') LIKE $4 || '%' OR encode(id, 'hex') LIKE '%' || $4)";
    let (before, from) = (wanted.before.0.as_slice(), wanted.from.0.as_slice());
    let next = session
        .query(NEXT, &[&before, &from, &i64::from(LIST_STEP - 1)])
        .await?;
    let next = next.first().map(|row| rows::bytes(row, 0).map(TaskId)).transpose()?;
    let tenant = wanted.tenant.as_ref().map(|tenant| tenant.0.as_slice());
    let from = next.unwrap_or(wanted.from);
    let found = session
        .query(FOUND, &[&before, &from.0.as_slice(), &tenant, &wanted.digits])
        .await?;
    let found = found.iter().map(|row| rows::bytes(row, 0).map(TaskId));
    Ok((found.collect::<Result<_, _>>()?, next))
}

/// Counts the outcomes among the next [`TALLY_STEP`] of a tag.
pub async fn tally(
    session: &Session,
    tenant: TenantId,
    tag: &str,
    after: u64,
    up_to: u64,
) -> Result<(TaskCounts, Option<u64>), Fault> {
    let (tenant, tag) = (tenant.0.as_slice(), tag.as_bytes());
    let most = i64::from(TALLY_STEP);
    let found = session
        .query(TALLY, &[&tenant, &tag, &signed(after), &signed(up_to), &most])
        .await?;
    let row = found.first().ok_or_else(missing)?;
    let counts = TaskCounts {
        done: rows::unsigned(row, 0)?,
        failed: rows::unsigned(row, 1)?,
        times: TaskTimes {
            queued_ms: rows::unsigned(row, 3)?,
            waiting_ms: rows::unsigned(row, 4)?,
            environment_ms: rows::unsigned(row, 5)?,
            running_ms: rows::unsigned(row, 6)?,
        },
        ..TaskCounts::default()
    };
    let is_full = counts.done == u64::from(TALLY_STEP);
    Ok((counts, is_full.then(|| rows::unsigned(row, 2)).transpose()?))
}
