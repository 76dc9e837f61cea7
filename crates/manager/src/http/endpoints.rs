//! Endpoints over HTTP.

use std::time::Duration;

use axum::Router;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::{DefaultBodyLimit, State as Shared};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use dayfly_protocol::api::{Connection, ErrorBody};
use dayfly_protocol::dispatch::{MAX_FRAME_BYTES, ToDispatcher};
use dayfly_protocol::endpoints::{AccountRequest, EndpointRegistration, EndpointStatus, NewEndpoint};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::TenantId;
use dayfly_protocol::sharing::MAX_SHARING_BODY_BYTES;
use dayfly_protocol::tenancy::Role;
use dayfly_store::tasks::EndpointRecord;
use dayfly_store::{Bearer, BearerKind, RevokedLeases};

use super::Api;
use super::tasks::submitter;
use super::validity::ended;
use crate::control::{Control, fresh_bearer};
use crate::dispatchers;
use crate::extractors::{Caller, Document, EndpointBearer, NamePath, Packed, Refusal, named, refuse};

/// An endpoint's token is good until it is replaced, or the endpoint removed.
const A_CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Routes of endpoints.
pub fn routes() -> Router<Api> {
    let names = DefaultBodyLimit::max(MAX_SHARING_BODY_BYTES);
    Router::new()
        .route(
            "/v1/endpoints",
            post(register_endpoint).layer(names).get(list_endpoints),
        )
        .route("/v1/endpoints/{name}", delete(remove_endpoint))
        .route("/v1/endpoints/{name}/invitation", post(invite))
        .route("/v1/endpoints/connect", get(connect_endpoint))
        .route("/v1/endpoints/accounts", post(create_account))
}

/// Endpoints that the caller may run tasks at, and how they do; all, for operators.
#[utoipa::path(get, path = "/v1/endpoints", security(("bearer" = [])),
    responses((status = 200, body = [EndpointStatus]), (status = "default", body = ErrorBody)))]
pub(crate) async fn list_endpoints(
    caller: Caller,
    packed: Packed,
    Shared(control): Shared<Api>,
) -> Result<Response, Refusal> {
    let by = submitter(&control, &caller)?;
    let all = caller.role >= Role::Operator;
    Ok(packed.answer(control.tasks()?.endpoints(&by, all)))
}

/// Registers a site where tasks are to run, and makes the token that its dispatcher connects with. One that is the caller's
/// already changes, and gets another token.
#[utoipa::path(post, path = "/v1/endpoints", request_body = EndpointRegistration, security(("bearer" = [])),
    responses((status = 201, body = NewEndpoint), (status = "default", body = ErrorBody)))]
pub(crate) async fn register_endpoint(
    caller: Caller,
    packed: Packed,
    Shared(control): Shared<Api>,
    Document(given): Document<EndpointRegistration>,
) -> Result<Response, Refusal> {
    caller.changes_as(Role::User)?;
    let tenant = caller.bearer.tenant;
    given.spec.check_texts()?;
    control
        .audit(&caller, "endpoint.register", &given.name, &given.spec)
        .await?;
    let status = control.tasks()?.register_endpoint(tenant, given).await?;
    let new = with_token(&control, tenant, status).await?;
    Ok((StatusCode::CREATED, packed.answer(new)).into_response())
}

/// Makes the token that the daemon of an account connects with: asked by the endpoint that starts it, with its own token, when it is
/// told that a tenant wants to run tasks there.
#[utoipa::path(post, path = "/v1/endpoints/accounts", request_body = AccountRequest, security(("bearer" = [])),
    responses((status = 201, body = NewEndpoint), (status = "default", body = ErrorBody)))]
pub(crate) async fn create_account(
    EndpointBearer { endpoint: above, .. }: EndpointBearer,
    packed: Packed,
    Shared(control): Shared<Api>,
    Document(asked): Document<AccountRequest>,
) -> Result<Response, Refusal> {
    let tasks = control.tasks()?;
    let status = tasks.account_endpoint(above, asked.tenant)?;
    let by = tasks.endpoint(&above.to_string());
    let by = by.ok_or_else(|| refuse(Code::NotFound, "the endpoint is gone"))?;
    let about = serde_json::json!({ "tenant": control.tenant_name(asked.tenant) });
    let by = (by.tenant, format!("endpoint:{}", by.name));
    control.audit_of(by, "endpoint.account", &status.name, &about).await?;
    let new = with_token(&control, asked.tenant, status).await?;
    Ok((StatusCode::CREATED, packed.answer(new)).into_response())
}

/// An endpoint of a tenant's, with a new token.
async fn with_token(control: &Control, tenant: TenantId, status: EndpointStatus) -> Result<NewEndpoint, Failure> {
    let (token, bearer) = fresh_bearer(BearerKind::Endpoint, tenant, None, A_CENTURY);
    let bearer = Bearer {
        name: status.id.to_string(),
        ..bearer
    };
    control.store.keep(bearer.clone()).wait().await?;
    control.keep_bearer(bearer);
    Ok(NewEndpoint {
        token,
        manager: control.url.clone(),
        ca_pem: control.ca_pem.clone(),
        status,
    })
}

/// Forgets an endpoint of the caller's, or, for operators, anybody's. Tasks that wait there must have ended.
#[utoipa::path(delete, path = "/v1/endpoints/{name}", params(("name" = String, Path)), security(("bearer" = [])),
    responses((status = 200, body = EndpointStatus), (status = "default", body = ErrorBody)))]
pub(crate) async fn remove_endpoint(
    caller: Caller,
    packed: Packed,
    Shared(control): Shared<Api>,
    path: NamePath,
) -> Result<Response, Refusal> {
    caller.changes_as(Role::User)?;
    let tasks = control.tasks()?;
    let EndpointRecord { id, name, .. } = own_endpoint(&control, &caller, &named(path)?)?;
    let status = tasks.endpoint_status(id);
    control.audit(&caller, "endpoint.remove", &name, &()).await?;
    for EndpointRecord { id, tenant, .. } in tasks.remove_endpoint(id).await? {
        for hash in bearers_of(&control, tenant, &id.to_string()) {
            control
                .store
                .revoke(hash, RevokedLeases::End)
                .wait()
                .await
                .map_err(Failure::from)?;
            control.cluster().bearers.remove(&hash);
        }
    }
    Ok(packed.answer(status))
}

/// Makes a token with which the caller leases from the nodes of an endpoint itself, at the site's own manager, and says where that is.
/// It is good for half a day, and for as long as the endpoint's process runs.
#[utoipa::path(post, path = "/v1/endpoints/{name}/invitation", params(("name" = String, Path)), security(("bearer" = [])),
    responses((status = 200, body = Connection), (status = "default", body = ErrorBody)))]
pub(crate) async fn invite(
    caller: Caller,
    packed: Packed,
    Shared(control): Shared<Api>,
    path: NamePath,
) -> Result<Response, Refusal> {
    caller.changes_as(Role::User)?;
    let (by, name) = (submitter(&control, &caller)?, named(path)?);
    let connection = control.tasks()?.invite(&by, &name).await?;
    control.audit(&caller, "endpoint.invite", &name, &()).await?;
    Ok(packed.answer(connection))
}

fn bearers_of(control: &Control, tenant: TenantId, name: &str) -> Vec<[u8; 32]> {
    let cluster = control.cluster();
    let its = |bearer: &&Bearer| bearer.kind == BearerKind::Endpoint && bearer.tenant == tenant && bearer.name == name;
    cluster.bearers.values().filter(its).map(|bearer| bearer.hash).collect()
}

/// An endpoint that the caller may change.
fn own_endpoint(control: &Control, caller: &Caller, name: &str) -> Result<EndpointRecord, Refusal> {
    let found = control.tasks()?.endpoint(name);
    let found = found.filter(|record| caller.sees(record.tenant));
    found.ok_or_else(|| refuse(Code::NotFound, format!("you have no endpoint `{name:.80}`")))
}

/// An endpoint's own connection: a WebSocket on which its dispatcher takes tasks and tells outcomes, in MessagePack.
#[utoipa::path(get, path = "/v1/endpoints/connect", security(("bearer" = [])),
    responses((status = 101, description = "WebSocket"), (status = "default", body = ErrorBody)))]
pub(crate) async fn connect_endpoint(
    EndpointBearer { endpoint: id, hash }: EndpointBearer,
    Shared(control): Shared<Api>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Refusal> {
    let upgrade = upgrade.map_err(|rejection| refuse(Code::InvalidRequest, rejection.body_text()))?;
    let tasks = control.tasks()?;
    // Of one that lost the tasks just now, it is of an epoch that is over.
    let site = control.task_owner.epoch().map(|epoch| ToDispatcher::Site {
        epoch,
        managers: control.managers(),
    });
    let validity = control.validity(&hash).ok_or_else(ended)?;
    let stopping = control.stopping.subscribe();
    let upgrade = upgrade
        .max_message_size(MAX_FRAME_BYTES)
        .max_frame_size(MAX_FRAME_BYTES)
        // Frames are whole messages already.
        .write_buffer_size(0);
    Ok(upgrade.on_upgrade(move |socket| dispatchers::serve(tasks, id, site, socket, validity, stopping)))
}
