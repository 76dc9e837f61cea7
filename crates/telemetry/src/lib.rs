//! Traces of the control path: what a request set off, on which manager and which node, and how long each step took.
//!
//! A step is a span of [`tracing`], made by [`span!`](crate::span). It costs a load where nothing is exported, and calls never pass one: what
//! takes microseconds is counted by metrics. Between processes a trace goes by its W3C `traceparent`.

#[cfg(feature = "export")]
pub mod export;

use std::collections::HashMap;

use opentelemetry::propagation::TextMapPropagator;
use opentelemetry_sdk::propagation::TraceContextPropagator;
pub use tracing;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// The header, and the member of messages to nodes, that names a trace and a step in it.
pub const TRACEPARENT: &str = "traceparent";

/// Marks the spans that are steps of a trace. Logs leave them out below the level `trace`.
pub const TARGET: &str = "dayfly::trace";

/// A step of a trace. Its name, then its fields as in [`tracing::span!`]; fields of names in quotes have OpenTelemetry's meaning, such as
/// `"otel.kind" = "client"`.
#[macro_export]
macro_rules! span {
    ($name:literal $(, $($fields:tt)*)?) => {
        $crate::tracing::span!(target: $crate::TARGET, $crate::tracing::Level::TRACE, $name $(, $($fields)*)?)
    };
}

/// How the present step is named to whoever is asked for something because of it; none where nothing is traced.
pub fn traceparent() -> Option<String> {
    let span = Span::current();
    if span.is_disabled() {
        return None;
    }
    let mut carrier = HashMap::new();
    TraceContextPropagator::new().inject_context(&span.context(), &mut carrier);
    carrier.remove(TRACEPARENT)
}

/// Makes a step that has not begun yet part of the trace of whoever asked for it. What is no `traceparent` is left aside.
pub fn follow(span: &Span, traceparent: Option<&str>) {
    let Some(traceparent) = traceparent.filter(|_| !span.is_disabled()) else {
        return;
    };
    let carrier = HashMap::from([(TRACEPARENT.to_owned(), traceparent.to_owned())]);
    // An error means that nothing is exported.
    let _ = span.set_parent(TraceContextPropagator::new().extract(&carrier));
}

/// Says how a step ended.
pub fn ended<T>(span: &Span, result: &Result<T, dayfly_protocol::error::Failure>) {
    if let Err(failure) = result {
        span.set_status(opentelemetry::trace::Status::error(failure.message.clone()));
        span.set_attribute("error.type", failure.code.name());
    }
}
