"""Trace context of requests, for programs with OpenTelemetry."""

from __future__ import annotations

import sys


def traceparent() -> str | None:
    """Returns the W3C ``traceparent`` of the current span; None outside a span or without OpenTelemetry."""
    if "opentelemetry" not in sys.modules:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get("traceparent")
