"""Data frames: where their rows are computed, and what the ranks measure."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

import dayfly
import pyarrow as pa
import pyarrow.parquet
import pytest
from dayfly.frames import col, count

ROWS = 40_000


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
    place = tmp_path_factory.mktemp("placement")
    for file in range(4):
        numbers = list(range(file, ROWS, 4))
        table = pa.table({"number": numbers, "key": [number % 7 for number in numbers]})
        pa.parquet.write_table(table, place / f"{file}.parquet")
    return place


@pytest.fixture(scope="module")
def numbers(session, data):
    return session.scan_parquet(data)


def process_of(batch):
    return {"process": [os.getpid()], "rows": [batch.num_rows]}


SCHEMA = {"process": "int64", "rows": "int64"}


def gathered(session, numbers):
    """Frames whose last stage has all rows."""
    pair = session.from_arrow(pa.table({"key": [1, 2], "name": ["one", "two"]}))
    return {
        "sorted": numbers.sort("number"),
        "limited": numbers.sort("number").head(30_000),
        "counted": numbers.select(count().alias("rows")),
        "joined": numbers.join(pair, on="key").sort("number"),
    }


@pytest.mark.parametrize("name", ["sorted", "limited", "counted", "joined"])
def test_functions_after_gathered_rows_run_on_ranks(session, numbers, name):
    frame = gathered(session, numbers)[name]
    found = frame.map_batches(process_of, SCHEMA).collect().to_pyarrow().to_pydict()
    assert os.getpid() not in found["process"]
    assert sum(found["rows"]) == len(frame.collect())


@pytest.mark.parametrize("name", ["sorted", "limited", "counted", "joined"])
def test_gathered_rows_are_kept_on_ranks(session, numbers, name):
    frame = gathered(session, numbers)[name]
    assert len(frame.persist().collect()) == len(frame.collect())


def test_equal_keys_are_repartitioned_to_one_rank(numbers):
    def keys_here(batch):
        keys = sorted(set(batch.column("key").to_pylist()))
        return {"process": [os.getpid()] * len(keys), "key": keys}

    schema = {"process": "int64", "key": "int64"}
    spread = numbers.filter(col("number") >= 0).repartition("key")
    assert sorted(spread.columns) == ["key", "number"]
    found = spread.map_batches(keys_here, schema).collect().to_pyarrow().to_pydict()
    places = {(key, process) for key, process in zip(found["key"], found["process"], strict=True)}
    assert Counter(key for key, _ in places) == dict.fromkeys(range(7), 1)
    assert len({process for _, process in places}) == 2
    assert os.getpid() not in found["process"]


def test_repartitioned_rows_are_filtered_and_selected(numbers):
    found = numbers.repartition(["key"], "number").filter(col("key") == 3).select("number").sort("number").collect()
    assert found.to_pyarrow().column("number").to_pylist() == list(range(3, ROWS, 7))
    with pytest.raises(dayfly.RequestError, match="at least one column"):
        numbers.repartition()
    with pytest.raises(dayfly.RequestError, match="kee"):
        numbers.repartition("kee")


@pytest.mark.parametrize("how", ["inner", "left", "right", "full", "semi", "anti"])
def test_sorted_joins_have_the_rows_of_hashed(session, numbers, how):
    other = session.from_arrow(pa.table({"number": [5, 6, 6, None, ROWS + 1], "name": list("abcde")}))
    few = numbers.filter(col("number") < 20)
    hashed, sorted_ = (few.join(other, on="number", how=how, algorithm=name) for name in ("hash", "sort"))
    rows = [sorted(map(str, frame.collect().to_pyarrow().to_pylist())) for frame in (hashed, sorted_)]
    assert rows[0] == rows[1]
    assert "SortMergeJoinExec" in sorted_.explain()
    assert "SortMergeJoinExec" not in hashed.explain()


def test_only_the_named_join_is_sorted(session, numbers):
    other = session.from_arrow(pa.table({"number": [5, 6], "name": ["a", "b"]}))
    joined = numbers.join(other, on="number").join(numbers, on="number", algorithm="sort", suffix="_again")
    plan = joined.explain()
    assert (plan.count("SortMergeJoinExec"), plan.count("HashJoinExec")) == (1, 1)
    assert len(joined.collect()) == 2


def test_unknown_algorithm_of_a_join_is_refused(numbers):
    with pytest.raises(ValueError, match="sort"):
        numbers.join(numbers, on="number", algorithm="merge")
    with pytest.raises(ValueError, match="cross"):
        numbers.join(numbers, how="cross", algorithm="sort")


def test_sample_has_the_number_of_rows(numbers):
    def of(frame):
        return frame.collect().to_pyarrow().column("number").to_pylist()

    one, other = of(numbers.sample(1_000)), of(numbers.sample(1_000))
    assert (len(one), len(set(one)), one != other) == (1_000, 1_000, True)
    # Outside of this in one of 10^15 runs: 8 standard deviations.
    assert 9_300 < len(of(numbers.sample(fraction=0.25))) < 10_700
    assert (len(of(numbers.sample(fraction=1.0))), of(numbers.sample(0))) == (ROWS, [])
    for wrong in ({}, {"n": 1, "fraction": 0.5}, {"n": -1}, {"fraction": 1.5}):
        with pytest.raises(ValueError, match=r"sample|n=|fraction="):
            numbers.sample(**wrong)


def test_analyzed_plan_has_measures_of_ranks(session, numbers):
    counted = numbers.group_by("key").agg(count().alias("rows")).sort("key")
    text = counted.explain(analyze=True)
    assert text.startswith("7 rows in ")
    scans = [line for line in text.splitlines() if "DistributedLeafExec" in line or "DataSourceExec" in line]
    assert any(re.search(r"output_rows=40(\.0+)? ?K|output_rows=40000", line) for line in scans), text
    assert "output_rows" not in counted.explain()
    by_sql = session.sql("EXPLAIN ANALYZE SELECT key, count(*) FROM numbers GROUP BY key", numbers=numbers)
    assert "7 rows in " in by_sql.collect().to_pyarrow().column("plan")[0].as_py()


def test_tasks_that_did_not_run_are_analyzed(numbers):
    assert numbers.head(3).explain(analyze=True).startswith("3 rows in ")
    assert numbers.join(numbers, on="number", suffix="_again").explain(analyze=True).startswith(f"{ROWS} rows in ")


def test_result_says_what_its_query_took(session, numbers):
    table = numbers.group_by("key").agg(count().alias("rows")).collect()
    usage = table.usage
    assert usage.seconds > 0
    assert (usage.tasks, usage.spilled_bytes) == (4, 0)
    # Groups cross between tasks, and rows do not.
    assert 0 < usage.exchanged_bytes < 100_000
    joined = numbers.join(numbers, on="number", suffix="_again").collect()
    assert joined.usage.exchanged_bytes > 100 * usage.exchanged_bytes
    assert session.from_arrow(pa.table({"x": [1]})).collect().usage is not None
    assert next(numbers.batches()).usage is None
    # This manager has no prices.
    assert usage.cost == 0


def test_result_says_what_its_query_cost(start, data):
    site = start("up", "--listen", "127.0.0.1:0", "--sandbox", "process")
    site.cli("prices", "--price-computing", "1", "--price-core", "0.5", "--price-allocation", "2")
    with dayfly.connect(config=site.state) as client, client.frames(ranks=2, memory=1 << 30) as session:
        usage = session.scan_parquet(data).group_by("key").agg(count()).collect().usage
    # Two cores and 1 GiB.
    assert usage.cost == pytest.approx(usage.seconds * (2 * 1.5 + 1 * 2))
