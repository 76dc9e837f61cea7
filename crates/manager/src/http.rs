//! The HTTP API: the routes, and the layers that all requests pass. Every error is an [`ErrorBody`].

pub mod allowances;
pub mod audit;
pub mod console;
pub mod contents;
pub mod endpoints;
pub mod events;
pub mod flows;
pub mod functions;
pub mod groups;
pub mod leases;
pub mod login;
pub mod nodes;
pub mod observability;
pub mod profiles;
pub mod queries;
pub mod session;
pub mod tasks;
pub mod teams;
pub mod tenants;
pub mod tokens;
pub mod triggers;
pub mod validity;
pub mod versions;

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, Request, State as Shared};
use axum::http::header::CONTENT_LENGTH;
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use axum::{Json, Router};
use dayfly_protocol::WIRE_VERSION;
use dayfly_protocol::api::{ErrorBody, Health, HealthStatus, MANAGERS_HEADER, ManagerStatus, VersionInfo};
use dayfly_protocol::error::Code;

use crate::control::Control;
use crate::extractors::{Call, MAX_BODY_BYTES, Read, refuse};
use crate::forwarding;

/// Bytes of a body that is read before its request is processed.
const MAX_SHORT_BYTES: usize = 16 << 10;
/// Read buffer of a WebSocket. A heartbeat has a tenth of it, and there may be thousands of WebSockets.
const SOCKET_BUFFER_BYTES: usize = 4 << 10;
/// Time limit for a request. Longer than the offers to all nodes that one request tries.
const REQUEST_LIMIT: Duration = Duration::from_secs(60);

/// The state of every handler.
pub type Api = Arc<Control>;

/// Returns the router with all routes and layers.
pub fn router(control: Api) -> Router {
    let about_tasks = Router::new()
        .merge(functions::routes())
        .merge(tasks::routes())
        .merge(endpoints::routes())
        .merge(contents::routes())
        .merge(triggers::routes())
        .merge(flows::routes())
        .merge(teams::routes())
        .merge(queries::routes())
        .route_layer(axum::middleware::from_fn_with_state(
            control.clone(),
            forwarding::to_task_owner,
        ));
    Router::new()
        .route("/v1/version", get(version))
        .route("/v1/health", get(health))
        .route("/v1/managers", get(list_managers))
        .merge(groups::routes())
        .route("/v1/leases", get(leases::list_leases).post(leases::create_lease))
        .route("/v1/leases/{id}", get(leases::show_lease).delete(leases::release_lease))
        .route("/v1/leases/{id}/renew", post(leases::renew_lease))
        .route("/v1/leases/{id}/revoke", post(leases::revoke_lease))
        .route("/v1/gangs", post(leases::create_gang))
        .route("/v1/allowances", post(allowances::create_allowance))
        .route(
            "/v1/allowances/{id}",
            get(allowances::watch_allowance).delete(allowances::end_allowance),
        )
        .route("/v1/nodes", get(nodes::list_nodes))
        .route(
            "/v1/nodes/{id}",
            put(nodes::resume_node)
                .patch(nodes::resize_node)
                .delete(nodes::reclaim_node),
        )
        .route("/v1/nodes/{id}/harvest", put(nodes::switch_harvest))
        .route("/v1/nodes/join-tokens", post(nodes::create_join_token))
        .route("/v1/nodes/connect", get(nodes::connect_node))
        .route("/v1/tenants", get(tenants::list_tenants))
        .route("/v1/tenants/{name}", put(tenants::set_tenant))
        .route("/v1/tokens", get(tokens::list_tokens).post(tokens::create_token))
        .route("/v1/tokens/{id}", delete(tokens::revoke_token))
        .route("/v1/login", get(login::login_info).post(login::log_in))
        .route("/v1/prices", get(tenants::show_prices).put(tenants::set_prices))
        .route("/v1/bill", get(tenants::show_bill))
        .route("/v1/audit", get(audit::show_audit))
        .merge(about_tasks)
        .route("/v1/functions/{id}/profile", get(profiles::show_profile))
        .route("/v1/events", get(events::watch_events))
        .route("/v1/metrics", get(observability::metrics))
        .route("/v1/history", get(observability::history))
        .merge(session::routes())
        .merge(console::routes())
        .route("/v1/openapi.json", get(openapi))
        .fallback(|| async {
            refuse(
                Code::NotFound,
                "there is no such path; `/v1/openapi.json` lists all paths",
            )
        })
        .method_not_allowed_fallback(|| async {
            let refusal = refuse(
                Code::InvalidRequest,
                "this path has no such method; see `/v1/openapi.json`",
            );
            let mut response = refusal.into_response();
            // HTTP has its own status for this case.
            *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
            response
        })
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(axum::middleware::from_fn(read_short_bodies))
        .layer(axum::middleware::from_fn_with_state(
            control.clone(),
            forwarding::to_owner,
        ))
        .layer(axum::middleware::from_fn(limit_time))
        .layer(axum::middleware::from_fn_with_state(
            control.clone(),
            validity::end_with_token,
        ))
        .layer(axum::middleware::from_fn(versions::exchange))
        .layer(axum::middleware::from_fn_with_state(
            control.clone(),
            observability::count,
        ))
        .layer(axum::middleware::from_fn_with_state(control.clone(), name_managers))
        .layer(axum::middleware::from_fn_with_state(
            control.clone(),
            session::authorize,
        ))
        .layer(axum::middleware::from_fn(observability::trace))
        .with_state(control)
}

/// Reads a short body before the request is processed, even if its handler needs none. If the response came first, the
/// connection could not be used again, and would be closed while the client may be sending its next request.
async fn read_short_bodies(request: Request, next: Next) -> Response {
    let length = request.headers().get(CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if !length.is_some_and(|length| (1..=MAX_SHORT_BYTES).contains(&length)) {
        return next.run(request).await;
    }
    let (parts, body) = request.into_parts();
    match axum::body::to_bytes(body, MAX_SHORT_BYTES).await {
        Ok(bytes) => next.run(Request::from_parts(parts, bytes.into())).await,
        Err(error) => refuse(Code::InvalidRequest, format!("the request is incomplete: {error}")).into_response(),
    }
}

/// Names the version of the list of managers in each response, so that clients notice changes.
async fn name_managers(Shared(control): Shared<Api>, request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let version = control.peers().version();
    if let Some(value) = version.and_then(|version| HeaderValue::from_str(&version).ok()) {
        response.headers_mut().insert(MANAGERS_HEADER, value);
    }
    response
}

/// Lists the managers of this site, this one first. Each of them accepts every request.
#[utoipa::path(get, path = "/v1/managers", security(("bearer" = [])),
    responses((status = 200, body = [ManagerStatus]), (status = "default", body = ErrorBody)))]
pub(crate) async fn list_managers(call: Call<Read>) -> Json<Vec<ManagerStatus>> {
    Json(call.control.manager_statuses())
}

async fn limit_time(request: Request, next: Next) -> Response {
    // Revoking a lease, and reclaiming or resizing a node, wait for running calls, with their own limit.
    let path = request.uri().path();
    let takes_node = matches!(*request.method(), Method::DELETE | Method::PATCH) && path.starts_with("/v1/nodes/");
    if takes_node || path.ends_with("/revoke") {
        return next.run(request).await;
    }
    // Upgrades also respond at once. The connections that follow have their own limits.
    match tokio::time::timeout(REQUEST_LIMIT, next.run(request)).await {
        Ok(response) => response,
        Err(_) => refuse(
            Code::TimedOut,
            "the request took too long; check whether it had an effect, and try again",
        )
        .into_response(),
    }
}

/// Returns release and wire version of this manager. Needs no token.
#[utoipa::path(get, path = "/v1/version", responses((status = 200, body = VersionInfo)))]
pub(crate) async fn version() -> Json<VersionInfo> {
    Json(VersionInfo {
        version: env!("CARGO_PKG_VERSION").into(),
        wire_version: WIRE_VERSION,
    })
}

/// Returns the state of this manager: `ok`, or `degraded` while its store cannot write. Needs no token.
#[utoipa::path(get, path = "/v1/health", responses((status = 200, body = Health)))]
pub(crate) async fn health(Shared(control): Shared<Api>) -> Json<Health> {
    let error = control.journal().error();
    let cluster = control.cluster();
    Json(Health {
        status: if error.is_some() {
            HealthStatus::Degraded
        } else {
            HealthStatus::Ok
        },
        nodes_up: cluster.nodes().connected() as u32,
        leases: cluster.leases().live().count() as u32,
        store_error: error.map(|error| error.to_string()),
    })
}

/// Returns this description. Needs no token.
#[utoipa::path(get, path = "/v1/openapi.json", responses((status = 200, description = "OpenAPI 3.1")))]
pub(crate) async fn openapi() -> Json<serde_json::Value> {
    Json(crate::openapi::document())
}
