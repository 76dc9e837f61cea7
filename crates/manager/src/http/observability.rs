//! What people and Prometheus look at: metrics, history, and a page that shows them.

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{MatchedPath, Path, Query, Request, State as Shared};
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderName, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use dayfly_protocol::api::{ErrorBody, UsageSample};
use dayfly_protocol::error::Code;
use dayfly_protocol::tenancy::Role;
use dayfly_telemetry as telemetry;
use serde::Deserialize;
use tracing::Instrument;
use utoipa::IntoParams;

use super::Api;
use crate::extractors::{Caller, Refusal, asked, refuse};
use crate::metrics;

/// Metrics in the OpenMetrics format, for Prometheus. They name tenants and what these used: takes an operator, for whom a
/// token for looking only will do.
#[utoipa::path(get, path = "/v1/metrics", security(("bearer" = [])),
    responses((status = 200, body = String, content_type = "application/openmetrics-text"),
        (status = "default", body = ErrorBody)))]
pub(crate) async fn metrics(caller: Caller, Shared(control): Shared<Api>) -> Result<Response, Refusal> {
    caller.is(Role::Operator)?;
    let store_writes = control.journal.trouble().is_none();
    // Another manager may have them, and tells of them.
    let tasks = control.tasks().ok().map(|tasks| tasks.total_counts());
    let text = control.metrics.text(&control.cluster(), store_writes, tasks.as_ref());
    let text = text.map_err(|error| refuse(Code::Internal, format!("the metrics cannot be written: {error}")))?;
    Ok(([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response())
}

/// From when on.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct After {
    /// Only moments after this one, milliseconds since the Unix epoch.
    #[serde(default)]
    after_ms: u64,
}

/// How it all was within the last hour, every two seconds, the oldest first.
#[utoipa::path(get, path = "/v1/history", params(After), security(("bearer" = [])),
    responses((status = 200, body = [UsageSample]), (status = "default", body = ErrorBody)))]
pub(crate) async fn history(
    _: Caller,
    Shared(control): Shared<Api>,
    query: Result<Query<After>, QueryRejection>,
) -> Result<Json<Vec<UsageSample>>, Refusal> {
    Ok(Json(control.history.since(asked(query)?.after_ms)))
}

/// The page itself holds nothing secret: it asks for a token, and reads what that allows.
const PAGE: &str = include_str!("../../page/index.html");
const PARTS: [(&str, &str, &str); 2] = [
    (
        "page.css",
        "text/css; charset=utf-8",
        include_str!("../../page/page.css"),
    ),
    (
        "page.js",
        "text/javascript; charset=utf-8",
        include_str!("../../page/page.js"),
    ),
];
/// It runs nothing but its own script, talks to nobody but this manager, and is part of nobody's page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";

pub(crate) async fn page() -> Response {
    file("text/html; charset=utf-8", PAGE)
}

pub(crate) async fn part(Path(name): Path<String>) -> Response {
    match PARTS.iter().find(|(known, ..)| *known == name) {
        Some((_, kind, text)) => file(kind, text),
        None => refuse(Code::NotFound, "the page has no such part").into_response(),
    }
}

fn file(kind: &'static str, text: &'static str) -> Response {
    let headers: [(HeaderName, &str); 4] = [
        (CONTENT_TYPE, kind),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        // A manager of another release has another page.
        (CACHE_CONTROL, "no-cache"),
    ];
    (StatusCode::OK, headers, text).into_response()
}

/// Counts every answer.
pub(crate) async fn count(Shared(control): Shared<Api>, request: Request, next: Next) -> Response {
    let method = request.method().clone();
    let path = request.extensions().get::<MatchedPath>().cloned();
    let response = next.run(request).await;
    let path = path.as_ref().map_or("none", MatchedPath::as_str);
    // Whoever makes up methods shall not make up counters.
    let method = match method.as_str() {
        known @ ("GET" | "POST" | "PUT" | "DELETE") => known,
        _ => "other",
    };
    control.metrics.answered(method, path, response.status().as_u16());
    response
}

/// Makes a step of every request, in the trace of whoever asks if that has one.
pub(crate) async fn trace(request: Request, next: Next) -> Response {
    let (method, path) = (request.method(), request.extensions().get::<MatchedPath>());
    let path = path.map_or("none", MatchedPath::as_str);
    let step = telemetry::span!("request", "otel.name" = format!("{method} {path}"), "otel.kind" = "server",
        "http.request.method" = %method, "http.route" = path, "http.response.status_code" = tracing::field::Empty);
    let traceparent = request.headers().get(telemetry::TRACEPARENT);
    telemetry::follow(&step, traceparent.and_then(|value| value.to_str().ok()));
    let response = next.run(request).instrument(step.clone()).await;
    step.record("http.response.status_code", i64::from(response.status().as_u16()));
    response
}
