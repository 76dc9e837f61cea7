//! Flows over HTTP.

use axum::Router;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Path, Query, State as Shared};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use dayfly_protocol::api::ErrorBody;
use dayfly_protocol::bounds;
use dayfly_protocol::error::Code;
use dayfly_protocol::flows::{FlowRequest, FlowStatus};
use dayfly_protocol::ids::FlowId;
use dayfly_protocol::tasks::{MAX_BODY_BYTES, MAX_NAME_BYTES};
use dayfly_protocol::tenancy::Role;
use serde::Deserialize;
use utoipa::IntoParams;

use super::Api;
use super::tasks::{Patience, patience, submitter};
use crate::control::Control;
use crate::extractors::{Caller, Document, Packed, Refusal, asked, named, refuse};

/// Most flows of one answer.
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

/// The end of a path that names a flow.
type FlowPath = Result<Path<FlowId>, PathRejection>;

/// Starts a flow: functions that are called with each other's results, as tasks. Once this is answered it is on the disk.
#[utoipa::path(post, path = "/v1/flows", request_body = FlowRequest, security(("bearer" = [])),
    responses((status = 201, body = FlowStatus), (status = "default", body = ErrorBody)))]
pub(crate) async fn start_flow(
    caller: Caller,
    packed: Packed,
    Shared(control): Shared<Api>,
    Document(request): Document<FlowRequest>,
) -> Result<Response, Refusal> {
    caller.changes_as(Role::User)?;
    let by = submitter(&control, &caller)?;
    bounds::check("the flow's name", &request.name, MAX_NAME_BYTES)?;
    let about = serde_json::json!({ "name": request.name, "steps": request.steps.len() });
    let subject = request.id.map(|id| id.to_string()).unwrap_or_default();
    control.audit(&caller, "flow.start", &subject, &about).await?;
    let started: FlowStatus = control.tasks()?.start_flow(by, request).await?;
    Ok((StatusCode::CREATED, packed.answer(started)).into_response())
}

/// Which flows to list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default)]
pub struct Latest {
    /// At most; 100 by default, 1,000 at most.
    limit: Option<u32>,
}

/// The caller's flows, the latest first.
#[utoipa::path(get, path = "/v1/flows", params(Latest), security(("bearer" = [])),
    responses((status = 200, body = [FlowStatus]), (status = "default", body = ErrorBody)))]
pub(crate) async fn list_flows(
    caller: Caller,
    packed: Packed,
    Shared(control): Shared<Api>,
    query: Result<Query<Latest>, QueryRejection>,
) -> Result<Response, Refusal> {
    let limit = asked(query)?.limit.unwrap_or(100).min(MAX_ENTRIES);
    Ok(packed.answer(control.tasks()?.flows(caller.bearer.tenant, limit).await?))
}

async fn flow_at(
    control: &Control,
    caller: &Caller,
    path: FlowPath,
    wait: std::time::Duration,
) -> Result<FlowStatus, Refusal> {
    let id = named(path)?;
    let found = control.tasks()?.await_flow(id, wait).await?;
    let seen = found.filter(|(tenant, _)| caller.sees(*tenant));
    seen.map(|(_, status)| status)
        .ok_or_else(|| refuse(Code::NotFound, format!("you have no flow {id}")))
}

/// One flow, as soon as it has ended or the wait is over.
#[utoipa::path(get, path = "/v1/flows/{id}", params(("id" = FlowId, Path), Patience), security(("bearer" = [])),
    responses((status = 200, body = FlowStatus), (status = "default", body = ErrorBody)))]
pub(crate) async fn show_flow(
    caller: Caller,
    packed: Packed,
    Shared(control): Shared<Api>,
    path: FlowPath,
    query: Result<Query<Patience>, QueryRejection>,
) -> Result<Response, Refusal> {
    let wait = patience(asked(query)?.wait_ms);
    Ok(packed.answer(flow_at(&control, &caller, path, wait).await?))
}

/// Cancels a flow, with its tasks. One that has ended stays as it is.
#[utoipa::path(post, path = "/v1/flows/{id}/cancel", params(("id" = FlowId, Path)), security(("bearer" = [])),
    responses((status = 200, body = FlowStatus), (status = "default", body = ErrorBody)))]
pub(crate) async fn cancel_flow(
    caller: Caller,
    packed: Packed,
    Shared(control): Shared<Api>,
    path: FlowPath,
) -> Result<Response, Refusal> {
    caller.changes_as(Role::User)?;
    let flow = flow_at(&control, &caller, path, std::time::Duration::ZERO).await?;
    control.audit(&caller, "flow.cancel", flow.id, &()).await?;
    control.tasks()?.cancel_flow(flow.id);
    let ended = flow_at(&control, &caller, Ok(Path(flow.id)), patience(5_000)).await?;
    Ok(packed.answer(ended))
}
