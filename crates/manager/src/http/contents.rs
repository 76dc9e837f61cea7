//! Handlers for contents: long arguments and results of tasks. Bodies are the bytes themselves, and are streamed.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, BodyDataStream};
use axum::extract::{DefaultBodyLimit, Request, State as Shared};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use dayfly_protocol::api::ErrorBody;
use dayfly_protocol::contents::{Content, ContentStatus, ContentUsage};
use dayfly_protocol::error::Code;
use dayfly_protocol::ids::{ContentHash, TaskId, TenantId};
use dayfly_protocol::tasks::MAX_BODY_BYTES;
use dayfly_store::tasks::ListedContent;
use futures_util::StreamExt;
use serde::Deserialize;
use utoipa::IntoParams;

use super::Api;
use crate::control::Control;
use crate::extractors::{Call, EndpointBearer, PathOf, QueryOf, Read, Refusal, ResponseFormat, Write, refuse};

/// Contents of one list.
const MAX_LISTED: u32 = 1_000;
/// Bytes that are read of the body of a refused request.
const MAX_REFUSED_BYTES: usize = 256 << 20;
/// Time limit for that.
const REFUSED_LIMIT: Duration = Duration::from_secs(10);

/// Routes of contents.
pub fn routes() -> Router<Api> {
    Router::new()
        .route("/v1/contents/{hash}", get(show_content).put(store_content))
        .route(
            "/v1/endpoints/tasks/{id}/contents/{hash}",
            get(show_argument).put(store_result),
        )
        // The tenant's quota bounds them.
        .layer(DefaultBodyLimit::disable())
        .route("/v1/contents", get(show_usage).post(store_unnamed))
        .route("/v1/contents/list", get(list_contents))
        .layer(from_fn(respond_when_read))
}

/// Reads the rest of the body of a refused request, because a client that is still sending would not read the refusal.
async fn respond_when_read(request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let body = Arc::new(Mutex::new(body.into_data_stream()));
    let streamed = futures_util::stream::poll_fn({
        let body = Arc::clone(&body);
        move |context| lock(&body).poll_next_unpin(context)
    });
    let response = next.run(Request::from_parts(parts, Body::from_stream(streamed))).await;
    if !response.status().is_success() {
        let mut left = MAX_REFUSED_BYTES;
        let mut rest = futures_util::stream::poll_fn(|context| lock(&body).poll_next_unpin(context));
        let read = async {
            while let Some(Ok(piece)) = rest.next().await
                && left > 0
            {
                left = left.saturating_sub(piece.len());
            }
        };
        // A slower client may miss the refusal, as one that sends more does.
        let _ = tokio::time::timeout(REFUSED_LIMIT, read).await;
    }
    response
}

fn lock(body: &Mutex<BodyDataStream>) -> MutexGuard<'_, BodyDataStream> {
    body.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns how much the caller's tenant has in the content store.
#[utoipa::path(get, path = "/v1/contents", security(("bearer" = [])),
    responses((status = 200, body = ContentUsage), (status = "default", body = ErrorBody)))]
pub(crate) async fn show_usage(call: Call<Read>) -> Result<Response, Refusal> {
    let Call {
        caller,
        control,
        format,
        ..
    } = call;
    Ok(format.respond(control.tasks()?.contents.usage(caller.bearer.tenant)))
}

/// Query of a list of contents.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default)]
pub struct Listing {
    /// Only contents with greater hashes: the last one of the previous page.
    after: Option<ContentHash>,
    /// Number of contents. Default: 100, maximum: 1,000.
    limit: Option<u32>,
}

/// Lists the contents of the caller's tenant, in the order of their hashes.
#[utoipa::path(get, path = "/v1/contents/list", params(Listing), security(("bearer" = [])),
    responses((status = 200, body = [ContentStatus]), (status = "default", body = ErrorBody)))]
pub(crate) async fn list_contents(call: Call<Read, (), QueryOf<Listing>>) -> Result<Response, Refusal> {
    let Call {
        caller,
        control,
        query: QueryOf(query),
        format,
        ..
    } = call;
    let limit = query.limit.unwrap_or(100).clamp(1, MAX_LISTED);
    let contents = &control.tasks()?.contents;
    let found = contents.list(caller.bearer.tenant, query.after, limit).await?;
    let status = |one: ListedContent| ContentStatus {
        hash: one.content.hash,
        bytes: one.content.bytes,
        since_ms: one.since_ms,
        used_at_ms: one.used_at_ms,
        arguments_of: one.arguments_of,
        results_of: one.results_of,
        task: one.task,
    };
    Ok(format.respond(found.into_iter().map(status).collect::<Vec<_>>()))
}

/// Stores bytes under their BLAKE3 hash, for an hour or as long as a task refers to them.
#[utoipa::path(put, path = "/v1/contents/{hash}", params(("hash" = ContentHash, Path)), security(("bearer" = [])),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 201, body = Content), (status = "default", body = ErrorBody)))]
pub(crate) async fn store_content(call: Call<Write, PathOf<ContentHash>, (), Body>) -> Result<Response, Refusal> {
    let Call {
        caller,
        control,
        path: PathOf(path),
        body,
        format,
        ..
    } = call;
    store(&control, format, caller.bearer.tenant, path, body).await
}

/// Stores a short content and returns its hash.
#[utoipa::path(post, path = "/v1/contents", security(("bearer" = [])),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 201, body = Content), (status = "default", body = ErrorBody)))]
pub(crate) async fn store_unnamed(call: Call<Write, (), (), Body>) -> Result<Response, Refusal> {
    let Call {
        caller,
        control,
        body,
        format,
        ..
    } = call;
    let bytes = axum::body::to_bytes(body, MAX_BODY_BYTES).await.map_err(|error| {
        let text = format!(
            "the content cannot be stored ({error}); send one of more than {MAX_BODY_BYTES} bytes with PUT to \
             /v1/contents/HASH, with the hash that `b3sum` prints"
        );
        refuse(Code::PayloadTooLarge, text)
    })?;
    let content = control.tasks()?.contents.put_bytes(caller.bearer.tenant, bytes).await?;
    Ok(format.created(content))
}

/// Returns the bytes of one of the caller's contents.
#[utoipa::path(get, path = "/v1/contents/{hash}", params(("hash" = ContentHash, Path)), security(("bearer" = [])),
    responses((status = 200, body = Vec<u8>, content_type = "application/octet-stream"), (status = "default", body = ErrorBody)))]
pub(crate) async fn show_content(call: Call<Read, PathOf<ContentHash>>) -> Result<Response, Refusal> {
    let Call {
        caller,
        control,
        path: PathOf(path),
        ..
    } = call;
    read(&control, caller.bearer.tenant, path).await
}

/// Returns the bytes of a content of a task, for the dispatcher of the task's endpoint: its arguments, or the result of
/// a task that it depends on.
#[utoipa::path(get, path = "/v1/endpoints/tasks/{id}/contents/{hash}", security(("bearer" = [])),
    params(("id" = TaskId, Path), ("hash" = ContentHash, Path)),
    responses((status = 200, body = Vec<u8>, content_type = "application/octet-stream"), (status = "default", body = ErrorBody)))]
pub(crate) async fn show_argument(
    EndpointBearer { endpoint, .. }: EndpointBearer,
    Shared(control): Shared<Api>,
    PathOf((task, hash)): PathOf<(TaskId, ContentHash)>,
) -> Result<Response, Refusal> {
    let tenant = control.tasks()?.owner_of_sent(endpoint, task)?;
    read(&control, tenant, hash).await
}

/// Stores the result of a task, for the dispatcher of the task's endpoint.
#[utoipa::path(put, path = "/v1/endpoints/tasks/{id}/contents/{hash}", security(("bearer" = [])),
    params(("id" = TaskId, Path), ("hash" = ContentHash, Path)),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 201, body = Content), (status = "default", body = ErrorBody)))]
pub(crate) async fn store_result(
    EndpointBearer { endpoint, .. }: EndpointBearer,
    format: ResponseFormat,
    Shared(control): Shared<Api>,
    PathOf((task, hash)): PathOf<(TaskId, ContentHash)>,
    body: Body,
) -> Result<Response, Refusal> {
    let tenant = control.tasks()?.owner_of_sent(endpoint, task)?;
    store(&control, format, tenant, hash, body).await
}

async fn store(
    control: &Control,
    format: ResponseFormat,
    tenant: TenantId,
    hash: ContentHash,
    body: Body,
) -> Result<Response, Refusal> {
    let tasks = control.tasks()?;
    let contents = &tasks.contents;
    let content = contents.put(tenant, hash, body.into_data_stream()).await?;
    Ok(format.created(content))
}

async fn read(control: &Control, tenant: TenantId, hash: ContentHash) -> Result<Response, Refusal> {
    let (length, bytes) = control.tasks()?.contents.read(tenant, hash).await?;
    let headers = [
        (CONTENT_TYPE, "application/octet-stream".to_owned()),
        (CONTENT_LENGTH, length.to_string()),
    ];
    Ok((headers, Body::from_stream(bytes)).into_response())
}
