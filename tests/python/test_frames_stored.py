"""Data frames whose ranks exchange rows through a store only."""

from __future__ import annotations

import dayfly
import pyarrow as pa
import pyarrow.parquet
import pytest
from dayfly.frames import col, count
from harness import stores

ROWS = 20_000
FILES = 4
KEYS = 100


@pytest.fixture(scope="module", params=["redis", "s3", "file"])
def store(request, tmp_path_factory):
    """The URL of a store, its variables, and what is left in it."""
    if request.param == "file":
        place = tmp_path_factory.mktemp("store")
        yield f"file://{place}", {}, lambda: [path for path in place.rglob("*") if path.is_file()]
        return
    if missing := stores.unavailable():
        pytest.fail(missing)
    kind = stores.Redis if request.param == "redis" else stores.S3
    server = kind(tmp_path_factory.mktemp(request.param))
    yield server.url, server.environment() if request.param == "s3" else {}, server.left
    server.stop()


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    place = tmp_path_factory.mktemp("rows")
    table = pa.table({"key": [row % KEYS for row in range(ROWS)], "value": range(ROWS)})
    for file in range(FILES):
        pa.parquet.write_table(table.slice(file * ROWS // FILES, ROWS // FILES), place / f"{file}.parquet")
    return place


def test_rows_are_exchanged_through_stores(store, data, monkeypatch):
    url, variables, left = store
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with dayfly.connect() as client:
        with client.frames(ranks=2, partition_bytes=1_000, store=url, channel="stored") as session:
            rows = session.scan_parquet(data)
            joined = rows.join(rows.group_by("key").agg(count().alias("rows")), on="key")
            assert "NetworkShuffleExec" in joined.explain()
            found = joined.group_by("key").agg(col("value").sum().alias("sum"), col("rows").min()).sort("key")
            assert found.collect().to_pyarrow().to_pylist() == [
                {"key": key, "sum": sum(range(key, ROWS, KEYS)), "rows": ROWS // KEYS} for key in range(KEYS)
            ]
        assert not left()


def test_stored_exchange_needs_a_store():
    with dayfly.connect() as client, pytest.raises(ValueError, match="needs store="):
        client.frames(ranks=2, channel="stored")
