//! Handlers for functions.

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use dayfly_durable_tasks::may_run;
use dayfly_protocol::api::ErrorBody;
use dayfly_protocol::bounds;
use dayfly_protocol::functions::{FunctionRegistration, FunctionStatus};
use dayfly_protocol::sharing::{FunctionSharing, MAX_SHARING_BODY_BYTES};
use dayfly_protocol::tasks::MAX_BODY_BYTES;
use dayfly_protocol::tenancy::Role;
use dayfly_store::tasks::FunctionRecord;

use super::Api;
use super::tasks::submitter;
use crate::control::Control;
use crate::extractors::{Call, Caller, Document, PathOf, Read, Refusal, Write};

/// Routes of functions.
pub fn routes() -> Router<Api> {
    let long = DefaultBodyLimit::max(MAX_BODY_BYTES);
    let names = DefaultBodyLimit::max(MAX_SHARING_BODY_BYTES);
    Router::new()
        .route("/v1/functions", post(register_function).layer(long).get(list_functions))
        .route("/v1/functions/{id}", get(show_function).delete(remove_function))
        .route("/v1/functions/{id}/code", get(show_code))
        .route("/v1/functions/{id}/sharing", put(share_function).layer(names))
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

/// Registers a function. Its id is a hash of its contents. Idempotent: registering a function again returns the
/// existing one.
#[utoipa::path(post, path = "/v1/functions", request_body = FunctionRegistration, security(("bearer" = [])),
    responses((status = 201, body = FunctionStatus), (status = "default", body = ErrorBody)))]
pub(crate) async fn register_function(
    call: Call<Write, (), (), Document<FunctionRegistration>>,
) -> Result<Response, Refusal> {
    let Call {
        caller,
        control,
        body: Document(given),
        format,
        ..
    } = call;
    given.check_texts()?;
    if let Some(name) = &given.name {
        let about = serde_json::json!({ "shared_with": given.shared_with, "bytes": given.code.len() });
        control
            .audit()
            .record(&caller, "function.register", name, &about)
            .await?;
    }
    let function = control.tasks()?.register(caller.bearer.tenant, given).await?;
    let status = status_of(&control, &function);
    Ok(format.created(status))
}

/// Lists the functions that the caller may run.
#[utoipa::path(get, path = "/v1/functions", security(("bearer" = [])),
    responses((status = 200, body = [FunctionStatus]), (status = "default", body = ErrorBody)))]
pub(crate) async fn list_functions(call: Call<Read>) -> Result<Response, Refusal> {
    let Call {
        caller,
        control,
        format,
        ..
    } = call;
    let by = submitter(&control, &caller)?;
    let mut functions = control.tasks()?.functions();
    functions.retain(|function| may_run(function, &by));
    functions.sort_by_key(|function| (function.name.clone(), function.version, function.registered_at_ms));
    let shown: Vec<_> = functions.iter().map(|function| status_of(&control, function)).collect();
    Ok(format.respond(shown))
}

/// Returns the function that a path names, if the caller may run it.
fn function_at(control: &Control, caller: &Caller, path: &str) -> Result<Arc<FunctionRecord>, Refusal> {
    let by = submitter(control, caller)?;
    Ok(control.tasks()?.function_named(&by, path)?)
}

/// Returns one function. `NAME` is the latest version of an own function, `OWNER/NAME` (`OWNER%2FNAME` in the path)
/// that of another tenant's. An id, alone or as `@ID` after the name, selects one version.
#[utoipa::path(get, path = "/v1/functions/{id}", params(("id" = String, Path)), security(("bearer" = [])),
    responses((status = 200, body = FunctionStatus), (status = "default", body = ErrorBody)))]
pub(crate) async fn show_function(call: Call<Read, PathOf<String>>) -> Result<Response, Refusal> {
    let Call {
        caller,
        control,
        path: PathOf(path),
        format,
        ..
    } = call;
    let function = function_at(&control, &caller, &path)?;
    Ok(format.respond(status_of(&control, &function)))
}

/// Removes a function of the caller: all versions of a name, or one version by its id. Operators may remove any version
/// by its id. Tasks and flows that use it must have ended, and triggers must be removed. Outcomes remain.
#[utoipa::path(delete, path = "/v1/functions/{id}", params(("id" = String, Path)), security(("bearer" = [])),
    responses((status = 200, body = [FunctionStatus]), (status = "default", body = ErrorBody)))]
pub(crate) async fn remove_function(call: Call<Write, PathOf<String>>) -> Result<Response, Refusal> {
    let Call {
        caller,
        control,
        path: PathOf(path),
        format,
        ..
    } = call;
    let name = path;
    control.audit().record(&caller, "function.remove", &name, &()).await?;
    let any = caller.role >= Role::Operator;
    let gone = control
        .tasks()?
        .remove_function(caller.bearer.tenant, any, name)
        .await?;
    let gone: Vec<_> = gone.iter().map(|function| status_of(&control, function)).collect();
    Ok(format.respond(gone))
}

/// Returns a function's code.
#[utoipa::path(get, path = "/v1/functions/{id}/code", params(("id" = String, Path)), security(("bearer" = [])),
    responses((status = 200, body = Vec<u8>, content_type = "application/octet-stream"), (status = "default", body = ErrorBody)))]
pub(crate) async fn show_code(call: Call<Read, PathOf<String>>) -> Result<Response, Refusal> {
    let Call {
        caller,
        control,
        path: PathOf(path),
        ..
    } = call;
    let function = function_at(&control, &caller, &path)?;
    let code = control.tasks()?.code(function.id).await?;
    Ok(code.0.into_response())
}

/// Sets who may run a function of the caller: one version by its id, or all versions of a name. Accepted tasks
/// continue.
#[utoipa::path(put, path = "/v1/functions/{id}/sharing", params(("id" = String, Path)), request_body = FunctionSharing,
    security(("bearer" = [])), responses((status = 200, body = FunctionStatus), (status = "default", body = ErrorBody)))]
pub(crate) async fn share_function(
    call: Call<Write, PathOf<String>, (), Document<FunctionSharing>>,
) -> Result<Response, Refusal> {
    let Call {
        caller,
        control,
        path: PathOf(path),
        body: Document(sharing),
        format,
        ..
    } = call;
    let name = path;
    bounds::check_shared(&sharing.shared_with)?;
    control
        .audit()
        .record(&caller, "function.share", &name, &sharing)
        .await?;
    let tasks = control.tasks()?;
    let function = tasks.share(caller.bearer.tenant, &name, sharing.shared_with).await?;
    Ok(format.respond(status_of(&control, &function)))
}
