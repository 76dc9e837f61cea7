//! Logins through an identity provider, over HTTP. Both requests are for those who have no token yet.

use axum::Json;
use axum::extract::State as Shared;
use axum::http::StatusCode;
use dayfly_protocol::api::ErrorBody;
use dayfly_protocol::tenancy::{LoginInfo, LoginRequest, NewToken};

use super::Api;
use crate::extractors::{Body, Refusal};

/// With which identity provider one logs in here, and how.
#[utoipa::path(get, path = "/v1/login",
    responses((status = 200, body = LoginInfo), (status = "default", body = ErrorBody)))]
pub(crate) async fn login_info(Shared(control): Shared<Api>) -> Result<Json<LoginInfo>, Refusal> {
    Ok(Json(control.provider()?.info().await?))
}

/// Gives a token to whoever shows an ID token of that provider, for the tenant and with the role that the site's rules say.
#[utoipa::path(post, path = "/v1/login", request_body = LoginRequest,
    responses((status = 201, body = NewToken), (status = "default", body = ErrorBody)))]
pub(crate) async fn log_in(
    Shared(control): Shared<Api>,
    Body(request): Body<LoginRequest>,
) -> Result<(StatusCode, Json<NewToken>), Refusal> {
    Ok((StatusCode::CREATED, Json(control.log_in(&request.id_token).await?)))
}
