"""Data frames across workers, compared with PyArrow in one process."""

from __future__ import annotations

import contextlib
import datetime as dt
import math
import os
import signal
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import dayfly
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from dayfly.frames import coalesce, col, count, lit, row_number, when
from harness.leaks import descendants, wait_until, with_thread

ZONES = {zone: f"borough {zone % 3}" for zone in range(12)}


@pytest.fixture(scope="module")
def client():
    with dayfly.connect() as client:
        yield client


@pytest.fixture(scope="module")
def session(client):
    with client.frames(ranks=2) as session:
        yield session


def trip(number: int) -> tuple[int, float, float | None]:
    fare = None if number % 17 == 0 else number % 101 / 4
    return number % 10, float(number % 7 - 1), fare


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Four files of trips, and one of zones."""
    place = tmp_path_factory.mktemp("frames")
    (place / "trips").mkdir()
    for file in range(4):
        rows = [trip(number) for number in range(file * 5_000, (file + 1) * 5_000)]
        zone, distance, fare = zip(*rows, strict=True)
        table = pa.table({"zone": zone, "distance": distance, "fare": fare})
        pa.parquet.write_table(table, place / f"trips/{file}.parquet")
    pa.csv.write_csv(pa.table({"zone": list(ZONES), "borough": list(ZONES.values())}), place / "zones.csv")
    return place


def rows(table) -> list[dict]:
    return pa.table(table).to_pylist()


@pytest.fixture(scope="module")
def trips(session, data):
    return session.scan_parquet(data / "trips/*.parquet")


@pytest.fixture(scope="module")
def zones(session, data):
    return session.scan_csv(data / "zones.csv")


def test_main_job_gives_the_right_answer(trips, zones):
    busiest = (
        trips.filter(col("distance") > 0)
        .join(zones, on="zone")
        .group_by("borough")
        .agg(count().alias("trips"), col("fare").mean().alias("fare"))
        .sort("trips", descending=True)
    )
    number, fares = Counter(), defaultdict(list)
    for zone, distance, fare in map(trip, range(20_000)):
        if distance > 0:
            number[ZONES[zone]] += 1
            if fare is not None:
                fares[ZONES[zone]].append(fare)
    found = rows(busiest.collect())
    assert [row["trips"] for row in found] == sorted(number.values(), reverse=True)
    for row in found:
        own = fares[row["borough"]]
        assert row["trips"] == number[row["borough"]]
        assert row["fare"] == pytest.approx(sum(own) / len(own))


def test_sql_sees_the_named_frames_only(session, trips):
    found = session.sql("SELECT zone, count(*) AS n FROM trips GROUP BY zone ORDER BY zone", trips=trips).collect()
    assert rows(found) == [{"zone": zone, "n": 2_000} for zone in range(10)]
    with pytest.raises(dayfly.Error, match="trips"):
        session.sql("SELECT * FROM trips")
    with pytest.raises(dayfly.Error):
        session.sql("CREATE TABLE t AS SELECT 1")


def test_table_shares_its_memory_with_arrow(session):
    table = pa.table({"x": pa.array([1, None, 3]), "y": ["a", "b", None]})
    found = session.from_arrow(table).collect()
    assert found.to_pyarrow().equals(table)
    assert (found.num_rows, len(found), found.columns) == (3, 3, ["x", "y"])
    assert "null" in repr(found)
    assert "<td>null</td>" in found._repr_html_()


@pytest.fixture(scope="module")
def sides(session):
    left = session.from_arrow(pa.table({"k": [1, 2, 2, None], "v": ["a", "b", "c", "d"]}))
    right = session.from_arrow(pa.table({"k": [2, 3, None], "v": ["x", "y", "z"], "w": [20, 30, 40]}))
    return left, right


JOINS = {
    "inner": [{"k": 2, "v": "b", "v_right": "x", "w": 20}, {"k": 2, "v": "c", "v_right": "x", "w": 20}],
    "left": [
        {"k": 1, "v": "a", "v_right": None, "w": None},
        {"k": 2, "v": "b", "v_right": "x", "w": 20},
        {"k": 2, "v": "c", "v_right": "x", "w": 20},
        {"k": None, "v": "d", "v_right": None, "w": None},
    ],
    "right": [
        {"v": "b", "k": 2, "v_right": "x", "w": 20},
        {"v": "c", "k": 2, "v_right": "x", "w": 20},
        {"v": None, "k": 3, "v_right": "y", "w": 30},
        {"v": None, "k": None, "v_right": "z", "w": 40},
    ],
    "semi": [{"k": 2, "v": "b"}, {"k": 2, "v": "c"}],
    "anti": [{"k": 1, "v": "a"}, {"k": None, "v": "d"}],
}


@pytest.mark.parametrize("how", JOINS)
def test_join_keeps_the_columns_of_polars(sides, how):
    left, right = sides
    joined = left.join(right, on="k", how=how)
    found = sorted(rows(joined.collect()), key=repr)
    assert found == sorted(JOINS[how], key=repr)
    assert joined.columns == list(JOINS[how][0])


def test_full_and_cross_joins_keep_both_keys(sides):
    left, right = sides
    full = left.join(right, on="k", how="full").collect()
    assert full.columns == ["k", "v", "k_right", "v_right", "w"]
    assert full.num_rows == 6
    once = left.join(right, on="k", how="full", coalesce=True).collect()
    assert sorted(str(row["k"]) for row in rows(once)) == ["1", "2", "2", "3", "None", "None"]
    assert left.join(right, how="cross").collect().num_rows == 12
    with pytest.raises(ValueError, match="on="):
        left.join(right)


def test_expressions_compute_what_they_say(session):
    frame = session.from_arrow(pa.table({"x": [-2, 1, None], "s": ["Ab", "bc", "c"], "g": [1, 1, 2]}))
    found = frame.select(
        (col("x") * 2 + 1).alias("twice"),
        (col("x") / 4).alias("part"),
        col("x").abs().alias("size"),
        col("x").fill_null(0).alias("filled"),
        col("x").is_null().alias("none"),
        col("s").str.to_uppercase().alias("upper"),
        col("s").str.contains("b").alias("has"),
        when(col("x") > 0).then(lit("up")).otherwise(lit("down")).alias("way"),
        coalesce("x", "g").alias("first"),
        col("x").sum().over("g").alias("sum"),
    )
    computed = sorted((tuple(row.values()) for row in rows(found.collect())), key=lambda row: row[5])
    assert found.columns == ["twice", "part", "size", "filled", "none", "upper", "has", "way", "first", "sum"]
    assert computed == [
        (-3, -0.5, 2, -2, False, "AB", True, "down", -2, -1),
        (3, 0.25, 1, 1, False, "BC", True, "up", 1, -1),
        (None, None, None, 0, True, "C", False, "down", 2, None),
    ]


def test_constants_keep_their_type(session):
    day = dt.date(2026, 2, 3)
    values = {
        "int": 2**40,
        "large": 2**63,
        "float": 0.5,
        "bytes": b"\0x",
        "day": day,
        "noon": dt.datetime(2026, 2, 3, 12, 0, 0, 5),
        "utc": dt.datetime(2026, 2, 3, 12, tzinfo=dt.UTC),
        "span": dt.timedelta(days=1, microseconds=3),
        "price": Decimal("-12.50"),
        "nothing": None,
    }
    frame = session.from_arrow(pa.table({"x": [1]})).select(**{name: lit(value) for name, value in values.items()})
    assert rows(frame.collect()) == [values]


def test_frames_combine_and_change(session):
    one = session.from_arrow(pa.table({"x": [1, 2, 2]}))
    other = session.from_arrow(pa.table({"x": [2, 3]}))

    def values(frame):
        return sorted(row["x"] for row in rows(frame.collect()))

    assert values(one.concat(other)) == [1, 2, 2, 2, 3]
    assert values(one.union(other)) == [1, 2, 3]
    assert values(one.intersect(other)) == [2]
    assert values(one.except_(other)) == [1]
    assert values(one.unique()) == [1, 2]
    assert rows(one.sort("x", descending=True).head(1).collect()) == [{"x": 2}]
    assert one.with_columns(y=col("x") + 1).rename({"x": "z"}).drop("y").columns == ["z"]
    assert one.cast({"x": "float64"}).schema == {"x": "float64"}


def test_dropping_no_column_returns_the_frame(session):
    frame = session.from_arrow(pa.table({"x": [1], "y": [2]}))
    assert rows(frame.drop().collect()) == [{"x": 1, "y": 2}]
    with pytest.raises(dayfly.Error, match="z"):
        frame.drop("z")


def test_or_holds_as_in_sql(session):
    frame = session.from_arrow(pa.table({"x": [True, False, None]}))
    found = frame.select(*((col("x") | lit(value)).alias(str(value)) for value in (True, False, None)))
    order = sorted(map(str, (tuple(row.values()) for row in rows(found.collect()))))
    assert order == ["(True, False, None)", "(True, None, None)", "(True, True, True)"]


def test_nan_in_files_is_above_all_numbers(session, tmp_path):
    # Statistics in the files leave out NaN.
    pa.parquet.write_table(pa.table({"x": [1.0, math.nan]}), tmp_path / "0.parquet")
    pa.parquet.write_table(pa.table({"x": [math.inf, math.nan]}), tmp_path / "1.parquet")
    frame = session.scan_parquet(tmp_path)

    def texts(frame):
        return sorted(str(row["x"]) for row in rows(frame.collect()))

    assert texts(frame) == ["1.0", "inf", "nan", "nan"]
    assert texts(frame.filter(col("x") > 2)) == ["inf", "nan", "nan"]
    assert texts(frame.filter(col("x").is_in([math.nan]))) == ["nan", "nan"]
    assert texts(frame.sort("x", descending=True).head(2)) == ["nan", "nan"]
    assert texts(frame.select(col("x").max())) == ["nan"]
    needle = session.from_arrow(pa.table({"x": [math.nan]}))
    assert texts(frame.join(needle, on="x", how="semi")) == ["nan", "nan"]


def test_zeros_of_both_signs_are_equal(session):
    frame = session.from_arrow(pa.table({"x": [-0.0, 0.0, 1.0]}))
    for values in ([0.0], [0, 2, 3, 4, 5], [-0.0, 2.0, 3.0, 4.0, 5.0]):
        assert len(frame.filter(col("x").is_in(values)).collect()) == 2
    assert len(frame.unique().collect()) == 2


def test_unknown_column_is_named_with_the_known(trips):
    with pytest.raises(dayfly.Error, match=r"nothing.*zone"):
        trips.filter(col("nothing") > 0).collect()
    with pytest.raises(TypeError, match="&"):
        bool(col("zone") > 0)


def test_row_numbers_count_within_groups(trips):
    numbered = trips.select("zone", row_number().over("zone", order_by="distance").alias("n"))
    found = rows(numbered.filter(col("n") <= 2).group_by("zone").agg(count().alias("n")).collect())
    assert Counter(row["n"] for row in found) == {2: 10}


def test_closed_session_gives_its_workers_back(client, data):
    with client.frames(ranks=2) as session:
        assert session.ranks == 2
        frame = session.scan_parquet(data / "trips")
        leased = max(client.leases(), key=lambda lease: lease["granted_at_ms"])
        assert leased["state"] == "active"
    (released,) = [lease for lease in client.leases() if lease["lease"] == leased["lease"]]
    assert released["state"] == "released"
    for late in (lambda: session.scan_parquet(data / "trips"), frame.collect):
        with pytest.raises(dayfly.Error, match="closed") as error:
            late()
        assert error.value.code == "lease_ended"


def serving() -> set[int]:
    """Process numbers of this test run's ranks, which have a thread of that name."""
    return with_thread("frame", descendants())


def test_missing_package_is_named(client, monkeypatch):
    monkeypatch.setitem(sys.modules, "dayfly_frames", None)
    monkeypatch.delitem(sys.modules, "dayfly.frames")
    with pytest.raises(ImportError, match="install its wheel"):
        client.frames()


@contextlib.contextmanager
def killed_ranks(session: Any, others: set[int], after: float, kill: int) -> Iterator[None]:
    """Kills so many of a session's ranks a while after the beginning of the block."""
    wait_until(lambda: len(serving() - others) == session.ranks, "all ranks serve")
    own = sorted(serving() - others)
    killer = threading.Timer(after, lambda: [os.kill(rank, signal.SIGKILL) for rank in own[:kill]])
    killer.start()
    try:
        yield
    finally:
        killer.join()


def long_query(session: Any, data: Path) -> Any:
    trips = session.scan_parquet(data / "trips")
    pairs = trips.join(trips.head(2_000), how="cross")
    return pairs.group_by("zone").agg(count().alias("n"), col("distance").sum()).sort("zone")


def test_killed_rank_ends_the_query(client, data):
    others = serving()
    with client.frames(ranks=2, recover="none") as session:
        queries = (long_query(session, data).collect() for _ in range(100))
        # The data is small: one of the ranks may have all of it.
        with killed_ranks(session, others, 0.3, 2), pytest.raises(dayfly.Error) as error:
            list(queries)
        assert error.value.code == "rank_lost"


@pytest.mark.parametrize("kill", [1, 2])
def test_query_of_a_lost_rank_runs_again(client, data, kill):
    others = serving()
    with client.frames(ranks=2, recover="query") as session:
        query = long_query(session, data)
        expected = rows(query.collect())
        assert sum(row["n"] for row in expected) == 20_000 * 2_000
        first = serving() - others
        with killed_ranks(session, others, 0.1, kill):
            while serving() & first == first:
                assert rows(query.collect()) == expected
        # The data is small: a query may need no lost rank.
        wait_until(lambda: rows(query.collect()) == expected and not serving() & first, "others replace the ranks")
        assert session.ranks == 2
        # Threads that lose the same ranks replace them once.
        with killed_ranks(session, others, 0.1, kill), ThreadPoolExecutor(4) as threads:
            found = [threads.submit(query.collect) for _ in range(12)]
            assert all(rows(each.result()) == expected for each in found)


def test_only_tasks_of_a_killed_worker_run_again(client, data, tmp_path):
    marker = tmp_path / "killed"

    def kill_once(batch):
        import contextlib
        import os
        import signal

        # The first call comes when all rows below it are complete.
        with contextlib.suppress(FileExistsError):
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
            os.kill(os.getpid(), signal.SIGKILL)
        return batch

    others = serving()
    with client.frames(ranks=2, recover="tasks", partition_bytes=4 << 10) as session:
        wait_until(lambda: len(serving() - others) == 2, "both ranks serve")
        first = serving() - others
        grouped = session.scan_parquet(data / "trips").group_by("zone").agg(count().alias("n"))
        query = grouped.map_batches(kill_once, {"zone": "int64", "n": "int64"})
        assert "tasks of lost ranks run again" in query.explain()
        found = query.collect()
        assert sorted((row["zone"], row["n"]) for row in rows(found)) == [(zone, 2_000) for zone in range(10)]
        usage = found.usage
        assert usage.recovery == "tasks"
        assert usage.lost_runs >= 1
        # The query went on with the rank that is left. A later one has another worker beside it.
        assert session.ranks == 1
        wait_until(lambda: sum(row["n"] for row in rows(query.collect())) == 20_000 and session.ranks == 2, "two ranks")
        assert len(serving() & first) == 1


@pytest.mark.parametrize("kill", [1, 2])
def test_session_replaces_killed_workers(client, data, kill):
    others = serving()
    with client.frames(ranks=2) as session:
        query = long_query(session, data)
        assert "the query runs again on the ranks that are left: its scans read about" in query.explain()
        expected = rows(query.collect())
        first = serving() - others
        with killed_ranks(session, others, 0.1, kill):
            while serving() & first == first:
                assert rows(query.collect()) == expected
        wait_until(
            lambda: rows(query.collect()) == expected and len(serving() - others - first) == kill, "others serve"
        )
        assert session.ranks == 2


def test_kept_rows_keep_the_ranks_left(client, data):
    others = serving()
    with client.frames(ranks=2) as session:
        trips = session.scan_parquet(data / "trips")
        kept = [trips.persist(replicas=2)]
        with killed_ranks(session, others, 0, 1):
            wait_until(lambda: len(kept[0].collect()) == 20_000 and session.ranks == 1, "the loss is noticed")
        assert len(trips.collect()) == len(kept[0].collect()) == 20_000
        assert session.ranks == 1
        kept.clear()
        wait_until(lambda: len(trips.collect()) == 20_000 and session.ranks == 2, "another worker serves")


def test_session_outlives_its_lease(client, data):
    others = serving()
    with client.frames(ranks=1, duration=5.0) as session:
        end = time.time() + 5.0
        trips = session.scan_parquet(data / "trips")
        assert len(trips.collect()) == 20_000
        first = serving() - others
        while time.time() < end + 0.5:
            assert len(trips.collect()) == 20_000
        assert serving() - others == first


def test_session_moves_before_a_known_end(client, data, monkeypatch):
    def refused(*_):
        raise dayfly.Error("no lease is renewed", "quota_exceeded")

    monkeypatch.setattr("dayfly._leases.lease.Lease.renew", refused)
    others = serving()
    end = time.time() + 12.0
    with client.frames(ranks=1, duration=12.0) as session:
        trips = session.scan_parquet(data / "trips")
        assert len(trips.collect()) == 20_000
        first = serving() - others
        wait_until(lambda: len(trips.collect()) == 20_000 and not serving() & first, "other workers serve", 30)
        assert time.time() < end


def test_written_frame_is_read_as_it_was(session, trips, tmp_path):
    written = trips.write_parquet(tmp_path / "by_zone", partition_by="zone")
    assert sum(file.rows for file in written) == 20_000
    assert {file.path.split("/")[0] for file in written} == {f"zone={zone}" for zone in range(10)}
    again = session.scan_parquet(tmp_path / "by_zone")
    assert again.schema["zone"] == "int64"
    order = ["zone", "distance", "fare"]
    assert rows(again.select(order).sort(order).collect()) == rows(trips.select(order).sort(order).collect())


@pytest.mark.parametrize("number", [0, 2])
def test_written_partitions_keep_their_type(session, tmp_path, number):
    table = pa.table(
        {"x": pa.array([1] * number, pa.int64()), "y": pa.nulls(number), "z": pa.array(["a"] * number, pa.string())}
    )
    session.from_arrow(table).write_parquet(tmp_path / "written", partition_by=["y", "z"])
    again = session.scan_parquet(tmp_path / "written")
    assert again.schema == {"x": "int64", "y": "null", "z": "string"}
    assert rows(again.collect()) == table.to_pylist()


def test_taken_directory_is_not_written(trips, data):
    with pytest.raises(dayfly.RequestError, match="has something in it"):
        trips.write_parquet(data / "trips")
    assert len(list((data / "trips").iterdir())) == 4


def test_functions_compute_batches_on_ranks(trips, client):
    def doubled(batch):
        import pyarrow.compute as pc

        process = pa.array([os.getpid()] * batch.num_rows)
        return {"zone": batch["zone"], "twice": pc.multiply(batch["fare"], 2), "process": process}

    mapped = trips.map_batches(doubled, {"zone": "int64", "twice": "float64", "process": "int64"})
    table = pa.table(mapped.collect())
    assert os.getpid() not in table["process"].to_pylist()
    expected = sum(2 * fare for _, _, fare in map(trip, range(20_000)) if fare is not None)
    assert sum(filter(None, table["twice"].to_pylist())) == pytest.approx(expected)
    grouped = mapped.group_by("zone").agg(count().alias("n")).sort("zone").collect()
    assert rows(grouped) == [{"zone": zone, "n": 2_000} for zone in range(10)]


def doubled_by_polars(batch):
    import polars

    assert isinstance(batch, polars.DataFrame)
    return batch.with_columns(twice=polars.col("fare") * 2)


def doubled_by_pandas(batch):
    import pandas

    assert isinstance(batch, pandas.DataFrame)
    return batch.assign(twice=batch["fare"] * 2)


@pytest.mark.parametrize(("kind", "function"), [("polars", doubled_by_polars), ("pandas", doubled_by_pandas)])
def test_functions_take_batches_of_other_libraries(trips, kind, function):
    pytest.importorskip(kind)
    mapped = trips.map_batches(function, {"twice": "float64", "zone": "int32"}, batch=kind, batch_rows=1_000)
    assert mapped.schema == {"twice": "float64", "zone": "int32"}
    found = sorted((row["zone"], row["twice"]) for row in rows(mapped.collect()) if row["twice"] is not None)
    expected = [(zone, 2 * fare) for zone, _, fare in map(trip, range(20_000)) if fare is not None]
    assert found == sorted(expected)


def test_rows_in_memory_cross_to_functions(session):
    def with_process(batch):
        return {"n": batch["n"], "process": [os.getpid()] * batch.num_rows}

    frame = session.from_arrow(pa.table({"n": range(10)}))
    found = rows(frame.map_batches(with_process, {"n": "int64", "process": "int64"}).collect())
    assert sorted(row["n"] for row in found) == list(range(10))
    assert os.getpid() not in {row["process"] for row in found}


def test_functions_make_rows_of_items(session):
    def squares(item):
        return {"base": [item] * 3, "power": [item**n for n in range(3)], "process": [os.getpid()] * 3}

    frame = session.from_map(squares, range(20), {"base": "int64", "power": "int64", "process": "int64"})
    found = rows(frame.collect())
    assert sorted((row["base"], row["power"]) for row in found) == sorted(
        (i, i**n) for i in range(20) for n in range(3)
    )
    processes = {row["process"] for row in found}
    assert len(processes) == 2
    assert os.getpid() not in processes
    total = frame.group_by("base").agg(col("power").sum().alias("sum")).sort("sum", descending=True).head(1)
    assert rows(total.collect()) == [{"base": 19, "sum": 381}]
    assert rows(session.from_map(squares, [], {"base": "int64"}).collect()) == []
    with pytest.raises(dayfly.FunctionError, match="in squares"):
        session.from_map(squares, ["a"], {"base": "int64", "power": "int64"}).collect()


def test_kept_rows_are_computed_once(session, trips, data, tmp_path):
    def counted(item):
        (tmp_path / str(item)).open("a").write("called\n")
        return {"zone": [item] * 100, "n": range(100)}

    kept = session.from_map(counted, range(10), {"zone": "int64", "n": "int64"}).persist()
    assert "KeptExec: 500 rows of rank 1" in kept.explain()
    for _ in range(3):
        sums = kept.group_by("zone").agg(col("n").sum().alias("sum")).sort("zone").collect()
        assert rows(sums) == [{"zone": zone, "sum": 4_950} for zone in range(10)]
    assert rows(kept.select("n").filter(col("n") == 7).collect()) == [{"n": 7}] * 10
    joined = trips.join(kept.filter(col("n") == 0), on="zone").group_by("zone").agg(count().alias("trips"))
    assert {row["trips"] for row in rows(joined.collect())} == {2_000}
    again = kept.filter(col("zone") < 2).persist()
    assert len(rows(again.collect())) == 200
    assert {file.read_text() for file in tmp_path.iterdir()} == {"called\n"}


def test_kept_rows_cross_to_other_tasks(session, trips):
    kept = trips.select("zone", "fare").persist()
    more = session.from_arrow(pa.table({"zone": [77], "fare": [1.5]}))
    # Rows in memory are read by one task, which reads the kept ones of all ranks too.
    found = Counter(row["zone"] for row in rows(kept.concat(more).collect()))
    assert found == {77: 1, **dict.fromkeys(range(10), 2_000)}
    alone = more.persist()
    assert rows(alone.collect()) == [{"zone": 77, "fare": 1.5}]
    assert rows(trips.filter(col("zone") > 100).persist().collect()) == []


def test_kept_rows_are_forgotten_with_their_frame(client):
    with client.frames(ranks=2, memory=512 << 20) as session:
        numbers = session.sql("SELECT value, value * 2 AS other FROM generate_series(1, 3000000)")
        # 48 MB: a few of them fit, but not all at once.
        for _ in range(8):
            kept = numbers.persist()
            assert rows(session.sql("SELECT count(*) AS n FROM t", t=kept).collect()) == [{"n": 3_000_000}]
            del kept
        with pytest.raises(dayfly.Error, match="does not hold the frame") as error:
            _ = [numbers.persist() for _ in range(20)]
        assert error.value.code == "out_of_memory"


def test_copies_of_kept_rows_outlive_a_killed_worker(client, data):
    others = serving()
    with client.frames(ranks=2, recover="tasks", partition_bytes=4 << 10) as session:
        kept = session.scan_parquet(data / "trips").persist(replicas=2)
        groups = kept.group_by("zone").agg(count().alias("n")).sort("zone")
        expected = [{"zone": zone, "n": 2_000} for zone in range(10)]
        assert rows(groups.collect()) == expected
        with killed_ranks(session, others, 0, 1):
            # A query that needs the killed rank ends with the copies.
            wait_until(lambda: rows(groups.collect()) == expected and session.ranks == 1, "the loss is noticed")
        assert rows(groups.collect()) == expected
        with pytest.raises(dayfly.RequestError, match="2 ranks cannot have each kept row"):
            kept.persist(replicas=2)


def test_copies_need_a_session_that_goes_on(client, data, trips):
    with client.frames(ranks=2, recover="query") as session, pytest.raises(dayfly.RequestError, match='"tasks"'):
        session.scan_parquet(data / "trips").persist(replicas=2)
    with pytest.raises(ValueError, match="at least one rank"):
        trips.persist(replicas=0)


def test_kept_rows_of_lost_ranks_are_named(client, data):
    others = serving()
    with client.frames(ranks=2) as session:
        kept = session.scan_parquet(data / "trips/*.parquet").persist()
        # The data is small: one of the ranks may have all of it.
        with killed_ranks(session, others, 0, 2):
            wait_until(lambda: lost_code(kept) != "", "the rows are lost")
        assert lost_code(kept) == "state_lost"
        assert lost_code(session.scan_parquet(data / "trips/*.parquet").persist()) == ""


def lost_code(frame):
    """Returns the code of the error with which a frame fails, or nothing."""
    try:
        frame.collect()
    except dayfly.Error as error:
        return error.code
    return ""


def test_failing_function_shows_its_traceback(trips):
    def broken(batch):
        raise KeyError("fares")

    with pytest.raises(dayfly.FunctionError, match="in broken") as error:
        trips.map_batches(broken, {"zone": "int64"}).collect()
    assert "KeyError: 'fares'" in str(error.value)
    with pytest.raises(dayfly.RequestError, match='no column "place"'):
        trips.map_batches(lambda batch: batch, {"place": "int64"}).collect()


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda batch: {"n": ["text"] * batch.num_rows}, "Cannot cast string 'text'"),
        (lambda batch: {"n": [1 << 40] * batch.num_rows}, "Can't cast value 1099511627776"),
        (lambda batch: 7, "it returned int, not a table"),
        (lambda batch: {"n": [1, 2], "other": [1]}, "[Ll]ength"),
    ],
)
def test_wrong_result_of_function_ends_the_query(trips, function, message):
    with pytest.raises(dayfly.Error, match=message):
        trips.map_batches(function, {"n": "int32"}).collect()


def test_wrong_function_or_schema_is_refused(session, trips):
    with pytest.raises(TypeError, match="a function is needed, not int"):
        trips.map_batches(3, {"n": "int64"})
    with pytest.raises(TypeError, match="a function is needed, not int"):
        session.from_map(3, [1], {"n": "int64"})
    for schema in ({}, [("n", "int64")]):
        with pytest.raises(ValueError, match="maps names of columns to types"):
            trips.map_batches(len, schema)
    with pytest.raises(dayfly.RequestError, match='"text" is no type of a column'):
        trips.map_batches(len, {"n": "text"})
