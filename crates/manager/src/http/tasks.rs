//! Functions and tasks over HTTP.

use std::time::Duration;

use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{DefaultBodyLimit, Query, State as Shared};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use dayfly_durable_tasks::{Submitter, may_run, name_of};
use dayfly_protocol::api::ErrorBody;
use dayfly_protocol::bounds;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::functions::{FunctionRegistration, FunctionStatus};
use dayfly_protocol::id_pattern::IdPattern;
use dayfly_protocol::ids::{FunctionId, TaskId};
use dayfly_protocol::sharing::{FunctionSharing, MAX_SHARING_BODY_BYTES};
use dayfly_protocol::tasks::{
    AcceptedTasks, Cancellation, CancelledTasks, DeletedTasks, MAX_BODY_BYTES, MAX_WAIT_MS, Outcomes, TaskCounts,
    TaskDeletion, TaskOutcome, TaskOutputPage, TaskState, TaskStatus, TaskSubmission,
};
use dayfly_protocol::tenancy::Role;
use dayfly_store::tasks::{FunctionRecord, OutcomeFilter, TaskQuery};
use serde::Deserialize;
use utoipa::IntoParams;

use super::Api;
use crate::control::Control;
use crate::extractors::{Caller, Document, NamePath, Packed, Refusal, asked, named, refuse};

/// Most entries of one answer.
const MAX_ENTRIES: u32 = 10_000;

/// Routes of functions and tasks. Few of them take long bodies.
pub fn routes() -> Router<Api> {
    let long = DefaultBodyLimit::max(MAX_BODY_BYTES);
    let names = DefaultBodyLimit::max(MAX_SHARING_BODY_BYTES);
    Router::new()
        .route("/v1/functions", post(register_function).layer(long).get(list_functions))
        .route("/v1/functions/{id}", get(show_function).delete(remove_function))
        .route("/v1/functions/{id}/code", get(show_code))
        .route("/v1/functions/{id}/sharing", put(share_function).layer(names))
        .route("/v1/tasks", post(submit_tasks).layer(long).get(list_tasks))
        .route("/v1/tasks/counts", get(count_tasks))
        .route("/v1/tasks/cancel", post(cancel_tasks).layer(long))
        .route("/v1/tasks/forget", post(forget_tasks).layer(long))
        .route("/v1/tasks/{id}", get(show_task))
        .route("/v1/tasks/{id}/outcome", get(show_outcome))
        .route("/v1/tasks/{id}/output", get(show_output))
        .route("/v1/outcomes", get(list_outcomes))
}

pub fn submitter(control: &Control, caller: &Caller) -> Result<Submitter, Failure> {
    Ok(control.tasks()?.submitter(caller.bearer.tenant))
}

fn status_of(control: &Control, function: &FunctionRecord) -> FunctionStatus {
    let spec = function.spec.clone();
    FunctionStatus {
        id: function.id,
        name: function.name.clone(),
        version: function.version,
        owner: control.tenant_name(function.tenant),
        description: spec.description,
        source: spec.source,
        hash: function.hash,
        form: spec.form,
        runtime: spec.runtime,
        image: spec.image,
        resources: spec.resources,
        repeatable: spec.repeatable,
        shared_with: spec.shared_with,
        registered_at_ms: function.registered_at_ms,
    }
}

/// Keeps a function under an id that says what it is; the same function again is the same.
#[utoipa::path(post, path = "/v1/functions", request_body = FunctionRegistration, security(("bearer" = [])),
    responses((status = 201, body = FunctionStatus), (status = "default", body = ErrorBody)))]
pub(crate) async fn register_function(
    caller: Caller,
    packed: Packed,
    Shared(control): Shared<Api>,
    Document(given): Document<FunctionRegistration>,
) -> Result<Response, Refusal> {
    caller.changes_as(Role::User)?;
    given.check_texts()?;
    if let Some(name) = &given.name {
        let about = serde_json::json!({ "shared_with": given.shared_with, "bytes": given.code.len() });
        control.audit(&caller, "function.register", name, &about).await?;
    }
    let function = control.tasks()?.register(caller.bearer.tenant, given).await?;
    let status = status_of(&control, &function);
    Ok((StatusCode::CREATED, packed.answer(status)).into_response())
}

/// Functions that the caller may run.
#[utoipa::path(get, path = "/v1/functions", security(("bearer" = [])),
    responses((status = 200, body = [FunctionStatus]), (status = "default", body = ErrorBody)))]
pub(crate) async fn list_functions(
    caller: Caller,
    packed: Packed,
    Shared(control): Shared<Api>,
) -> Result<Response, Refusal> {
    let by = submitter(&control, &caller)?;
    let mut functions = control.tasks()?.functions();
    functions.retain(|function| may_run(function, &by));
    functions.sort_by_key(|function| (function.name.clone(), function.version, function.registered_at_ms));
    let shown: Vec<_> = functions.iter().map(|function| status_of(&control, function)).collect();
    Ok(packed.answer(shown))
}

/// The function that a path names, if the caller may run it.
fn function_at(control: &Control, caller: &Caller, path: NamePath) -> Result<std::sync::Arc<FunctionRecord>, Refusal> {
    let name = named(path)?;
    let by = submitter(control, caller)?;
    Ok(control.tasks()?.function_named(&by, &name)?)
}

/// One function: one's own by its name, another tenant's as `OWNER/NAME` (`OWNER%2FNAME` in the path), in its last version; or exactly
/// one version, by its id, or with `@ID` behind the name.
#[utoipa::path(get, path = "/v1/functions/{id}", params(("id" = String, Path)), security(("bearer" = [])),
    responses((status = 200, body = FunctionStatus), (status = "default", body = ErrorBody)))]
pub(crate) async fn show_function(
    caller: Caller,
    packed: Packed,
    Shared(control): Shared<Api>,
    path: NamePath,
) -> Result<Response, Refusal> {
    let function = function_at(&control, &caller, path)?;
    Ok(packed.answer(status_of(&control, &function)))
}

/// Forgets a function of the caller's: all versions of a name, or one version, by its id, of which operators may remove anybody's.
/// Tasks, flows and triggers that use it must have ended or be removed; outcomes stay.
#[utoipa::path(delete, path = "/v1/functions/{id}", params(("id" = String, Path)), security(("bearer" = [])),
    responses((status = 200, body = [FunctionStatus]), (status = "default", body = ErrorBody)))]
pub(crate) async fn remove_function(
    caller: Caller,
    packed: Packed,
    Shared(control): Shared<Api>,
    path: NamePath,
) -> Result<Response, Refusal> {
    caller.changes_as(Role::User)?;
    let name = named(path)?;
    control.audit(&caller, "function.remove", &name, &()).await?;
    let any = caller.role >= Role::Operator;
    let gone = control
        .tasks()?
        .remove_function(caller.bearer.tenant, any, name)
        .await?;
    let gone: Vec<_> = gone.iter().map(|function| status_of(&control, function)).collect();
    Ok(packed.answer(gone))
}

/// A function's code.
#[utoipa::path(get, path = "/v1/functions/{id}/code", params(("id" = String, Path)), security(("bearer" = [])),
    responses((status = 200, body = Vec<u8>, content_type = "application/octet-stream"), (status = "default", body = ErrorBody)))]
pub(crate) async fn show_code(
    caller: Caller,
    Shared(control): Shared<Api>,
    path: NamePath,
) -> Result<Response, Refusal> {
    let function = function_at(&control, &caller, path)?;
    let code = control.tasks()?.code(function.id).await?;
    Ok(code.0.into_response())
}

/// Says who may run a function of the caller's from now on: one version, by its id, or all versions of a name. Tasks that were
/// accepted go on.
#[utoipa::path(put, path = "/v1/functions/{id}/sharing", params(("id" = String, Path)), request_body = FunctionSharing,
    security(("bearer" = [])), responses((status = 200, body = FunctionStatus), (status = "default", body = ErrorBody)))]
pub(crate) async fn share_function(
    caller: Caller,
    packed: Packed,
    Shared(control): Shared<Api>,
    path: NamePath,
    Document(sharing): Document<FunctionSharing>,
) -> Result<Response, Refusal> {
    caller.changes_as(Role::User)?;
    let name = named(path)?;
    bounds::check_shared(&sharing.shared_with)?;
    control.audit(&caller, "function.share", &name, &sharing).await?;
    let tasks = control.tasks()?;
    let function = tasks.share(caller.bearer.tenant, &name, sharing.shared_with).await?;
    Ok(packed.answer(status_of(&control, &function)))
}

/// Accepts tasks. Once this is answered they are on the disk, and each ends in one outcome.
#[utoipa::path(post, path = "/v1/tasks", request_body = TaskSubmission, security(("bearer" = [])),
    responses((status = 201, body = AcceptedTasks), (status = "default", body = ErrorBody)))]
pub(crate) async fn submit_tasks(
    caller: Caller,
    packed: Packed,
    Shared(control): Shared<Api>,
    Document(submission): Document<TaskSubmission>,
) -> Result<Response, Refusal> {
    caller.changes_as(Role::User)?;
    let by = submitter(&control, &caller)?;
    let accepted: AcceptedTasks = control.tasks()?.submit(by, submission).await?;
    Ok((StatusCode::CREATED, packed.answer(accepted)).into_response())
}

/// Which tasks to list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default)]
pub struct Listing {
    /// Of one tag.
    tag: Option<String>,
    /// Of one endpoint.
    endpoint: Option<String>,
    /// Of one function, by its id, or of all versions of a name: `NAME` for the caller's own, `OWNER/NAME` for another tenant's.
    function: Option<String>,
    /// Those that are in this state.
    state: Option<TaskState>,
    /// Those that have ended: not well, or, if this is false, well.
    failed: Option<bool>,
    /// Older ones than this: the last of the page before.
    before: Option<TaskId>,
    /// At most; 100 by default, 10,000 at most.
    limit: Option<u32>,
    /// Everybody's, for operators, and, with an endpoint, for its owner.
    everybody: bool,
}

/// Tasks, the latest first: one's own, or, for operators who ask for them, and for the owner of the endpoint that is named, everybody's.
/// Why others' failed is told to operators alone.
#[utoipa::path(get, path = "/v1/tasks", params(Listing), security(("bearer" = [])),
    responses((status = 200, body = [TaskStatus]), (status = "default", body = ErrorBody)))]
pub(crate) async fn list_tasks(
    caller: Caller,
    packed: Packed,
    Shared(control): Shared<Api>,
    query: Result<Query<Listing>, QueryRejection>,
) -> Result<Response, Refusal> {
    let asked = asked(query)?;
    let tasks = control.tasks()?;
    let is_operator = caller.role >= Role::Operator;
    if asked.everybody && !is_operator {
        tasks.cancellation_scope(caller.bearer.tenant, is_operator, true, asked.endpoint.as_deref())?;
    }
    let endpoint = match asked.endpoint {
        None => None,
        // Of one that is gone, its tasks still tell the id.
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
        return Ok(packed.answer(Vec::<TaskStatus>::new()));
    }
    let query = TaskQuery {
        tenant: (!asked.everybody).then_some(caller.bearer.tenant),
        tag: asked.tag,
        endpoint,
        functions,
        ended,
        before: asked.before,
        limit: asked.limit.unwrap_or(100).min(MAX_ENTRIES),
    };
    let mut listed: Vec<TaskStatus> = tasks.list(query, live).await?;
    if asked.everybody && !is_operator {
        let own = control.tenant_name(caller.bearer.tenant);
        let others = listed.iter_mut().filter(|status| status.owner != own);
        for failure in others.filter_map(|status| status.error.as_mut()) {
            failure.message = "told to the task's owner".into();
        }
    }
    Ok(packed.answer(listed))
}

/// The functions that a text names, for those whose tasks are listed: one by its id, or all of a name of one owner's, with versions.
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
    // Whoever sees everybody's tasks at an endpoint learns no names of functions by that.
    if functions.is_empty() && !everybody {
        functions = tasks.functions_named(&by, wanted)?;
    }
    Ok(functions.iter().map(|function| function.id).collect())
}

/// Which tasks to count.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default)]
pub struct Counting {
    /// Of one tag.
    tag: Option<String>,
}

/// How many of the caller's tasks are where.
#[utoipa::path(get, path = "/v1/tasks/counts", params(Counting), security(("bearer" = [])),
    responses((status = 200, body = TaskCounts), (status = "default", body = ErrorBody)))]
pub(crate) async fn count_tasks(
    caller: Caller,
    packed: Packed,
    Shared(control): Shared<Api>,
    query: Result<Query<Counting>, QueryRejection>,
) -> Result<Response, Refusal> {
    let (tasks, tenant) = (control.tasks()?, caller.bearer.tenant);
    Ok(packed.answer(match asked(query)?.tag {
        None => tasks.counts(tenant),
        Some(tag) => tasks.tag_counts(tenant, &tag).await?,
    }))
}

/// Cancels tasks: those that wait end at once, those that run are ended, unless only those that wait are wanted
/// (`only_waiting`). Whoever has a task decides whether it waits: one that is counted as ended never begins. Callers cancel their
/// own; operators, and the owner of the endpoint that is named, everybody's.
#[utoipa::path(post, path = "/v1/tasks/cancel", request_body = Cancellation, security(("bearer" = [])),
    responses((status = 200, body = CancelledTasks), (status = "default", body = ErrorBody)))]
pub(crate) async fn cancel_tasks(
    caller: Caller,
    packed: Packed,
    Shared(control): Shared<Api>,
    Document(what): Document<Cancellation>,
) -> Result<Response, Refusal> {
    caller.changes_as(Role::User)?;
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
    control.audit(&caller, "task.cancel", &subject, &about).await?;
    Ok(packed.answer(tasks.cancel(&whose, what).await))
}

/// Forgets tasks of the caller's that have ended, with their outcomes, before they are forgotten by themselves. What they answered
/// goes, too, where no other task has it.
#[utoipa::path(post, path = "/v1/tasks/forget", request_body = TaskDeletion, security(("bearer" = [])),
    responses((status = 200, body = DeletedTasks), (status = "default", body = ErrorBody)))]
pub(crate) async fn forget_tasks(
    caller: Caller,
    packed: Packed,
    Shared(control): Shared<Api>,
    Document(what): Document<TaskDeletion>,
) -> Result<Response, Refusal> {
    caller.changes_as(Role::User)?;
    what.check_texts()?;
    let about = serde_json::json!({ "tasks": what.tasks.len(), "tag": what.tag });
    let subject = what.tag.clone().unwrap_or_default();
    control.audit(&caller, "task.forget", &subject, &about).await?;
    let forgotten: DeletedTasks = control.tasks()?.delete_tasks(caller.bearer.tenant, what).await?;
    Ok(packed.answer(forgotten))
}

/// The task that a path names by its id, or by the beginning or end of it, if the caller may see it.
async fn task_at(control: &Control, caller: &Caller, path: NamePath) -> Result<TaskStatus, Refusal> {
    let given: IdPattern = named(path)?.parse()?;
    let seen = (caller.role < Role::Operator).then_some(caller.bearer.tenant);
    let id = control.tasks()?.resolve(&given, seen).await?;
    let found = control.tasks()?.status(id).await?;
    let seen = found.filter(|(tenant, _)| caller.sees(*tenant));
    seen.map(|(_, status)| status)
        .ok_or_else(|| refuse(Code::NotFound, format!("you have no task {id}")))
}

/// One task.
#[utoipa::path(get, path = "/v1/tasks/{id}", params(("id" = String, Path, pattern = r"^(\.\.\.)?[0-9a-fA-F]{6,32}$")), security(("bearer" = [])),
    responses((status = 200, body = TaskStatus), (status = "default", body = ErrorBody)))]
pub(crate) async fn show_task(
    caller: Caller,
    packed: Packed,
    Shared(control): Shared<Api>,
    path: NamePath,
) -> Result<Response, Refusal> {
    Ok(packed.answer(task_at(&control, &caller, path).await?))
}

/// How long to wait.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default)]
pub struct Patience {
    /// Milliseconds to wait for an outcome; 30,000 at most.
    pub wait_ms: u64,
}

pub fn patience(wait_ms: u64) -> Duration {
    Duration::from_millis(wait_ms.min(MAX_WAIT_MS))
}

/// How one task ended. While it has not, and the wait is over, that is `timed_out`.
#[utoipa::path(get, path = "/v1/tasks/{id}/outcome", params(("id" = String, Path, pattern = r"^(\.\.\.)?[0-9a-fA-F]{6,32}$"), Patience), security(("bearer" = [])),
    responses((status = 200, body = TaskOutcome), (status = "default", body = ErrorBody)))]
pub(crate) async fn show_outcome(
    caller: Caller,
    packed: Packed,
    Shared(control): Shared<Api>,
    path: NamePath,
    query: Result<Query<Patience>, QueryRejection>,
) -> Result<Response, Refusal> {
    let wait = patience(asked(query)?.wait_ms);
    let status = task_at(&control, &caller, path).await?;
    let outcome: Option<TaskOutcome> = control.tasks()?.outcome(status.id, wait).await?;
    let outcome = outcome.ok_or_else(|| {
        let text = format!(
            "task {} has not ended: it is {}; ask again",
            status.id,
            status.state.name()
        );
        refuse(Code::TimedOut, text)
    })?;
    Ok(packed.answer(if packed.is() { outcome } else { outcome.shown() }))
}

/// From where on to read what a task prints.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default)]
pub struct Reading {
    /// The first byte that is wanted; what an earlier answer called `next`.
    from: u64,
    /// Milliseconds to wait until there is something; 30,000 at most.
    wait_ms: u64,
}

/// What a task prints on standard output and error: the last 64 KiB, for as long as its outcome is kept.
#[utoipa::path(get, path = "/v1/tasks/{id}/output", params(("id" = String, Path, pattern = r"^(\.\.\.)?[0-9a-fA-F]{6,32}$"), Reading), security(("bearer" = [])),
    responses((status = 200, body = TaskOutputPage), (status = "default", body = ErrorBody)))]
pub(crate) async fn show_output(
    caller: Caller,
    packed: Packed,
    Shared(control): Shared<Api>,
    path: NamePath,
    query: Result<Query<Reading>, QueryRejection>,
) -> Result<Response, Refusal> {
    let asked = asked(query)?;
    let status = task_at(&control, &caller, path).await?;
    let tasks = control.tasks()?;
    let printed = tasks.output(&status, asked.from, patience(asked.wait_ms)).await?;
    Ok(packed.answer(printed))
}

/// Which outcomes to answer.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default)]
pub struct Following {
    /// Of the tasks with this tag.
    tag: String,
    /// Those with greater numbers; what an earlier answer called `next`.
    after: u64,
    /// Milliseconds to wait until there is one; 30,000 at most.
    wait_ms: u64,
    /// At most; 10,000 by default, and at most.
    limit: Option<u32>,
}

/// Outcomes of one tag in the order in which they came, each once to whoever goes on with `next`.
#[utoipa::path(get, path = "/v1/outcomes", params(Following), security(("bearer" = [])),
    responses((status = 200, body = Outcomes), (status = "default", body = ErrorBody)))]
pub(crate) async fn list_outcomes(
    caller: Caller,
    packed: Packed,
    Shared(control): Shared<Api>,
    query: Result<Query<Following>, QueryRejection>,
) -> Result<Response, Refusal> {
    let asked = asked(query)?;
    let limit = asked.limit.unwrap_or(MAX_ENTRIES).clamp(1, MAX_ENTRIES);
    let tasks = control.tasks()?;
    let outcomes = tasks.outcomes(
        caller.bearer.tenant,
        &asked.tag,
        asked.after,
        patience(asked.wait_ms),
        limit,
    );
    let mut outcomes = outcomes.await?;
    if !packed.is() {
        outcomes.outcomes = outcomes.outcomes.into_iter().map(TaskOutcome::shown).collect();
    }
    Ok(packed.answer(outcomes))
}
