"""Data frames: sorts of all rows, whose ranges are on several ranks."""

from __future__ import annotations

import json

import dayfly
import pyarrow as pa
import pyarrow.parquet
import pytest
from dayfly.frames import col
from dayfly_frames import Frame

#: Enough for ranges.
ROWS = 120_000
FILES = 4


@pytest.fixture(scope="module")
def session():
    with dayfly.connect() as client, client.frames(ranks=2, partition_bytes=16 << 10) as session:
        yield session


@pytest.fixture(scope="module")
def table() -> pa.Table:
    """Rows in disorder: keys with nulls, a column in which most values are equal, and a number for each row."""
    numbers = range(ROWS)
    return pa.table(
        {
            "key": [None if row % 13 == 0 else row * 7_919 % 10_007 for row in numbers],
            "common": ["most" if row % 10 else f"text {row % 50}" for row in numbers],
            "number": [row * 104_729 % ROWS for row in numbers],
        }
    )


@pytest.fixture(scope="module")
def frame(session, table, tmp_path_factory) -> Frame:
    place = tmp_path_factory.mktemp("sorted")
    share = ROWS // FILES
    for file in range(FILES):
        pa.parquet.write_table(table.slice(file * share, share), place / f"{file}.parquet")
    return session.scan_parquet(place)


ORDERS = {
    "nulls last": (["key", "number"], [False, False]),
    "largest first": (["key", "number"], [True, False]),
    "mostly equal": (["common", "number"], [False, True]),
    "several keys": (["common", "key", "number"], [True, False, False]),
}


def ordered(table: pa.Table, by: list[str], descending: list[bool]) -> dict[str, list]:
    directions = ["descending" if down else "ascending" for down in descending]
    return table.sort_by(list(zip(by, directions, strict=True))).to_pydict()


@pytest.mark.parametrize("order", ORDERS)
def test_ranges_have_the_order_of_all_rows(frame, table, order):
    by, descending = ORDERS[order]
    found = frame.sort(*by, descending=descending)
    plan = found.explain()
    assert "RangesExec" in plan
    assert "InOrderExec" in plan
    assert pa.table(found.collect()).to_pydict() == ordered(table, by, descending)


def test_batches_arrive_in_order(frame):
    last = -1
    for batch in frame.select("number").sort("number").batches():
        for number in pa.table(batch)["number"].to_pylist():
            assert number == last + 1
            last = number
    assert last == ROWS - 1


def test_first_rows_are_not_cut_into_ranges(frame):
    first = frame.sort("number").head(5)
    assert "RangesExec" not in first.explain()
    assert pa.table(first.collect())["number"].to_pylist() == list(range(5))


def test_written_files_have_the_order_in_their_names(frame, table, tmp_path):
    by, descending = ORDERS["largest first"]
    written = frame.sort(*by, descending=descending).write_parquet(tmp_path / "out")
    paths = sorted(path for path in (tmp_path / "out").iterdir() if path.suffix == ".parquet")
    assert [file.path for file in written] == [path.name for path in paths]
    assert len(paths) > 1
    found = pa.concat_tables(pa.parquet.read_table(path) for path in paths)
    assert found.to_pydict() == ordered(table, by, descending)
    manifest = json.loads((tmp_path / "out" / "_manifest.json").read_text())
    assert manifest["sorted_by"] == [
        {"name": "key", "descending": True, "nulls_first": False},
        {"name": "number", "descending": False, "nulls_first": False},
    ]


def test_unsorted_files_state_no_order(frame, tmp_path):
    frame.filter(col("key") < 9).write_parquet(tmp_path / "out")
    assert json.loads((tmp_path / "out" / "_manifest.json").read_text())["sorted_by"] == []
