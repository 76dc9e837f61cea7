//! The longer operations of the [store of tasks](super::task_store), each within the transaction of its caller.

use std::collections::{HashMap, HashSet};

use dayfly_protocol::blob::Blob;
use dayfly_protocol::contents::Payload;
use dayfly_protocol::error::Failure;
use dayfly_protocol::exception::Exception;
use dayfly_protocol::ids::{EndpointId, TaskId, TenantId};
use dayfly_protocol::tasks::{ResultOrigin, TaskOutcome};
use futures_util::TryStreamExt;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use zerocopy::IntoBytes;

use super::task_rows::{after, columns, endpoint_of, function_of, ids, numbers, outcome, payload, ran, task, task_of};
use super::{failure, missing, teams};
use crate::postgres::connect::Session;
use crate::postgres::faults::Fault;
use crate::postgres::rows::{self, json, signed, small};
use crate::tasks::{
    EndedTask, Ending, FunctionRecord, MAX_SHORT_ARGUMENTS, NewTask, StoredOutput, TaskInputs, TaskSnapshot, Tries,
};
use crate::teams::{Usage, UsageKey};

/// Loads everything except outcomes.
pub async fn load(session: &Session) -> Result<TaskSnapshot, Fault> {
    let functions = "SELECT id, tenant, name, version, hash, spec, registered_at_ms FROM functions";
    let functions = session.query(functions, &[]).await?;
    let endpoints = session
        .query("SELECT id, name, tenant, spec FROM endpoints", &[])
        .await?;
    let instances = session
        .query("SELECT id, instance FROM endpoints WHERE instance IS NOT NULL", &[])
        .await?;
    let instance = |row: &Row| {
        Ok((
            EndpointId(rows::bytes(row, 0)?),
            u64::from_le_bytes(rows::bytes(row, 1)?),
        ))
    };
    const LIVE: &str = task!("WHERE number IS NULL ORDER BY id");
    // Stream the rows, because there may be millions.
    let mut live = std::pin::pin!(session.stream(LIVE).await?);
    let mut tasks = Vec::new();
    while let Some(row) = live.try_next().await? {
        tasks.push(task_of(&row)?);
    }
    let last = session.query("SELECT coalesce(max(number), 0) FROM tasks", &[]).await?;
    let before: HashSet<TaskId> = tasks.iter().flat_map(|task| &task.spec.after).copied().collect();
    let endings = endings(session, &Vec::from_iter(before)).await?;
    let sql = "SELECT tenant, sum(bytes)::BIGINT FROM contents GROUP BY tenant";
    let contents = session.query(sql, &[]).await?;
    let sql = "SELECT tenant, sum(octet_length(arguments))::BIGINT FROM tasks
        WHERE code IS NOT NULL AND octet_length(arguments) > $1 GROUP BY tenant
        UNION ALL SELECT tenant, sum(octet_length(pieces))::BIGINT FROM printed JOIN tasks ON id = task GROUP BY tenant";
    let kept_bytes = session.query(sql, &[&(MAX_SHORT_ARGUMENTS as i32)]).await?;
    let costs = session.query("SELECT tenant, total FROM costs", &[]).await?;
    let used = |row: &Row| Ok((TenantId(rows::bytes(row, 0)?), rows::unsigned(row, 1)?));
    Ok(TaskSnapshot {
        functions: functions.iter().map(function_of).collect::<Result<_, _>>()?,
        endpoints: endpoints.iter().map(endpoint_of).collect::<Result<_, _>>()?,
        instances: instances.iter().map(instance).collect::<Result<_, Fault>>()?,
        tasks,
        last_number: rows::unsigned(last.first().ok_or_else(missing)?, 0)?,
        endings: endings
            .into_iter()
            .map(|(task, (_, failure))| (task, failure))
            .collect(),
        contents: contents.iter().map(used).collect::<Result<_, Fault>>()?,
        kept_bytes: kept_bytes.iter().map(used).collect::<Result<_, Fault>>()?,
        costs: costs.iter().map(used).collect::<Result<_, Fault>>()?,
    })
}

/// Stores a function, unless it is known.
pub async fn register(session: &Session, function: &FunctionRecord, code: &Blob) -> Result<FunctionRecord, Fault> {
    let id = function.id.0.as_slice();
    let tenant = function.tenant.0.as_slice();
    let sql = "SELECT id, tenant, name, version, hash, spec, registered_at_ms FROM functions WHERE id = $1";
    if let Some(known) = session.query(sql, &[&id]).await?.first() {
        return function_of(known);
    }
    let mut function = function.clone();
    let name = function.name.clone().map(String::into_bytes);
    if name.is_some() {
        let sql = "SELECT coalesce(max(version), 0) + 1 FROM functions WHERE tenant = $1 AND name = $2";
        let counted = session.query(sql, &[&tenant, &name]).await?;
        function.version = small(counted.first().ok_or_else(missing)?, 0)?;
    }
    let sql = "INSERT INTO functions (id, tenant, name, version, hash, spec, registered_at_ms, code)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";
    session
        .execute(
            sql,
            &[
                &id,
                &tenant,
                &name,
                &i64::from(function.version),
                &function.hash.0.as_slice(),
                &json(&function.spec),
                &signed(function.registered_at_ms),
                &&code[..],
            ],
        )
        .await?;
    Ok(function)
}

/// Stores tasks. Returns for each whether it is new.
pub async fn enqueue(session: &Session, tasks: &[NewTask]) -> Result<Vec<bool>, Fault> {
    const INSERT: &str =
        "INSERT INTO tasks (id, tenant, function, endpoint, tag, priority, walltime_ms, repeatable, deadline_at_ms,
        submitted_at_ms, attempts, retries_left, faults, arguments, arguments_content, after, with_answers,
        retry_wait_ms, memo, argument_bytes)
        SELECT * FROM unnest($1::BYTEA[], $2::BYTEA[], $3::BYTEA[], $4::BYTEA[], $5::BYTEA[], $6::BIGINT[], $7::BIGINT[],
        $8::BOOLEAN[], $9::BIGINT[], $10::BIGINT[], $11::BIGINT[], $12::BIGINT[], $13::BIGINT[], $14::BYTEA[], $15::BYTEA[],
        $16::BYTEA[], $17::BOOLEAN[], $18::BIGINT[], $19::BYTEA[], $20::BIGINT[]) ON CONFLICT (id) DO NOTHING RETURNING id";
    let tags: Vec<&[u8]> = tasks.iter().map(|task| task.spec.tag.as_bytes()).collect();
    let payloads: Vec<_> = tasks.iter().map(|task| columns(&task.arguments)).collect();
    let here: Vec<&[u8]> = payloads.iter().map(|(here, _)| *here).collect();
    let stored: Vec<Option<&[u8]>> = payloads.iter().map(|(_, stored)| *stored).collect();
    let after = |task: &'_ NewTask| (!task.spec.after.is_empty()).then(|| task.spec.after.as_bytes().to_vec());
    let after: Vec<Option<Vec<u8>>> = tasks.iter().map(after).collect();
    let repeatable: Vec<bool> = tasks.iter().map(|task| task.spec.repeatable).collect();
    let memo = |task: &'_ NewTask| task.spec.memo.map(|key| key.to_vec());
    let memo: Vec<Option<Vec<u8>>> = tasks.iter().map(memo).collect();
    let with_answers: Vec<bool> = tasks.iter().map(|task| task.spec.with_answers).collect();
    let inserted = session
        .query(
            INSERT,
            &[
                &ids(tasks, |task| &task.spec.id.0),
                &ids(tasks, |task| &task.spec.tenant.0),
                &ids(tasks, |task| &task.spec.function.0),
                &ids(tasks, |task| &task.spec.endpoint.0),
                &tags,
                &numbers(tasks, |task| task.spec.priority),
                &numbers(tasks, |task| task.spec.walltime_ms),
                &repeatable,
                &numbers(tasks, |task| signed(task.spec.deadline_at_ms)),
                &numbers(tasks, |task| signed(task.spec.submitted_at_ms)),
                &numbers(tasks, |task| task.tries.attempts),
                &numbers(tasks, |task| task.tries.retries_left),
                &numbers(tasks, |task| task.tries.faults),
                &here,
                &stored,
                &after,
                &with_answers,
                &numbers(tasks, |task| task.spec.retry_wait_ms),
                &memo,
                &numbers(tasks, |task| signed(task.arguments.bytes())),
            ],
        )
        .await?;
    let mut new = inserted
        .iter()
        .map(|row| Ok(TaskId(rows::bytes(row, 0)?)))
        .collect::<Result<HashSet<_>, Fault>>()?;
    // Of a duplicate within the call, only the first is new.
    Ok(tasks.iter().map(|task| new.remove(&task.spec.id)).collect())
}

/// Records executions. Returns the inputs of those whose flag is set.
pub async fn begin(session: &Session, tasks: &[(TaskId, Tries, bool)]) -> Result<Vec<TaskInputs>, Fault> {
    const BEGIN: &str = "UPDATE tasks SET attempts = new.attempts, retries_left = new.retries_left, faults = new.faults
        FROM unnest($1::BYTEA[], $2::BIGINT[], $3::BIGINT[], $4::BIGINT[]) AS new (id, attempts, retries_left, faults)
        WHERE tasks.id = new.id AND number IS NULL";
    session
        .execute(
            BEGIN,
            &[
                &ids(tasks, |(task, _, _)| &task.0),
                &numbers(tasks, |(_, tries, _)| tries.attempts),
                &numbers(tasks, |(_, tries, _)| tries.retries_left),
                &numbers(tasks, |(_, tries, _)| tries.faults),
            ],
        )
        .await?;
    let wanted: Vec<TaskId> = tasks
        .iter()
        .filter(|(_, _, wanted)| *wanted)
        .map(|(task, _, _)| *task)
        .collect();
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    task_inputs(session, &wanted).await
}

/// Returns the inputs of executions.
async fn task_inputs(session: &Session, wanted: &[TaskId]) -> Result<Vec<TaskInputs>, Fault> {
    const ARGUMENTS: &str =
        "SELECT id, arguments, arguments_content, bytes, after, with_answers FROM tasks LEFT JOIN contents
        ON contents.tenant = tasks.tenant AND contents.content = arguments_content WHERE id = ANY($1)";
    let found = session.query(ARGUMENTS, &[&ids(wanted, |task| &task.0)]).await?;
    let mut arguments = HashMap::new();
    let mut before = HashSet::new();
    for row in &found {
        let after = if row.try_get(5)? { after(row, 4)? } else { Vec::new() };
        before.extend(after.iter().copied());
        arguments.insert(TaskId(rows::bytes(row, 0)?), (payload(row, 1)?, after));
    }
    let answers: HashMap<TaskId, (Payload, ResultOrigin)> = match before.is_empty() {
        // Most tasks have no dependencies.
        true => HashMap::new(),
        false => {
            const ANSWERS: &str = outcome!(
                "FROM tasks",
                "WHERE id = ANY($1) AND number IS NOT NULL AND code IS NULL"
            );
            let before = Vec::from_iter(before);
            let found = session.query(ANSWERS, &[&ids(&before, |task| &task.0)]).await?;
            let answer = |row: &Row| Ok((TaskId(rows::bytes(row, 0)?), (payload(row, 6)?, ran(row)?)));
            found.iter().map(answer).collect::<Result<_, Fault>>()?
        }
    };
    let one = |task: &TaskId| match arguments.remove(task) {
        Some((arguments, before)) => {
            let (answers, ran) = before.iter().map(|task| answers.get(task).cloned().unzip()).unzip();
            TaskInputs {
                arguments,
                answers,
                ran,
            }
        }
        None => TaskInputs::default(),
    };
    Ok(wanted.iter().map(one).collect())
}

/// Returns how those of the tasks ended that have ended.
pub async fn endings(session: &Session, tasks: &[TaskId]) -> Result<HashMap<TaskId, Ending>, Fault> {
    if tasks.is_empty() {
        return Ok(HashMap::new());
    }
    let sql = "SELECT id, tenant, code, message FROM tasks WHERE id = ANY($1) AND number IS NOT NULL";
    let found = session.query(sql, &[&ids(tasks, |task| &task.0)]).await?;
    let ending = |row: &Row| {
        let ending: Ending = (TenantId(rows::bytes(row, 1)?), failure(row, 2)?);
        Ok((TaskId(rows::bytes(row, 0)?), ending))
    };
    found.iter().map(ending).collect()
}

/// Stores outcomes and usage.
pub async fn end(session: &Session, tasks: &[EndedTask], usage: &[(UsageKey, Usage)]) -> Result<(), Fault> {
    const END: &str =
        "UPDATE tasks SET number = new.number, attempts = new.attempts, started_at_ms = new.started_at_ms,
        ended_at_ms = new.ended_at_ms, code = new.code, message = new.message, raised = new.raised, answer = new.answer,
        answer_content = new.answer_content, arguments = CASE WHEN new.code IS NOT NULL AND arguments_content IS NULL
        AND (new.keeps OR octet_length(arguments) <= $14) THEN arguments END,
        arguments_content = CASE WHEN new.code IS NOT NULL AND new.keeps THEN arguments_content END,
        waiting_at_ms = new.waiting_at_ms, environment_at_ms = new.environment_at_ms, exception = new.exception
        FROM unnest($1::BYTEA[], $2::BIGINT[], $3::BIGINT[], $4::BIGINT[], $5::BIGINT[], $6::BIGINT[], $7::BYTEA[],
        $8::BOOLEAN[], $9::BYTEA[], $10::BYTEA[], $11::BIGINT[], $12::BIGINT[], $13::TEXT[], $15::BOOLEAN[])
        AS new (id, number, attempts, started_at_ms, ended_at_ms, code, message, raised, answer, answer_content,
        waiting_at_ms, environment_at_ms, exception, keeps)
        WHERE tasks.id = new.id AND tasks.number IS NULL";
    let outcomes: Vec<&TaskOutcome> = tasks.iter().map(|task| &task.outcome).collect();
    let answers: Vec<Payload> = outcomes.iter().map(|outcome| outcome.payload()).collect();
    let answers: Vec<_> = answers.iter().map(columns).collect();
    let here: Vec<&[u8]> = answers.iter().map(|(here, _)| *here).collect();
    let stored: Vec<Option<&[u8]>> = answers.iter().map(|(_, stored)| *stored).collect();
    let error = |outcome: &'_ &TaskOutcome| outcome.error.clone();
    let errors: Vec<Option<Failure>> = outcomes.iter().map(error).collect();
    let code = |error: &Option<Failure>| error.as_ref().map(|failure| i64::from(failure.code as u16));
    let codes: Vec<Option<i64>> = errors.iter().map(code).collect();
    let message = |error: &Option<Failure>| error.as_ref().map(|failure| failure.message.clone().into_bytes());
    let messages: Vec<Option<Vec<u8>>> = errors.iter().map(message).collect();
    let exception = |error: &Option<Failure>| error.as_ref().and_then(Failure::exception_json);
    let exceptions: Vec<Option<String>> = errors.iter().map(exception).collect();
    let raised: Vec<bool> = outcomes.iter().map(|outcome| outcome.raised).collect();
    let keeps: Vec<bool> = tasks.iter().map(|task| task.keeps_arguments).collect();
    let ended = match tasks.is_empty() {
        true => 0,
        false => {
            session
                .execute(
                    END,
                    &[
                        &ids(&outcomes, |outcome| &outcome.id.0),
                        &numbers(&outcomes, |outcome| signed(outcome.number)),
                        &numbers(&outcomes, |outcome| outcome.attempts),
                        &numbers(tasks, |task| signed(task.started_at_ms)),
                        &numbers(tasks, |task| signed(task.ended_at_ms)),
                        &codes,
                        &messages,
                        &raised,
                        &here,
                        &stored,
                        &numbers(tasks, |task| signed(task.waiting_at_ms)),
                        &numbers(tasks, |task| signed(task.environment_at_ms)),
                        &exceptions,
                        &(MAX_SHORT_ARGUMENTS as i32),
                        &keeps,
                    ],
                )
                .await?
        }
    };
    // Usage is counted together with the first write of the outcomes, so a repetition adds none.
    if ended > 0 || tasks.is_empty() {
        teams::add_usage(session, usage).await?;
    }
    Ok(())
}

/// Stores output. Returns the change in stored bytes by tenant.
pub async fn keep_output(
    session: &Session,
    outputs: &[StoredOutput],
    full: &[TenantId],
) -> Result<Vec<(TenantId, i64)>, Fault> {
    // The tasks do not change meanwhile, because there is only one writer.
    const KEEP: &str = "WITH new AS (
            SELECT new.task, tasks.tenant, new.first, new.pieces, coalesce(octet_length(printed.pieces), 0) AS before
            FROM unnest($1::BYTEA[], $2::BYTEA[], $3::BIGINT[], $4::BYTEA[]) AS new (task, endpoint, first, pieces)
            JOIN tasks ON id = new.task AND tasks.endpoint = new.endpoint LEFT JOIN printed ON printed.task = new.task
            WHERE number IS NOT NULL AND NOT tenant = ANY($5::BYTEA[])
        ), kept AS (
            INSERT INTO printed SELECT task, first, pieces FROM new
            ON CONFLICT (task) DO UPDATE SET first = excluded.first, pieces = excluded.pieces
        ) SELECT tenant, (octet_length(pieces) - before)::BIGINT FROM new";
    let packed: Vec<Vec<u8>> = outputs.iter().map(StoredOutput::packed).collect();
    let values: [&(dyn ToSql + Sync); 5] = [
        &ids(outputs, |one| &one.task.0),
        &ids(outputs, |one| &one.endpoint.0),
        &numbers(outputs, |one| signed(one.first)),
        &packed,
        &ids(full, |tenant| &tenant.0),
    ];
    let more = session.query(KEEP, &values).await?;
    let one = |row: &Row| Ok((TenantId(rows::bytes(row, 0)?), row.try_get(1)?));
    more.iter().map(one).collect()
}

/// Returns the exception of a task's function. Lists omit it because it is long.
pub async fn exception(session: &Session, task: TaskId) -> Result<Option<Box<Exception>>, Fault> {
    let sql = "SELECT exception FROM tasks WHERE id = $1";
    let found = session.query(sql, &[&task.0.as_slice()]).await?;
    let Some(row) = found.first() else { return Ok(None) };
    let json: Option<&str> = row.try_get(0)?;
    Ok(json.and_then(|json| serde_json::from_str(json).ok()))
}
