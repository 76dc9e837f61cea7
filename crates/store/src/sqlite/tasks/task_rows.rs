//! Conversion of rows to functions, endpoints, tasks and outcomes.

use dayfly_protocol::blob::Blob;
use dayfly_protocol::contents::{Content, Payload};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{CodeHash, ContentHash, EndpointId, FunctionId, TaskId, TenantId};
use dayfly_protocol::tasks::{ResultOrigin, TaskOutcome};
use rusqlite::Row;
use rusqlite::types::ValueRef;

use crate::sqlite::rows::{parsed, unsigned};
use crate::tasks::{EndpointRecord, FunctionRecord, TaskRecord, TaskSpec, Tries};

/// Columns of [`function_of`].
pub const FUNCTION: &str = "id, tenant, name, version, hash, spec, registered_at_ms";

/// Decodes [`FUNCTION`].
pub fn function_of(row: &Row<'_>) -> rusqlite::Result<FunctionRecord> {
    Ok(FunctionRecord {
        id: FunctionId(row.get(0)?),
        tenant: TenantId(row.get(1)?),
        name: row.get(2)?,
        version: row.get(3)?,
        hash: CodeHash(row.get(4)?),
        spec: parsed(row, 5)?,
        registered_at_ms: unsigned(row, 6)?,
    })
}

/// Columns of [`endpoint_of`].
pub const ENDPOINT: &str = "id, name, tenant, spec";

/// Decodes [`ENDPOINT`].
pub fn endpoint_of(row: &Row<'_>) -> rusqlite::Result<EndpointRecord> {
    let (id, tenant) = (EndpointId(row.get(0)?), TenantId(row.get(2)?));
    Ok(EndpointRecord::from_stored(id, row.get(1)?, tenant, parsed(row, 3)?))
}

/// Columns of [`task_of`].
pub const TASK: &str =
    "id, tenant, function, endpoint, tag, priority, walltime_ms, repeatable, deadline_at_ms, submitted_at_ms,
    attempts, retries_left, faults, number, code, message, started_at_ms, ended_at_ms, after, with_answers,
    waiting_at_ms, environment_at_ms, retry_wait_ms, memo, coalesce(length(arguments), 0), argument_bytes";

/// Decodes [`TASK`].
pub fn task_of(row: &Row<'_>) -> rusqlite::Result<TaskRecord> {
    let number: Option<i64> = row.get(13)?;
    let error = failure(row, 14)?;
    Ok(TaskRecord {
        spec: TaskSpec {
            id: TaskId(row.get(0)?),
            tenant: TenantId(row.get(1)?),
            function: FunctionId(row.get(2)?),
            endpoint: EndpointId(row.get(3)?),
            tag: row.get(4)?,
            priority: row.get(5)?,
            walltime_ms: row.get(6)?,
            repeatable: row.get(7)?,
            retry_wait_ms: row.get(22)?,
            deadline_at_ms: unsigned(row, 8)?,
            submitted_at_ms: unsigned(row, 9)?,
            after: after(row, 18)?,
            with_answers: row.get(19)?,
            memo: row.get(23)?,
        },
        tries: Tries {
            attempts: row.get(10)?,
            retries_left: row.get(11)?,
            faults: row.get(12)?,
        },
        ended: number.map(|number| (number.unsigned_abs(), error)),
        waiting_at_ms: unsigned(row, 20)?,
        environment_at_ms: unsigned(row, 21)?,
        started_at_ms: unsigned(row, 16)?,
        ended_at_ms: unsigned(row, 17)?,
        inline_bytes: unsigned(row, 24)?,
        argument_bytes: row.get::<_, Option<i64>>(25)?.map(i64::unsigned_abs),
    })
}

/// Columns of [`outcome_of`], and their tables.
pub const OUTCOME: &str =
    "id, number, code, message, raised, attempts, answer, answer_content, bytes, tasks.tenant, function, endpoint
    FROM tasks LEFT JOIN contents
    ON contents.tenant = tasks.tenant AND contents.content = answer_content";

/// Decodes [`OUTCOME`].
pub fn outcome_of(row: &Row<'_>) -> rusqlite::Result<TaskOutcome> {
    let (answer, content) = payload(row, 6)?.split();
    Ok(TaskOutcome {
        id: TaskId(row.get(0)?),
        number: unsigned(row, 1)?,
        error: failure(row, 2)?,
        raised: row.get(4)?,
        attempts: row.get(5)?,
        answer,
        content,
        result: None,
        foreign: Vec::new(),
        ran: Some(ran(row)?),
    })
}

/// Returns the origin of a result.
pub fn ran(row: &Row<'_>) -> rusqlite::Result<ResultOrigin> {
    Ok(ResultOrigin {
        tenant: TenantId(row.get(9)?),
        function: FunctionId(row.get(10)?),
        endpoint: EndpointId(row.get(11)?),
    })
}

/// Decodes the ids in one column.
pub fn after(row: &Row<'_>, column: usize) -> rusqlite::Result<Vec<TaskId>> {
    let bytes = blob(row, column)?;
    Ok(bytes.as_chunks::<16>().0.iter().map(|id| TaskId(*id)).collect())
}

/// Decodes an error code and a message from two columns.
pub fn failure(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<Failure>> {
    let Some(code) = row.get::<_, Option<u16>>(column)? else {
        return Ok(None);
    };
    // A later release may have written an unknown code.
    let code = Code::from_wire(code).unwrap_or(Code::Internal);
    let message: Option<String> = row.get(column + 1)?;
    Ok(Some(Failure::new(code, message.unwrap_or_default())))
}

/// Encodes a payload for two columns: the bytes, or their hash.
pub fn columns(payload: &Payload) -> (&[u8], Option<[u8; 32]>) {
    match payload {
        Payload::Inline(bytes) => (&bytes[..], None),
        Payload::Stored(content) => (&[], Some(content.hash.0)),
    }
}

/// Decodes [`columns`], with a content's length in a third column.
pub fn payload(row: &Row<'_>, column: usize) -> rusqlite::Result<Payload> {
    let Some(hash) = row.get(column + 1)? else {
        return Ok(Payload::Inline(blob(row, column)?));
    };
    // A deleted content has no length; its reader gets an error.
    let bytes: Option<i64> = row.get(column + 2)?;
    Ok(Payload::Stored(Content {
        hash: ContentHash(hash),
        bytes: bytes.unwrap_or_default().unsigned_abs(),
    }))
}

/// Decodes bytes; NULL is empty.
pub fn blob(row: &Row<'_>, column: usize) -> rusqlite::Result<Blob> {
    Ok(match row.get_ref(column)? {
        ValueRef::Null => Blob::default(),
        bytes => bytes.as_blob()?.to_vec().into(),
    })
}
