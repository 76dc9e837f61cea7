//! Triggers over HTTP.

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Query, State as Shared};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use dayfly_durable_tasks::{SourceEvent, TriggerAuthor, check_trigger_lengths};
use dayfly_protocol::api::ErrorBody;
use dayfly_protocol::blob::Blob;
use dayfly_protocol::error::Code;
use dayfly_protocol::ids::TriggerId;
use dayfly_protocol::tenancy::Role;
use dayfly_protocol::triggers::{
    AcceptedEvent, EventStatus, MAX_EVENT_BYTES, NewTrigger, TriggerRegistration, TriggerSpec, TriggerStatus,
};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::IntoParams;

use super::Api;
use super::tasks::submitter;
use crate::control::Control;
use crate::extractors::{Body, Caller, NamePath, Packed, Refusal, asked, named, refuse};

/// Most events of one answer.
const MAX_ENTRIES: u32 = 1_000;
/// Bodies that are deeper are text: what is read has bounds of its own, and more is put around it.
const MAX_DEPTH: usize = 64;
/// With which a program says that it sends an event again.
const KEY_HEADER: &str = "idempotency-key";

/// Routes of triggers.
pub fn routes() -> Router<Api> {
    Router::new()
        .route("/v1/triggers", get(list_triggers).post(set_trigger))
        .route("/v1/triggers/{name}", get(show_trigger).delete(remove_trigger))
        .route("/v1/triggers/{name}/pause", post(pause_trigger))
        .route("/v1/triggers/{name}/resume", post(resume_trigger))
        .route("/v1/triggers/{name}/events", get(list_events).post(fire_trigger))
        .route("/v1/hooks/{token}", post(call_hook))
        .layer(DefaultBodyLimit::max(MAX_EVENT_BYTES))
}

/// The caller's trigger that a path names.
fn trigger_at(control: &Control, caller: &Caller, path: NamePath) -> Result<TriggerStatus, Refusal> {
    let name = named(path)?;
    Ok(control.tasks()?.trigger(caller.bearer.tenant, &name)?)
}

/// Makes a trigger, or changes the caller's one of this name, and answers a token that is good for sending it events and nothing
/// else. Files are looked for by endpoints of the caller's own.
#[utoipa::path(post, path = "/v1/triggers", request_body = TriggerRegistration, security(("bearer" = [])),
    responses((status = 201, body = NewTrigger), (status = "default", body = ErrorBody)))]
pub(crate) async fn set_trigger(
    caller: Caller,
    packed: Packed,
    Shared(control): Shared<Api>,
    Body(given): Body<TriggerRegistration>,
) -> Result<Response, Refusal> {
    caller.changes_as(Role::User)?;
    let tasks = control.tasks()?;
    check_trigger_lengths(&given)?;
    control
        .audit(&caller, "trigger.set", &given.name, &audited(&given.spec))
        .await?;
    let author = TriggerAuthor {
        by: submitter(&control, &caller)?,
        is_operator: caller.role >= Role::Operator,
        expires_at_ms: caller.bearer.expires_at_ms,
    };
    let (token, status) = tasks.set_trigger(author, given).await?;
    let new = NewTrigger {
        url: format!("{}/v1/hooks/{token}", control.url),
        token,
        ca_pem: control.ca_pem.clone(),
        status,
    };
    Ok((StatusCode::CREATED, packed.answer(new)).into_response())
}

/// What of a trigger is for operators to read: not what its function is called with.
fn audited(spec: &TriggerSpec) -> Value {
    json!({ "source": spec.source, "function": spec.function, "endpoint": spec.endpoint })
}

/// The caller's triggers.
#[utoipa::path(get, path = "/v1/triggers", security(("bearer" = [])),
    responses((status = 200, body = [TriggerStatus]), (status = "default", body = ErrorBody)))]
pub(crate) async fn list_triggers(
    caller: Caller,
    packed: Packed,
    Shared(control): Shared<Api>,
) -> Result<Response, Refusal> {
    Ok(packed.answer(control.tasks()?.triggers(caller.bearer.tenant)))
}

/// One of them, by its name or its id.
#[utoipa::path(get, path = "/v1/triggers/{name}", params(("name" = String, Path)), security(("bearer" = [])),
    responses((status = 200, body = TriggerStatus), (status = "default", body = ErrorBody)))]
pub(crate) async fn show_trigger(
    caller: Caller,
    packed: Packed,
    Shared(control): Shared<Api>,
    path: NamePath,
) -> Result<Response, Refusal> {
    Ok(packed.answer(trigger_at(&control, &caller, path)?))
}

/// Forgets a trigger, and its history. Its tasks go on.
#[utoipa::path(delete, path = "/v1/triggers/{name}", params(("name" = String, Path)), security(("bearer" = [])),
    responses((status = 200, body = TriggerStatus), (status = "default", body = ErrorBody)))]
pub(crate) async fn remove_trigger(
    caller: Caller,
    packed: Packed,
    Shared(control): Shared<Api>,
    path: NamePath,
) -> Result<Response, Refusal> {
    caller.changes_as(Role::User)?;
    let status = trigger_at(&control, &caller, path)?;
    control.audit(&caller, "trigger.remove", &status.name, &()).await?;
    control.tasks()?.remove_trigger(status.id).await?;
    Ok(packed.answer(status))
}

async fn set_paused(
    caller: Caller,
    packed: Packed,
    control: Api,
    path: NamePath,
    paused: bool,
) -> Result<Response, Refusal> {
    caller.changes_as(Role::User)?;
    let TriggerStatus { id, name, .. } = trigger_at(&control, &caller, path)?;
    let action = if paused { "trigger.pause" } else { "trigger.resume" };
    control.audit(&caller, action, &name, &()).await?;
    Ok(packed.answer(control.tasks()?.pause_trigger(id, paused).await?))
}

/// Has a trigger start nothing for a while: times pass, files wait, requests are refused.
#[utoipa::path(post, path = "/v1/triggers/{name}/pause", params(("name" = String, Path)), security(("bearer" = [])),
    responses((status = 200, body = TriggerStatus), (status = "default", body = ErrorBody)))]
pub(crate) async fn pause_trigger(
    caller: Caller,
    packed: Packed,
    Shared(control): Shared<Api>,
    path: NamePath,
) -> Result<Response, Refusal> {
    set_paused(caller, packed, control, path, true).await
}

/// Has it go on.
#[utoipa::path(post, path = "/v1/triggers/{name}/resume", params(("name" = String, Path)), security(("bearer" = [])),
    responses((status = 200, body = TriggerStatus), (status = "default", body = ErrorBody)))]
pub(crate) async fn resume_trigger(
    caller: Caller,
    packed: Packed,
    Shared(control): Shared<Api>,
    path: NamePath,
) -> Result<Response, Refusal> {
    set_paused(caller, packed, control, path, false).await
}

/// Which part of a history.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default)]
pub struct Page {
    /// Events with smaller numbers than this: the last of the page before.
    before: u64,
    /// At most; 100 by default, 1,000 at most.
    limit: Option<u32>,
}

/// What happened, the latest first, and the tasks that it became: the latest 100,000 events.
#[utoipa::path(get, path = "/v1/triggers/{name}/events", params(("name" = String, Path), Page), security(("bearer" = [])),
    responses((status = 200, body = [EventStatus]), (status = "default", body = ErrorBody)))]
pub(crate) async fn list_events(
    caller: Caller,
    packed: Packed,
    Shared(control): Shared<Api>,
    path: NamePath,
    query: Result<Query<Page>, QueryRejection>,
) -> Result<Response, Refusal> {
    let asked = asked(query)?;
    let id = trigger_at(&control, &caller, path)?.id;
    let most = asked.limit.unwrap_or(100).min(MAX_ENTRIES);
    let before = if asked.before == 0 { u64::MAX } else { asked.before };
    let history = control.tasks()?.trigger_history(id, before, most).await?;
    Ok(packed.answer(history))
}

/// By which an event is known.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default)]
pub struct Keyed {
    /// An idempotency key, as in the header `Idempotency-Key`: an event that is sent again with the same one is one event.
    #[param(max_length = 256)]
    key: Option<String>,
}

/// Whether brackets stand in each other that deep that JSON around them might not be read any more.
fn is_deep(body: &[u8]) -> bool {
    let mut depth = 0_usize;
    body.iter().any(|byte| {
        match byte {
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth > MAX_DEPTH
    })
}

/// What a request tells of: its body as JSON, as text, or, of other bytes, in base64.
fn told(headers: &HeaderMap, body: &Bytes, query: Keyed) -> SourceEvent {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let typed = header(CONTENT_TYPE.as_str()).unwrap_or_default();
    let as_text = || std::str::from_utf8(body).ok().map(Value::from);
    let read = match body.is_empty() {
        true => Some(Value::Null),
        false if is_deep(body) => as_text(),
        false => serde_json::from_slice(body).ok().or_else(as_text),
    };
    let mut fields = Map::new();
    fields.insert("content_type".into(), typed.into());
    fields.insert(
        "body".into(),
        read.unwrap_or_else(|| json!({ "base64": Blob::from(body.to_vec()) })),
    );
    SourceEvent {
        key: query.key.or_else(|| header(KEY_HEADER).map(str::to_owned)),
        kind: "webhook",
        fields,
    }
}

async fn fire(
    packed: &Packed,
    control: &Control,
    trigger: TriggerId,
    headers: &HeaderMap,
    body: Result<Bytes, BytesRejection>,
    query: Result<Query<Keyed>, QueryRejection>,
) -> Result<Response, Refusal> {
    let too_long = |_| {
        refuse(
            Code::PayloadTooLarge,
            format!("an event has at most {MAX_EVENT_BYTES} bytes; send where the rest is"),
        )
    };
    let heard = told(headers, &body.map_err(too_long)?, asked(query)?);
    let taken: AcceptedEvent = control.tasks()?.fire(trigger, heard).await?;
    Ok((StatusCode::ACCEPTED, packed.answer(taken)).into_response())
}

/// Sends one of the caller's triggers an event: any body. When this is answered it is on the disk, and starts the trigger's
/// function at least once.
#[utoipa::path(post, path = "/v1/triggers/{name}/events", params(("name" = String, Path), Keyed), request_body = Value,
    security(("bearer" = [])),
    responses((status = 202, body = AcceptedEvent), (status = "default", body = ErrorBody)))]
pub(crate) async fn fire_trigger(
    caller: Caller,
    packed: Packed,
    Shared(control): Shared<Api>,
    path: NamePath,
    query: Result<Query<Keyed>, QueryRejection>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Refusal> {
    caller.changes_as(Role::User)?;
    let id = trigger_at(&control, &caller, path)?.id;
    fire(&packed, &control, id, &headers, body, query).await
}

/// The same for programs that know the trigger's token, which is a part of the path, and nothing else.
#[utoipa::path(post, path = "/v1/hooks/{token}", params(("token" = String, Path), Keyed), request_body = Value,
    responses((status = 202, body = AcceptedEvent), (status = "default", body = ErrorBody)))]
pub(crate) async fn call_hook(
    packed: Packed,
    Shared(control): Shared<Api>,
    path: NamePath,
    query: Result<Query<Keyed>, QueryRejection>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Refusal> {
    let found = control.tasks()?.trigger_with_token(&named(path)?);
    let id = found.ok_or_else(|| refuse(Code::NotFound, "there is no such trigger, or not any more"))?;
    fire(&packed, &control, id, &headers, body, query).await
}
