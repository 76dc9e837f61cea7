"""The queries of TPC-H on ranks, compared with the answers of DuckDB."""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import dayfly
import pyarrow as pa
import pytest

pytest.importorskip("dayfly_frames", reason="the package is not installed: make build")
duckdb = pytest.importorskip("duckdb")

from dayfly_frames._bench import data  # noqa: E402 - it may not be there
from dayfly_frames._bench.tpch import queries  # noqa: E402

SCALE = 0.1
#: Small, so that all ranks read a part of every table that has more.
PARTITION_BYTES = 1 << 16


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = data.tpch(tmp_path_factory.mktemp("tpch"), SCALE)
    if place is None:
        pytest.skip("tpchgen-cli is not installed")
    return place


@pytest.fixture(scope="module")
def answers(tables: Path) -> dict[str, list[dict[str, Any]]]:
    with duckdb.connect(config={"threads": 2}) as database:
        for table in tables.iterdir():
            database.execute(f"CREATE VIEW {table.name} AS FROM read_parquet('{table}/*.parquet')")
        return {name: rows(database.sql(text).to_arrow_table()) for name, text in queries().items()}


@pytest.fixture(scope="module", params=[1, 2, 3, 5, "stored"])
def session(
    client: dayfly.Client, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    ranks, options = request.param, {}
    if ranks == "stored":
        ranks, options = 2, {"store": f"file://{tmp_path_factory.mktemp('store')}", "channel": "stored"}
    # Cores are shared: it is not asked how fast they are.
    with client.frames(ranks=ranks, cores=1, partition_bytes=PARTITION_BYTES, **options) as session:
        yield session


def rows(table: Any) -> list[dict[str, Any]]:
    """Returns rows in an order that does not depend on that of equal keys: by what is exact first."""
    found = pa.table(table).to_pylist()
    return sorted(found, key=lambda row: [(is_number(value), value) for value in sorted(row.values(), key=is_number)])


def is_number(value: Any) -> bool:
    return isinstance(value, (float, Decimal))


def is_same(left: Any, right: Any) -> bool:
    """Means of decimals are decimals here, with four further digits, and floating point numbers in DuckDB."""
    if is_number(left) and is_number(right):
        return math.isclose(left, right, rel_tol=1e-9, abs_tol=1e-6)
    return bool(left == right)


@pytest.mark.parametrize("name", list(queries()))
def test_ranks_answer_as_duckdb(session, tables, answers, name: str) -> None:
    frames = {table.name: session.scan_parquet(table) for table in tables.iterdir()}
    found = rows(session.sql(queries()[name], **frames).collect())
    assert len(found) == len(answers[name])
    for ours, theirs in zip(found, answers[name], strict=True):
        assert len(ours) == len(theirs)
        # Expressions without a name have other ones there.
        assert all(map(is_same, ours.values(), theirs.values())), (ours, theirs)


def test_large_queries_run_on_all_ranks(session, tables) -> None:
    lines = session.scan_parquet(tables / "lineitem")
    plan = session.sql(queries()["q01"], lineitem=lines).explain()
    if session.ranks > 1:
        assert f"tasks={session.ranks}" in plan, plan
