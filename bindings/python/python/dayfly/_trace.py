"""The trace that a request belongs to, in programs that keep traces with OpenTelemetry."""

from __future__ import annotations

import sys


def traceparent() -> str | None:
    """The W3C ``traceparent`` of the present span; none outside one, and in programs without OpenTelemetry."""
    if "opentelemetry" not in sys.modules:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get("traceparent")
