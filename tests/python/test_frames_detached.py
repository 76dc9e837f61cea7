"""Frames that durable tasks write."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import dayfly
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
from dayfly.frames import col, count
from harness.programs import run

ROWS = 20_000
NUMBERS = pd.DataFrame({"number": range(ROWS), "key": [number % 7 for number in range(ROWS)]})
NAMES = pd.DataFrame({"key": [1, 2, 3], "name": ["one", "two", "three"]})

PROGRAM = """
import sys, dayfly
from dayfly.frames import col

with dayfly.connect() as client, client.frames(ranks=2, partition_bytes=1_000) as session:
    frame = session.scan_parquet(sys.argv[1]).filter(col("key") == 3)
    future = frame.write_parquet(sys.argv[2], detach=True)
    print(future.id)
"""


@pytest.fixture(scope="module")
def client():
    with dayfly.connect() as client:
        yield client


@pytest.fixture(scope="module")
def session(client):
    with client.frames(ranks=2, partition_bytes=1_000) as session:
        yield session


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("numbers")
    for file in range(4):
        pa.parquet.write_table(pa.Table.from_pandas(NUMBERS[file::4], preserve_index=False), place / f"{file}.parquet")
    return place


def rows_of(place: Path) -> list[tuple[Any, ...]]:
    """The rows of all files of a directory, and of no others."""
    manifest = json.loads((place / "_manifest.json").read_text())
    files = [entry["path"] for entry in manifest["files"]]
    assert sorted(files) == sorted(str(path.relative_to(place)) for path in place.rglob("part-*"))
    table = pa.concat_tables(pa.parquet.read_table(place / file) for file in files)
    return sorted(tuple(row.values()) for row in table.to_pylist())


def rows_in(table: pd.DataFrame) -> list[tuple[Any, ...]]:
    return sorted(table.itertuples(index=False, name=None))


def test_detached_write_outlives_its_session(client, data, tmp_path):
    with client.frames(ranks=2, partition_bytes=1_000) as session:
        names = session.from_arrow(pa.Table.from_pandas(NAMES, preserve_index=False))
        joined = session.scan_parquet(data).join(names, on="key")
        future = joined.group_by("name").agg(count().alias("rows")).write_parquet(tmp_path / "out", detach=True)
    per_rank = future.result(timeout=100)
    assert len(per_rank) == 2
    assert per_rank[0] == per_rank[1]
    assert sum(file.rows for file in per_rank[0]) == 3
    expected = NUMBERS.merge(NAMES, on="key").groupby("name").size().reset_index()
    assert rows_of(tmp_path / "out") == rows_in(expected)


def test_detached_write_needs_no_process(up, data, tmp_path):
    written = run(sys.executable, "-c", PROGRAM, data, tmp_path / "out", env=up.client_environment(), timeout=100)
    with dayfly.connect(config=up.state) as client:
        client.task(written.stdout.strip()).result(timeout=100)
    assert rows_of(tmp_path / "out") == rows_in(NUMBERS[NUMBERS.key == 3])


def test_subqueries_and_functions_go_along(session, data, tmp_path):
    def doubled(batch):
        return {"twice": [2 * number.as_py() for number in batch["number"]]}

    numbers = session.scan_parquet(data)
    chosen = session.sql(
        "SELECT number FROM t WHERE key IN (SELECT key FROM t WHERE number = 5) AND number > (SELECT min(key) FROM t)",
        t=numbers,
    )
    frame = chosen.map_batches(doubled, {"twice": "int64"}).repartition("twice")
    frame.write_parquet(tmp_path / "out", detach=True).result(timeout=100)
    expected = NUMBERS[(NUMBERS.key == 5) & (NUMBERS.number > 0)]
    assert rows_of(tmp_path / "out") == [(2 * number,) for number in expected.number]


def test_lost_rank_has_the_write_run_again(client, data, tmp_path):
    marker = tmp_path / "marker"

    def killed_once(batch):
        try:
            marker.touch(exist_ok=False)
        except FileExistsError:
            return {"number": batch["number"]}
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    with client.frames(ranks=2, partition_bytes=1_000) as session:
        frame = session.scan_parquet(data).map_batches(killed_once, {"number": "int64"}, batch_rows=100)
        future = frame.write_parquet(tmp_path / "out", detach=True)
    future.result(timeout=100)
    assert marker.exists()
    assert rows_of(tmp_path / "out") == [(number,) for number in range(ROWS)]


def test_kept_rows_cannot_be_detached(session, data, tmp_path):
    kept = session.scan_parquet(data).filter(col("key") == 1).persist()
    with pytest.raises(dayfly.RequestError, match="keeps"):
        kept.write_parquet(tmp_path / "out", detach=True)


def test_detached_write_refuses_filled_directories(session, data, tmp_path):
    (tmp_path / "other.txt").write_text("mine")
    future = session.scan_parquet(data).write_csv(tmp_path, detach=True)
    with pytest.raises(dayfly.RequestError, match="has something in it"):
        future.result(timeout=100)
    assert [path.name for path in tmp_path.iterdir()] == ["other.txt"]


def test_unknown_endpoint_is_refused_at_once(session, data, tmp_path):
    with pytest.raises(dayfly.RequestError, match="nowhere"):
        session.scan_parquet(data).write_ipc(tmp_path / "out", detach="nowhere")
