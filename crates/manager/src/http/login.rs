//! Handlers for logins through an identity provider. They need no token.

use axum::Json;
use axum::extract::State as Shared;
use axum::http::StatusCode;
use dayfly_protocol::api::ErrorBody;
use dayfly_protocol::tenancy::{LoginInfo, LoginRequest, NewToken};

use super::Api;
use crate::extractors::{JsonBody, Refusal};

/// Returns the identity provider of this site, and how to log in with it.
#[utoipa::path(get, path = "/v1/login",
    responses((status = 200, body = LoginInfo), (status = "default", body = ErrorBody)))]
pub(crate) async fn login_info(Shared(control): Shared<Api>) -> Result<Json<LoginInfo>, Refusal> {
    Ok(Json(control.provider()?.info().await?))
}

/// Exchanges an ID token of the provider for a token, for the tenant and with the role that the site's rules define.
#[utoipa::path(post, path = "/v1/login", request_body = LoginRequest,
    responses((status = 201, body = NewToken), (status = "default", body = ErrorBody)))]
pub(crate) async fn log_in(
    Shared(control): Shared<Api>,
    JsonBody(request): JsonBody<LoginRequest>,
) -> Result<(StatusCode, Json<NewToken>), Refusal> {
    Ok((
        StatusCode::CREATED,
        Json(control.log_in(&request.id_token, None).await?),
    ))
}
