//! Handlers for nodes, and their connections.

use std::time::Duration;

use axum::Json;
use axum::extract::State as Shared;
use axum::http::StatusCode;
use axum::response::Response;
use dayfly_protocol::api::{ErrorBody, HarvestSwitch, JoinToken, JoinTokenRequest, NodeResize, NodeStatus, Reclaimed};
use dayfly_protocol::ids::NodeId;
use dayfly_protocol::tenancy::Role;

use super::{Api, SOCKET_BUFFER_BYTES};
use crate::extractors::{Call, Grace, JsonBody, NodeBearer, OperatorWrite, PathOf, QueryOf, Read, Refusal, Upgrade};
use crate::forwarding::ClientAuthorization;
use crate::sessions;

/// Bytes of a WebSocket message of a node. A registration with 10,000 leases has less than 1 MiB.
const MAX_MESSAGE_BYTES: usize = 1 << 20;

/// Lists every node that ever registered. What calls have now (`harvest.now`) is shown to operators only.
#[utoipa::path(get, path = "/v1/nodes", security(("bearer" = [])),
    responses((status = 200, body = [NodeStatus]), (status = "default", body = ErrorBody)))]
pub(crate) async fn list_nodes(call: Call<Read>) -> Json<Vec<NodeStatus>> {
    let Call {
        caller,
        control,
        headers,
        ..
    } = call;
    let mut nodes = control.all_nodes(ClientAuthorization::of(&headers)).await;
    if caller.role < Role::Operator {
        let harvests = nodes.iter_mut().filter_map(|node| node.harvest.as_mut());
        harvests.for_each(|harvest| harvest.now = None);
    }
    Json(nodes)
}

/// Reclaims a node for its owner: it gets no new lease, and its leases end. Clients are informed at once, no call
/// begins any more, and running calls may continue for `grace` seconds. Returns when the node is empty and its last
/// usage is booked.
#[utoipa::path(delete, path = "/v1/nodes/{id}", params(("id" = NodeId, Path), Grace), security(("bearer" = [])),
    responses((status = 200, body = Reclaimed), (status = "default", body = ErrorBody)))]
pub(crate) async fn reclaim_node(
    call: Call<OperatorWrite, PathOf<NodeId>, QueryOf<Grace>>,
) -> Result<Json<Reclaimed>, Refusal> {
    let Call {
        caller,
        control,
        path: PathOf(path),
        query: QueryOf(query),
        ..
    } = call;
    let (node, grace) = (path, query.duration()?);
    control
        .audit()
        .record(&caller, "node.reclaim", node, &grace.as_secs_f64())
        .await?;
    Ok(Json(control.reclaim(node, grace).await?))
}

/// Puts a reclaimed or suspended node into service again.
#[utoipa::path(put, path = "/v1/nodes/{id}", params(("id" = NodeId, Path)), security(("bearer" = [])),
    responses((status = 200, body = NodeStatus), (status = "default", body = ErrorBody)))]
pub(crate) async fn resume_node(call: Call<OperatorWrite, PathOf<NodeId>>) -> Result<Json<NodeStatus>, Refusal> {
    let Call {
        caller,
        control,
        path: PathOf(path),
        ..
    } = call;
    let node = path;
    control.audit().record(&caller, "node.resume", node, &()).await?;
    Ok(Json(control.resume(node).await?))
}

/// Changes what a node offers to leases, within what it was started with, for example while a batch job has the rest.
/// Free resources leave at once. If leases hold more than the new offer, idle ones end first, and running calls may
/// continue for `grace` seconds. Returns when no lease holds more than the node offers. The node keeps the offer over
/// restarts.
#[utoipa::path(patch, path = "/v1/nodes/{id}", params(("id" = NodeId, Path), Grace), request_body = NodeResize,
    security(("bearer" = [])),
    responses((status = 200, body = NodeStatus), (status = "default", body = ErrorBody)))]
pub(crate) async fn resize_node(
    call: Call<OperatorWrite, PathOf<NodeId>, QueryOf<Grace>, JsonBody<NodeResize>>,
) -> Result<Json<NodeStatus>, Refusal> {
    let Call {
        caller,
        control,
        path: PathOf(node),
        query: QueryOf(query),
        body: JsonBody(change),
        ..
    } = call;
    let grace = query.duration()?;
    control.audit().record(&caller, "node.resize", node, &change).await?;
    Ok(Json(control.resize(node, change, grace).await?))
}

/// Switches what a node does with resources that calls own and do not use, until the node ends.
#[utoipa::path(put, path = "/v1/nodes/{id}/harvest", params(("id" = NodeId, Path)), request_body = HarvestSwitch,
    security(("bearer" = [])),
    responses((status = 200, body = NodeStatus), (status = "default", body = ErrorBody)))]
pub(crate) async fn switch_harvest(
    call: Call<OperatorWrite, PathOf<NodeId>, (), JsonBody<HarvestSwitch>>,
) -> Result<Json<NodeStatus>, Refusal> {
    let Call {
        caller,
        control,
        path: PathOf(node),
        body: JsonBody(request),
        ..
    } = call;
    control.audit().record(&caller, "node.harvest", node, &request).await?;
    Ok(Json(control.switch_harvest(node, request.mode).await?))
}

/// Makes a token with which one node may join.
#[utoipa::path(post, path = "/v1/nodes/join-tokens", request_body = JoinTokenRequest, security(("bearer" = [])),
    responses((status = 201, body = JoinToken), (status = "default", body = ErrorBody)))]
pub(crate) async fn create_join_token(
    call: Call<OperatorWrite, (), (), JsonBody<JoinTokenRequest>>,
) -> Result<(StatusCode, Json<JoinToken>), Refusal> {
    let Call {
        caller,
        control,
        body: JsonBody(request),
        ..
    } = call;
    control
        .audit()
        .record(&caller, "node.join_token", "", &request.valid_for_ms)
        .await?;
    let valid_for = Duration::from_millis(request.valid_for_ms);
    let token = control.join_token(valid_for, Some(caller.bearer.tenant)).await?;
    Ok((StatusCode::CREATED, Json(token)))
}

/// Connects a node: a WebSocket on which it sends `NodeMessage` and receives `ManagerMessage`.
#[utoipa::path(get, path = "/v1/nodes/connect", security(("bearer" = [])),
    responses((status = 101, description = "WebSocket"), (status = "default", body = ErrorBody)))]
pub(crate) async fn connect_node(
    NodeBearer(bearer): NodeBearer,
    Shared(control): Shared<Api>,
    Upgrade(upgrade): Upgrade,
) -> Result<Response, Refusal> {
    let upgrade = upgrade
        .max_message_size(MAX_MESSAGE_BYTES)
        .max_frame_size(MAX_MESSAGE_BYTES)
        .read_buffer_size(SOCKET_BUFFER_BYTES)
        .write_buffer_size(0);
    Ok(upgrade.on_upgrade(move |socket| sessions::serve(control, bearer, socket)))
}
