//! Handlers for tenants, prices and bills.

use axum::Json;
use dayfly_protocol::api::ErrorBody;
use dayfly_protocol::error::Code;
use dayfly_protocol::ids::LeaseId;
use dayfly_protocol::tenancy::{BillPage, Prices, Tenant, TenantSpec};
use dayfly_store::BillQuery;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::billing::MAX_LINES;
use crate::extractors::{AdministratorWrite, Call, JsonBody, PathOf, QueryOf, Read, Refusal, refuse};

/// Lists tenants: all for operators, and the own one for users.
#[utoipa::path(get, path = "/v1/tenants", security(("bearer" = [])),
    responses((status = 200, body = [Tenant]), (status = "default", body = ErrorBody)))]
pub(crate) async fn list_tenants(call: Call<Read>) -> Result<Json<Vec<Tenant>>, Refusal> {
    let Call { caller, control, .. } = call;
    Ok(Json(control.tenants(&caller).await?))
}

/// Makes a tenant, or changes the limits of an existing one. For administrators. A tenant that is suspended or over
/// budget then loses its leases.
#[utoipa::path(put, path = "/v1/tenants/{name}",
    params(("name" = String, Path, pattern = "^[A-Za-z0-9._@-]{1,64}$")), request_body = TenantSpec,
    security(("bearer" = [])), responses((status = 200, body = Tenant), (status = "default", body = ErrorBody)))]
pub(crate) async fn set_tenant(
    call: Call<AdministratorWrite, PathOf<String>, (), JsonBody<TenantSpec>>,
) -> Result<Json<Tenant>, Refusal> {
    let Call {
        caller,
        control,
        path: PathOf(path),
        body: JsonBody(spec),
        ..
    } = call;
    Ok(Json(control.set_tenant(&caller, path, spec).await?))
}

/// Returns the prices for tenants without prices of their own.
#[utoipa::path(get, path = "/v1/prices", security(("bearer" = [])),
    responses((status = 200, body = Prices), (status = "default", body = ErrorBody)))]
pub(crate) async fn show_prices(call: Call<Read>) -> Json<Prices> {
    Json(call.control.cluster().tenants().default_prices())
}

/// Sets the prices for tenants without prices of their own, for leases that are granted from now on. For
/// administrators.
#[utoipa::path(put, path = "/v1/prices", request_body = Prices, security(("bearer" = [])),
    responses((status = 200, body = Prices), (status = "default", body = ErrorBody)))]
pub(crate) async fn set_prices(
    call: Call<AdministratorWrite, (), (), JsonBody<Prices>>,
) -> Result<Json<Prices>, Refusal> {
    let Call {
        caller,
        control,
        body: JsonBody(prices),
        ..
    } = call;
    Ok(Json(control.set_prices(&caller, prices).await?))
}

/// Query of `GET /v1/bill`.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct BillFilter {
    /// Name of the tenant. Default: the own one; for operators, all tenants.
    tenant: Option<String>,
    /// Milliseconds since the Unix epoch: leases that ended before are omitted.
    #[serde(default)]
    from: u64,
    /// Milliseconds since the Unix epoch: leases granted then or later are omitted.
    #[serde(default = "for_ever")]
    until: u64,
    /// `next` of the previous page.
    #[param(pattern = "^[0-9]+-[0-9a-fA-F]{32}$")]
    after: Option<String>,
}

fn for_ever() -> u64 {
    i64::MAX as u64
}

/// Returns the cost of leases, including live ones, in pages of 1,000 lines.
#[utoipa::path(get, path = "/v1/bill", params(BillFilter), security(("bearer" = [])),
    responses((status = 200, body = BillPage), (status = "default", body = ErrorBody)))]
pub(crate) async fn show_bill(call: Call<Read, (), QueryOf<BillFilter>>) -> Result<Json<BillPage>, Refusal> {
    let Call {
        caller,
        control,
        query: QueryOf(query),
        ..
    } = call;
    let wanted = query;
    let place = |after: &String| -> Option<(u64, LeaseId)> {
        let (granted_at_ms, lease) = after.split_once('-')?;
        Some((granted_at_ms.parse().ok()?, lease.parse().ok()?))
    };
    let after = match &wanted.after {
        None => None,
        Some(after) => Some(place(after).ok_or_else(|| {
            refuse(
                Code::InvalidRequest,
                format!("`after={after:.80}` is not a place in a bill; give `next` of the previous page"),
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
