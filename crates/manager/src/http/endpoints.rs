//! Handlers for endpoints, and their connections.

use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, State as Shared};
use axum::response::Response;
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
use crate::control::Control;
use crate::dispatchers;
use crate::extractors::{
    Call, Caller, Document, EndpointBearer, PathOf, Read, Refusal, ResponseFormat, Upgrade, Write, refuse,
};
use crate::token_registry::TokenHash;
use crate::tokens::generate_token;

/// Life of an endpoint's token. It ends when it is replaced or the endpoint is removed.
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

/// Lists the endpoints at which the caller may run tasks; for operators, all.
#[utoipa::path(get, path = "/v1/endpoints", security(("bearer" = [])),
    responses((status = 200, body = [EndpointStatus]), (status = "default", body = ErrorBody)))]
pub(crate) async fn list_endpoints(call: Call<Read>) -> Result<Response, Refusal> {
    let Call {
        caller,
        control,
        format,
        ..
    } = call;
    let by = submitter(&control, &caller)?;
    let all = caller.role >= Role::Operator;
    Ok(format.respond(control.tasks()?.endpoints(&by, all)))
}

/// Registers an endpoint and makes the token with which its dispatcher connects. An existing endpoint of the caller is
/// changed and gets a new token.
#[utoipa::path(post, path = "/v1/endpoints", request_body = EndpointRegistration, security(("bearer" = [])),
    responses((status = 201, body = NewEndpoint), (status = "default", body = ErrorBody)))]
pub(crate) async fn register_endpoint(
    call: Call<Write, (), (), Document<EndpointRegistration>>,
) -> Result<Response, Refusal> {
    let Call {
        caller,
        control,
        body: Document(given),
        format,
        ..
    } = call;
    let tenant = caller.bearer.tenant;
    given.spec.check_texts()?;
    control
        .audit()
        .record(&caller, "endpoint.register", &given.name, &given.spec)
        .await?;
    let status = control.tasks()?.register_endpoint(tenant, given).await?;
    let new = with_token(&control, tenant, status).await?;
    Ok(format.created(new))
}

/// Makes the token with which the daemon of a local account connects. The endpoint that starts the daemon requests it
/// with its own token, when a tenant wants to run tasks there.
#[utoipa::path(post, path = "/v1/endpoints/accounts", request_body = AccountRequest, security(("bearer" = [])),
    responses((status = 201, body = NewEndpoint), (status = "default", body = ErrorBody)))]
pub(crate) async fn create_account(
    EndpointBearer { endpoint: above, .. }: EndpointBearer,
    format: ResponseFormat,
    Shared(control): Shared<Api>,
    Document(asked): Document<AccountRequest>,
) -> Result<Response, Refusal> {
    let tasks = control.tasks()?;
    let status = tasks.account_endpoint(above, asked.tenant)?;
    let by = tasks.endpoint(&above.to_string());
    let by = by.ok_or_else(|| refuse(Code::NotFound, "the endpoint was removed"))?;
    let about = serde_json::json!({ "tenant": control.tenant_name(asked.tenant) });
    let by = (by.tenant, format!("endpoint:{}", by.name));
    control
        .audit()
        .record_for(by, "endpoint.account", &status.name, &about)
        .await?;
    let new = with_token(&control, asked.tenant, status).await?;
    Ok(format.created(new))
}

/// Returns a tenant's endpoint with a new token.
async fn with_token(control: &Control, tenant: TenantId, status: EndpointStatus) -> Result<NewEndpoint, Failure> {
    let (token, bearer) = generate_token(BearerKind::Endpoint, tenant, None, A_CENTURY);
    let bearer = Bearer {
        name: status.id.to_string(),
        ..bearer
    };
    control.store().keep(bearer.clone()).wait().await?;
    control.keep_bearer(bearer);
    Ok(NewEndpoint {
        token,
        manager: control.url().to_owned(),
        ca_pem: control.ca_pem().to_owned(),
        status,
    })
}

/// Removes an endpoint of the caller; for operators, of any tenant. Tasks there must have ended.
#[utoipa::path(delete, path = "/v1/endpoints/{name}", params(("name" = String, Path)), security(("bearer" = [])),
    responses((status = 200, body = EndpointStatus), (status = "default", body = ErrorBody)))]
pub(crate) async fn remove_endpoint(call: Call<Write, PathOf<String>>) -> Result<Response, Refusal> {
    let Call {
        caller,
        control,
        path: PathOf(path),
        format,
        ..
    } = call;
    let tasks = control.tasks()?;
    let EndpointRecord { id, name, .. } = own_endpoint(&control, &caller, &path)?;
    let status = tasks.endpoint_status(id);
    control.audit().record(&caller, "endpoint.remove", &name, &()).await?;
    for EndpointRecord { id, tenant, .. } in tasks.remove_endpoint(id).await? {
        for hash in bearers_of(&control, tenant, &id.to_string()) {
            control
                .store()
                .revoke(hash, RevokedLeases::End)
                .wait()
                .await
                .map_err(Failure::from)?;
            control.cluster().tokens_mut().remove(&hash);
        }
    }
    Ok(format.respond(status))
}

/// Makes a token with which the caller leases from the nodes of an endpoint directly, and returns the address of the
/// site's manager. The token is valid for half a day, or until the endpoint's process ends.
#[utoipa::path(post, path = "/v1/endpoints/{name}/invitation", params(("name" = String, Path)), security(("bearer" = [])),
    responses((status = 200, body = Connection), (status = "default", body = ErrorBody)))]
pub(crate) async fn invite(call: Call<Write, PathOf<String>>) -> Result<Response, Refusal> {
    let Call {
        caller,
        control,
        path: PathOf(path),
        format,
        ..
    } = call;
    let (by, name) = (submitter(&control, &caller)?, path);
    let connection = control.tasks()?.invite(&by, &name).await?;
    control.audit().record(&caller, "endpoint.invite", &name, &()).await?;
    Ok(format.respond(connection))
}

fn bearers_of(control: &Control, tenant: TenantId, name: &str) -> Vec<TokenHash> {
    let cluster = control.cluster();
    let its = |bearer: &&Bearer| bearer.kind == BearerKind::Endpoint && bearer.tenant == tenant && bearer.name == name;
    cluster
        .tokens()
        .values()
        .filter(its)
        .map(|bearer| bearer.hash)
        .collect()
}

/// Returns an endpoint that the caller may change.
fn own_endpoint(control: &Control, caller: &Caller, name: &str) -> Result<EndpointRecord, Refusal> {
    let found = control.tasks()?.endpoint(name);
    let found = found.filter(|record| caller.sees(record.tenant));
    found.ok_or_else(|| refuse(Code::NotFound, format!("you have no endpoint `{name:.80}`")))
}

/// Connects an endpoint: a WebSocket on which its dispatcher receives tasks and sends outcomes, in MessagePack.
#[utoipa::path(get, path = "/v1/endpoints/connect", security(("bearer" = [])),
    responses((status = 101, description = "WebSocket"), (status = "default", body = ErrorBody)))]
pub(crate) async fn connect_endpoint(
    EndpointBearer { endpoint: id, hash }: EndpointBearer,
    Shared(control): Shared<Api>,
    Upgrade(upgrade): Upgrade,
) -> Result<Response, Refusal> {
    let tasks = control.tasks()?;
    // Of one that lost the tasks just now, it is of an epoch that is over.
    let site = control.task_owner().epoch().map(|epoch| ToDispatcher::Site {
        epoch,
        managers: control.managers(),
    });
    let validity = control.validity(&hash).ok_or_else(ended)?;
    let stopping = control.shutdown().subscribe();
    let upgrade = upgrade
        .max_message_size(MAX_FRAME_BYTES)
        .max_frame_size(MAX_FRAME_BYTES)
        // Each frame is a whole message.
        .write_buffer_size(0);
    Ok(upgrade.on_upgrade(move |socket| dispatchers::serve(tasks, id, site, socket, validity, stopping)))
}
