"""A trace collector: receives OTLP over HTTP, decodes it with OpenTelemetry's own messages, and stores it."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Step:
    """A received span."""

    name: str
    service: str
    trace: str
    span: str
    parent: str
    #: OpenTelemetry's kind: 1 internal, 2 server, 3 client.
    kind: int
    failed: bool
    attributes: dict[str, Any]
    nanoseconds: tuple[int, int]


class Collector:
    """Listens on loopback, inside its context."""

    def __init__(self) -> None:
        self._steps: list[Step] = []
        self._changed = threading.Condition()
        collector = self

        class Server(ThreadingHTTPServer):
            # Closing waits for requests in progress.
            daemon_threads = False

        class Handler(BaseHTTPRequestHandler):
            timeout = 2

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                sound = self.path == "/v1/traces" and self.headers["content-type"] == "application/x-protobuf"
                if sound:
                    collector._keep(ExportTraceServiceRequest.FromString(body))
                self.send_response(200 if sound else 404)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def environment(self) -> dict[str, str]:
        """Returns the environment variables that make a daemon send its traces here, without a long delay."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self._server.server_port}",
            "OTEL_BSP_SCHEDULE_DELAY": "50",
        }

    def _keep(self, request: ExportTraceServiceRequest) -> None:
        for resource in request.resource_spans:
            about = {item.key: item.value.string_value for item in resource.resource.attributes}
            for span in (span for scope in resource.scope_spans for span in scope.spans):
                attributes = {
                    item.key: getattr(item.value, item.value.WhichOneof("value") or "string_value")
                    for item in span.attributes
                }
                step = Step(
                    name=span.name,
                    service=about["service.name"],
                    trace=span.trace_id.hex(),
                    span=span.span_id.hex(),
                    parent=span.parent_span_id.hex(),
                    kind=span.kind,
                    failed=span.status.code == 2,
                    attributes=attributes,
                    nanoseconds=(span.start_time_unix_nano, span.end_time_unix_nano),
                )
                with self._changed:
                    self._steps.append(step)
                    self._changed.notify_all()

    def find(self, limit: float = 20, **wanted: object) -> Step:
        """Returns the first span whose fields equal ``wanted``, waiting up to ``limit`` seconds."""

        def found() -> Step | None:
            fits = (s for s in self._steps if all(getattr(s, name) == value for name, value in wanted.items()))
            return next(fits, None)

        with self._changed:
            assert self._changed.wait_for(lambda: found() is not None, limit), (
                f"no step {wanted} came; there are {self._steps}"
            )
            step = found()
        assert step is not None
        return step

    def steps(self, trace: str) -> list[Step]:
        """Returns the received spans of one trace."""
        with self._changed:
            return [step for step in self._steps if step.trace == trace]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)
