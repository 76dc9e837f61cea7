"""What operators look at: the page in a real browser, and metrics as Prometheus reads them."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import shutil
import signal
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import dayfly
import pytest
from harness.daemons import Daemon
from harness.programs import ROOT
from prometheus_client.openmetrics.parser import text_string_to_metric_families

CHROMIUM = shutil.which("chromium")


def fetch(daemon: Daemon, path: str, token: str | None = None) -> str:
    """What the daemon's manager answers."""
    connection = daemon.connection
    context = ssl.create_default_context(cadata=connection["ca_pem"])
    request = urllib.request.Request(
        connection["manager"] + path, headers={"Authorization": f"Bearer {token or connection['token']}"}
    )
    with urllib.request.urlopen(request, timeout=20, context=context) as answer:
        return str(answer.read().decode())


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Metrics by their name and the values of their labels."""
    families = list(text_string_to_metric_families(text))
    return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}


def work(daemon: Daemon) -> None:
    """A lease that is used and given back."""
    with dayfly.connect(daemon.state) as client, client.lease(workers=2, mode="warm") as lease:
        assert list(lease.map(abs, range(-50, 0))) == list(range(50, 0, -1))
        with pytest.raises(ZeroDivisionError):
            lease.call(divmod, 1, 0)


def until(look: Any, limit: float = 20) -> Any:
    """The first answer of ``look`` that is true."""
    deadline = time.monotonic() + limit
    while not (found := look()):
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.05)
    return found


def test_manager_metrics_count_grants_use_and_responses(up: Daemon) -> None:
    work(up)

    def booked() -> dict[tuple[str, ...], float] | None:
        found = samples(fetch(up, "/v1/metrics"))
        return found if found.get(("dayfly_failed_calls_total", "default"), 0) >= 1 else None

    found = until(booked)
    assert found["dayfly_grants_total", "granted"] == 1
    assert found["dayfly_grant_seconds_count",] == 1
    assert found["dayfly_nodes", "up"] == 1
    assert found["dayfly_leases_ended_total", "released"] == 1
    assert found["dayfly_cores", "free"] == found["dayfly_cores", "all"] > 0
    assert found["dayfly_calls_total", "default"] > 1
    assert found["dayfly_usage_seconds_total", "default", "computing"] > 0
    assert found["dayfly_http_requests_total", "POST", "/v1/leases", "201"] == 1
    assert found["dayfly_store_writes",] == 1
    # Nodes say every two seconds how long calls took.
    until(lambda: samples(fetch(up, "/v1/metrics"))["dayfly_call_seconds_bucket", "+Inf"] >= 1)


def test_metrics_accept_a_read_only_operator_token(up: Daemon) -> None:
    up.cli("tenant", "set", "astro")
    made = {
        role: up.cli("token", "create", role, "--role", role, "--read-only", *tenant)["token"]
        for role, tenant in [("operator", ()), ("user", ("--tenant", "astro"))]
    }
    assert "dayfly_nodes" in fetch(up, "/v1/metrics", made["operator"])
    with pytest.raises(urllib.error.HTTPError) as refused:
        fetch(up, "/v1/metrics", made["user"])
    assert refused.value.code == 403
    refused.value.close()


def test_node_metrics_show_resources_and_call_times(start: Any) -> None:
    up = start("up", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0")
    work(up)
    url = re.search(r"http://[^\"]+/metrics", up.output())
    assert url is not None

    def settled() -> dict[tuple[str, ...], float] | None:
        with urllib.request.urlopen(url[0], timeout=20) as answer:
            found = samples(answer.read().decode())
        # A worker counts a call first, and how long it took right after. Its lease may end in between.
        both = found["dayfly_node_call_seconds_bucket", "+Inf"], found["dayfly_node_calls_total",]
        return found if 0 < both[1] - 2 <= both[0] <= both[1] else None

    found = until(settled)
    assert found["dayfly_node_manager_connected",] == 1
    assert found["dayfly_node_calls_total",] > 0
    assert found["dayfly_node_failed_calls_total",] == 1
    assert found["dayfly_node_core_slots",] >= 1


def test_task_times_are_reported_singly_and_summed(up: Daemon) -> None:
    before = time.time()
    with dayfly.connect(config=up.state) as client:
        batch = client.map(time.sleep, [0.3] * 4)
        assert list(batch.results(timeout=30)) == [None] * 4
        times, took = batch.times(), time.time() - before
        status = client.task_status(str(batch[0].id))
    marks = [status[f"{came}_at_ms"] for came in ("submitted", "waiting", "started", "ended")]
    assert before * 1000 - 1 <= marks[0]
    assert marks == sorted(marks)
    # Ended, it needs no environment.
    assert status["environment_at_ms"] == 0
    assert times.keys() == {"queued", "waiting", "environment", "running"}
    assert 1.1 <= times["running"] <= sum(times.values()) <= 4 * took
    assert times["environment"] == 0
    counts = up.cli("task", "counts")
    assert (counts["done"], counts["failed"], counts["running"]) == (4, 0, 0)
    assert counts["times"]["running_ms"] == pytest.approx(times["running"] * 1000, abs=20)
    found = samples(fetch(up, "/v1/metrics"))
    assert found["dayfly_tasks_ended_total", "well"] == 4
    assert found["dayfly_tasks_time_seconds_total", "running"] == pytest.approx(times["running"], abs=0.02)
    assert found["dayfly_tasks", "queued"] == 0


def test_dashboard_queries_only_existing_metrics(up: Daemon) -> None:
    work(up)

    def families() -> set[str] | None:
        found = {family.name for family in text_string_to_metric_families(fetch(up, "/v1/metrics"))}
        # What was used is known once it is booked.
        return found if "dayfly_calls" in found else None

    there = until(families)
    dashboard = json.loads((ROOT / "docs" / "grafana" / "dayfly.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    named = {name for expression in asked for name in re.findall(r"\bdayfly_\w+", expression)}
    assert len(named) > 8
    for name in named:
        assert re.sub(r"_(total|bucket|count)$", "", name) in there, f"{name} of the dashboard is no metric"


def test_history_after_suspension_repeats_no_time(up: Daemon) -> None:
    def times() -> list[int]:
        return [moment["at_ms"] for moment in json.loads(fetch(up, "/v1/history"))]

    before = until(times)[-1]
    up.process.send_signal(signal.SIGSTOP)
    # What the suspension is: more than two samples are missed.
    time.sleep(5)
    up.process.send_signal(signal.SIGCONT)
    resumed = until(lambda: len([at for at in times() if at > before + 5000]) >= 2 and times())
    gaps = [later - earlier for earlier, later in itertools.pairwise(resumed)]
    assert max(gaps) > 4000, "it was not suspended"
    assert min(gaps) > 100, gaps


def with_history(daemon: Daemon, moments: list[dict[str, Any]]) -> contextlib.AbstractContextManager[str]:
    """The address of a manager as the daemon's is, but with a history of the test's."""
    return with_answers(daemon, {"/v1/history": lambda path, _: moments if path.endswith("after_ms=0") else []})


@contextlib.contextmanager
def with_answers(daemon: Daemon, answers: dict[str, Callable[[str, bytes], Any]]) -> Iterator[str]:
    """The address of a manager as the daemon's is, but with the test's answers to paths that begin so.

    Each answer is made from the path and the manager's own answer."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = urllib.request.Request(daemon.connection["manager"] + self.path)
            if "Authorization" in self.headers:
                asked.add_header("Authorization", self.headers["Authorization"])
            context = ssl.create_default_context(cadata=daemon.connection["ca_pem"])
            try:
                with urllib.request.urlopen(asked, timeout=20, context=context) as answer:
                    status, body, kind = 200, answer.read(), answer.headers["Content-Type"]
            except urllib.error.HTTPError as error:
                status, body, kind = error.code, error.read(), error.headers["Content-Type"]
            for prefix, own in answers.items():
                if self.path.startswith(prefix):
                    status, body = 200, json.dumps(own(self.path, body)).encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


@pytest.mark.skipif(CHROMIUM is None, reason="chromium not found; install it")
class TestPage:
    """In Chromium."""

    def document(self, address: str, profile: Path, seconds: int = 6) -> str:
        """The page as HTML after so many seconds of its own time."""
        assert CHROMIUM is not None
        done = subprocess.run(
            [
                *(CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
                *("--ignore-certificate-errors", f"--user-data-dir={profile}", "--disable-background-networking"),
                *(f"--virtual-time-budget={seconds * 1000}", "--dump-dom", address),
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        return done.stdout

    def see(self, address: str, profile: Path, seconds: int = 6) -> str:
        """What people see of it: text only."""
        return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", self.document(address, profile, seconds)))

    def test_page_shows_nodes_leases_use_and_bills(self, up: Daemon, tmp_path: Path) -> None:
        with dayfly.connect(up.state) as client, client.lease(workers=3, mode="warm") as lease:
            list(lease.map(abs, range(100)))
            # The page draws what was within the last hour: there must be something.
            until(lambda: len(json.loads(fetch(up, "/v1/history"))) >= 2)
            address = up.cli("page")["page"].replace("/#", "/page/#")
            seen = self.see(address, tmp_path)
        (node,) = json.loads(fetch(up, "/v1/nodes"))
        assert f"{node['address']['name']} up" in seen
        assert f"...{lease.id[-12:]} active default" in seen
        assert "3 of" in seen, "warm workers leased"
        assert "warm workers leased" in seen
        assert "Time to a grant" in seen
        assert "computing" in seen
        assert up.connection["token"] not in seen

    def test_charts_show_gaps_and_tiles_agree_with_tables(self, up: Daemon, tmp_path: Path) -> None:
        with dayfly.connect(up.state) as client, client.lease(workers=3, mode="warm"):
            idle = until(lambda: json.loads(fetch(up, "/v1/history")))[0] | {"workers_leased": 0, "leases": 0}
            now = int(time.time() * 1000)
            # One time that is repeated, and two minutes without a moment.
            seconds = [-150, -148, -146, -146, -144, -24, -22, -20, -18]
            with with_history(up, [idle | {"at_ms": now + 1000 * at} for at in seconds]) as address:
                page = self.document(f"{address}/page/#token={up.connection['token']}", tmp_path)
        (node,) = json.loads(fetch(up, "/v1/nodes"))
        assert f"<b>3 of {node['capacity']['workers']}</b><span>warm workers leased</span>" in page
        assert "<b>1</b><span>leases</span>" in page
        assert "NaN" not in page
        lines = re.findall(r'<polyline class="line ([abc])" points="([^"]*)"', page)
        # Before the repeated time, after it, and after the gap.
        of_cores = [points.split() for kind, points in lines if kind == "a"][:3]
        assert [len(points) for points in of_cores] == [3, 2, 4]

    def test_page_shows_loans_of_tasks_and_nodes(self, up: Daemon, tmp_path: Path) -> None:
        def point(milliseconds: int, used: int, borrowed: int) -> dict[str, Any]:
            amounts = {"owned": 1000, "used": used, "lent": 0, "borrowed": borrowed}
            both = {name: {"milli_cores": cores, "memory_bytes": 1 << 30} for name, cores in amounts.items()}
            return {"us": 1000 * milliseconds, **both}

        points = [point(1000, 500, 0), point(3000, 2000, 1000)]
        sums = {name: {"core_us": 4_000_000, "mib_s": 4096} for name in ("owned", "used", "lent", "borrowed")}
        loans = {"task": "12" * 16, "us": 4_000_000, "sums": sums, "points": points}
        now = {name: {"milli_cores": 1500, "memory_bytes": 1 << 20} for name in ("owned", "used", "lent", "borrowed")}
        harvest = {"mode": "on", "calls": 3, "now": now}

        def nodes(_: str, answer: bytes) -> Any:
            (node,) = json.loads(answer)
            broken = {"mode": "on", "calls": 0, "why": "<b>No\u202e groups.</b>"}
            return [node | {"harvest": harvest}, node | {"harvest": broken}]

        answers = {"/v1/tasks/121212/loans": lambda *_: loans, "/v1/nodes": nodes}
        token = up.connection["token"]
        with with_answers(up, answers) as address:
            page = self.document(f"{address}/page/#token={token}&task=121212", tmp_path)
        assert "Measured for 4 s." in page
        assert "<td>borrowed</td>" in page
        assert page.count('<td class="n">4</td>') == 8, "core seconds and GiB seconds"
        chart = page.split('id="task-cores"')[1].split("</svg>")[0]
        drawn = dict(re.findall(r'<polyline class="line ([a-d])" points="([^"]*)"', chart))
        assert len(drawn["a"].split()) == 4, "two corners for each span"
        assert "1.5 cores, 1 MiB" in page.replace("1.50", "1.5")
        assert "&lt;b&gt;No\\u{202e} groups.&lt;/b&gt;" in page
        assert "<b>No" not in page

    def test_page_states_why_loans_are_unknown(self, up: Daemon, tmp_path: Path) -> None:
        token = up.connection["token"]
        seen = self.see(f"{up.connection['manager']}/page/#token={token}&task={'0' * 32}", tmp_path)
        assert f"you have no task {'0' * 32}" in seen
        # Anything else is no id, and is not asked for.
        page = self.document(f"{up.connection['manager']}/page/#token={token}&task=../../leases", tmp_path)
        assert '<section id="task" hidden' in page

    def test_page_asks_for_a_token_when_invalid(self, up: Daemon, tmp_path: Path) -> None:
        seen = self.see(f"{up.connection['manager']}/page/#token=wrong", tmp_path, seconds=2)
        assert "unknown or has expired" in seen
        assert "connection.json" in seen

    def test_page_policy_permits_only_its_own_script(self, up: Daemon) -> None:
        context = ssl.create_default_context(cadata=up.connection["ca_pem"])
        with urllib.request.urlopen(up.connection["manager"] + "/page/", timeout=20, context=context) as answer:
            policy = answer.headers["Content-Security-Policy"]
            page = answer.read().decode()
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy
        assert "<script src=" in page
        assert "onclick" not in page
