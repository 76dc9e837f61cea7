//! Traces of the control path: the operations that a request causes, on which manager and node, and their durations.
//!
//! An operation is a span of [`tracing`], created by [`span!`](crate::span). A span costs one load where nothing is
//! exported. Calls to functions are not traced: metrics count operations that take microseconds. Between processes, a
//! trace is continued by its W3C `traceparent`.

#[cfg(feature = "export")]
pub mod export;

use std::collections::HashMap;

use opentelemetry::propagation::TextMapPropagator;
use opentelemetry_sdk::propagation::TraceContextPropagator;
pub use tracing;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// The HTTP header, and the field of messages to nodes, that identifies a trace and a span in it.
pub const TRACEPARENT: &str = "traceparent";

/// Target of spans that belong to a trace. Logs omit them below the level `trace`.
pub const TARGET: &str = "dayfly::trace";

/// Creates a span of a trace. Takes its name, then its fields as in [`tracing::span!`]. Fields with quoted names have
/// OpenTelemetry's meaning, such as `"otel.kind" = "client"`.
#[macro_export]
macro_rules! span {
    ($name:literal $(, $($fields:tt)*)?) => {
        $crate::tracing::span!(target: $crate::TARGET, $crate::tracing::Level::TRACE, $name $(, $($fields)*)?)
    };
}

/// Returns the `traceparent` of the current span for a request that it causes, or `None` where nothing is traced.
pub fn traceparent() -> Option<String> {
    let span = Span::current();
    if span.is_disabled() {
        return None;
    }
    let mut carrier = HashMap::new();
    TraceContextPropagator::new().inject_context(&span.context(), &mut carrier);
    carrier.remove(TRACEPARENT)
}

/// Makes a span that has not begun part of the caller's trace. Ignores a malformed `traceparent`.
pub fn follow(span: &Span, traceparent: Option<&str>) {
    let Some(traceparent) = traceparent.filter(|_| !span.is_disabled()) else {
        return;
    };
    let carrier = HashMap::from([(TRACEPARENT.to_owned(), traceparent.to_owned())]);
    // Fails only if nothing is exported.
    let _ = span.set_parent(TraceContextPropagator::new().extract(&carrier));
}

/// Records on the span how its operation ended.
pub fn ended<T>(span: &Span, result: &Result<T, dayfly_protocol::error::Failure>) {
    if let Err(failure) = result {
        span.set_status(opentelemetry::trace::Status::error(failure.message.clone()));
        span.set_attribute("error.type", failure.code.name());
    }
}
