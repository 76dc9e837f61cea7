//! The HTTP API: what may be asked, and how it is answered. Every error is an [`ErrorBody`].

pub mod allowances;
pub mod contents;
pub mod endpoints;
pub mod flows;
pub mod login;
pub mod observability;
pub mod tasks;
pub mod teams;
pub mod tenants;
pub mod triggers;
pub mod validity;
pub mod versions;

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::rejection::QueryRejection;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use axum::extract::{DefaultBodyLimit, Query, Request, State as Shared};
use axum::http::header::CONTENT_LENGTH;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use axum::{Json, Router};
use dayfly_protocol::WIRE_VERSION;
use dayfly_protocol::api::{
    ErrorBody, Event, GangRequest, Grant, Health, HealthStatus, JoinToken, JoinTokenRequest, LeaseRequest, LeaseState,
    LeaseStatus, MANAGERS_HEADER, ManagerStatus, NodeStatus, Reclaimed, RendezvousAddress, RenewRequest, VersionInfo,
};
use dayfly_protocol::error::Code;
use dayfly_protocol::id_pattern::IdPattern;
use dayfly_protocol::ids::{LeaseId, NodeId};
use dayfly_protocol::tenancy::Role;
use dayfly_store::LeaseRecord;
use tokio::sync::broadcast::error::RecvError;

use crate::cluster::lease_status;
use crate::control::{Control, SiteEvent, stopped};
use crate::extractors::{
    Body, Caller, Grace, MAX_BODY_BYTES, NamePath, NodeBearer, NodePath, Refusal, grace, named, refuse,
};
use crate::forwarding::{self, ClientAuthorization};
use crate::sessions;
use crate::token_registry::Validity;

/// Bytes of a body that is read before its request is looked at.
const MAX_SHORT_BYTES: usize = 16 << 10;
/// No WebSocket message of a node is larger: a registration with 10,000 leases has under 1 MiB.
const MAX_MESSAGE_BYTES: usize = 1 << 20;
/// A heartbeat has a tenth of it, and there may be thousands of sockets.
const SOCKET_BUFFER_BYTES: usize = 4 << 10;
/// Longer than an offer to every node that one request tries.
const REQUEST_DEADLINE: Duration = Duration::from_secs(60);
/// A watcher that hears nothing else hears a ping, so that both sides notice a dead connection.
const PING_EVERY: Duration = Duration::from_secs(20);
/// A watcher that does not read for this long is cut off.
const SEND_DEADLINE: Duration = Duration::from_secs(5);

/// What every handler works on.
pub type Api = Arc<Control>;

/// All routes.
pub fn router(control: Api) -> Router {
    let about_tasks = Router::new()
        .merge(tasks::routes())
        .merge(endpoints::routes())
        .merge(contents::routes())
        .merge(triggers::routes())
        .merge(flows::routes())
        .merge(teams::routes())
        .route_layer(axum::middleware::from_fn_with_state(
            control.clone(),
            forwarding::to_task_owner,
        ));
    Router::new()
        .route("/v1/version", get(version))
        .route("/v1/health", get(health))
        .route("/v1/managers", get(list_managers))
        .route("/v1/rendezvous", get(show_rendezvous))
        .route("/v1/leases", get(list_leases).post(create_lease))
        .route("/v1/leases/{id}", get(show_lease).delete(release_lease))
        .route("/v1/leases/{id}/renew", post(renew_lease))
        .route("/v1/leases/{id}/revoke", post(revoke_lease))
        .route("/v1/gangs", post(create_gang))
        .route("/v1/allowances", post(allowances::create_allowance))
        .route(
            "/v1/allowances/{id}",
            get(allowances::watch_allowance).delete(allowances::end_allowance),
        )
        .route("/v1/nodes", get(list_nodes))
        .route("/v1/nodes/{id}", put(resume_node).delete(reclaim_node))
        .route("/v1/nodes/join-tokens", post(create_join_token))
        .route("/v1/nodes/connect", get(connect_node))
        .route("/v1/tenants", get(tenants::list_tenants))
        .route("/v1/tenants/{name}", put(tenants::set_tenant))
        .route("/v1/tokens", get(tenants::list_tokens).post(tenants::create_token))
        .route("/v1/tokens/{id}", delete(tenants::revoke_token))
        .route("/v1/login", get(login::login_info).post(login::log_in))
        .route("/v1/prices", get(tenants::show_prices).put(tenants::set_prices))
        .route("/v1/bill", get(tenants::show_bill))
        .route("/v1/audit", get(tenants::show_audit))
        .merge(about_tasks)
        .route("/v1/events", get(watch_events))
        .route("/v1/metrics", get(observability::metrics))
        .route("/v1/history", get(observability::history))
        .route("/", get(observability::page))
        .route("/page/{file}", get(observability::part))
        .route("/v1/openapi.json", get(openapi))
        .fallback(|| async {
            refuse(
                Code::NotFound,
                "there is no such path; `/v1/openapi.json` lists those there are",
            )
        })
        .method_not_allowed_fallback(|| async {
            let refusal = refuse(
                Code::InvalidRequest,
                "this path has no such method; see `/v1/openapi.json`",
            );
            let mut response = refusal.into_response();
            // HTTP has a word of its own for it.
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
        .layer(axum::middleware::from_fn(observability::trace))
        .with_state(control)
}

/// Reads short bodies before anything is answered, also of requests that need none: a connection whose request was answered
/// first cannot be used again, and is closed while its client may be sending the next one.
async fn read_short_bodies(request: Request, next: Next) -> Response {
    let length = request.headers().get(CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if !length.is_some_and(|length| (1..=MAX_SHORT_BYTES).contains(&length)) {
        return next.run(request).await;
    }
    let (parts, body) = request.into_parts();
    match axum::body::to_bytes(body, MAX_SHORT_BYTES).await {
        Ok(bytes) => next.run(Request::from_parts(parts, bytes.into())).await,
        Err(error) => refuse(Code::InvalidRequest, format!("the request was cut short: {error}")).into_response(),
    }
}

/// Whoever asks learns when the list of managers changes.
async fn name_managers(Shared(control): Shared<Api>, request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let version = control.peers.version();
    if let Some(value) = version.and_then(|version| HeaderValue::from_str(&version).ok()) {
        response.headers_mut().insert(MANAGERS_HEADER, value);
    }
    response
}

/// Where the ranks of groups meet.
#[utoipa::path(get, path = "/v1/rendezvous", security(("bearer" = [])),
    responses((status = 200, body = RendezvousAddress), (status = "default", body = ErrorBody)))]
pub(crate) async fn show_rendezvous(_: Caller, Shared(control): Shared<Api>) -> Json<RendezvousAddress> {
    Json(control.rendezvous.clone())
}

/// The managers of this site, of which each answers for all: first the one that was asked.
#[utoipa::path(get, path = "/v1/managers", security(("bearer" = [])),
    responses((status = 200, body = [ManagerStatus]), (status = "default", body = ErrorBody)))]
pub(crate) async fn list_managers(_: Caller, Shared(control): Shared<Api>) -> Json<Vec<ManagerStatus>> {
    Json(control.manager_statuses())
}

async fn limit_time(request: Request, next: Next) -> Response {
    // Taking back a node or a lease waits for running calls, within a deadline of its own.
    let path = request.uri().path();
    let takes_node = request.method() == Method::DELETE && path.starts_with("/v1/nodes/");
    if takes_node || path.ends_with("/revoke") {
        return next.run(request).await;
    }
    // Upgrades answer at once too; what follows on the socket has deadlines of its own.
    match tokio::time::timeout(REQUEST_DEADLINE, next.run(request)).await {
        Ok(response) => response,
        Err(_) => refuse(
            Code::TimedOut,
            "the request took too long; see whether it had an effect, and try again",
        )
        .into_response(),
    }
}

/// Release and wire version of this manager. Needs no token.
#[utoipa::path(get, path = "/v1/version", responses((status = 200, body = VersionInfo)))]
pub(crate) async fn version() -> Json<VersionInfo> {
    Json(VersionInfo {
        version: env!("CARGO_PKG_VERSION").into(),
        wire_version: WIRE_VERSION,
    })
}

/// Whether the manager can do its work. Needs no token.
#[utoipa::path(get, path = "/v1/health", responses((status = 200, body = Health)))]
pub(crate) async fn health(Shared(control): Shared<Api>) -> Json<Health> {
    let trouble = control.journal.trouble();
    let cluster = control.cluster();
    Json(Health {
        status: if trouble.is_some() {
            HealthStatus::Degraded
        } else {
            HealthStatus::Ok
        },
        nodes_up: cluster.nodes_up() as u32,
        leases: cluster.live_leases() as u32,
        store_error: trouble.map(|error| error.to_string()),
    })
}

/// Grants a lease on the node that suits it best.
#[utoipa::path(post, path = "/v1/leases", request_body = LeaseRequest, security(("bearer" = [])),
    responses((status = 201, body = Grant), (status = "default", body = ErrorBody)))]
pub(crate) async fn create_lease(
    caller: Caller,
    headers: HeaderMap,
    Shared(control): Shared<Api>,
    Body(request): Body<LeaseRequest>,
) -> Result<(StatusCode, Json<Grant>), Refusal> {
    caller.changes_as(Role::User)?;
    let begun = Instant::now();
    let asker = ClientAuthorization::of(&headers).filter(|_| control.peers.are_possible());
    let answer = control.grant(caller.principal(), request, asker).await;
    control.metrics.granted(begun, &answer);
    Ok((StatusCode::CREATED, Json(answer?)))
}

/// Grants leases on one node or several whose workers together are as many as was asked, or none at all; in the order of the
/// gang's ranks.
#[utoipa::path(post, path = "/v1/gangs", request_body = GangRequest, security(("bearer" = [])),
    responses((status = 201, body = [Grant]), (status = "default", body = ErrorBody)))]
pub(crate) async fn create_gang(
    caller: Caller,
    headers: HeaderMap,
    Shared(control): Shared<Api>,
    Body(request): Body<GangRequest>,
) -> Result<(StatusCode, Json<Vec<Grant>>), Refusal> {
    caller.changes_as(Role::User)?;
    let begun = Instant::now();
    let asker = ClientAuthorization::of(&headers).filter(|_| control.peers.are_possible());
    let answer = control.grant_gang(caller.principal(), request, asker).await;
    control.metrics.granted(begun, &answer);
    Ok((StatusCode::CREATED, Json(answer?)))
}

/// Leases that live, or ended within the last hour, the newest first: one's own, or, for operators, everybody's.
#[utoipa::path(get, path = "/v1/leases", security(("bearer" = [])),
    responses((status = 200, body = [LeaseStatus]), (status = "default", body = ErrorBody)))]
pub(crate) async fn list_leases(
    caller: Caller,
    Shared(control): Shared<Api>,
) -> Result<Json<Vec<LeaseStatus>>, Refusal> {
    let mut elsewhere = control.leases_elsewhere().await?;
    elsewhere.retain(|record| caller.sees(record.tenant));
    let cluster = control.cluster();
    let seen = cluster.leases.values().filter(|record| caller.sees(record.tenant));
    let own: Vec<LeaseStatus> = seen.map(lease_status).collect();
    drop(cluster);
    Ok(Json(forwarding::merged(own, &elsewhere)))
}

/// One lease.
#[utoipa::path(get, path = "/v1/leases/{id}", params(("id" = String, Path, pattern = r"^(\.\.\.)?[0-9a-fA-F]{6,32}$")), security(("bearer" = [])),
    responses((status = 200, body = LeaseStatus), (status = "default", body = ErrorBody)))]
pub(crate) async fn show_lease(
    caller: Caller,
    Shared(control): Shared<Api>,
    path: NamePath,
) -> Result<Json<LeaseStatus>, Refusal> {
    Ok(Json(lease_status(&lease_at(&control, &caller, path).await?)))
}

/// Counts a lease's length anew from now, and answers a grant with a token to match.
#[utoipa::path(post, path = "/v1/leases/{id}/renew", params(("id" = String, Path, pattern = r"^(\.\.\.)?[0-9a-fA-F]{6,32}$")), request_body = RenewRequest,
    security(("bearer" = [])), responses((status = 200, body = Grant), (status = "default", body = ErrorBody)))]
pub(crate) async fn renew_lease(
    caller: Caller,
    Shared(control): Shared<Api>,
    path: NamePath,
    Body(request): Body<RenewRequest>,
) -> Result<Json<Grant>, Refusal> {
    caller.changes_as(Role::User)?;
    let lease = lease_at(&control, &caller, path).await?.lease;
    Ok(Json(
        control.renew(caller.principal(), lease, request.duration_ms).await?,
    ))
}

/// Gives a lease back.
#[utoipa::path(delete, path = "/v1/leases/{id}", params(("id" = String, Path, pattern = r"^(\.\.\.)?[0-9a-fA-F]{6,32}$")), security(("bearer" = [])),
    responses((status = 200, body = LeaseStatus), (status = "default", body = ErrorBody)))]
pub(crate) async fn release_lease(
    caller: Caller,
    Shared(control): Shared<Api>,
    path: NamePath,
) -> Result<Json<LeaseStatus>, Refusal> {
    let lease = own_lease(&control, &caller, path).await?;
    Ok(Json(lease_status(&control.end(lease, LeaseState::Released).await?)))
}

/// Takes a lease away from its holder: one's own, or, for operators, anybody's. Answers when it has ended and its last bill is
/// booked. Running calls may go on for `grace` seconds; clients are told at once, and nothing new begins.
#[utoipa::path(post, path = "/v1/leases/{id}/revoke", params(("id" = String, Path, pattern = r"^(\.\.\.)?[0-9a-fA-F]{6,32}$"), Grace), security(("bearer" = [])),
    responses((status = 200, body = LeaseStatus), (status = "default", body = ErrorBody)))]
pub(crate) async fn revoke_lease(
    caller: Caller,
    Shared(control): Shared<Api>,
    path: NamePath,
    query: Result<Query<Grace>, QueryRejection>,
) -> Result<Json<LeaseStatus>, Refusal> {
    caller.changes_as(Role::User)?;
    let record = lease_at(&control, &caller, path).await?;
    let grace = grace(query)?;
    if record.tenant != caller.bearer.tenant {
        control
            .audit(&caller, "lease.revoke", record.lease, &record.tenant)
            .await?;
    }
    Ok(Json(lease_status(&control.revoke(record.lease, grace).await?)))
}

/// The lease that a path names by its id, or by the beginning or end of it, if the caller may see it.
async fn lease_at(control: &Control, caller: &Caller, path: NamePath) -> Result<LeaseRecord, Refusal> {
    let given: IdPattern = named(path)?.parse()?;
    if let Some(whole) = given.full_id() {
        return Ok(control.lease_seen(caller, whole)?);
    }
    let mut seen = control.leases_elsewhere().await?;
    seen.extend(control.cluster().leases.values().cloned());
    seen.retain(|record| caller.sees(record.tenant) && given.matches(&record.lease.0));
    let lease = given.resolve(seen.iter().map(|record| record.lease).collect(), "lease")?;
    let found = seen.into_iter().rfind(|record| record.lease == lease);
    found.ok_or_else(|| refuse(Code::Internal, "a lease is lost"))
}

/// A lease that the caller may give back.
async fn own_lease(control: &Control, caller: &Caller, path: NamePath) -> Result<LeaseId, Refusal> {
    caller.changes_as(Role::User)?;
    let record = lease_at(control, caller, path).await?;
    if record.tenant == caller.bearer.tenant {
        return Ok(record.lease);
    }
    Err(refuse(
        Code::Forbidden,
        "the lease is another tenant's; an operator may revoke it",
    ))
}

/// Every node that ever registered.
#[utoipa::path(get, path = "/v1/nodes", security(("bearer" = [])),
    responses((status = 200, body = [NodeStatus]), (status = "default", body = ErrorBody)))]
pub(crate) async fn list_nodes(_: Caller, headers: HeaderMap, Shared(control): Shared<Api>) -> Json<Vec<NodeStatus>> {
    Json(control.all_nodes(ClientAuthorization::of(&headers)).await)
}

/// Takes a node back for its owner: no new lease, an end to those there are. Answers when the node is empty and the last bill
/// is booked. Running calls may go on for `grace` seconds; their clients are told at once, and nothing new begins.
#[utoipa::path(delete, path = "/v1/nodes/{id}", params(("id" = NodeId, Path), Grace), security(("bearer" = [])),
    responses((status = 200, body = Reclaimed), (status = "default", body = ErrorBody)))]
pub(crate) async fn reclaim_node(
    caller: Caller,
    Shared(control): Shared<Api>,
    path: NodePath,
    query: Result<Query<Grace>, QueryRejection>,
) -> Result<Json<Reclaimed>, Refusal> {
    caller.changes_as(Role::Operator)?;
    let (node, grace) = (named(path)?, grace(query)?);
    control
        .audit(&caller, "node.reclaim", node, &grace.as_secs_f64())
        .await?;
    Ok(Json(control.reclaim(node, grace).await?))
}

/// Gives a node that was taken back to leases again.
#[utoipa::path(put, path = "/v1/nodes/{id}", params(("id" = NodeId, Path)), security(("bearer" = [])),
    responses((status = 200, body = NodeStatus), (status = "default", body = ErrorBody)))]
pub(crate) async fn resume_node(
    caller: Caller,
    Shared(control): Shared<Api>,
    path: NodePath,
) -> Result<Json<NodeStatus>, Refusal> {
    caller.changes_as(Role::Operator)?;
    let node = named(path)?;
    control.audit(&caller, "node.resume", node, &()).await?;
    Ok(Json(control.resume(node).await?))
}

/// Makes a token with which one node may join.
#[utoipa::path(post, path = "/v1/nodes/join-tokens", request_body = JoinTokenRequest, security(("bearer" = [])),
    responses((status = 201, body = JoinToken), (status = "default", body = ErrorBody)))]
pub(crate) async fn create_join_token(
    caller: Caller,
    Shared(control): Shared<Api>,
    Body(request): Body<JoinTokenRequest>,
) -> Result<(StatusCode, Json<JoinToken>), Refusal> {
    caller.changes_as(Role::Operator)?;
    control
        .audit(&caller, "node.join_token", "", &request.valid_for_ms)
        .await?;
    let valid_for = Duration::from_millis(request.valid_for_ms);
    let token = control.join_token(valid_for, Some(caller.bearer.tenant)).await?;
    Ok((StatusCode::CREATED, Json(token)))
}

/// A node's own connection: a WebSocket on which it speaks `NodeMessage` and hears `ManagerMessage`.
#[utoipa::path(get, path = "/v1/nodes/connect", security(("bearer" = [])),
    responses((status = 101, description = "WebSocket"), (status = "default", body = ErrorBody)))]
pub(crate) async fn connect_node(
    NodeBearer(bearer): NodeBearer,
    Shared(control): Shared<Api>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Refusal> {
    let upgrade = upgrade.map_err(|rejection| refuse(Code::InvalidRequest, rejection.body_text()))?;
    let upgrade = upgrade
        .max_message_size(MAX_MESSAGE_BYTES)
        .max_frame_size(MAX_MESSAGE_BYTES)
        .read_buffer_size(SOCKET_BUFFER_BYTES)
        .write_buffer_size(0);
    Ok(upgrade.on_upgrade(move |socket| sessions::serve(control, bearer, socket)))
}

/// What happens from now on: a WebSocket on which each message is an `Event`. Those of other tenants' leases are for
/// operators only.
#[utoipa::path(get, path = "/v1/events", security(("bearer" = [])),
    responses((status = 101, description = "WebSocket of Event", body = dayfly_protocol::api::Event),
        (status = "default", body = ErrorBody)))]
pub(crate) async fn watch_events(
    caller: Caller,
    Shared(control): Shared<Api>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Refusal> {
    let upgrade = upgrade.map_err(|rejection| refuse(Code::InvalidRequest, rejection.body_text()))?;
    // Subscribed before the answer, so that nothing that happens after it is missed.
    let events = control.events.subscribe();
    let validity = control.validity(&caller.bearer.hash).ok_or_else(validity::ended)?;
    // Watchers say nothing but pongs and a close.
    let upgrade = upgrade
        .max_message_size(1024)
        .max_frame_size(1024)
        .read_buffer_size(SOCKET_BUFFER_BYTES)
        .write_buffer_size(0);
    Ok(upgrade.on_upgrade(move |socket| watch(control, caller, events, validity, socket)))
}

/// Whether an event is the caller's concern.
fn concerns(caller: &Caller, told: &SiteEvent) -> bool {
    match told.event {
        Event::Lease { .. } | Event::Incident { .. } => told
            .tenant
            .map_or(caller.role >= Role::Operator, |tenant| caller.sees(tenant)),
        _ => true,
    }
}

async fn watch(
    control: Api,
    caller: Caller,
    mut events: tokio::sync::broadcast::Receiver<SiteEvent>,
    mut validity: Validity,
    mut socket: WebSocket,
) {
    let mut stopping = control.stopping.subscribe();
    let mut pings = tokio::time::interval(PING_EVERY);
    loop {
        let message = tokio::select! {
            event = events.recv() => match event {
                Ok(told) if !concerns(&caller, &told) => continue,
                Ok(told) => match serde_json::to_string(&told.event) {
                    Ok(text) => Message::text(text),
                    Err(_) => break,
                },
                Err(RecvError::Lagged(_)) => {
                    let reason = "events were lost because you read too slowly; list again and connect anew".into();
                    let close = Message::Close(Some(CloseFrame { code: 1013, reason }));
                    let _ = tokio::time::timeout(SEND_DEADLINE, socket.send(close)).await;
                    break;
                }
                Err(RecvError::Closed) => break,
            },
            _ = pings.tick() => Message::Ping(Default::default()),
            heard = socket.recv() => match heard {
                Some(Ok(Message::Close(_)) | Err(_)) | None => break,
                Some(Ok(_)) => continue,
            },
            () = validity.ended() => Message::Close(Some(CloseFrame { code: 1008, reason: validity::ENDED.into() })),
            _ = stopped(&mut stopping) => Message::Close(None),
        };
        let last = matches!(message, Message::Close(_));
        let sent = tokio::time::timeout(SEND_DEADLINE, socket.send(message)).await;
        if last || !matches!(sent, Ok(Ok(()))) {
            break;
        }
    }
}

/// This description. Needs no token.
#[utoipa::path(get, path = "/v1/openapi.json", responses((status = 200, description = "OpenAPI 3.1")))]
pub(crate) async fn openapi() -> Json<serde_json::Value> {
    Json(crate::openapi::document())
}
