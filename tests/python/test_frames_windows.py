"""Window functions and queries over one frame, on ranks."""

from __future__ import annotations

import dayfly
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

VALUES = [1, None, None, 2, None, 3, None, None]


@pytest.fixture(scope="module")
def session():
    with dayfly.connect() as client, client.frames(ranks=2) as session:
        yield session


@pytest.fixture(scope="module")
def events(session, tmp_path_factory):
    path = tmp_path_factory.mktemp("events") / "events.parquet"
    pq.write_table(pa.table({"at": range(len(VALUES)), "value": VALUES}), path)
    return session.scan_parquet(path)


def column(frame, name):
    return frame.collect().to_pyarrow().sort_by("at").column(name).to_pylist()


def test_windows_over_files_ignore_nulls(events):
    filled = "last_value(value) IGNORE NULLS OVER (ORDER BY at ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)"
    assert column(events.sql(f"SELECT at, {filled} AS filled FROM self"), "filled") == [1, 1, 1, 2, 2, 3, 3, 3]


def test_windows_over_files_follow_both_orders(events):
    before = "lag(at) OVER (ORDER BY at NULLS FIRST) AS before"
    after = "lag(at) OVER (ORDER BY at DESC NULLS LAST) AS after"
    found = events.sql(f"SELECT at, {before}, {after} FROM self")
    assert column(found, "before") == [None, *range(len(VALUES) - 1)]
    assert column(found, "after") == [*range(1, len(VALUES)), None]


def test_query_of_frame_sees_others(events, session):
    names = session.from_arrow(pa.table({"value": [1, 2], "name": ["one", "two"]}))
    found = events.sql("SELECT at, name FROM self JOIN names USING (value)", names=names)
    assert column(found, "name") == ["one", "two"]
