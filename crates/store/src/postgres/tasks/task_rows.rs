//! Conversion of rows to functions, endpoints, tasks and outcomes, and of columns to parameters.

use dayfly_protocol::blob::Blob;
use dayfly_protocol::contents::{Content, Payload};
use dayfly_protocol::ids::{CodeHash, ContentHash, EndpointId, FunctionId, TaskId, TenantId};
use dayfly_protocol::tasks::{ResultOrigin, TaskOutcome};
use tokio_postgres::Row;

use super::{failure, optional, text};
use crate::postgres::faults::Fault;
use crate::postgres::rows::{self, small};
use crate::tasks::{EndpointRecord, FunctionRecord, TaskRecord, TaskSpec, Tries};

/// Selects the columns that [`task_of`] decodes.
macro_rules! task {
    ($($which:literal),+) => {
        concat!(
            "SELECT id, tenant, function, endpoint, tag, priority, walltime_ms, repeatable, deadline_at_ms, submitted_at_ms,
             attempts, retries_left, faults, number, code, message, started_at_ms, ended_at_ms, after, with_answers,
             waiting_at_ms, environment_at_ms, retry_wait_ms, memo, coalesce(octet_length(arguments), 0)::BIGINT,
             argument_bytes FROM tasks ",
            $($which),+
        )
    };
}
pub(super) use task;

/// Selects the columns that [`outcome_of`] decodes.
macro_rules! outcome {
    ($from:literal, $which:literal) => {
        concat!(
            "SELECT id, number, code, message, raised, attempts, answer, answer_content, bytes, \
             tasks.tenant, function, endpoint ",
            $from,
            " LEFT JOIN contents ON contents.tenant = tasks.tenant AND contents.content = answer_content ",
            $which
        )
    };
}
pub(super) use outcome;

/// Returns a column of ids.
pub fn ids<'a, T>(all: &'a [T], id: impl Fn(&'a T) -> &'a [u8; 16]) -> Vec<&'a [u8]> {
    all.iter().map(|one| id(one).as_slice()).collect()
}

/// Returns a column of numbers.
pub fn numbers<T, N: Into<i64>>(all: &[T], number: impl Fn(&T) -> N) -> Vec<i64> {
    all.iter().map(|one| number(one).into()).collect()
}

/// Decodes `id, tenant, name, version, hash, spec, registered_at_ms`.
pub fn function_of(row: &Row) -> Result<FunctionRecord, Fault> {
    let name: Option<&[u8]> = row.try_get(2)?;
    Ok(FunctionRecord {
        id: FunctionId(rows::bytes(row, 0)?),
        tenant: TenantId(rows::bytes(row, 1)?),
        name: name.map(|_| text(row, 2)).transpose()?,
        version: small(row, 3)?,
        hash: CodeHash(rows::bytes(row, 4)?),
        spec: rows::parsed(row, 5)?,
        registered_at_ms: rows::unsigned(row, 6)?,
    })
}

/// Decodes `id, name, tenant, spec`.
pub fn endpoint_of(row: &Row) -> Result<EndpointRecord, Fault> {
    let (id, tenant) = (EndpointId(rows::bytes(row, 0)?), TenantId(rows::bytes(row, 2)?));
    Ok(EndpointRecord::from_stored(
        id,
        row.try_get(1)?,
        tenant,
        rows::parsed(row, 3)?,
    ))
}

/// Decodes the columns of [`task`].
pub fn task_of(row: &Row) -> Result<TaskRecord, Fault> {
    let number: Option<i64> = row.try_get(13)?;
    let error = failure(row, 14)?;
    let priority: i64 = row.try_get(5)?;
    Ok(TaskRecord {
        spec: TaskSpec {
            id: TaskId(rows::bytes(row, 0)?),
            tenant: TenantId(rows::bytes(row, 1)?),
            function: FunctionId(rows::bytes(row, 2)?),
            endpoint: EndpointId(rows::bytes(row, 3)?),
            tag: text(row, 4)?,
            priority: i8::try_from(priority).unwrap_or_default(),
            walltime_ms: small(row, 6)?,
            repeatable: row.try_get(7)?,
            retry_wait_ms: small(row, 22)?,
            deadline_at_ms: rows::unsigned(row, 8)?,
            submitted_at_ms: rows::unsigned(row, 9)?,
            after: after(row, 18)?,
            with_answers: row.try_get(19)?,
            memo: optional(row, 23)?,
        },
        tries: Tries {
            attempts: small(row, 10)?,
            retries_left: small(row, 11)?,
            faults: small(row, 12)?,
        },
        ended: number.map(|number| (number.unsigned_abs(), error)),
        waiting_at_ms: rows::unsigned(row, 20)?,
        environment_at_ms: rows::unsigned(row, 21)?,
        started_at_ms: rows::unsigned(row, 16)?,
        ended_at_ms: rows::unsigned(row, 17)?,
        inline_bytes: rows::unsigned(row, 24)?,
        argument_bytes: row.try_get::<_, Option<i64>>(25)?.map(i64::unsigned_abs),
    })
}

/// Decodes the columns of [`outcome`].
pub fn outcome_of(row: &Row) -> Result<TaskOutcome, Fault> {
    let (answer, content) = payload(row, 6)?.split();
    Ok(TaskOutcome {
        id: TaskId(rows::bytes(row, 0)?),
        number: rows::unsigned(row, 1)?,
        error: failure(row, 2)?,
        raised: row.try_get(4)?,
        attempts: small(row, 5)?,
        answer,
        content,
        result: None,
        foreign: Vec::new(),
        ran: Some(ran(row)?),
    })
}

/// Returns the origin of a result.
pub fn ran(row: &Row) -> Result<ResultOrigin, Fault> {
    Ok(ResultOrigin {
        tenant: TenantId(rows::bytes(row, 9)?),
        function: FunctionId(rows::bytes(row, 10)?),
        endpoint: EndpointId(rows::bytes(row, 11)?),
    })
}

/// Decodes the ids in one column.
pub fn after(row: &Row, column: usize) -> Result<Vec<TaskId>, Fault> {
    let bytes: Option<&[u8]> = row.try_get(column)?;
    let ids = bytes.unwrap_or_default().as_chunks::<16>().0;
    Ok(ids.iter().map(|id| TaskId(*id)).collect())
}

/// Encodes a payload for two columns: the bytes, or their hash.
pub fn columns(payload: &Payload) -> (&[u8], Option<&[u8]>) {
    match payload {
        Payload::Inline(bytes) => (&bytes[..], None),
        Payload::Stored(content) => (&[], Some(content.hash.0.as_slice())),
    }
}

/// Decodes [`columns`], with a content's length in a third column.
pub fn payload(row: &Row, column: usize) -> Result<Payload, Fault> {
    let Some(hash) = optional(row, column + 1)? else {
        return Ok(Payload::Inline(blob(row, column)?));
    };
    // A deleted content has no length; its reader gets an error.
    let bytes: Option<i64> = row.try_get(column + 2)?;
    Ok(Payload::Stored(Content {
        hash: ContentHash(hash),
        bytes: bytes.unwrap_or_default().unsigned_abs(),
    }))
}

/// Decodes bytes; NULL is empty.
pub fn blob(row: &Row, column: usize) -> Result<Blob, Fault> {
    let bytes: Option<&[u8]> = row.try_get(column)?;
    Ok(bytes.unwrap_or_default().to_vec().into())
}
