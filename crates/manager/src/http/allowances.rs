//! Allowances: asking for one, hearing where there is room, giving it back.

use std::time::Duration;

use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State as Shared};
use axum::http::StatusCode;
use dayfly_protocol::api::{Allowance, AllowanceRequest, ErrorBody};
use dayfly_protocol::ids::AllowanceId;
use dayfly_protocol::tenancy::Role;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::extractors::{Body, Caller, Refusal, asked, named};
use crate::http::Api;

type AllowancePath = Result<Path<AllowanceId>, PathRejection>;

/// What follows the path of an allowance.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct News {
    /// Number of the list that is known; a later one is waited for.
    #[serde(default)]
    after: u64,
    /// Milliseconds to wait for it at most.
    #[serde(default)]
    wait_ms: u64,
}

/// Allows to lease straight from nodes, and tells which have room.
#[utoipa::path(post, path = "/v1/allowances", request_body = AllowanceRequest, security(("bearer" = [])),
    responses((status = 201, body = Allowance), (status = "default", body = ErrorBody)))]
pub(crate) async fn create_allowance(
    caller: Caller,
    Shared(control): Shared<Api>,
    Body(request): Body<AllowanceRequest>,
) -> Result<(StatusCode, Json<Allowance>), Refusal> {
    caller.changes_as(Role::User)?;
    let allowance = control.allow(caller.principal(), &request)?;
    Ok((StatusCode::CREATED, Json(allowance)))
}

/// An allowance of one's own, with a token that lasts longer, and the nodes that have room as soon as they are others than those of
/// the list `after`.
#[utoipa::path(get, path = "/v1/allowances/{id}", params(("id" = String, Path), News), security(("bearer" = [])),
    responses((status = 200, body = Allowance), (status = "default", body = ErrorBody)))]
pub(crate) async fn watch_allowance(
    caller: Caller,
    Shared(control): Shared<Api>,
    path: AllowancePath,
    query: Result<Query<News>, QueryRejection>,
) -> Result<Json<Allowance>, Refusal> {
    caller.changes_as(Role::User)?;
    let News { after, wait_ms } = asked(query)?;
    let wait = Duration::from_millis(wait_ms);
    let news = control.allowance_news(caller.bearer.tenant, named(path)?, after, wait);
    Ok(Json(news.await?))
}

/// Gives an allowance back. Leases under it go on.
#[utoipa::path(delete, path = "/v1/allowances/{id}", params(("id" = String, Path)), security(("bearer" = [])),
    responses((status = 204), (status = "default", body = ErrorBody)))]
pub(crate) async fn end_allowance(
    caller: Caller,
    Shared(control): Shared<Api>,
    path: AllowancePath,
) -> Result<StatusCode, Refusal> {
    caller.changes_as(Role::User)?;
    control.disallow(caller.bearer.tenant, named(path)?)?;
    Ok(StatusCode::NO_CONTENT)
}
