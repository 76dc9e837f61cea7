//! Contents over HTTP: what is too long to travel with what is said of it. Bodies are the bytes themselves, and stream.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, BodyDataStream};
use axum::extract::rejection::PathRejection;
use axum::extract::{DefaultBodyLimit, Path, Request, State as Shared};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use dayfly_protocol::api::ErrorBody;
use dayfly_protocol::contents::{Content, ContentUsage};
use dayfly_protocol::error::Code;
use dayfly_protocol::ids::{ContentHash, TaskId, TenantId};
use dayfly_protocol::tasks::MAX_BODY_BYTES;
use dayfly_protocol::tenancy::Role;
use futures_util::StreamExt;

use super::Api;
use crate::control::Control;
use crate::extractors::{Caller, EndpointBearer, Packed, Refusal, named, refuse};

/// What is read of a body that was refused.
const MAX_REFUSED: usize = 256 << 20;
const REFUSED_LIMIT: Duration = Duration::from_secs(10);

/// Routes of contents.
pub fn routes() -> Router<Api> {
    Router::new()
        .route("/v1/contents/{hash}", get(show_content).put(store_content))
        .route(
            "/v1/endpoints/tasks/{id}/contents/{hash}",
            get(show_given).put(store_answer),
        )
        // Their quota bounds them.
        .layer(DefaultBodyLimit::disable())
        .route("/v1/contents", get(show_usage).post(store_unnamed))
        .layer(from_fn(answer_when_read))
}

/// Reads what is left of a body that was refused: who sends more than anybody reads does not hear why.
async fn answer_when_read(request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let body = Arc::new(Mutex::new(body.into_data_stream()));
    let given = futures_util::stream::poll_fn({
        let body = Arc::clone(&body);
        move |context| lock(&body).poll_next_unpin(context)
    });
    let response = next.run(Request::from_parts(parts, Body::from_stream(given))).await;
    if !response.status().is_success() {
        let mut left = MAX_REFUSED;
        let mut rest = futures_util::stream::poll_fn(|context| lock(&body).poll_next_unpin(context));
        let read = async {
            while let Some(Ok(piece)) = rest.next().await
                && left > 0
            {
                left = left.saturating_sub(piece.len());
            }
        };
        // Whoever is slower has heard nothing, as one would who sends more.
        let _ = tokio::time::timeout(REFUSED_LIMIT, read).await;
    }
    response
}

fn lock(body: &Mutex<BodyDataStream>) -> MutexGuard<'_, BodyDataStream> {
    body.lock().unwrap_or_else(PoisonError::into_inner)
}

type ContentPath = Result<Path<ContentHash>, PathRejection>;
type HeldPath = Result<Path<(TaskId, ContentHash)>, PathRejection>;

/// How much the caller has in the content store.
#[utoipa::path(get, path = "/v1/contents", security(("bearer" = [])),
    responses((status = 200, body = ContentUsage), (status = "default", body = ErrorBody)))]
pub(crate) async fn show_usage(
    caller: Caller,
    packed: Packed,
    Shared(control): Shared<Api>,
) -> Result<Response, Refusal> {
    Ok(packed.answer(control.tasks()?.contents.usage(caller.bearer.tenant)))
}

/// Keeps bytes under the BLAKE3 hash that they have, for tasks to come: an hour, or as long as a task has them.
#[utoipa::path(put, path = "/v1/contents/{hash}", params(("hash" = ContentHash, Path)), security(("bearer" = [])),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 201, body = Content), (status = "default", body = ErrorBody)))]
pub(crate) async fn store_content(
    caller: Caller,
    packed: Packed,
    Shared(control): Shared<Api>,
    path: ContentPath,
    body: Body,
) -> Result<Response, Refusal> {
    caller.changes_as(Role::User)?;
    store(&control, &packed, caller.bearer.tenant, named(path)?, body).await
}

/// Keeps bytes, of which there are not too many to hash them here, and answers their name.
#[utoipa::path(post, path = "/v1/contents", security(("bearer" = [])),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 201, body = Content), (status = "default", body = ErrorBody)))]
pub(crate) async fn store_unnamed(
    caller: Caller,
    packed: Packed,
    Shared(control): Shared<Api>,
    body: Body,
) -> Result<Response, Refusal> {
    caller.changes_as(Role::User)?;
    let bytes = axum::body::to_bytes(body, MAX_BODY_BYTES).await.map_err(|error| {
        let text = format!(
            "the content cannot be taken ({error}); one of more than {MAX_BODY_BYTES} bytes goes by PUT to \
             /v1/contents/HASH, with the hash that `b3sum` tells"
        );
        refuse(Code::PayloadTooLarge, text)
    })?;
    let content = control.tasks()?.contents.put_bytes(caller.bearer.tenant, bytes).await?;
    Ok((StatusCode::CREATED, packed.answer(content)).into_response())
}

/// The bytes of one of the caller's contents.
#[utoipa::path(get, path = "/v1/contents/{hash}", params(("hash" = ContentHash, Path)), security(("bearer" = [])),
    responses((status = 200, body = Vec<u8>, content_type = "application/octet-stream"), (status = "default", body = ErrorBody)))]
pub(crate) async fn show_content(
    caller: Caller,
    Shared(control): Shared<Api>,
    path: ContentPath,
) -> Result<Response, Refusal> {
    read(&control, caller.bearer.tenant, named(path)?).await
}

/// What a task that an endpoint has is given, for its dispatcher: its arguments, or the answer of one before it.
#[utoipa::path(get, path = "/v1/endpoints/tasks/{id}/contents/{hash}", security(("bearer" = [])),
    params(("id" = TaskId, Path), ("hash" = ContentHash, Path)),
    responses((status = 200, body = Vec<u8>, content_type = "application/octet-stream"), (status = "default", body = ErrorBody)))]
pub(crate) async fn show_given(
    EndpointBearer { endpoint, .. }: EndpointBearer,
    Shared(control): Shared<Api>,
    path: HeldPath,
) -> Result<Response, Refusal> {
    let (task, hash) = named(path)?;
    let tenant = control.tasks()?.owner_of_sent(endpoint, task)?;
    read(&control, tenant, hash).await
}

/// Keeps the answer of a task that an endpoint has, for its dispatcher to tell of.
#[utoipa::path(put, path = "/v1/endpoints/tasks/{id}/contents/{hash}", security(("bearer" = [])),
    params(("id" = TaskId, Path), ("hash" = ContentHash, Path)),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 201, body = Content), (status = "default", body = ErrorBody)))]
pub(crate) async fn store_answer(
    EndpointBearer { endpoint, .. }: EndpointBearer,
    packed: Packed,
    Shared(control): Shared<Api>,
    path: HeldPath,
    body: Body,
) -> Result<Response, Refusal> {
    let (task, hash) = named(path)?;
    let tenant = control.tasks()?.owner_of_sent(endpoint, task)?;
    store(&control, &packed, tenant, hash, body).await
}

async fn store(
    control: &Control,
    packed: &Packed,
    tenant: TenantId,
    hash: ContentHash,
    body: Body,
) -> Result<Response, Refusal> {
    let tasks = control.tasks()?;
    let contents = &tasks.contents;
    let content = contents.put(tenant, hash, body.into_data_stream()).await?;
    Ok((StatusCode::CREATED, packed.answer(content)).into_response())
}

async fn read(control: &Control, tenant: TenantId, hash: ContentHash) -> Result<Response, Refusal> {
    let (length, bytes) = control.tasks()?.contents.read(tenant, hash).await?;
    let headers = [
        (CONTENT_TYPE, "application/octet-stream".to_owned()),
        (CONTENT_LENGTH, length.to_string()),
    ];
    Ok((headers, Body::from_stream(bytes)).into_response())
}
