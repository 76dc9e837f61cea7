//! Functions, endpoints and tasks.

use std::collections::{HashMap, HashSet};

use dayfly_protocol::blob::Blob;
use dayfly_protocol::contents::{Content, Payload};
use dayfly_protocol::error::Failure;
use dayfly_protocol::exception::Exception;
use dayfly_protocol::ids::{CodeHash, ContentHash, EndpointId, FunctionId, TaskId, TenantId};
use dayfly_protocol::tasks::{OutputPiece, ResultOrigin, TaskCounts, TaskOutcome};
use futures_util::{FutureExt, TryStreamExt};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use zerocopy::IntoBytes;

use super::queue::{Epoch, Kind};
use super::{PostgresTasks, contents, failure, forgetting, looking, missing, optional, sharing, text};
use crate::Pending;
use crate::accounts::{Usage, UsageKey};
use crate::postgres::connect::Link;
use crate::postgres::faults::Fault;
use crate::postgres::rows::{self, json, signed, small};
use crate::tasks::{
    EndedTask, Ending, EndpointRecord, FunctionRecord, FunctionSpec, Given, Gone, KeptOutput, Like, Memoized, NewTask,
    PAGE_BYTES, Passed, TaskPage, TaskQuery, TaskRecord, TaskSnapshot, TaskSpec, TaskStore, Tries,
};

/// Selects the columns that [`task_of`] decodes.
macro_rules! task {
    ($($which:literal),+) => {
        concat!(
            "SELECT id, tenant, function, endpoint, tag, priority, walltime_ms, repeatable, deadline_at_ms, submitted_at_ms,
             attempts, retries_left, faults, number, code, message, started_at_ms, ended_at_ms, after, with_answers,
             waiting_at_ms, environment_at_ms, retry_wait_ms, memo, coalesce(octet_length(arguments), 0)::BIGINT FROM tasks ",
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

impl TaskStore for PostgresTasks {
    fn release(&self) -> Pending<()> {
        self.write(self.epoch, |link, epoch| Epoch::give_up(link, epoch).boxed())
    }

    fn load(&self) -> Pending<TaskSnapshot> {
        self.push(Kind::Load, (), |link, ()| load(link).boxed())
    }

    fn register(&self, function: FunctionRecord, code: Blob) -> Pending<FunctionRecord> {
        self.write((function, code), |link, (function, code)| {
            register(link, function, code).boxed()
        })
    }

    fn change(&self, functions: Vec<(FunctionId, FunctionSpec)>) -> Pending<()> {
        self.write(functions, |link, functions| {
            async move {
                for (function, spec) in functions {
                    let sql = "UPDATE functions SET spec = $2 WHERE id = $1";
                    link.execute(sql, &[&function.0.as_slice(), &json(spec)]).await?;
                }
                Ok(())
            }
            .boxed()
        })
    }

    fn remove_functions(&self, functions: Vec<FunctionId>) -> Pending<()> {
        self.write(functions, |link, functions| {
            async {
                let sql = "DELETE FROM functions WHERE id = ANY($1)";
                link.execute(sql, &[&ids(functions, |function| &function.0)]).await?;
                Ok(())
            }
            .boxed()
        })
    }

    fn code(&self, function: FunctionId) -> Pending<Option<Blob>> {
        self.read(function, |link, function| {
            async {
                let sql = "SELECT code FROM functions WHERE id = $1";
                let found = link.query(sql, &[&function.0.as_slice()]).await?;
                found.first().map(|row| blob(row, 0)).transpose()
            }
            .boxed()
        })
    }

    fn endpoint(&self, endpoint: EndpointRecord) -> Pending<EndpointRecord> {
        self.write(endpoint, |link, endpoint| {
            async {
                let sql = "INSERT INTO endpoints (id, name, tenant, spec) VALUES ($1, $2, $3, $4)
                    ON CONFLICT (name) DO UPDATE SET spec = $4 WHERE endpoints.tenant = $3";
                let (id, tenant) = (endpoint.id.0.as_slice(), endpoint.tenant.0.as_slice());
                link.execute(sql, &[&id, &endpoint.name, &tenant, &json(&endpoint.kept())])
                    .await?;
                let sql = "SELECT id, name, tenant, spec FROM endpoints WHERE name = $1";
                let kept = link.query(sql, &[&endpoint.name]).await?;
                endpoint_of(kept.first().ok_or_else(missing)?)
            }
            .boxed()
        })
    }

    fn instance(&self, endpoint: EndpointId, instance: u64) -> Pending<()> {
        self.write((endpoint, instance), |link, (endpoint, instance)| {
            async {
                let sql = "UPDATE endpoints SET instance = $2 WHERE id = $1";
                link.execute(sql, &[&endpoint.0.as_slice(), &instance.to_le_bytes().as_slice()])
                    .await?;
                Ok(())
            }
            .boxed()
        })
    }

    fn remove_endpoint(&self, endpoint: EndpointId) -> Pending<()> {
        self.write(endpoint, |link, endpoint| {
            async {
                let sql = "DELETE FROM endpoints WHERE id = $1";
                link.execute(sql, &[&endpoint.0.as_slice()]).await?;
                Ok(())
            }
            .boxed()
        })
    }

    fn enqueue(&self, tasks: Vec<NewTask>) -> Pending<Vec<bool>> {
        self.write(tasks, |link, tasks| enqueue(link, tasks).boxed())
    }

    fn begin(&self, tasks: Vec<(TaskId, Tries, bool)>) -> Pending<Vec<Given>> {
        self.write(tasks, |link, tasks| begin(link, tasks).boxed())
    }

    fn endings(&self, tasks: Vec<TaskId>) -> Pending<Vec<Option<Ending>>> {
        self.read(tasks, |link, tasks| {
            async {
                let mut found = endings(link, tasks).await?;
                Ok(tasks.iter().map(|task| found.remove(task)).collect())
            }
            .boxed()
        })
    }

    fn end(&self, tasks: Vec<EndedTask>, usage: Vec<(UsageKey, Usage)>) -> Pending<()> {
        self.write((tasks, usage), |link, (tasks, usage)| end(link, tasks, usage).boxed())
    }

    fn keep_printed(&self, printed: Vec<KeptOutput>, full: Vec<TenantId>) -> Pending<Vec<(TenantId, i64)>> {
        self.write((printed, full), |link, (printed, full)| {
            keep_printed(link, printed, full).boxed()
        })
    }

    fn printed(&self, task: TaskId) -> Pending<Option<(u64, Vec<OutputPiece>)>> {
        self.read(task, |link, task| {
            async {
                let sql = "SELECT first, pieces FROM printed WHERE task = $1";
                let found = link.query(sql, &[&task.0.as_slice()]).await?;
                let Some(row) = found.first() else { return Ok(None) };
                Ok(Some((rows::unsigned(row, 0)?, KeptOutput::unpacked(row.try_get(1)?))))
            }
            .boxed()
        })
    }

    fn outcomes(&self, tenant: TenantId, tag: String, after: u64, limit: u32) -> Pending<Vec<TaskOutcome>> {
        self.read((tenant, tag, after, limit), |link, (tenant, tag, after, limit)| {
            async {
                // Rows up to the byte limit, and the first one that exceeds it.
                const PAGE: &str = outcome!(
                    "FROM (SELECT *, sum(octet_length(answer)) OVER (ORDER BY number) - octet_length(answer) AS before
                     FROM (SELECT * FROM tasks WHERE tenant = $1 AND tag = $2 AND number > $3 AND number IS NOT NULL
                     ORDER BY number LIMIT $4) AS first) AS tasks",
                    "WHERE before < $5 ORDER BY number"
                );
                let (tenant, tag, after) = (tenant.0.as_slice(), tag.as_bytes(), signed(*after));
                let most = PAGE_BYTES as i64;
                let found = link
                    .query(PAGE, &[&tenant, &tag, &after, &i64::from(*limit), &most])
                    .await?;
                found.iter().map(outcome_of).collect()
            }
            .boxed()
        })
    }

    fn outcome(&self, task: TaskId) -> Pending<Option<TaskOutcome>> {
        self.read(task, |link, task| {
            async {
                const ONE: &str = outcome!("FROM tasks", "WHERE id = $1 AND number IS NOT NULL");
                let found = link.query(ONE, &[&task.0.as_slice()]).await?;
                let mut found = found.first().map(outcome_of).transpose()?;
                if let Some(failure) = found.as_mut().and_then(|outcome| outcome.error.as_mut()) {
                    failure.exception = exception(link, *task).await?;
                }
                Ok(found)
            }
            .boxed()
        })
    }

    fn task(&self, task: TaskId) -> Pending<Option<TaskRecord>> {
        self.read(task, |link, task| {
            async {
                const ONE: &str = task!("WHERE id = $1");
                let found = link.query(ONE, &[&task.0.as_slice()]).await?;
                let mut found = found.first().map(task_of).transpose()?;
                if let Some((_, Some(failure))) = found.as_mut().and_then(|task| task.ended.as_mut()) {
                    failure.exception = exception(link, *task).await?;
                }
                Ok(found)
            }
            .boxed()
        })
    }

    fn like(&self, like: Like) -> Pending<(Vec<TaskId>, Option<TaskId>)> {
        self.read(like, |link, wanted| looking::like(link, wanted).boxed())
    }

    fn tasks(&self, query: TaskQuery) -> Pending<TaskPage> {
        self.read(query, |link, query| looking::page(link, query).boxed())
    }

    fn tally(&self, tenant: TenantId, tag: String, after: u64, up_to: u64) -> Pending<(TaskCounts, Option<u64>)> {
        self.read((tenant, tag, after, up_to), |link, (tenant, tag, after, up_to)| {
            looking::tally(link, *tenant, tag, *after, *up_to).boxed()
        })
    }

    fn keep_content(&self, tenant: TenantId, content: Content, now_ms: u64) -> Pending<bool> {
        self.write((tenant, content, now_ms), |link, (tenant, content, now_ms)| {
            contents::keep(link, *tenant, *content, *now_ms).boxed()
        })
    }

    fn use_contents(&self, tenant: TenantId, hashes: Vec<ContentHash>, now_ms: u64) -> Pending<Vec<Option<Content>>> {
        self.write((tenant, hashes, now_ms), |link, (tenant, hashes, now_ms)| {
            contents::used(link, *tenant, hashes, *now_ms).boxed()
        })
    }

    fn unused_contents(&self, unused_since_ms: u64) -> Pending<Vec<(TenantId, Content)>> {
        self.write(unused_since_ms, |link, since_ms| {
            contents::unused(link, *since_ms).boxed()
        })
    }

    fn drop_contents(&self, contents: Vec<(TenantId, Content)>) -> Pending<()> {
        self.write(contents, |link, contents| contents::forget(link, contents).boxed())
    }

    fn forget(&self, ended_before_ms: u64, from: TaskId) -> Pending<Passed> {
        self.write((ended_before_ms, from), |link, (before_ms, from)| {
            forgetting::old(link, *before_ms, *from).boxed()
        })
    }

    fn ended(&self, tenant: TenantId, tag: String, after: u64, up_to: u64, most: u32) -> Pending<Vec<(u64, TaskId)>> {
        self.read(
            (tenant, tag, after, up_to, most),
            |link, (tenant, tag, after, up_to, most)| {
                forgetting::ended(link, *tenant, tag, [*after, *up_to], *most).boxed()
            },
        )
    }

    fn forget_these(&self, tenant: TenantId, tasks: Vec<TaskId>, up_to: u64, but: Vec<String>) -> Pending<Vec<Gone>> {
        self.write((tenant, tasks, up_to, but), |link, (tenant, tasks, up_to, but)| {
            forgetting::these(link, *tenant, tasks, *up_to, but).boxed()
        })
    }

    fn memoized(&self, ended_since_ms: u64, most: u32, most_bytes: u64) -> Pending<Vec<Memoized>> {
        self.push(Kind::Load, (ended_since_ms, most, most_bytes), |link, (since_ms, most, bytes)| {
            async {
                // Rows up to the byte limit, and the first one that exceeds it.
                const LAST: &str = "SELECT memo, ended_at_ms, answer, answer_content, bytes
                    FROM (SELECT *, sum(octet_length(answer)) OVER (ORDER BY number DESC) - octet_length(answer) AS before
                     FROM (SELECT * FROM tasks WHERE memo IS NOT NULL AND number IS NOT NULL AND code IS NULL
                     AND ended_at_ms >= $1 ORDER BY number DESC LIMIT $2) AS last) AS tasks
                    LEFT JOIN contents ON contents.tenant = tasks.tenant AND contents.content = answer_content
                    WHERE before < $3 ORDER BY number DESC";
                let (since_ms, most, bytes) = (signed(*since_ms), i64::from(*most), signed(*bytes));
                let found = link.query(LAST, &[&since_ms, &most, &bytes]).await?;
                let one = |row: &Row| {
                    Ok(Memoized {
                        memo: rows::bytes(row, 0)?,
                        answer: payload(row, 2)?,
                        ended_at_ms: rows::unsigned(row, 1)?,
                    })
                };
                found.iter().map(one).collect()
            }
            .boxed()
        })
    }
}

/// Returns a column of ids.
pub(super) fn ids<'a, T>(all: &'a [T], id: impl Fn(&'a T) -> &'a [u8; 16]) -> Vec<&'a [u8]> {
    all.iter().map(|one| id(one).as_slice()).collect()
}

/// Returns a column of numbers.
fn numbers<T, N: Into<i64>>(all: &[T], number: impl Fn(&T) -> N) -> Vec<i64> {
    all.iter().map(|one| number(one).into()).collect()
}

async fn load(link: &Link) -> Result<TaskSnapshot, Fault> {
    let functions = "SELECT id, tenant, name, version, hash, spec, registered_at_ms FROM functions";
    let functions = link.query(functions, &[]).await?;
    let endpoints = link.query("SELECT id, name, tenant, spec FROM endpoints", &[]).await?;
    let instances = link
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
    let mut live = std::pin::pin!(link.stream(LIVE).await?);
    let mut tasks = Vec::new();
    while let Some(row) = live.try_next().await? {
        tasks.push(task_of(&row)?);
    }
    let last = link.query("SELECT coalesce(max(number), 0) FROM tasks", &[]).await?;
    let before: HashSet<TaskId> = tasks.iter().flat_map(|task| &task.spec.after).copied().collect();
    let endings = endings(link, &Vec::from_iter(before)).await?;
    let sql = "SELECT tenant, sum(bytes)::BIGINT FROM contents GROUP BY tenant";
    let contents = link.query(sql, &[]).await?;
    let sql = "SELECT tenant, sum(octet_length(pieces))::BIGINT FROM printed JOIN tasks ON id = task GROUP BY tenant";
    let printed = link.query(sql, &[]).await?;
    let costs = link.query("SELECT tenant, total FROM costs", &[]).await?;
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
        printed: printed.iter().map(used).collect::<Result<_, Fault>>()?,
        costs: costs.iter().map(used).collect::<Result<_, Fault>>()?,
    })
}

async fn register(link: &Link, function: &FunctionRecord, code: &Blob) -> Result<FunctionRecord, Fault> {
    let id = function.id.0.as_slice();
    let tenant = function.tenant.0.as_slice();
    let sql = "SELECT id, tenant, name, version, hash, spec, registered_at_ms FROM functions WHERE id = $1";
    if let Some(known) = link.query(sql, &[&id]).await?.first() {
        return function_of(known);
    }
    let mut function = function.clone();
    let name = function.name.clone().map(String::into_bytes);
    if name.is_some() {
        let sql = "SELECT coalesce(max(version), 0) + 1 FROM functions WHERE tenant = $1 AND name = $2";
        let counted = link.query(sql, &[&tenant, &name]).await?;
        function.version = small(counted.first().ok_or_else(missing)?, 0)?;
    }
    let sql = "INSERT INTO functions (id, tenant, name, version, hash, spec, registered_at_ms, code)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";
    link.execute(
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

async fn enqueue(link: &Link, tasks: &[NewTask]) -> Result<Vec<bool>, Fault> {
    const INSERT: &str =
        "INSERT INTO tasks (id, tenant, function, endpoint, tag, priority, walltime_ms, repeatable, deadline_at_ms,
        submitted_at_ms, attempts, retries_left, faults, arguments, arguments_content, after, with_answers,
        retry_wait_ms, memo)
        SELECT * FROM unnest($1::BYTEA[], $2::BYTEA[], $3::BYTEA[], $4::BYTEA[], $5::BYTEA[], $6::BIGINT[], $7::BIGINT[],
        $8::BOOLEAN[], $9::BIGINT[], $10::BIGINT[], $11::BIGINT[], $12::BIGINT[], $13::BIGINT[], $14::BYTEA[], $15::BYTEA[],
        $16::BYTEA[], $17::BOOLEAN[], $18::BIGINT[], $19::BYTEA[]) ON CONFLICT (id) DO NOTHING RETURNING id";
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
    let inserted = link
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

async fn begin(link: &Link, tasks: &[(TaskId, Tries, bool)]) -> Result<Vec<Given>, Fault> {
    const BEGIN: &str = "UPDATE tasks SET attempts = new.attempts, retries_left = new.retries_left, faults = new.faults
        FROM unnest($1::BYTEA[], $2::BIGINT[], $3::BIGINT[], $4::BIGINT[]) AS new (id, attempts, retries_left, faults)
        WHERE tasks.id = new.id AND number IS NULL";
    link.execute(
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
    given(link, &wanted).await
}

/// Returns the inputs of executions.
async fn given(link: &Link, wanted: &[TaskId]) -> Result<Vec<Given>, Fault> {
    const ARGUMENTS: &str =
        "SELECT id, arguments, arguments_content, bytes, after, with_answers FROM tasks LEFT JOIN contents
        ON contents.tenant = tasks.tenant AND contents.content = arguments_content WHERE id = ANY($1)";
    let found = link.query(ARGUMENTS, &[&ids(wanted, |task| &task.0)]).await?;
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
            let found = link.query(ANSWERS, &[&ids(&before, |task| &task.0)]).await?;
            let answer = |row: &Row| Ok((TaskId(rows::bytes(row, 0)?), (payload(row, 6)?, ran(row)?)));
            found.iter().map(answer).collect::<Result<_, Fault>>()?
        }
    };
    let one = |task: &TaskId| match arguments.remove(task) {
        Some((arguments, before)) => {
            let (answers, ran) = before.iter().map(|task| answers.get(task).cloned().unzip()).unzip();
            Given {
                arguments,
                answers,
                ran,
            }
        }
        None => Given::default(),
    };
    Ok(wanted.iter().map(one).collect())
}

async fn endings(link: &Link, tasks: &[TaskId]) -> Result<HashMap<TaskId, Ending>, Fault> {
    if tasks.is_empty() {
        return Ok(HashMap::new());
    }
    let sql = "SELECT id, tenant, code, message FROM tasks WHERE id = ANY($1) AND number IS NOT NULL";
    let found = link.query(sql, &[&ids(tasks, |task| &task.0)]).await?;
    let ending = |row: &Row| {
        let ending: Ending = (TenantId(rows::bytes(row, 1)?), failure(row, 2)?);
        Ok((TaskId(rows::bytes(row, 0)?), ending))
    };
    found.iter().map(ending).collect()
}

async fn end(link: &Link, tasks: &[EndedTask], usage: &[(UsageKey, Usage)]) -> Result<(), Fault> {
    const END: &str =
        "UPDATE tasks SET number = new.number, attempts = new.attempts, started_at_ms = new.started_at_ms,
        ended_at_ms = new.ended_at_ms, code = new.code, message = new.message, raised = new.raised, answer = new.answer,
        answer_content = new.answer_content, arguments = NULL, arguments_content = NULL,
        waiting_at_ms = new.waiting_at_ms, environment_at_ms = new.environment_at_ms, exception = new.exception
        FROM unnest($1::BYTEA[], $2::BIGINT[], $3::BIGINT[], $4::BIGINT[], $5::BIGINT[], $6::BIGINT[], $7::BYTEA[],
        $8::BOOLEAN[], $9::BYTEA[], $10::BYTEA[], $11::BIGINT[], $12::BIGINT[], $13::TEXT[])
        AS new (id, number, attempts, started_at_ms, ended_at_ms, code, message, raised, answer, answer_content,
        waiting_at_ms, environment_at_ms, exception)
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
    let ended = match tasks.is_empty() {
        true => 0,
        false => {
            link.execute(
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
                ],
            )
            .await?
        }
    };
    // Usage is counted together with the first write of the outcomes, so a repetition adds none.
    if ended > 0 || tasks.is_empty() {
        sharing::add_usage(link, usage).await?;
    }
    Ok(())
}

async fn keep_printed(link: &Link, printed: &[KeptOutput], full: &[TenantId]) -> Result<Vec<(TenantId, i64)>, Fault> {
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
    let packed: Vec<Vec<u8>> = printed.iter().map(KeptOutput::packed).collect();
    let values: [&(dyn ToSql + Sync); 5] = [
        &ids(printed, |one| &one.task.0),
        &ids(printed, |one| &one.endpoint.0),
        &numbers(printed, |one| signed(one.first)),
        &packed,
        &ids(full, |tenant| &tenant.0),
    ];
    let more = link.query(KEEP, &values).await?;
    let one = |row: &Row| Ok((TenantId(rows::bytes(row, 0)?), row.try_get(1)?));
    more.iter().map(one).collect()
}

fn function_of(row: &Row) -> Result<FunctionRecord, Fault> {
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

fn endpoint_of(row: &Row) -> Result<EndpointRecord, Fault> {
    let (id, tenant) = (EndpointId(rows::bytes(row, 0)?), TenantId(rows::bytes(row, 2)?));
    Ok(EndpointRecord::of_kept(
        id,
        row.try_get(1)?,
        tenant,
        rows::parsed(row, 3)?,
    ))
}

pub(super) fn task_of(row: &Row) -> Result<TaskRecord, Fault> {
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
    })
}

fn outcome_of(row: &Row) -> Result<TaskOutcome, Fault> {
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
fn ran(row: &Row) -> Result<ResultOrigin, Fault> {
    Ok(ResultOrigin {
        tenant: TenantId(rows::bytes(row, 9)?),
        function: FunctionId(rows::bytes(row, 10)?),
        endpoint: EndpointId(rows::bytes(row, 11)?),
    })
}

/// Returns the exception of a task's function. Lists omit it because it is long.
async fn exception(link: &Link, task: TaskId) -> Result<Option<Box<Exception>>, Fault> {
    let sql = "SELECT exception FROM tasks WHERE id = $1";
    let found = link.query(sql, &[&task.0.as_slice()]).await?;
    let Some(row) = found.first() else { return Ok(None) };
    let json: Option<&str> = row.try_get(0)?;
    Ok(json.and_then(|json| serde_json::from_str(json).ok()))
}

/// Decodes the ids in one column.
fn after(row: &Row, column: usize) -> Result<Vec<TaskId>, Fault> {
    let bytes: Option<&[u8]> = row.try_get(column)?;
    let ids = bytes.unwrap_or_default().as_chunks::<16>().0;
    Ok(ids.iter().map(|id| TaskId(*id)).collect())
}

/// Encodes a payload for two columns: the bytes, or their hash.
fn columns(payload: &Payload) -> (&[u8], Option<&[u8]>) {
    match payload {
        Payload::Inline(bytes) => (&bytes[..], None),
        Payload::Stored(content) => (&[], Some(content.hash.0.as_slice())),
    }
}

/// Decodes [`columns`], with a content's length in a third column.
fn payload(row: &Row, column: usize) -> Result<Payload, Fault> {
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

fn blob(row: &Row, column: usize) -> Result<Blob, Fault> {
    let bytes: Option<&[u8]> = row.try_get(column)?;
    Ok(bytes.unwrap_or_default().to_vec().into())
}
