"""Data frames: what queries take, and what is seen of them while they run."""

from __future__ import annotations

import concurrent.futures as cf
import sys
import time
import types
from pathlib import Path

import dayfly
import pyarrow as pa
import pyarrow.parquet
import pytest
from dayfly.frames import Query, Work, count
from dayfly_frames._progress import Progress, default_display, line, table
from harness.leaks import wait_until

ROWS = 40_000


@pytest.fixture(scope="module")
def session():
    with dayfly.connect() as client, client.frames(ranks=2, partition_bytes=1_000, progress=True) as session:
        yield session


@pytest.fixture(scope="module")
def numbers(session, tmp_path_factory):
    place = tmp_path_factory.mktemp("progress")
    for file in range(4):
        rows = list(range(file, ROWS, 4))
        pa.parquet.write_table(pa.table({"number": rows, "key": [row % 7 for row in rows]}), place / f"{file}.parquet")
    return session.scan_parquet(place)


def total(works, name):
    return sum(getattr(work, name) for work in works.values())


def test_result_says_what_each_rank_did(numbers):
    usage = numbers.group_by("key").agg(count().alias("rows")).collect().usage
    assert list(usage.ranks) == [0, 1]
    assert total(usage.ranks, "tasks") == total(usage.ranks, "ended") == usage.tasks == 4
    assert 0 < total(usage.ranks, "core_seconds") <= usage.core_seconds
    # The session receives what is not received by ranks.
    assert 0 < total(usage.ranks, "received_bytes") < usage.exchanged_bytes


def test_rows_of_one_key_are_seen(session):
    one = session.from_arrow(pa.table({"key": [1] * ROWS, "number": list(range(ROWS))})).repartition("key").persist()
    ranks = one.map_batches(lambda batch: batch, {"key": "int64", "number": "int64"}).collect().usage.ranks
    assert total(ranks, "rows") == ROWS
    assert max(work.rows for work in ranks.values()) == ROWS


def held(numbers, place: Path):
    """Returns a frame whose tasks wait for a file."""

    def wait(batch):
        deadline = time.monotonic() + 60
        while not place.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        return batch

    return numbers.map_batches(wait, {"number": "int64", "key": "int64"})


def test_running_queries_are_seen(session, numbers, tmp_path):
    frame = held(numbers, tmp_path / "go").group_by("key").agg(count().alias("rows"))
    with cf.ThreadPoolExecutor(1) as pool:
        result = pool.submit(frame.collect)
        try:
            wait_until(lambda: bool(session.running()), "the query runs")
            (query,) = session.running()
            assert list(query.stages) == [1, 2]
            assert total(query.stages, "tasks") == total(query.ranks, "tasks") == 4
            assert total(query.stages, "ended") == 0
            assert query.seconds > 0
        finally:
            (tmp_path / "go").touch()
        assert sum(result.result().to_pyarrow().column("rows").to_pylist()) == ROWS
    wait_until(lambda: not session.running(), "nothing runs")


def test_ended_streams_run_no_longer(session, numbers):
    batches = numbers.batches()
    next(batches)
    batches.close()
    wait_until(lambda: not session.running(), "nothing runs")


def test_long_queries_show_their_progress(session, numbers, tmp_path, capfd):
    with cf.ThreadPoolExecutor(1) as pool:
        result = pool.submit(held(numbers, tmp_path / "go").collect)
        shown = ""

        def is_shown():
            nonlocal shown
            shown += capfd.readouterr().err
            return "stages, 0/2 tasks, 0 rows" in shown

        try:
            wait_until(is_shown, "a line is shown")
        finally:
            (tmp_path / "go").touch()
        result.result()
    assert capfd.readouterr().err.endswith("\n")


def test_short_queries_show_nothing(numbers, capfd):
    numbers.head(1).collect()
    assert capfd.readouterr().err == ""


def test_progress_is_a_line_or_table():
    stages = {1: Work(2, 2, 5_000, 3_000_000, 0, 0.5), 2: Work(2, 1, 10, 0, 2_000_000, 0.25)}
    query = Query(1.25, stages, {0: Work(4, 3)})
    expected = "1/2 stages, 3/4 tasks, 5,010 rows, 3.0 MB exchanged, 2.0 MB spilled, 1.2 s"
    assert line(query) == expected
    assert f"<caption>{expected}</caption>" in table(query)
    assert "<tr><td>1</td><td>2</td><td>2</td><td>5,000</td><td>3,000,000</td><td>0</td><td>0.50</td></tr>" in table(
        query
    )


def test_notebooks_show_one_table(monkeypatch):
    shown = []

    class Handle:
        def update(self, content):
            shown.append(("again", content))

    def display(content, display_id):
        shown.append(("first", content))
        return Handle()

    # A stand-in for IPython, which the tests do not install.
    shell, place = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    shell.get_ipython = lambda: types.SimpleNamespace(kernel="a kernel")
    place.HTML, place.display = str, display
    monkeypatch.setitem(sys.modules, "IPython", shell)
    monkeypatch.setitem(sys.modules, "IPython.display", place)
    notebook = default_display()
    for seconds in (1.0, 2.0):
        notebook.show(Query(seconds, {1: Work(1)}, {0: Work(1)}))
    notebook.end()
    assert [kind for kind, _ in shown] == ["first", "again"]
    assert all(text.startswith("<table>") for _, text in shown)


def test_progress_ends_with_its_query():
    shown = []

    class Recorder:
        def show(self, query):
            shown.append(query)

        def end(self):
            shown.append("end")

    query = Query(1.0, {1: Work(1)}, {0: Work(1)})

    def fail():
        with Progress(lambda: [query], Recorder).shown():
            wait_until(lambda: bool(shown), "the query is shown")
            raise LookupError

    with pytest.raises(LookupError):
        fail()
    assert shown[-1] == "end"
    assert all(each == query for each in shown[:-1])
