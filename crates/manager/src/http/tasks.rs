//! Handlers for tasks and their outcomes.

use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::response::Response;
use axum::routing::{get, post};
use dayfly_durable_tasks::{Submitter, TextFilter, name_of};
use dayfly_protocol::api::{ErrorBody, TaskLoans};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::id_pattern::IdPattern;
use dayfly_protocol::ids::{FunctionId, TaskId};
use dayfly_protocol::tasks::{
    AcceptedTasks, Cancellation, CancelledTasks, DeletedTasks, MAX_BODY_BYTES, MAX_WAIT_MS, Outcomes, TaskCounts,
    TaskDeletion, TaskOutcome, TaskOutputPage, TaskState, TaskStatus, TaskSubmission,
};
use dayfly_protocol::tenancy::Role;
use dayfly_store::tasks::{OutcomeFilter, TaskQuery};
use serde::Deserialize;
use utoipa::IntoParams;

use super::Api;
use crate::control::Control;
use crate::extractors::{Call, Caller, Document, PathOf, QueryOf, Read, Refusal, Write, refuse};

/// Entries of one list.
const MAX_ENTRIES: u32 = 10_000;
/// Characters of a text to search for.
const MAX_TEXT: usize = 256;

/// Routes of tasks. Few of them accept long bodies.
pub fn routes() -> Router<Api> {
    let long = DefaultBodyLimit::max(MAX_BODY_BYTES);
    Router::new()
        .route("/v1/tasks", post(submit_tasks).layer(long).get(list_tasks))
        .route("/v1/tasks/counts", get(count_tasks))
        .route("/v1/tasks/cancel", post(cancel_tasks).layer(long))
        .route("/v1/tasks/forget", post(forget_tasks).layer(long))
        .route("/v1/tasks/{id}", get(show_task))
        .route("/v1/tasks/{id}/retry", post(retry_task))
        .route("/v1/tasks/{id}/outcome", get(show_outcome))
        .route("/v1/tasks/{id}/output", get(show_output))
        .route("/v1/tasks/{id}/loans", get(show_loans))
        .route("/v1/outcomes", get(list_outcomes))
}

/// Returns the caller as a submitter of tasks.
pub fn submitter(control: &Control, caller: &Caller) -> Result<Submitter, Failure> {
    Ok(control.tasks()?.submitter(caller.bearer.tenant))
}

/// Submits tasks. Once this returns, they are durable, and each ends with one outcome.
#[utoipa::path(post, path = "/v1/tasks", request_body = TaskSubmission, security(("bearer" = [])),
    responses((status = 201, body = AcceptedTasks), (status = "default", body = ErrorBody)))]
pub(crate) async fn submit_tasks(call: Call<Write, (), (), Document<TaskSubmission>>) -> Result<Response, Refusal> {
    let Call {
        caller,
        control,
        body: Document(submission),
        format,
        ..
    } = call;
    let by = submitter(&control, &caller)?;
    let accepted: AcceptedTasks = control.tasks()?.submit(by, submission).await?;
    Ok(format.created(accepted))
}

/// Query of a list of tasks.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default)]
pub struct Listing {
    /// Only tasks with this tag.
    tag: Option<String>,
    /// Only tasks at this endpoint.
    endpoint: Option<String>,
    /// Only tasks of one function, by its id, or of all versions of a name: `NAME` for an own function, `OWNER/NAME`
    /// for another tenant's.
    function: Option<String>,
    /// Only tasks in this state.
    state: Option<TaskState>,
    /// Only tasks that have ended: with a failure if true, successfully if false.
    failed: Option<bool>,
    /// Only tasks whose id, function, tag, endpoint or failure contains this text, in either case of letters. Searches
    /// one task after the other, which takes some seconds for a million.
    #[param(max_length = 256)]
    text: Option<String>,
    /// Only tasks older than this one: the last task of the previous page.
    before: Option<TaskId>,
    /// Number of tasks. Default: 100, maximum: 10,000.
    limit: Option<u32>,
    /// Tasks of all tenants. For operators, and for the owner of the named endpoint.
    everybody: bool,
}

/// Lists tasks, the latest first: own tasks, or with `everybody` those of all tenants. Messages of other tenants'
/// failures are shown to operators only.
#[utoipa::path(get, path = "/v1/tasks", params(Listing), security(("bearer" = [])),
    responses((status = 200, body = [TaskStatus]), (status = "default", body = ErrorBody)))]
pub(crate) async fn list_tasks(call: Call<Read, (), QueryOf<Listing>>) -> Result<Response, Refusal> {
    let Call {
        caller,
        control,
        query: QueryOf(query),
        format,
        ..
    } = call;
    let asked = query;
    let tasks = control.tasks()?;
    let is_operator = caller.role >= Role::Operator;
    if asked.everybody && !is_operator {
        tasks.cancellation_scope(caller.bearer.tenant, is_operator, true, asked.endpoint.as_deref())?;
    }
    let endpoint = match asked.endpoint {
        None => None,
        // Tasks of a removed endpoint still have its id.
        Some(wanted) => Some(match tasks.endpoint(&wanted) {
            Some(found) => found.id,
            None => wanted
                .parse()
                .map_err(|_| refuse(Code::NotFound, format!("there is no endpoint `{wanted:.80}`")))?,
        }),
    };
    let functions = match &asked.function {
        None => None,
        Some(wanted) => Some(functions_named(&control, &caller, wanted, asked.everybody)?),
    };
    let ended = match (asked.failed, asked.state) {
        (Some(true), _) => Some(OutcomeFilter::Failed),
        (Some(false), _) => Some(OutcomeFilter::Succeeded),
        (None, Some(TaskState::Done)) => Some(OutcomeFilter::Any),
        (None, _) => None,
    };
    let live = asked.state.filter(|state| *state != TaskState::Done);
    if live.is_some() && ended.is_some() {
        return Ok(format.respond(Vec::<TaskStatus>::new()));
    }
    if asked.text.as_ref().is_some_and(|text| text.chars().count() > MAX_TEXT) {
        let text = format!("a text to search for has at most {MAX_TEXT} characters; give a shorter one");
        return Err(refuse(Code::InvalidRequest, text));
    }
    let hides_others = asked.everybody && !is_operator;
    let messages_of = hides_others.then(|| control.tenant_name(caller.bearer.tenant));
    let text = asked.text.filter(|text| !text.is_empty());
    let text = text.map(|text| TextFilter::new(&text, messages_of));
    let query = TaskQuery {
        tenant: (!asked.everybody).then_some(caller.bearer.tenant),
        tag: asked.tag,
        endpoint,
        functions,
        ended,
        before: asked.before,
        limit: asked.limit.unwrap_or(100).min(MAX_ENTRIES),
    };
    let mut listed: Vec<TaskStatus> = tasks.list(query, live, text.as_ref()).await?;
    if hides_others {
        let own = control.tenant_name(caller.bearer.tenant);
        let others = listed.iter_mut().filter(|status| status.owner != own);
        for failure in others.filter_map(|status| status.error.as_mut()) {
            failure.message = "told to the task's owner".into();
        }
    }
    Ok(format.respond(listed))
}

/// Returns the functions that a text names for a list of tasks: one by its id, or all versions of one owner's name.
fn functions_named(
    control: &Control,
    caller: &Caller,
    wanted: &str,
    everybody: bool,
) -> Result<Vec<FunctionId>, Refusal> {
    if let Ok(id) = wanted.parse() {
        return Ok(vec![id]);
    }
    let by = submitter(control, caller)?;
    let tasks = control.tasks()?;
    let mut functions = tasks.functions();
    functions.retain(|function| name_of(function) == wanted && (everybody || function.tenant == by.tenant));
    // A caller who sees all tasks at an endpoint must not learn names of functions from errors.
    if functions.is_empty() && !everybody {
        functions = tasks.functions_named(&by, wanted)?;
    }
    Ok(functions.iter().map(|function| function.id).collect())
}

/// Query of a count of tasks.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default)]
pub struct Counting {
    /// Only tasks with this tag.
    tag: Option<String>,
}

/// Counts the caller's tasks by state.
#[utoipa::path(get, path = "/v1/tasks/counts", params(Counting), security(("bearer" = [])),
    responses((status = 200, body = TaskCounts), (status = "default", body = ErrorBody)))]
pub(crate) async fn count_tasks(call: Call<Read, (), QueryOf<Counting>>) -> Result<Response, Refusal> {
    let Call {
        caller,
        control,
        query: QueryOf(query),
        format,
        ..
    } = call;
    let (tasks, tenant) = (control.tasks()?, caller.bearer.tenant);
    Ok(format.respond(match query.tag {
        None => tasks.counts(tenant),
        Some(tag) => tasks.tag_counts(tenant, &tag).await?,
    }))
}

/// Cancels tasks. Waiting tasks end at once, and running ones are stopped, unless `only_waiting` is set. The part that
/// has a task decides whether it waits: a task that is counted as ended never begins. Callers cancel their own tasks;
/// operators and the owner of the named endpoint may cancel those of all tenants.
#[utoipa::path(post, path = "/v1/tasks/cancel", request_body = Cancellation, security(("bearer" = [])),
    responses((status = 200, body = CancelledTasks), (status = "default", body = ErrorBody)))]
pub(crate) async fn cancel_tasks(call: Call<Write, (), (), Document<Cancellation>>) -> Result<Response, Refusal> {
    let Call {
        caller,
        control,
        body: Document(what),
        format,
        ..
    } = call;
    what.check_texts()?;
    let tasks = control.tasks()?;
    let is_operator = caller.role >= Role::Operator;
    let whose = tasks.cancellation_scope(
        caller.bearer.tenant,
        is_operator,
        what.everybody,
        what.endpoint.as_deref(),
    )?;
    let about = serde_json::json!({
        "tasks": what.tasks.len(), "tag": what.tag, "endpoint": what.endpoint, "everybody": what.everybody,
    });
    let subject = what.tag.clone().or(what.endpoint.clone()).unwrap_or_default();
    control.audit().record(&caller, "task.cancel", &subject, &about).await?;
    Ok(format.respond(tasks.cancel(&whose, what).await))
}

/// Removes tasks of the caller that have ended, with their outcomes, before their retention ends. Also removes their
/// stored results, unless another task uses them.
#[utoipa::path(post, path = "/v1/tasks/forget", request_body = TaskDeletion, security(("bearer" = [])),
    responses((status = 200, body = DeletedTasks), (status = "default", body = ErrorBody)))]
pub(crate) async fn forget_tasks(call: Call<Write, (), (), Document<TaskDeletion>>) -> Result<Response, Refusal> {
    let Call {
        caller,
        control,
        body: Document(what),
        format,
        ..
    } = call;
    what.check_texts()?;
    let about = serde_json::json!({ "tasks": what.tasks.len(), "tag": what.tag });
    let subject = what.tag.clone().unwrap_or_default();
    control.audit().record(&caller, "task.forget", &subject, &about).await?;
    let forgotten: DeletedTasks = control.tasks()?.delete_tasks(caller.bearer.tenant, what).await?;
    Ok(format.respond(forgotten))
}

/// Returns the task that a path names by its id, or by the beginning or end of its id, if the caller may see it.
async fn task_at(control: &Control, caller: &Caller, path: &str) -> Result<TaskStatus, Refusal> {
    let given: IdPattern = path.parse()?;
    let seen = (caller.role < Role::Operator).then_some(caller.bearer.tenant);
    let id = control.tasks()?.resolve(&given, seen).await?;
    let found = control.tasks()?.status(id).await?;
    let seen = found.filter(|(tenant, _)| caller.sees(*tenant));
    seen.map(|(_, status)| status)
        .ok_or_else(|| refuse(Code::NotFound, format!("you have no task {id}")))
}

/// Returns one task.
#[utoipa::path(get, path = "/v1/tasks/{id}", params(("id" = String, Path, pattern = r"^(\.\.\.)?[0-9a-fA-F]{6,32}$")), security(("bearer" = [])),
    responses((status = 200, body = TaskStatus), (status = "default", body = ErrorBody)))]
pub(crate) async fn show_task(call: Call<Read, PathOf<String>>) -> Result<Response, Refusal> {
    let Call {
        caller,
        control,
        path: PathOf(path),
        format,
        ..
    } = call;
    Ok(format.respond(task_at(&control, &caller, &path).await?))
}

/// Submits a failed task of the caller again: a new task with the same function, arguments, tag and options, and without
/// retries. Its arguments are kept for that as long as its outcome: those of more than 4 KiB only if half of the tenant's
/// quota of contents was free when it ended.
#[utoipa::path(post, path = "/v1/tasks/{id}/retry", params(("id" = String, Path, pattern = r"^(\.\.\.)?[0-9a-fA-F]{6,32}$")), security(("bearer" = [])),
    responses((status = 201, body = AcceptedTasks), (status = "default", body = ErrorBody)))]
pub(crate) async fn retry_task(call: Call<Write, PathOf<String>>) -> Result<Response, Refusal> {
    let Call {
        caller,
        control,
        path: PathOf(path),
        format,
        ..
    } = call;
    let status = task_at(&control, &caller, &path).await?;
    let by = submitter(&control, &caller)?;
    let accepted = control.tasks()?.repeat(by, status.id).await?;
    Ok(format.created(accepted))
}

/// Query of a request that waits.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default)]
pub struct WaitQuery {
    /// Milliseconds to wait for the end. Maximum: 30,000.
    pub wait_ms: u64,
}

/// Returns a wait, cut to the maximum.
pub fn wait_limit(wait_ms: u64) -> Duration {
    Duration::from_millis(wait_ms.min(MAX_WAIT_MS))
}

/// Returns the outcome of one task. Fails with `timed_out` if the task has not ended when the wait is over.
#[utoipa::path(get, path = "/v1/tasks/{id}/outcome", params(("id" = String, Path, pattern = r"^(\.\.\.)?[0-9a-fA-F]{6,32}$"), WaitQuery), security(("bearer" = [])),
    responses((status = 200, body = TaskOutcome), (status = "default", body = ErrorBody)))]
pub(crate) async fn show_outcome(call: Call<Read, PathOf<String>, QueryOf<WaitQuery>>) -> Result<Response, Refusal> {
    let Call {
        caller,
        control,
        path: PathOf(path),
        query: QueryOf(query),
        format,
        ..
    } = call;
    let wait = wait_limit(query.wait_ms);
    let status = task_at(&control, &caller, &path).await?;
    let outcome: Option<TaskOutcome> = control.tasks()?.outcome(status.id, wait).await?;
    let outcome = outcome.ok_or_else(|| {
        let text = format!(
            "task {} has not ended: it is {}; ask again",
            status.id,
            status.state.name()
        );
        refuse(Code::TimedOut, text)
    })?;
    Ok(format.respond(if format.is_message_pack() {
        outcome
    } else {
        outcome.shown()
    }))
}

/// Part of a task's output.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default)]
pub struct Reading {
    /// First byte: `next` of the previous response.
    from: u64,
    /// Milliseconds to wait for output. Maximum: 30,000.
    wait_ms: u64,
}

/// Returns a task's standard output and error: the last 64 KiB, for as long as its outcome is kept.
#[utoipa::path(get, path = "/v1/tasks/{id}/output", params(("id" = String, Path, pattern = r"^(\.\.\.)?[0-9a-fA-F]{6,32}$"), Reading), security(("bearer" = [])),
    responses((status = 200, body = TaskOutputPage), (status = "default", body = ErrorBody)))]
pub(crate) async fn show_output(call: Call<Read, PathOf<String>, QueryOf<Reading>>) -> Result<Response, Refusal> {
    let Call {
        caller,
        control,
        path: PathOf(path),
        query: QueryOf(query),
        format,
        ..
    } = call;
    let asked = query;
    let status = task_at(&control, &caller, &path).await?;
    let tasks = control.tasks()?;
    let printed = tasks.output(&status, asked.from, wait_limit(asked.wait_ms)).await?;
    Ok(format.respond(printed))
}

/// Returns what the last execution of a task owned, used, lent and borrowed over time, for as long as its outcome is
/// kept. Fails with `not_found` and the reason if that is not known: nodes that harvest measure executions of 20 ms and
/// more on one worker, from the second one of a worker on. It is known a moment after the task's end.
#[utoipa::path(get, path = "/v1/tasks/{id}/loans", params(("id" = String, Path, pattern = r"^(\.\.\.)?[0-9a-fA-F]{6,32}$")), security(("bearer" = [])),
    responses((status = 200, body = TaskLoans), (status = "default", body = ErrorBody)))]
pub(crate) async fn show_loans(call: Call<Read, PathOf<String>>) -> Result<Response, Refusal> {
    let Call {
        caller,
        control,
        path: PathOf(path),
        format,
        ..
    } = call;
    let status = task_at(&control, &caller, &path).await?;
    let loans: TaskLoans = control.tasks()?.loans(&status).await?;
    Ok(format.respond(loans))
}

/// Query of outcomes.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default)]
pub struct Following {
    /// Only outcomes of tasks with this tag.
    tag: String,
    /// Only outcomes with greater numbers: `next` of the previous response.
    after: u64,
    /// Milliseconds to wait for one. Maximum: 30,000.
    wait_ms: u64,
    /// Number of outcomes. Default and maximum: 10,000.
    limit: Option<u32>,
}

/// Returns the outcomes of one tag in the order of their arrival. A client that continues with `next` gets each once.
#[utoipa::path(get, path = "/v1/outcomes", params(Following), security(("bearer" = [])),
    responses((status = 200, body = Outcomes), (status = "default", body = ErrorBody)))]
pub(crate) async fn list_outcomes(call: Call<Read, (), QueryOf<Following>>) -> Result<Response, Refusal> {
    let Call {
        caller,
        control,
        query: QueryOf(query),
        format,
        ..
    } = call;
    let asked = query;
    let limit = asked.limit.unwrap_or(MAX_ENTRIES).clamp(1, MAX_ENTRIES);
    let tasks = control.tasks()?;
    let outcomes = tasks.outcomes(
        caller.bearer.tenant,
        &asked.tag,
        asked.after,
        wait_limit(asked.wait_ms),
        limit,
    );
    let mut outcomes = outcomes.await?;
    if !format.is_message_pack() {
        outcomes.outcomes = outcomes.outcomes.into_iter().map(TaskOutcome::shown).collect();
    }
    Ok(format.respond(outcomes))
}
