//! Handlers for leases and gangs.

use std::time::Instant;

use axum::Json;
use axum::http::StatusCode;
use dayfly_protocol::api::{ErrorBody, GangRequest, Grant, LeaseRequest, LeaseState, LeaseStatus, RenewRequest};
use dayfly_protocol::error::Code;
use dayfly_protocol::id_pattern::IdPattern;
use dayfly_protocol::ids::LeaseId;
use dayfly_store::LeaseRecord;

use crate::cluster::lease_status;
use crate::control::Control;
use crate::extractors::{Call, Caller, Grace, JsonBody, PathOf, QueryOf, Read, Refusal, Write, refuse};
use crate::forwarding::{self, ClientAuthorization};

/// Grants a lease on the most suitable node.
#[utoipa::path(post, path = "/v1/leases", request_body = LeaseRequest, security(("bearer" = [])),
    responses((status = 201, body = Grant), (status = "default", body = ErrorBody)))]
pub(crate) async fn create_lease(
    call: Call<Write, (), (), JsonBody<LeaseRequest>>,
) -> Result<(StatusCode, Json<Grant>), Refusal> {
    let Call {
        caller,
        control,
        body: JsonBody(request),
        headers,
        ..
    } = call;
    let begun = Instant::now();
    let client = ClientAuthorization::of(&headers).filter(|_| control.peers().are_possible());
    let granted = control.grant(caller.principal(), request, client).await;
    control.metrics().granted(begun, &granted);
    Ok((StatusCode::CREATED, Json(granted?)))
}

/// Grants leases on one or several nodes that together have the requested number of workers, or none. The leases are in
/// the order of the gang's ranks.
#[utoipa::path(post, path = "/v1/gangs", request_body = GangRequest, security(("bearer" = [])),
    responses((status = 201, body = [Grant]), (status = "default", body = ErrorBody)))]
pub(crate) async fn create_gang(
    call: Call<Write, (), (), JsonBody<GangRequest>>,
) -> Result<(StatusCode, Json<Vec<Grant>>), Refusal> {
    let Call {
        caller,
        control,
        body: JsonBody(request),
        headers,
        ..
    } = call;
    let begun = Instant::now();
    let client = ClientAuthorization::of(&headers).filter(|_| control.peers().are_possible());
    let granted = control.grant_gang(caller.principal(), request, client).await;
    control.metrics().granted(begun, &granted);
    Ok((StatusCode::CREATED, Json(granted?)))
}

/// Lists leases that are live or ended within the last hour, the newest first: own leases; for operators, those of all
/// tenants.
#[utoipa::path(get, path = "/v1/leases", security(("bearer" = [])),
    responses((status = 200, body = [LeaseStatus]), (status = "default", body = ErrorBody)))]
pub(crate) async fn list_leases(call: Call<Read>) -> Result<Json<Vec<LeaseStatus>>, Refusal> {
    let Call { caller, control, .. } = call;
    let mut elsewhere = control.leases_at_peers().await?;
    elsewhere.retain(|record| caller.sees(record.tenant));
    let cluster = control.cluster();
    let seen = cluster.leases().values().filter(|record| caller.sees(record.tenant));
    let own: Vec<LeaseStatus> = seen.map(lease_status).collect();
    drop(cluster);
    Ok(Json(forwarding::merged(own, &elsewhere)))
}

/// Returns one lease.
#[utoipa::path(get, path = "/v1/leases/{id}", params(("id" = String, Path, pattern = r"^(\.\.\.)?[0-9a-fA-F]{6,32}$")), security(("bearer" = [])),
    responses((status = 200, body = LeaseStatus), (status = "default", body = ErrorBody)))]
pub(crate) async fn show_lease(call: Call<Read, PathOf<String>>) -> Result<Json<LeaseStatus>, Refusal> {
    let Call {
        caller,
        control,
        path: PathOf(path),
        ..
    } = call;
    Ok(Json(lease_status(&lease_at(&control, &caller, &path).await?)))
}

/// Renews a lease: its duration counts from now. May change its mode, its polling and its number of workers. Returns a
/// grant with a new token, which has the workers that were granted.
#[utoipa::path(post, path = "/v1/leases/{id}/renew", params(("id" = String, Path, pattern = r"^(\.\.\.)?[0-9a-fA-F]{6,32}$")), request_body = RenewRequest,
    security(("bearer" = [])), responses((status = 200, body = Grant), (status = "default", body = ErrorBody)))]
pub(crate) async fn renew_lease(
    call: Call<Write, PathOf<String>, (), JsonBody<RenewRequest>>,
) -> Result<Json<Grant>, Refusal> {
    let Call {
        caller,
        control,
        path: PathOf(path),
        body: JsonBody(request),
        ..
    } = call;
    let lease = lease_at(&control, &caller, &path).await?.lease;
    Ok(Json(control.renew(caller.principal(), lease, request).await?))
}

/// Releases a lease.
#[utoipa::path(delete, path = "/v1/leases/{id}", params(("id" = String, Path, pattern = r"^(\.\.\.)?[0-9a-fA-F]{6,32}$")), security(("bearer" = [])),
    responses((status = 200, body = LeaseStatus), (status = "default", body = ErrorBody)))]
pub(crate) async fn release_lease(call: Call<Read, PathOf<String>>) -> Result<Json<LeaseStatus>, Refusal> {
    let Call {
        caller,
        control,
        path: PathOf(path),
        ..
    } = call;
    let lease = own_lease(&control, &caller, &path).await?;
    Ok(Json(lease_status(&control.end(lease, LeaseState::Released).await?)))
}

/// Revokes an own lease; for operators, any lease. Clients are informed at once, no call begins any more, and running
/// calls may continue for `grace` seconds. Returns when the lease has ended and its last usage is booked.
#[utoipa::path(post, path = "/v1/leases/{id}/revoke", params(("id" = String, Path, pattern = r"^(\.\.\.)?[0-9a-fA-F]{6,32}$"), Grace), security(("bearer" = [])),
    responses((status = 200, body = LeaseStatus), (status = "default", body = ErrorBody)))]
pub(crate) async fn revoke_lease(
    call: Call<Write, PathOf<String>, QueryOf<Grace>>,
) -> Result<Json<LeaseStatus>, Refusal> {
    let Call {
        caller,
        control,
        path: PathOf(path),
        query: QueryOf(query),
        ..
    } = call;
    let record = lease_at(&control, &caller, &path).await?;
    let grace = query.duration()?;
    if record.tenant != caller.bearer.tenant {
        control
            .audit()
            .record(&caller, "lease.revoke", record.lease, &record.tenant)
            .await?;
    }
    Ok(Json(lease_status(&control.revoke(record.lease, grace).await?)))
}

/// Returns the lease that a path names by its id, or by the beginning or end of its id, if the caller may see it.
async fn lease_at(control: &Control, caller: &Caller, path: &str) -> Result<LeaseRecord, Refusal> {
    let given: IdPattern = path.parse()?;
    if let Some(whole) = given.full_id() {
        return Ok(control.lease_seen(caller, whole)?);
    }
    let seen = control.leases_matching(caller, &given).await?;
    let lease = given.resolve(seen.iter().map(|record| record.lease).collect(), "lease")?;
    let found = seen.into_iter().rfind(|record| record.lease == lease);
    found.ok_or_else(|| refuse(Code::Internal, "the lease disappeared during the request; report this"))
}

/// Returns a lease that the caller may release.
async fn own_lease(control: &Control, caller: &Caller, path: &str) -> Result<LeaseId, Refusal> {
    let record = lease_at(control, caller, path).await?;
    if record.tenant == caller.bearer.tenant {
        return Ok(record.lease);
    }
    Err(refuse(
        Code::Forbidden,
        "the lease belongs to another tenant; an operator may revoke it",
    ))
}
