//! Handlers for tokens.

use axum::Json;
use axum::http::StatusCode;
use dayfly_protocol::api::ErrorBody;
use dayfly_protocol::tenancy::{NewToken, RevokedToken, TokenRequest, TokenStatus};
use dayfly_store::RevokedLeases;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::extractors::{Call, JsonBody, PathOf, QueryOf, Read, Refusal, Write};

/// Lists tokens of the own tenant, without their secrets; for administrators, of all tenants.
#[utoipa::path(get, path = "/v1/tokens", security(("bearer" = [])),
    responses((status = 200, body = [TokenStatus]), (status = "default", body = ErrorBody)))]
pub(crate) async fn list_tokens(call: Call<Read>) -> Json<Vec<TokenStatus>> {
    let Call { caller, control, .. } = call;
    Json(control.tokens(&caller))
}

/// Makes a token that permits no more than the caller's own. Its secret is shown only once.
#[utoipa::path(post, path = "/v1/tokens", request_body = TokenRequest, security(("bearer" = [])),
    responses((status = 201, body = NewToken), (status = "default", body = ErrorBody)))]
pub(crate) async fn create_token(
    call: Call<Write, (), (), JsonBody<TokenRequest>>,
) -> Result<(StatusCode, Json<NewToken>), Refusal> {
    let Call {
        caller,
        control,
        body: JsonBody(request),
        ..
    } = call;
    Ok((StatusCode::CREATED, Json(control.create_token(&caller, request).await?)))
}

/// Query of `DELETE /v1/tokens/{id}`.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Revocation {
    /// Whether leases that were granted or last renewed with the token continue.
    #[serde(default)]
    keep_leases: bool,
}

/// Revokes a token: its connections end at once, and its leases too unless they are kept.
#[utoipa::path(delete, path = "/v1/tokens/{id}", params(("id" = String, Path), Revocation), security(("bearer" = [])),
    responses((status = 200, body = RevokedToken), (status = "default", body = ErrorBody)))]
pub(crate) async fn revoke_token(
    call: Call<Write, PathOf<String>, QueryOf<Revocation>>,
) -> Result<Json<RevokedToken>, Refusal> {
    let Call {
        caller,
        control,
        path: PathOf(path),
        query: QueryOf(query),
        ..
    } = call;
    let leases = match query.keep_leases {
        true => RevokedLeases::Keep,
        false => RevokedLeases::End,
    };
    Ok(Json(control.revoke_token(&caller, &path, leases).await?))
}
