"""Ibis over data frames, compared with Python."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections import Counter

import dayfly
import pyarrow as pa
import pytest

ibis = pytest.importorskip("ibis", reason="Ibis is not installed")
pytest.importorskip("pandas")

ROWS = [{"zone": number % 7, "fare": number % 101 / 4, "name": f"n{number % 3}"} for number in range(3_000)]


@pytest.fixture(scope="module")
def session():
    with dayfly.connect() as client, client.frames(ranks=2) as session:
        yield session


@pytest.fixture
def connection(session):
    return ibis.dayfly.connect(session=session)


@pytest.fixture
def trips(connection):
    return connection.create_table("trips", pa.Table.from_pylist(ROWS))


def rows(expr):
    return expr.to_pyarrow().to_pylist()


def test_groups_equal_those_of_python(trips):
    found = trips.group_by("zone").agg(n=trips.count(), fare=trips.fare.sum()).order_by("zone")
    number = Counter(row["zone"] for row in ROWS)
    fares = {zone: sum(row["fare"] for row in ROWS if row["zone"] == zone) for zone in number}
    assert rows(found) == [{"zone": zone, "n": number[zone], "fare": fares[zone]} for zone in sorted(number)]


def test_quantiles_lie_between_values(connection):
    table = connection.create_table("t", {"x": [1, 2, 3, 10], "y": [0.5, None, 1.5, 3.5]})
    wanted = [
        table.x.quantile(0.5),
        table.x.quantile(0.75),
        table.y.quantile(0.25),
        table.x.quantile(0.5, where=table.x > 1),
    ]
    assert [connection.execute(each) for each in wanted] == [2.5, 4.75, 1.0, 3.0]


def test_all_kinds_of_results_are_returned(trips):
    assert trips.count().execute() == len(ROWS)
    assert trips.fare.max().to_pyarrow().as_py() == 25.0
    assert sorted(trips.name.upper().execute().unique()) == ["N0", "N1", "N2"]
    assert list(trips.execute().columns) == ["zone", "fare", "name"]
    with trips.to_pyarrow_batches(chunk_size=100) as batches:
        sizes = [len(batch) for batch in batches]
    assert sum(sizes) == len(ROWS)
    assert max(sizes) <= 100


def test_memory_tables_join_others(trips):
    zones = ibis.memtable({"zone": [1, 2], "borough": ["east", "west"]})
    joined = trips.join(zones, "zone").group_by("borough").agg(n=ibis._.count()).order_by("borough")
    number = Counter(row["zone"] for row in ROWS)
    assert rows(joined) == [{"borough": "east", "n": number[1]}, {"borough": "west", "n": number[2]}]


def test_dropped_memory_table_is_forgotten(connection):
    table = ibis.memtable({"x": [1, 2]})
    query = f'SELECT max(x) AS x FROM "{table.get_name()}"'
    assert connection.execute(table.x.sum()) == 3
    assert rows(connection.sql(query)) == [{"x": 2}]
    assert connection.list_tables() == []
    del table
    gc.collect()
    with pytest.raises(dayfly.RequestError, match="there is no table"):
        connection.sql(query)


def test_sql_sees_tables_and_views(connection, trips):
    dear = connection.create_view("dear", trips.filter(trips.fare > 20))
    number = sum(row["fare"] > 20 for row in ROWS)
    assert rows(connection.sql("SELECT count(*) AS n FROM dear")) == [{"n": number}]
    assert connection.sql("SELECT 6 ^ 3 AS x").filter(ibis._.x > 0).execute().x[0] == 5
    assert connection.list_tables() == ["dear", "trips"]
    assert connection.list_tables(like="^d") == ["dear"]
    connection.drop_table("trips")
    assert dear.count().execute() == number


def test_tables_change_and_go(connection, trips):
    connection.insert("trips", {"zone": [9], "fare": [1.0], "name": ["new"]})
    assert trips.filter(trips.zone == 9).name.execute()[0] == "new"
    connection.insert("trips", trips.limit(5), overwrite=True)
    assert trips.count().execute() == 5
    connection.rename_table("trips", "few")
    connection.truncate_table("few")
    assert connection.table("few").count().execute() == 0
    connection.drop_table("few")
    assert connection.list_tables() == []


def test_wrong_names_of_tables_are_refused(connection, trips):
    with pytest.raises(ibis.common.exceptions.TableNotFound, match="missing"):
        connection.table("missing")
    with pytest.raises(ibis.common.exceptions.IbisInputError, match="overwrite"):
        connection.create_table("trips", {"x": [1]})
    with pytest.raises(ibis.common.exceptions.IbisInputError, match="drop_table"):
        connection.drop_view("trips")
    connection.drop_view("missing", force=True)
    with pytest.raises(ibis.common.exceptions.UnsupportedOperationError, match="one database"):
        connection.table("trips", database="other")
    connection.create_view("dear", trips)
    with pytest.raises(ibis.common.exceptions.UnsupportedOperationError, match="view"):
        connection.insert("dear", trips)


def test_files_are_read_and_written(connection, trips, tmp_path):
    connection.to_parquet_dir(trips, tmp_path / "trips", partition_by="zone")
    assert (tmp_path / "trips/zone=3").is_dir()
    again = connection.read_parquet(tmp_path / "trips", table_name="again")
    order = ["zone", "fare", "name"]
    assert rows(again.select(order).order_by(order)) == rows(trips.order_by(order))
    (tmp_path / "x.csv").write_text("a;b\n1;x\n")
    (tmp_path / "x.json").write_text('{"a": 1, "b": "x"}\n')
    for read in (connection.read_csv(tmp_path / "x.csv", separator=";"), connection.read_json(tmp_path / "x.json")):
        assert rows(read) == [{"a": 1, "b": "x"}]


@pytest.mark.parametrize("host", ["[::1]:8080", "me:secret@Example.org:80", "example.org"])
def test_urls_are_taken_apart(connection, host):
    url = ibis.literal(f"https://{host}/a/b?x=1#top")
    parts = [url.protocol(), url.authority(), url.host(), url.path(), url.query(), url.fragment()]
    name = {"[": "::1", "m": "example.org", "e": "example.org"}[host[0]]
    assert [connection.execute(part) for part in parts] == ["https", host, name, "/a/b", "x=1", "top"]


def test_parts_of_times_count_from_their_own(connection):
    at = ibis.timestamp("2026-02-03 04:05:06.789012")
    parts = [at.hour(), at.minute(), at.second(), at.millisecond(), at.microsecond(), at.epoch_seconds()]
    assert [connection.execute(part) for part in parts] == [4, 5, 6, 789, 789012, 1770091506]


def test_functions_of_python_are_refused(connection, trips):
    @ibis.udf.scalar.python
    def twice(x: float) -> float:
        return 2 * x

    for wrong in (twice(trips.fare), trips.name.re_split("x")):
        with pytest.raises(ibis.common.exceptions.IbisError, match=r"twice|RegexSplit"):
            connection.execute(wrong)


def test_own_session_ends_with_the_connection():
    with ibis.dayfly.connect(ranks=1) as connection:
        table = connection.create_table("t", {"x": [1, 2]})
        assert table.x.sum().execute() == 3
        frame = connection.frame(table)
    with pytest.raises(dayfly.Error) as error:
        frame.collect()
    assert error.value.code == "lease_ended"
    connection.disconnect()


def test_open_session_takes_no_lease(session):
    with pytest.raises(TypeError, match="leave ranks="):
        ibis.dayfly.connect(session=session, ranks=2)


def test_frames_do_not_import_ibis():
    script = "import dayfly.frames, sys; sys.exit('ibis' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
