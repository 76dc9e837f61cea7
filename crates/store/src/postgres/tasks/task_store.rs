//! The [store of tasks](TaskStore): each operation becomes a command for the [queue](super::queue).

use dayfly_protocol::api::LoanSeries;
use dayfly_protocol::blob::Blob;
use dayfly_protocol::contents::{Content, Payload};
use dayfly_protocol::ids::{ContentHash, EndpointId, FunctionId, TaskId, TenantId};
use dayfly_protocol::tasks::{OutputPiece, TaskCounts, TaskOutcome};
use futures_util::FutureExt;
use tokio_postgres::Row;

use super::queue::{Epoch, Kind};
use super::task_rows::{blob, endpoint_of, ids, outcome, outcome_of, payload, task, task_of};
use super::{PostgresTasks, contents, loans, missing, operations, queries, retention};
use crate::Pending;
use crate::postgres::rows::{self, json, signed};
use crate::tasks::{
    DeletedTask, EndedTask, Ending, EndpointRecord, ExpiryStep, FunctionRecord, FunctionSpec, IdQuery, ListedContent,
    Memoized, NewTask, PAGE_BYTES, StoredLoans, StoredOutput, TaskInputs, TaskPage, TaskQuery, TaskRecord,
    TaskSnapshot, TaskStore, Tries,
};
use crate::teams::{Usage, UsageKey};

impl TaskStore for PostgresTasks {
    fn release(&self) -> Pending<()> {
        self.write(self.epoch, |session, epoch| Epoch::give_up(session, epoch).boxed())
    }

    fn load(&self) -> Pending<TaskSnapshot> {
        self.push(Kind::Load, (), |session, ()| operations::load(session).boxed())
    }

    fn register(&self, function: FunctionRecord, code: Blob) -> Pending<FunctionRecord> {
        self.write((function, code), |session, (function, code)| {
            operations::register(session, function, code).boxed()
        })
    }

    fn change(&self, functions: Vec<(FunctionId, FunctionSpec)>) -> Pending<()> {
        self.write(functions, |session, functions| {
            async move {
                for (function, spec) in functions {
                    let sql = "UPDATE functions SET spec = $2 WHERE id = $1";
                    session.execute(sql, &[&function.0.as_slice(), &json(spec)]).await?;
                }
                Ok(())
            }
            .boxed()
        })
    }

    fn remove_functions(&self, functions: Vec<FunctionId>) -> Pending<()> {
        self.write(functions, |session, functions| {
            async {
                let sql = "DELETE FROM functions WHERE id = ANY($1)";
                session.execute(sql, &[&ids(functions, |function| &function.0)]).await?;
                Ok(())
            }
            .boxed()
        })
    }

    fn code(&self, function: FunctionId) -> Pending<Option<Blob>> {
        self.read(function, |session, function| {
            async {
                let sql = "SELECT code FROM functions WHERE id = $1";
                let found = session.query(sql, &[&function.0.as_slice()]).await?;
                found.first().map(|row| blob(row, 0)).transpose()
            }
            .boxed()
        })
    }

    fn kept_arguments(&self, task: TaskId) -> Pending<Option<Payload>> {
        self.read(task, |session, task| {
            async {
                let sql = "SELECT arguments, arguments_content, bytes FROM tasks LEFT JOIN contents
                    ON contents.tenant = tasks.tenant AND contents.content = arguments_content
                    WHERE id = $1 AND code IS NOT NULL AND (arguments IS NOT NULL OR bytes IS NOT NULL)";
                let found = session.query(sql, &[&task.0.as_slice()]).await?;
                found.first().map(|row| payload(row, 0)).transpose()
            }
            .boxed()
        })
    }

    fn endpoint(&self, endpoint: EndpointRecord) -> Pending<EndpointRecord> {
        self.write(endpoint, |session, endpoint| {
            async {
                let sql = "INSERT INTO endpoints (id, name, tenant, spec) VALUES ($1, $2, $3, $4)
                    ON CONFLICT (name) DO UPDATE SET spec = $4 WHERE endpoints.tenant = $3";
                let (id, tenant) = (endpoint.id.0.as_slice(), endpoint.tenant.0.as_slice());
                session
                    .execute(sql, &[&id, &endpoint.name, &tenant, &json(&endpoint.stored())])
                    .await?;
                let sql = "SELECT id, name, tenant, spec FROM endpoints WHERE name = $1";
                let kept = session.query(sql, &[&endpoint.name]).await?;
                endpoint_of(kept.first().ok_or_else(missing)?)
            }
            .boxed()
        })
    }

    fn instance(&self, endpoint: EndpointId, instance: u64) -> Pending<()> {
        self.write((endpoint, instance), |session, (endpoint, instance)| {
            async {
                let sql = "UPDATE endpoints SET instance = $2 WHERE id = $1";
                session
                    .execute(sql, &[&endpoint.0.as_slice(), &instance.to_le_bytes().as_slice()])
                    .await?;
                Ok(())
            }
            .boxed()
        })
    }

    fn remove_endpoint(&self, endpoint: EndpointId) -> Pending<()> {
        self.write(endpoint, |session, endpoint| {
            async {
                let sql = "DELETE FROM endpoints WHERE id = $1";
                session.execute(sql, &[&endpoint.0.as_slice()]).await?;
                Ok(())
            }
            .boxed()
        })
    }

    fn enqueue(&self, tasks: Vec<NewTask>) -> Pending<Vec<bool>> {
        self.write(tasks, |session, tasks| operations::enqueue(session, tasks).boxed())
    }

    fn begin(&self, tasks: Vec<(TaskId, Tries, bool)>) -> Pending<Vec<TaskInputs>> {
        self.write(tasks, |session, tasks| operations::begin(session, tasks).boxed())
    }

    fn endings(&self, tasks: Vec<TaskId>) -> Pending<Vec<Option<Ending>>> {
        self.read(tasks, |session, tasks| {
            async {
                let mut found = operations::endings(session, tasks).await?;
                Ok(tasks.iter().map(|task| found.remove(task)).collect())
            }
            .boxed()
        })
    }

    fn end(&self, tasks: Vec<EndedTask>, usage: Vec<(UsageKey, Usage)>) -> Pending<()> {
        self.write((tasks, usage), |session, (tasks, usage)| {
            operations::end(session, tasks, usage).boxed()
        })
    }

    fn keep_output(&self, outputs: Vec<StoredOutput>, full: Vec<TenantId>) -> Pending<Vec<(TenantId, i64)>> {
        self.write((outputs, full), |session, (outputs, full)| {
            operations::keep_output(session, outputs, full).boxed()
        })
    }

    fn output(&self, task: TaskId) -> Pending<Option<(u64, Vec<OutputPiece>)>> {
        self.read(task, |session, task| {
            async {
                let sql = "SELECT first, pieces FROM printed WHERE task = $1";
                let found = session.query(sql, &[&task.0.as_slice()]).await?;
                let Some(row) = found.first() else { return Ok(None) };
                Ok(Some((rows::unsigned(row, 0)?, StoredOutput::unpacked(row.try_get(1)?))))
            }
            .boxed()
        })
    }

    fn keep_loans(&self, loans: Vec<StoredLoans>) -> Pending<()> {
        self.write(loans, |session, loans| loans::keep(session, loans).boxed())
    }

    fn loans(&self, task: TaskId) -> Pending<Option<LoanSeries>> {
        self.read(task, |session, task| loans::find(session, *task).boxed())
    }

    fn outcomes(&self, tenant: TenantId, tag: String, after: u64, limit: u32) -> Pending<Vec<TaskOutcome>> {
        self.read((tenant, tag, after, limit), |session, (tenant, tag, after, limit)| {
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
                let found = session
                    .query(PAGE, &[&tenant, &tag, &after, &i64::from(*limit), &most])
                    .await?;
                found.iter().map(outcome_of).collect()
            }
            .boxed()
        })
    }

    fn outcome(&self, task: TaskId) -> Pending<Option<TaskOutcome>> {
        self.read(task, |session, task| {
            async {
                const ONE: &str = outcome!("FROM tasks", "WHERE id = $1 AND number IS NOT NULL");
                let found = session.query(ONE, &[&task.0.as_slice()]).await?;
                let mut found = found.first().map(outcome_of).transpose()?;
                if let Some(failure) = found.as_mut().and_then(|outcome| outcome.error.as_mut()) {
                    failure.exception = operations::exception(session, *task).await?;
                }
                Ok(found)
            }
            .boxed()
        })
    }

    fn task(&self, task: TaskId) -> Pending<Option<TaskRecord>> {
        self.read(task, |session, task| {
            async {
                const ONE: &str = task!("WHERE id = $1");
                let found = session.query(ONE, &[&task.0.as_slice()]).await?;
                let mut found = found.first().map(task_of).transpose()?;
                if let Some((_, Some(failure))) = found.as_mut().and_then(|task| task.ended.as_mut()) {
                    failure.exception = operations::exception(session, *task).await?;
                }
                Ok(found)
            }
            .boxed()
        })
    }

    fn find_ids(&self, wanted: IdQuery) -> Pending<(Vec<TaskId>, Option<TaskId>)> {
        self.read(wanted, |session, wanted| queries::find_ids(session, wanted).boxed())
    }

    fn tasks(&self, query: TaskQuery) -> Pending<TaskPage> {
        self.read(query, |session, query| queries::page(session, query).boxed())
    }

    fn tally(&self, tenant: TenantId, tag: String, after: u64, up_to: u64) -> Pending<(TaskCounts, Option<u64>)> {
        self.read((tenant, tag, after, up_to), |session, (tenant, tag, after, up_to)| {
            queries::tally(session, *tenant, tag, *after, *up_to).boxed()
        })
    }

    fn keep_content(&self, tenant: TenantId, content: Content, now_ms: u64) -> Pending<bool> {
        self.write((tenant, content, now_ms), |session, (tenant, content, now_ms)| {
            contents::keep(session, *tenant, *content, *now_ms).boxed()
        })
    }

    fn use_contents(&self, tenant: TenantId, hashes: Vec<ContentHash>, now_ms: u64) -> Pending<Vec<Option<Content>>> {
        self.write((tenant, hashes, now_ms), |session, (tenant, hashes, now_ms)| {
            contents::used(session, *tenant, hashes, *now_ms).boxed()
        })
    }

    fn unused_contents(&self, unused_since_ms: u64) -> Pending<Vec<(TenantId, Content)>> {
        self.write(unused_since_ms, |session, since_ms| {
            contents::unused(session, *since_ms).boxed()
        })
    }

    fn list_contents(&self, tenant: TenantId, after: Option<ContentHash>, limit: u32) -> Pending<Vec<ListedContent>> {
        self.read((tenant, after, limit), |session, (tenant, after, limit)| {
            contents::list(session, *tenant, *after, *limit).boxed()
        })
    }

    fn drop_contents(&self, contents: Vec<(TenantId, Content)>) -> Pending<()> {
        self.write(contents, |session, contents| {
            contents::delete(session, contents).boxed()
        })
    }

    fn delete_expired(&self, ended_before_ms: u64, from: TaskId) -> Pending<ExpiryStep> {
        self.write((ended_before_ms, from), |session, (before_ms, from)| {
            retention::delete_expired(session, *before_ms, *from).boxed()
        })
    }

    fn ended(&self, tenant: TenantId, tag: String, after: u64, up_to: u64, most: u32) -> Pending<Vec<(u64, TaskId)>> {
        self.read(
            (tenant, tag, after, up_to, most),
            |session, (tenant, tag, after, up_to, most)| {
                retention::ended(session, *tenant, tag, [*after, *up_to], *most).boxed()
            },
        )
    }

    fn delete_tasks(
        &self,
        tenant: TenantId,
        tasks: Vec<TaskId>,
        up_to: u64,
        but: Vec<String>,
    ) -> Pending<Vec<DeletedTask>> {
        self.write((tenant, tasks, up_to, but), |session, (tenant, tasks, up_to, but)| {
            retention::delete_tasks(session, *tenant, tasks, *up_to, but).boxed()
        })
    }

    fn memoized(&self, ended_since_ms: u64, most: u32, most_bytes: u64) -> Pending<Vec<Memoized>> {
        self.push(Kind::Load, (ended_since_ms, most, most_bytes), |session, (since_ms, most, bytes)| {
            async {
                // Rows up to the byte limit, and the first one that exceeds it.
                const LAST: &str = "SELECT memo, ended_at_ms, answer, answer_content, bytes
                    FROM (SELECT *, sum(octet_length(answer)) OVER (ORDER BY number DESC) - octet_length(answer) AS before
                     FROM (SELECT * FROM tasks WHERE memo IS NOT NULL AND number IS NOT NULL AND code IS NULL
                     AND ended_at_ms >= $1 ORDER BY number DESC LIMIT $2) AS last) AS tasks
                    LEFT JOIN contents ON contents.tenant = tasks.tenant AND contents.content = answer_content
                    WHERE before < $3 ORDER BY number DESC";
                let (since_ms, most, bytes) = (signed(*since_ms), i64::from(*most), signed(*bytes));
                let found = session.query(LAST, &[&since_ms, &most, &bytes]).await?;
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
