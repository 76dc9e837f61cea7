"""narwhals over data frames, compared with Python."""

from __future__ import annotations

import io
import subprocess
import sys
from collections import defaultdict

import dayfly
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

nw = pytest.importorskip("narwhals", reason="narwhals is not installed")

ROWS = [{"zone": number % 7, "fare": number % 101 / 4, "name": f"n{number % 3}"} for number in range(3_000)]


@pytest.fixture(scope="module")
def session():
    with dayfly.connect() as client, client.frames(ranks=2) as session:
        yield session


@pytest.fixture(scope="module")
def trips(session, tmp_path_factory):
    directory = tmp_path_factory.mktemp("trips")
    for part in range(3):
        pq.write_table(pa.Table.from_pylist(ROWS[part::3]), directory / f"{part}.parquet")
    return nw.from_native(session.scan_parquet(directory))


def rows(frame):
    return frame.collect().to_arrow().to_pylist()


def test_groups_equal_those_of_python(trips):
    found = trips.filter(nw.col("fare") > 1).group_by("zone").agg(nw.col("fare").sum(), n=nw.len()).sort("zone")
    fares = defaultdict(list)
    for row in ROWS:
        if row["fare"] > 1:
            fares[row["zone"]].append(row["fare"])
    wanted = [{"zone": zone, "fare": sum(values), "n": len(values)} for zone, values in sorted(fares.items())]
    assert rows(found) == wanted


def test_verbs_are_lazy_and_run_on_ranks(trips):
    found = trips.with_columns(double=nw.col("fare") * 2).group_by("zone").agg(nw.col("double").max())
    assert isinstance(found, nw.LazyFrame)
    plan = found.to_native().explain()
    assert "runs on one rank" not in plan
    assert ".parquet" in plan


def test_windows_equal_those_of_python(trips):
    sums = trips.select("zone", all=nw.col("fare").sum().over("zone")).unique().sort("zone")
    wanted = [{"zone": zone, "all": sum(row["fare"] for row in ROWS if row["zone"] == zone)} for zone in range(7)]
    assert rows(sums) == wanted


def test_sorted_rows_keep_their_order(trips):
    found = trips.sort("fare", "zone", "name").with_columns(double=nw.col("fare") * 2).filter(nw.col("zone") > 2)
    ordered = sorted((row for row in ROWS if row["zone"] > 2), key=lambda row: (row["fare"], row["zone"], row["name"]))
    assert rows(found.select("double")) == [{"double": row["fare"] * 2} for row in ordered]


def test_nulls_are_filled_in_order(session, tmp_path):
    pq.write_table(pa.table({"at": range(6), "value": [None, 1, None, None, 2, None]}), tmp_path / "gaps.parquet")
    frame = nw.from_native(session.scan_parquet(tmp_path / "gaps.parquet"))
    filled = frame.with_columns(nw.col("value").fill_null(strategy="forward").over(order_by="at")).sort("at")
    assert filled.collect()["value"].to_list() == [None, 1, 1, 1, 2, 2]


def test_joins_suffix_equal_names(trips, session):
    zones = nw.from_native(session.from_arrow(pa.table({"zone": [1, 2], "name": ["east", "west"]})))
    found = trips.join(zones, on="zone", suffix="_of_zone").group_by("name_of_zone").agg(nw.len()).sort("name_of_zone")
    numbers = {zone: sum(row["zone"] == zone for row in ROWS) for zone in (1, 2)}
    assert rows(found) == [{"name_of_zone": "east", "len": numbers[1]}, {"name_of_zone": "west", "len": numbers[2]}]


def test_names_and_texts_are_quoted(session):
    name = """it's "a" column; --"""
    frame = nw.from_native(session.from_arrow(pa.table({name: ["it's", '"', "x"]})))
    found = frame.filter(nw.col(name) == "it's").with_columns(nw.lit("'; DROP").alias("y"))
    assert rows(found) == [{name: "it's", "y": "'; DROP"}]


def test_constants_have_their_values(session):
    frame = nw.from_native(session.from_arrow(pa.table({"x": [1]})))
    numbers = [-1, 2**63 - 1, -(2**63), 1e300, 5e-324, float("inf"), True, b"\x00\xff", "", None]
    found = rows(frame.select(*(nw.lit(value).alias(str(place)) for place, value in enumerate(numbers))))
    assert list(found[0].values()) == numbers


def test_division_follows_python(session):
    pairs = [(a, b) for a in (-7, -1, 0, 5, 7) for b in (-3, -2, 2, 4)]
    table = pa.table({"a": [a for a, _ in pairs], "b": [b for _, b in pairs]})
    frame = nw.from_native(session.from_arrow(table))
    a, b = nw.col("a"), nw.col("b")
    found = rows(frame.select(floor=a // b, rest=a % b, real=a / b, tenth=(a / 10) // (b / 10)))
    assert found == [{"floor": x // y, "rest": x % y, "real": x / y, "tenth": (x / 10) // (y / 10)} for x, y in pairs]


def test_results_are_of_the_library_asked_for(trips):
    top = trips.sort("fare", descending=True).head(1)
    for library in ("pyarrow", "polars", "pandas"):
        assert top.collect(library).implementation.value == library


def test_sink_writes_one_parquet_file(trips, tmp_path):
    trips.sink_parquet(tmp_path / "trips.parquet")
    memory = io.BytesIO()
    trips.sink_parquet(memory)
    assert pq.read_table(tmp_path / "trips.parquet").num_rows == pq.read_table(memory).num_rows == len(ROWS)


def test_missing_columns_are_named(trips):
    with pytest.raises(nw.exceptions.ColumnNotFoundError, match="zone"):
        trips.select("zones")


def test_unsupported_functions_name_another(trips):
    with pytest.raises(NotImplementedError, match="Group by the column"):
        trips.select(nw.col("zone").mode(keep="any"))
    with pytest.raises(NotImplementedError, match="linear"):
        trips.select(nw.col("fare").quantile(0.5, "nearest"))
    with pytest.raises(NotImplementedError, match=r"session\.scan_parquet"):
        nw.scan_parquet("trips.parquet", backend=nw.plugins.PluginName("dayfly"))


def test_package_imports_without_narwhals():
    hidden = "import sys; sys.modules['narwhals'] = None; import dayfly_frames"
    unused = "assert not any('_narwhals' in name for name in sys.modules)"
    subprocess.run([sys.executable, "-c", f"{hidden}; {unused}"], check=True, timeout=60)
