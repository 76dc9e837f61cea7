"""Queries of data frames as the manager shows them: while they run, how they end, and how others cancel them."""

from __future__ import annotations

import concurrent.futures as cf
import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dayfly
import pyarrow as pa
import pyarrow.parquet
import pytest
from dayfly.frames import col, count
from dayfly_frames import _report
from harness.daemons import Daemon
from harness.leaks import wait_until
from harness.managers import manager_here

ROWS = 40_000
SQL = "SELECT key, count(*) AS rows FROM held GROUP BY key"


@pytest.fixture(scope="module")
def manager() -> Iterator[Daemon]:
    with manager_here() as manager:
        manager.cli("prices", "--price-computing", "0.001")
        yield manager


@pytest.fixture(scope="module")
def session(manager: Daemon):
    with (
        dayfly.connect(config=manager.state) as client,
        client.frames(ranks=2, partition_bytes=1_000) as session,
    ):
        yield session


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("queries")
    for file in range(4):
        rows = list(range(file, ROWS, 4))
        pa.parquet.write_table(pa.table({"number": rows, "key": [row % 7 for row in rows]}), place / f"{file}.parquet")
    return place


@pytest.fixture(scope="module")
def numbers(session, files: Path):
    return session.scan_parquet(files)


def held(numbers, place: Path, *, fails: bool = False):
    """Returns a frame whose tasks wait for a file."""

    def wait(batch):
        deadline = time.monotonic() + 60
        while not place.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        if fails:
            raise ValueError("no such zone")
        return batch

    return numbers.map_batches(wait, {"number": "int64", "key": "int64"})


def listed(manager: Daemon, *options: str) -> list[dict[str, Any]]:
    return list(manager.cli("queries", *options))


def latest(manager: Daemon, text: str, state: str) -> dict[str, Any]:
    """Waits until a query with this text is in this state. Returns it, with stages and ranks."""
    found: list[dict[str, Any]] = []

    def is_there() -> bool:
        found[:] = [one for one in listed(manager, "--state", state) if text in one["text"]]
        return bool(found)

    wait_until(is_there, f"the query is {state}", 30)
    shown: dict[str, Any] = manager.cli("queries", "show", found[0]["id"])
    return shown


@contextlib.contextmanager
def running(compute: Callable[[], Any], go: Path) -> Iterator[cf.Future[Any]]:
    """Runs a query in another thread, and lets its tasks go on at the end."""
    with cf.ThreadPoolExecutor(1) as pool:
        result = pool.submit(compute)
        try:
            yield result
        finally:
            go.touch()


def test_running_query_is_seen_until_its_end(session, manager: Daemon, numbers, tmp_path: Path) -> None:
    frame = session.sql(SQL, held=held(numbers, tmp_path / "go"))
    with running(frame.collect, tmp_path / "go") as result:
        seen = latest(manager, SQL, "running")
        assert seen["text"] == SQL
        assert seen["tenant"] == "default"
        assert seen["elapsed_ms"] >= 1_000
        assert (seen["total"]["tasks"], seen["total"]["ended"]) == (4, 0)
        assert [part["number"] for part in seen["stages"]] == [1, 2]
        assert [part["number"] for part in seen["ranks"]] == [0, 1]
        leases = {one["lease"] for one in manager.cli("lease", "list")}
        assert set(seen["leases"]) == leases
        # The same over HTTP, but for another tenant.
        status, body = manager.ask("GET", f"/v1/queries/{seen['id']}")
        assert (status, json.loads(body)["id"]) == (200, seen["id"])
        manager.cli("tenant", "set", "bio")
        token = manager.cli("token", "create", "laptop", "--tenant", "bio")["token"]
        assert manager.ask("GET", "/v1/queries", token=token) == (200, b"[]")
        assert manager.ask("GET", f"/v1/queries/{seen['id']}", token=token)[0] == 404
    assert len(result.result().to_pyarrow()) == 7
    done = latest(manager, SQL, "done")
    assert done["id"] == seen["id"]
    assert (done["total"]["tasks"], done["total"]["ended"]) == (4, 4)
    # Each task groups its own rows first.
    assert done["total"]["rows"] >= 7
    assert done["total"]["core_us"] > 0
    assert done["skew"] >= 1
    assert done["lost_runs"] == 0
    # The price is 0.001 a second, of each of two workers; amounts are in billionths.
    assert done["cost"] == pytest.approx(2e6 * done["elapsed_ms"] / 1e3, rel=0.01)


def test_cancelled_query_ends_at_its_client(session, manager: Daemon, numbers, tmp_path: Path) -> None:
    frame = held(numbers, tmp_path / "go").group_by("key").agg(count().alias("rows"))
    with running(frame.collect, tmp_path / "go") as result:
        seen = latest(manager, "collect: Projection", "running")
        assert manager.cli("queries", "cancel", seen["id"][-12:])["is_cancelling"]
        with pytest.raises(dayfly.Cancelled, match="dayfly queries cancel"):
            result.result(20)
    assert latest(manager, "collect: Projection", "cancelled")["id"] == seen["id"]
    assert not manager.cli("queries", "cancel", seen["id"])["is_cancelling"]
    assert len(numbers.head(3).collect()) == 3


def test_failed_query_says_why(manager: Daemon, numbers, tmp_path: Path) -> None:
    frame = held(numbers, tmp_path / "go", fails=True)
    with running(lambda: frame.write_csv(tmp_path / "out"), tmp_path / "go") as result:
        latest(manager, "write_csv: ", "running")
    with pytest.raises(dayfly.FunctionError):
        result.result()
    assert "no such zone" in latest(manager, "write_csv: ", "failed")["error"]


def test_stream_that_ends_early_is_cancelled(manager: Daemon, numbers, tmp_path: Path) -> None:
    batches = held(numbers, tmp_path / "go").batches()
    with running(lambda: next(batches), tmp_path / "go") as first:
        latest(manager, "batches: ", "running")
    assert len(first.result()) > 0
    batches.close()
    latest(manager, "batches: ", "cancelled")


def test_short_query_is_not_reported(session, manager: Daemon, numbers) -> None:
    # Those of the tests before.
    wait_until(lambda: not session._reporter._open, "all reports are sent", 20)
    session.sql("SELECT max(number) AS most FROM numbers", numbers=numbers).collect()
    assert not session._reporter._open
    assert not [one for one in listed(manager) if "most" in one["text"]]


def test_failing_report_fails_no_query(session, numbers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def refuse(_: Any, query: str, body: dict[str, Any]) -> bool:
        asked.append(body["state"])
        raise dayfly.Error("the manager is away", "unreachable")

    monkeypatch.setattr(_report, "MAX_LAST_REPORT", 0.1)
    monkeypatch.setattr(_report.Reporter, "send", refuse)
    with running(held(numbers, tmp_path / "go").collect, tmp_path / "go") as result:
        wait_until(lambda: asked.count("running") >= 2, "reports are tried again", 20)
    assert len(result.result()) == ROWS
    wait_until(lambda: "done" in asked and not session._reporter._open, "the thread ends", 20)


def test_session_without_reports_sends_none(manager: Daemon, files: Path, tmp_path: Path) -> None:
    with (
        dayfly.connect(config=manager.state) as client,
        client.frames(ranks=1, report=False) as session,
    ):
        frame = held(session.scan_parquet(files), tmp_path / "go").select(col("key").alias("unseen"))
        with running(frame.collect, tmp_path / "go") as result:
            wait_until(lambda: any(one.seconds > 2.5 for one in session.running()), "the query takes long", 20)
        assert len(result.result()) == ROWS
    assert not [one for one in listed(manager) if "unseen" in one["text"]]


def test_reports_stay_within_their_bounds() -> None:
    assert _report.bounded("é" * 5_000, 4_095) == "é" * 2_047
    assert _report.bounded("half a pair: \ud800", 100) == "half a pair: ?"
    works = {rank: _report.Work(tasks=1, core_seconds=float(rank)) for rank in range(600)}
    parts = _report.parts_of(works)
    assert [part["number"] for part in parts] == list(range(88, 600))
    assert _report.outcome_of(KeyboardInterrupt()) == ("cancelled", None)
    assert _report.outcome_of(dayfly.RequestError("no such table", "not_found")) == (
        "failed",
        "[not_found] no such table",
    )
