//! Tenants, tokens, prices, bills and the audit log, over HTTP.

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State as Shared};
use axum::http::StatusCode;
use dayfly_protocol::api::ErrorBody;
use dayfly_protocol::error::Code;
use dayfly_protocol::ids::LeaseId;
use dayfly_protocol::tenancy::{
    AuditEntry, BillPage, NewToken, Prices, RevokedToken, Role, Tenant, TenantSpec, TokenRequest, TokenStatus,
};
use dayfly_store::{AuditPage, BillQuery, RevokedLeases};
use serde::Deserialize;
use utoipa::IntoParams;

use super::Api;
use crate::extractors::{Body, Caller, NamePath, Refusal, asked, named, refuse};
use crate::tenants::MAX_LINES;

/// Tenants: everybody, for operators; for users their own.
#[utoipa::path(get, path = "/v1/tenants", security(("bearer" = [])),
    responses((status = 200, body = [Tenant]), (status = "default", body = ErrorBody)))]
pub(crate) async fn list_tenants(caller: Caller, Shared(control): Shared<Api>) -> Result<Json<Vec<Tenant>>, Refusal> {
    Ok(Json(control.tenants(&caller).await?))
}

/// Makes a tenant, or gives the one of this name other limits. Takes an administrator. A tenant that may not go on with them
/// loses its leases.
#[utoipa::path(put, path = "/v1/tenants/{name}",
    params(("name" = String, Path, pattern = "^[A-Za-z0-9._@-]{1,64}$")), request_body = TenantSpec,
    security(("bearer" = [])), responses((status = 200, body = Tenant), (status = "default", body = ErrorBody)))]
pub(crate) async fn set_tenant(
    caller: Caller,
    Shared(control): Shared<Api>,
    path: NamePath,
    Body(spec): Body<TenantSpec>,
) -> Result<Json<Tenant>, Refusal> {
    caller.changes_as(Role::Administrator)?;
    Ok(Json(control.set_tenant(&caller, named(path)?, spec).await?))
}

/// Tokens of one's own tenant, without their secrets; of every tenant, for administrators.
#[utoipa::path(get, path = "/v1/tokens", security(("bearer" = [])),
    responses((status = 200, body = [TokenStatus]), (status = "default", body = ErrorBody)))]
pub(crate) async fn list_tokens(caller: Caller, Shared(control): Shared<Api>) -> Json<Vec<TokenStatus>> {
    Json(control.tokens(&caller))
}

/// Makes a token that allows no more than one's own. Its secret is shown this once.
#[utoipa::path(post, path = "/v1/tokens", request_body = TokenRequest, security(("bearer" = [])),
    responses((status = 201, body = NewToken), (status = "default", body = ErrorBody)))]
pub(crate) async fn create_token(
    caller: Caller,
    Shared(control): Shared<Api>,
    Body(request): Body<TokenRequest>,
) -> Result<(StatusCode, Json<NewToken>), Refusal> {
    caller.changes_as(Role::User)?;
    Ok((StatusCode::CREATED, Json(control.create_token(&caller, request).await?)))
}

/// What follows the path of `DELETE /v1/tokens/{id}`.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Revocation {
    /// Whether leases that were granted or last renewed with the token go on to their own end.
    #[serde(default)]
    keep_leases: bool,
}

/// Makes a token worthless: its connections end at once, and so do its leases unless they are kept.
#[utoipa::path(delete, path = "/v1/tokens/{id}", params(("id" = String, Path), Revocation), security(("bearer" = [])),
    responses((status = 200, body = RevokedToken), (status = "default", body = ErrorBody)))]
pub(crate) async fn revoke_token(
    caller: Caller,
    Shared(control): Shared<Api>,
    path: NamePath,
    query: Result<Query<Revocation>, QueryRejection>,
) -> Result<Json<RevokedToken>, Refusal> {
    caller.changes_as(Role::User)?;
    let leases = match asked(query)?.keep_leases {
        true => RevokedLeases::Keep,
        false => RevokedLeases::End,
    };
    Ok(Json(control.revoke_token(&caller, &named(path)?, leases).await?))
}

/// What those pay that have no prices of their own.
#[utoipa::path(get, path = "/v1/prices", security(("bearer" = [])),
    responses((status = 200, body = Prices), (status = "default", body = ErrorBody)))]
pub(crate) async fn show_prices(_: Caller, Shared(control): Shared<Api>) -> Json<Prices> {
    Json(control.cluster().prices)
}

/// Sets those prices, for leases that are granted from now on. Takes an administrator.
#[utoipa::path(put, path = "/v1/prices", request_body = Prices, security(("bearer" = [])),
    responses((status = 200, body = Prices), (status = "default", body = ErrorBody)))]
pub(crate) async fn set_prices(
    caller: Caller,
    Shared(control): Shared<Api>,
    Body(prices): Body<Prices>,
) -> Result<Json<Prices>, Refusal> {
    caller.changes_as(Role::Administrator)?;
    Ok(Json(control.set_prices(&caller, prices).await?))
}

/// What follows the path of `GET /v1/bill`.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Wanted {
    /// Name of the tenant; one's own, or, for operators, everybody, when absent.
    tenant: Option<String>,
    /// Milliseconds since the Unix epoch: leases that ended before are left out.
    #[serde(default)]
    from: u64,
    /// The same: leases granted then or later are left out.
    #[serde(default = "for_ever")]
    until: u64,
    /// `next` of the page before.
    #[param(pattern = "^[0-9]+-[0-9a-fA-F]{32}$")]
    after: Option<String>,
}

fn for_ever() -> u64 {
    i64::MAX as u64
}

/// What leases cost, those that live included: a thousand lines at a time.
#[utoipa::path(get, path = "/v1/bill", params(Wanted), security(("bearer" = [])),
    responses((status = 200, body = BillPage), (status = "default", body = ErrorBody)))]
pub(crate) async fn show_bill(
    caller: Caller,
    Shared(control): Shared<Api>,
    query: Result<Query<Wanted>, QueryRejection>,
) -> Result<Json<BillPage>, Refusal> {
    let wanted = asked(query)?;
    let place = |after: &String| -> Option<(u64, LeaseId)> {
        let (granted_at_ms, lease) = after.split_once('-')?;
        Some((granted_at_ms.parse().ok()?, lease.parse().ok()?))
    };
    let after = match &wanted.after {
        None => None,
        Some(after) => Some(place(after).ok_or_else(|| {
            refuse(
                Code::InvalidRequest,
                format!("`after={after:.80}` is no place in a bill; give the `next` of the page before"),
            )
        })?),
    };
    let query = BillQuery {
        tenant: None,
        from_ms: wanted.from,
        until_ms: wanted.until,
        after,
        limit: MAX_LINES,
    };
    Ok(Json(control.bill(&caller, wanted.tenant, query).await?))
}

/// Which entries of the audit log to show.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default)]
pub(crate) struct Entries {
    /// Those with greater numbers: the last entry that is known already.
    above: u64,
    /// Those with smaller numbers, the last of them: the first entry of the page that is known.
    before: Option<u64>,
    /// At most; 1,000 by default, and at most.
    #[param(minimum = 1, maximum = 1_000)]
    limit: Option<u32>,
}

/// Who changed accounts, prices, nodes and other people's leases, by pages, the oldest entry of a page first: the first ones, or with
/// `before` the last ones before it. Takes an administrator.
#[utoipa::path(get, path = "/v1/audit", params(Entries), security(("bearer" = [])),
    responses((status = 200, body = [AuditEntry]), (status = "default", body = ErrorBody)))]
pub(crate) async fn show_audit(
    caller: Caller,
    Shared(control): Shared<Api>,
    query: Result<Query<Entries>, QueryRejection>,
) -> Result<Json<Vec<AuditEntry>>, Refusal> {
    caller.is(Role::Administrator)?;
    let asked = asked(query)?;
    let page = AuditPage {
        above: asked.above,
        before: asked.before,
        limit: match asked.limit.unwrap_or(MAX_LINES) {
            0 => return Err(refuse(Code::InvalidRequest, "a page of no entries; ask for 1 to 1,000")),
            limit if limit > MAX_LINES => {
                let text = format!("a page of {limit} entries; ask for 1 to {MAX_LINES}");
                return Err(refuse(Code::InvalidRequest, text));
            }
            limit => limit,
        },
    };
    Ok(Json(control.audited(page).await?))
}
