"""Traces of the control path, as a collector of OpenTelemetry's gets them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import dayfly
import pytest
from harness.collector import Collector
from harness.daemons import Daemon
from harness.programs import clean_environment, program, run
from opentelemetry.sdk.trace import TracerProvider

SERVER, CLIENT = 2, 3


@pytest.fixture
def collector(leakless: Callable[..., None]) -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


def test_trace_of_a_lease_reaches_its_executor(
    collector: Collector, start: Callable[..., Daemon], tmp_path: Path
) -> None:
    python = ("--python", sys.executable)
    up = start("up", "--listen", "127.0.0.1:0", "--readable", str(tmp_path), *python, env=collector.environment)
    tracer = TracerProvider().get_tracer("test")
    with dayfly.connect(up.state) as client:
        with tracer.start_as_current_span("mine") as span:
            # An executor that sees this is not among those that wait for a lease.
            lease = client.lease(workers=1, mode="warm", sandbox="isolated", readable=[tmp_path])
        mine = f"{span.get_span_context().trace_id:032x}"
        with lease:
            assert lease.call(abs, -3) == 3
            started = collector.find(name="start an executor", trace=mine)
    assert started.attributes["dayfly.sandbox"] == "isolated"
    request = collector.find(name="POST /v1/leases", trace=mine)
    taken = collector.find(name="take a lease", trace=mine)
    asked = collector.find(name="ask a node", trace=mine)
    assert [step.parent for step in (started, taken, asked)] == [taken.span, asked.span, request.span]
    assert request.parent == f"{span.get_span_context().span_id:016x}"
    assert (request.kind, asked.kind, taken.kind) == (SERVER, CLIENT, SERVER)
    assert int(request.attributes["http.response.status_code"]) == 201
    assert request.service == taken.service == "dayfly-up"
    assert taken.attributes["dayfly.node.id"] == asked.attributes["dayfly.node.id"]
    assert collector.find(name="write", trace=mine).parent == request.span
    assert request.nanoseconds[0] <= asked.nanoseconds[0] <= taken.nanoseconds[0] <= started.nanoseconds[0]
    # What is outside the program's span is not of its trace, nor are calls anybody's.
    assert not [step for step in collector.steps(mine) if "DELETE" in step.name]


def test_refusal_is_a_failed_span_with_reason(collector: Collector, start: Callable[..., Daemon]) -> None:
    up = start("up", "--listen", "127.0.0.1:0", env=collector.environment)
    with dayfly.connect(up.state) as client, pytest.raises(dayfly.Error):
        client.lease(workers=1, sandbox="container", image="nowhere:1")
    asked, refused = (collector.find(name=name, failed=True) for name in ("ask a node", "take a lease"))
    assert asked.attributes["error.type"] == refused.attributes["error.type"]
    assert refused.parent == asked.span


def test_shell_passes_the_trace_on(collector: Collector, start: Callable[..., Daemon]) -> None:
    up = start("up", "--listen", "127.0.0.1:0", env=collector.environment | {"OTEL_SERVICE_NAME": "site"})
    mine, parent = os.urandom(16).hex(), os.urandom(8).hex()
    environment = up.client_environment() | {"TRACEPARENT": f"00-{mine}-{parent}-01"}
    run(program(), "lease", "create", "--workers", "1", "--for", "5s", env=environment)
    request = collector.find(name="POST /v1/leases", trace=mine)
    assert (request.parent, request.service) == (parent, "site")


def test_unreachable_collector_is_only_logged(
    start: Callable[..., Daemon],
) -> None:
    away = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_BSP_SCHEDULE_DELAY": "50"}
    up = start("up", "--listen", "127.0.0.1:0", env=away)
    with dayfly.connect(up.state) as client, client.lease(workers=1, mode="warm") as lease:
        assert list(lease.map(abs, range(-9, 0))) == list(range(9, 0, -1))
    assert up.stop() == 0
    assert "BatchSpanProcessor" in up.output()


def test_unreadable_certificate_is_reported_at_start(tmp_path: Path) -> None:
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "https://127.0.0.1:4318",
        "OTEL_EXPORTER_OTLP_CERTIFICATE": str(tmp_path / "missing.pem"),
    }
    done = run(program(), "up", "--state-dir", tmp_path / "up", env=clean_environment(**environment), check=False)
    assert done.returncode == 2
    assert "missing.pem" in done.stderr
    assert "OTEL_EXPORTER_OTLP" in done.stderr
