//! Handlers for flows.

use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::response::Response;
use axum::routing::{get, post};
use dayfly_protocol::api::ErrorBody;
use dayfly_protocol::bounds;
use dayfly_protocol::error::Code;
use dayfly_protocol::flows::{FlowRequest, FlowStatus};
use dayfly_protocol::ids::FlowId;
use dayfly_protocol::tasks::{MAX_BODY_BYTES, MAX_NAME_BYTES};
use serde::Deserialize;
use utoipa::IntoParams;

use super::Api;
use super::tasks::{WaitQuery, submitter, wait_limit};
use crate::control::Control;
use crate::extractors::{Call, Caller, Document, PathOf, QueryOf, Read, Refusal, Write, refuse};

/// Flows of one list.
const MAX_ENTRIES: u32 = 1_000;

/// Routes of flows.
pub fn routes() -> Router<Api> {
    Router::new()
        .route(
            "/v1/flows",
            post(start_flow)
                .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
                .get(list_flows),
        )
        .route("/v1/flows/{id}", get(show_flow))
        .route("/v1/flows/{id}/cancel", post(cancel_flow))
}

/// Starts a flow: tasks whose functions are called with the results of others. Once this returns, the flow is durable.
#[utoipa::path(post, path = "/v1/flows", request_body = FlowRequest, security(("bearer" = [])),
    responses((status = 201, body = FlowStatus), (status = "default", body = ErrorBody)))]
pub(crate) async fn start_flow(call: Call<Write, (), (), Document<FlowRequest>>) -> Result<Response, Refusal> {
    let Call {
        caller,
        control,
        body: Document(request),
        format,
        ..
    } = call;
    let by = submitter(&control, &caller)?;
    bounds::check("the flow's name", &request.name, MAX_NAME_BYTES)?;
    let about = serde_json::json!({ "name": request.name, "steps": request.steps.len() });
    let subject = request.id.map(|id| id.to_string()).unwrap_or_default();
    control.audit().record(&caller, "flow.start", &subject, &about).await?;
    let started: FlowStatus = control.tasks()?.start_flow(by, request).await?;
    Ok(format.created(started))
}

/// Query of a list of flows.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default)]
pub struct Latest {
    /// Number of flows. Default: 100, maximum: 1,000.
    limit: Option<u32>,
}

/// Lists the caller's flows, the latest first.
#[utoipa::path(get, path = "/v1/flows", params(Latest), security(("bearer" = [])),
    responses((status = 200, body = [FlowStatus]), (status = "default", body = ErrorBody)))]
pub(crate) async fn list_flows(call: Call<Read, (), QueryOf<Latest>>) -> Result<Response, Refusal> {
    let Call {
        caller,
        control,
        query: QueryOf(query),
        format,
        ..
    } = call;
    let limit = query.limit.unwrap_or(100).min(MAX_ENTRIES);
    Ok(format.respond(control.tasks()?.flows(caller.bearer.tenant, limit).await?))
}

async fn flow_at(control: &Control, caller: &Caller, id: FlowId, wait: Duration) -> Result<FlowStatus, Refusal> {
    let found = control.tasks()?.await_flow(id, wait).await?;
    let seen = found.filter(|(tenant, _)| caller.sees(*tenant));
    seen.map(|(_, status)| status)
        .ok_or_else(|| refuse(Code::NotFound, format!("you have no flow {id}")))
}

/// Returns one flow, once it has ended or the wait is over.
#[utoipa::path(get, path = "/v1/flows/{id}", params(("id" = FlowId, Path), WaitQuery), security(("bearer" = [])),
    responses((status = 200, body = FlowStatus), (status = "default", body = ErrorBody)))]
pub(crate) async fn show_flow(call: Call<Read, PathOf<FlowId>, QueryOf<WaitQuery>>) -> Result<Response, Refusal> {
    let Call {
        caller,
        control,
        path: PathOf(path),
        query: QueryOf(query),
        format,
        ..
    } = call;
    let wait = wait_limit(query.wait_ms);
    Ok(format.respond(flow_at(&control, &caller, path, wait).await?))
}

/// Cancels a flow and its tasks. Has no effect on a flow that has ended.
#[utoipa::path(post, path = "/v1/flows/{id}/cancel", params(("id" = FlowId, Path)), security(("bearer" = [])),
    responses((status = 200, body = FlowStatus), (status = "default", body = ErrorBody)))]
pub(crate) async fn cancel_flow(call: Call<Write, PathOf<FlowId>>) -> Result<Response, Refusal> {
    let Call {
        caller,
        control,
        path: PathOf(path),
        format,
        ..
    } = call;
    let flow = flow_at(&control, &caller, path, Duration::ZERO).await?;
    control.audit().record(&caller, "flow.cancel", flow.id, &()).await?;
    control.tasks()?.cancel_flow(flow.id);
    let ended = flow_at(&control, &caller, flow.id, wait_limit(5_000)).await?;
    Ok(format.respond(ended))
}
