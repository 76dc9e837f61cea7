//! The handler for profiles of functions.

use axum::Json;
use dayfly_protocol::api::{ErrorBody, FunctionProfile};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::extractors::{Call, PathOf, QueryOf, Read, Refusal};
use crate::forwarding::ClientAuthorization;

/// Query of `GET /v1/functions/{id}/profile`.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default)]
pub(crate) struct ProfileQuery {
    /// Name of the tenant whose calls count. Default: the own one. Others are for operators.
    tenant: Option<String>,
}

/// Returns what nodes learnt about the calls that a tenant made of a function, and why it lends or does not. Each node
/// learns from its own calls: one row for each node, and for each function of this name. `id` is the name or id of a
/// registered function, or the name of a function in its code, such as `resize`, `images.resize` or `resize@HASH`.
/// `not_found` if no node measures calls, or none has learnt from a call of this function. Up to 1,024 nodes of each
/// manager are asked. Those that do not respond within 2 s are left out.
#[utoipa::path(get, path = "/v1/functions/{id}/profile", params(("id" = String, Path), ProfileQuery),
    security(("bearer" = [])),
    responses((status = 200, body = [FunctionProfile]), (status = "default", body = ErrorBody)))]
pub(crate) async fn show_profile(
    call: Call<Read, PathOf<String>, QueryOf<ProfileQuery>>,
) -> Result<Json<Vec<FunctionProfile>>, Refusal> {
    let Call {
        caller,
        control,
        path: PathOf(wanted),
        query: QueryOf(query),
        headers,
        ..
    } = call;
    let client = ClientAuthorization::of(&headers);
    Ok(Json(control.profiles(&caller, client, &wanted, query.tenant).await?))
}
