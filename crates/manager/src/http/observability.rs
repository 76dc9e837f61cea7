//! Handlers for metrics, history and the web page; counting and tracing of all requests.

use axum::Json;
use axum::extract::{MatchedPath, Path, Request, State as Shared};
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderName, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use dayfly_protocol::api::{ErrorBody, UsageSample};
use dayfly_protocol::error::Code;
use dayfly_telemetry as telemetry;
use serde::Deserialize;
use tracing::Instrument;
use utoipa::IntoParams;

use super::Api;
use crate::extractors::{Call, OperatorRead, QueryOf, Read, Refusal, refuse};
use crate::metrics;

/// Returns metrics in the OpenMetrics format, for Prometheus. For operators, because they contain the usage of all
/// tenants. A read-only token is sufficient.
#[utoipa::path(get, path = "/v1/metrics", security(("bearer" = [])),
    responses((status = 200, body = String, content_type = "application/openmetrics-text"),
        (status = "default", body = ErrorBody)))]
pub(crate) async fn metrics(call: Call<OperatorRead>) -> Result<Response, Refusal> {
    let control = call.control;
    let store_writes = control.journal().error().is_none();
    // If another manager owns the tasks, its metrics have their counts.
    let tasks = control.tasks().ok().map(|tasks| tasks.total_counts());
    let text = control.metrics().text(&control.cluster(), store_writes, tasks.as_ref());
    let text = text.map_err(|error| refuse(Code::Internal, format!("cannot serialise the metrics: {error}")))?;
    Ok(([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response())
}

/// Query of the history.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct After {
    /// Only samples after this time, in milliseconds since the Unix epoch.
    #[serde(default)]
    after_ms: u64,
}

/// Returns samples of the last hour, one every two seconds, the oldest first.
#[utoipa::path(get, path = "/v1/history", params(After), security(("bearer" = [])),
    responses((status = 200, body = [UsageSample]), (status = "default", body = ErrorBody)))]
pub(crate) async fn history(call: Call<Read, (), QueryOf<After>>) -> Result<Json<Vec<UsageSample>>, Refusal> {
    let Call {
        control,
        query: QueryOf(query),
        ..
    } = call;
    Ok(Json(control.history().since(query.after_ms)))
}

/// The page contains nothing secret: it asks for a token, and reads what the token permits.
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
/// The page runs only its own script, connects only to this manager, and cannot be embedded.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";

pub(crate) async fn page() -> Response {
    file("text/html; charset=utf-8", PAGE)
}

pub(crate) async fn part(Path(name): Path<String>) -> Response {
    match PARTS.iter().find(|(known, ..)| *known == name) {
        Some((_, kind, text)) => file(kind, text),
        None => refuse(Code::NotFound, "the page has no such file").into_response(),
    }
}

fn file(kind: &'static str, text: &'static str) -> Response {
    let headers: [(HeaderName, &str); 4] = [
        (CONTENT_TYPE, kind),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        // The page changes with the release.
        (CACHE_CONTROL, "no-cache"),
    ];
    (StatusCode::OK, headers, text).into_response()
}

/// Counts every request.
pub(crate) async fn count(Shared(control): Shared<Api>, request: Request, next: Next) -> Response {
    let method = request.method().clone();
    let path = request.extensions().get::<MatchedPath>().cloned();
    let response = next.run(request).await;
    let path = path.as_ref().map_or("none", MatchedPath::as_str);
    // Clients must not be able to add counters with invented methods.
    let method = match method.as_str() {
        known @ ("GET" | "POST" | "PUT" | "PATCH" | "DELETE") => known,
        _ => "other",
    };
    control.metrics().requested(method, path, response.status().as_u16());
    response
}

/// Records every request as a span, in the client's trace if it has one.
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
