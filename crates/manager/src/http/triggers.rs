//! Handlers for triggers and their events.

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, FromRequest, Request, State as Shared};
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
use crate::extractors::{
    Call, Caller, JsonBody, PathOf, QueryOf, Read, Refusal, RequestBody, ResponseFormat, Write, refuse,
};

/// Events of one page.
const MAX_ENTRIES: u32 = 1_000;
/// A body that is nested deeper is taken as text: the JSON around it would exceed the parser's limit.
const MAX_DEPTH: usize = 64;
/// Header with the idempotency key of an event.
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

/// Returns the caller's trigger that a path names.
fn trigger_at(control: &Control, caller: &Caller, path: &str) -> Result<TriggerStatus, Refusal> {
    Ok(control.tasks()?.trigger(caller.bearer.tenant, path)?)
}

/// Makes a trigger, or changes the caller's one of this name. Returns a token that permits only to send it events. Only
/// the caller's own endpoints watch files.
#[utoipa::path(post, path = "/v1/triggers", request_body = TriggerRegistration, security(("bearer" = [])),
    responses((status = 201, body = NewTrigger), (status = "default", body = ErrorBody)))]
pub(crate) async fn set_trigger(call: Call<Write, (), (), JsonBody<TriggerRegistration>>) -> Result<Response, Refusal> {
    let Call {
        caller,
        control,
        body: JsonBody(given),
        format,
        ..
    } = call;
    let tasks = control.tasks()?;
    check_trigger_lengths(&given)?;
    control
        .audit()
        .record(&caller, "trigger.set", &given.name, &audited(&given.spec))
        .await?;
    let author = TriggerAuthor {
        by: submitter(&control, &caller)?,
        is_operator: caller.role >= Role::Operator,
        expires_at_ms: caller.bearer.expires_at_ms,
    };
    let (token, status) = tasks.set_trigger(author, given).await?;
    let new = NewTrigger {
        url: format!("{}/v1/hooks/{token}", control.url()),
        token,
        ca_pem: control.ca_pem().to_owned(),
        status,
    };
    Ok(format.created(new))
}

/// Returns the part of a trigger for the audit log: without the arguments of its function.
fn audited(spec: &TriggerSpec) -> Value {
    json!({ "source": spec.source, "function": spec.function, "endpoint": spec.endpoint })
}

/// Lists the caller's triggers.
#[utoipa::path(get, path = "/v1/triggers", security(("bearer" = [])),
    responses((status = 200, body = [TriggerStatus]), (status = "default", body = ErrorBody)))]
pub(crate) async fn list_triggers(call: Call<Read>) -> Result<Response, Refusal> {
    let Call {
        caller,
        control,
        format,
        ..
    } = call;
    Ok(format.respond(control.tasks()?.triggers(caller.bearer.tenant)))
}

/// Returns one of the caller's triggers, by name or id.
#[utoipa::path(get, path = "/v1/triggers/{name}", params(("name" = String, Path)), security(("bearer" = [])),
    responses((status = 200, body = TriggerStatus), (status = "default", body = ErrorBody)))]
pub(crate) async fn show_trigger(call: Call<Read, PathOf<String>>) -> Result<Response, Refusal> {
    let Call {
        caller,
        control,
        path: PathOf(path),
        format,
        ..
    } = call;
    Ok(format.respond(trigger_at(&control, &caller, &path)?))
}

/// Removes a trigger and its history. Its tasks continue.
#[utoipa::path(delete, path = "/v1/triggers/{name}", params(("name" = String, Path)), security(("bearer" = [])),
    responses((status = 200, body = TriggerStatus), (status = "default", body = ErrorBody)))]
pub(crate) async fn remove_trigger(call: Call<Write, PathOf<String>>) -> Result<Response, Refusal> {
    let Call {
        caller,
        control,
        path: PathOf(path),
        format,
        ..
    } = call;
    let status = trigger_at(&control, &caller, &path)?;
    control
        .audit()
        .record(&caller, "trigger.remove", &status.name, &())
        .await?;
    control.tasks()?.remove_trigger(status.id).await?;
    Ok(format.respond(status))
}

async fn set_paused(call: Call<Write, PathOf<String>>, paused: bool) -> Result<Response, Refusal> {
    let Call {
        caller,
        control,
        path: PathOf(path),
        format,
        ..
    } = call;
    let TriggerStatus { id, name, .. } = trigger_at(&control, &caller, &path)?;
    let action = if paused { "trigger.pause" } else { "trigger.resume" };
    control.audit().record(&caller, action, &name, &()).await?;
    Ok(format.respond(control.tasks()?.pause_trigger(id, paused).await?))
}

/// Pauses a trigger: times pass without effect, files wait, and events are refused.
#[utoipa::path(post, path = "/v1/triggers/{name}/pause", params(("name" = String, Path)), security(("bearer" = [])),
    responses((status = 200, body = TriggerStatus), (status = "default", body = ErrorBody)))]
pub(crate) async fn pause_trigger(call: Call<Write, PathOf<String>>) -> Result<Response, Refusal> {
    set_paused(call, true).await
}

/// Resumes a paused trigger.
#[utoipa::path(post, path = "/v1/triggers/{name}/resume", params(("name" = String, Path)), security(("bearer" = [])),
    responses((status = 200, body = TriggerStatus), (status = "default", body = ErrorBody)))]
pub(crate) async fn resume_trigger(call: Call<Write, PathOf<String>>) -> Result<Response, Refusal> {
    set_paused(call, false).await
}

/// Page of a trigger's history.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default)]
pub struct Page {
    /// Only events with smaller numbers: the number of the last event of the previous page.
    before: u64,
    /// Number of events. Default: 100, maximum: 1,000.
    limit: Option<u32>,
}

/// Lists a trigger's events, the latest first, with the tasks that they started. The latest 100,000 events are kept.
#[utoipa::path(get, path = "/v1/triggers/{name}/events", params(("name" = String, Path), Page), security(("bearer" = [])),
    responses((status = 200, body = [EventStatus]), (status = "default", body = ErrorBody)))]
pub(crate) async fn list_events(call: Call<Read, PathOf<String>, QueryOf<Page>>) -> Result<Response, Refusal> {
    let Call {
        caller,
        control,
        path: PathOf(path),
        query: QueryOf(query),
        format,
        ..
    } = call;
    let asked = query;
    let id = trigger_at(&control, &caller, &path)?.id;
    let most = asked.limit.unwrap_or(100).min(MAX_ENTRIES);
    let before = if asked.before == 0 { u64::MAX } else { asked.before };
    let history = control.tasks()?.trigger_history(id, before, most).await?;
    Ok(format.respond(history))
}

/// Idempotency key of an event.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default)]
pub struct Keyed {
    /// As in the header `Idempotency-Key`: an event that is sent again with the same key counts once.
    #[param(max_length = 256)]
    key: Option<String>,
}

/// Whether brackets are nested so deep that JSON around them might not be parsed.
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

/// The body of an event: any bytes.
pub(crate) struct EventBody(Bytes);

impl RequestBody for EventBody {
    async fn read(request: Request, control: &Api) -> Result<Self, Refusal> {
        Bytes::from_request(request, control).await.map(Self).map_err(|_| {
            refuse(
                Code::PayloadTooLarge,
                format!("an event has at most {MAX_EVENT_BYTES} bytes; store the rest elsewhere and send its place"),
            )
        })
    }
}

impl FromRequest<Api> for EventBody {
    type Rejection = Refusal;

    async fn from_request(request: Request, control: &Api) -> Result<Self, Refusal> {
        Self::read(request, control).await
    }
}

/// Returns the event in a request: its body as JSON, as text, or in base64.
fn event_of(headers: &HeaderMap, body: &Bytes, query: Keyed) -> SourceEvent {
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
    format: ResponseFormat,
    control: &Control,
    trigger: TriggerId,
    headers: &HeaderMap,
    body: &Bytes,
    query: Keyed,
) -> Result<Response, Refusal> {
    let event = event_of(headers, body, query);
    let taken: AcceptedEvent = control.tasks()?.fire(trigger, event).await?;
    Ok((StatusCode::ACCEPTED, format.respond(taken)).into_response())
}

/// Sends an event, which may have any body, to one of the caller's triggers. Once this returns, the event is durable
/// and starts the trigger's function at least once.
#[utoipa::path(post, path = "/v1/triggers/{name}/events", params(("name" = String, Path), Keyed), request_body = Value,
    security(("bearer" = [])),
    responses((status = 202, body = AcceptedEvent), (status = "default", body = ErrorBody)))]
pub(crate) async fn fire_trigger(
    call: Call<Write, PathOf<String>, QueryOf<Keyed>, EventBody>,
) -> Result<Response, Refusal> {
    let Call {
        caller,
        control,
        path: PathOf(path),
        query: QueryOf(query),
        body: EventBody(body),
        format,
        headers,
        ..
    } = call;
    let id = trigger_at(&control, &caller, &path)?.id;
    fire(format, &control, id, &headers, &body, query).await
}

/// Sends an event to the trigger whose token is in the path. Needs no other token.
#[utoipa::path(post, path = "/v1/hooks/{token}", params(("token" = String, Path), Keyed), request_body = Value,
    responses((status = 202, body = AcceptedEvent), (status = "default", body = ErrorBody)))]
pub(crate) async fn call_hook(
    format: ResponseFormat,
    Shared(control): Shared<Api>,
    PathOf(token): PathOf<String>,
    QueryOf(query): QueryOf<Keyed>,
    headers: HeaderMap,
    EventBody(body): EventBody,
) -> Result<Response, Refusal> {
    let found = control.tasks()?.trigger_with_token(&token);
    let id = found.ok_or_else(|| refuse(Code::NotFound, "there is no such trigger (any more)"))?;
    fire(format, &control, id, &headers, &body, query).await
}
