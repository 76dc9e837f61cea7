//! Handlers for allowances.

use std::time::Duration;

use axum::Json;
use axum::http::StatusCode;
use dayfly_protocol::api::{Allowance, AllowanceRequest, ErrorBody};
use dayfly_protocol::ids::AllowanceId;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::extractors::{Call, JsonBody, PathOf, QueryOf, Refusal, Write};

/// Query of `GET /v1/allowances/{id}`.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ListQuery {
    /// Version of the known list of nodes. The request waits for another one.
    #[serde(default)]
    after: u64,
    /// Milliseconds to wait.
    #[serde(default)]
    wait_ms: u64,
}

/// Makes an allowance to lease from nodes directly, with a list of nodes that have free resources.
#[utoipa::path(post, path = "/v1/allowances", request_body = AllowanceRequest, security(("bearer" = [])),
    responses((status = 201, body = Allowance), (status = "default", body = ErrorBody)))]
pub(crate) async fn create_allowance(
    call: Call<Write, (), (), JsonBody<AllowanceRequest>>,
) -> Result<(StatusCode, Json<Allowance>), Refusal> {
    let Call {
        caller,
        control,
        body: JsonBody(request),
        ..
    } = call;
    let allowance = control.create_allowance(caller.principal(), &request)?;
    Ok((StatusCode::CREATED, Json(allowance)))
}

/// Extends an own allowance. Returns a new token and the list of nodes with free resources, once its version differs
/// from `after` or the wait is over.
#[utoipa::path(get, path = "/v1/allowances/{id}", params(("id" = String, Path), ListQuery), security(("bearer" = [])),
    responses((status = 200, body = Allowance), (status = "default", body = ErrorBody)))]
pub(crate) async fn watch_allowance(
    call: Call<Write, PathOf<AllowanceId>, QueryOf<ListQuery>>,
) -> Result<Json<Allowance>, Refusal> {
    let Call {
        caller,
        control,
        path: PathOf(path),
        query: QueryOf(query),
        ..
    } = call;
    let ListQuery { after, wait_ms } = query;
    let wait = Duration::from_millis(wait_ms);
    let allowance = control.watch_allowance(caller.bearer.tenant, path, after, wait);
    Ok(Json(allowance.await?))
}

/// Ends an allowance. Leases under it continue.
#[utoipa::path(delete, path = "/v1/allowances/{id}", params(("id" = String, Path)), security(("bearer" = [])),
    responses((status = 204), (status = "default", body = ErrorBody)))]
pub(crate) async fn end_allowance(call: Call<Write, PathOf<AllowanceId>>) -> Result<StatusCode, Refusal> {
    let Call {
        caller,
        control,
        path: PathOf(path),
        ..
    } = call;
    control.end_allowance(caller.bearer.tenant, path)?;
    Ok(StatusCode::NO_CONTENT)
}
