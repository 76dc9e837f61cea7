"""Data frames: joins with a key under which many of the rows are."""

from __future__ import annotations

import dayfly
import pyarrow as pa
import pyarrow.parquet
import pytest
from dayfly.frames import col, count

RANKS = 4
FILES = 4
#: Enough for heavy keys to be looked for.
ROWS = 1_200_000
#: Of the rows on the side with many, every second has it.
HEAVY = 7


@pytest.fixture(scope="module")
def session():
    with dayfly.connect() as client, client.frames(ranks=RANKS, memory=RANKS << 30) as session:
        yield session


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Many rows, half of them under one key; a few of other keys, some without any; three rows of the heavy key."""
    place = tmp_path_factory.mktemp("skew")
    many = pa.table({"key": [HEAVY if row % 2 else row for row in range(ROWS)], "many": range(ROWS)})
    keys = [None if row % 1_000 == 1 else row for row in range(0, ROWS, 3)]
    few = pa.table({"key": [*keys, HEAVY, HEAVY, HEAVY], "few": range(len(keys) + 3)})
    for name, table in (("many", many), ("few", few)):
        (place / name).mkdir()
        share = -(-table.num_rows // FILES)
        for file in range(FILES):
            pa.parquet.write_table(table.slice(file * share, share), place / name / f"{file}.parquet")
    return place, many, few


@pytest.fixture(scope="module")
def sides(session, data):
    return session.scan_parquet(data[0] / "many"), session.scan_parquet(data[0] / "few")


def is_spread(frame) -> bool:
    """Whether the rows of the heavy key are joined apart."""
    plan = frame.explain()
    return f"key@0 IN (SET) ([{HEAVY}])" in plan and "UnionExec" in plan


def rows_of(table: pa.Table) -> pa.Table:
    """The rows in an order of their own."""
    table = table.select(sorted(table.column_names))
    return table.sort_by([(name, "ascending") for name in table.column_names])


KINDS = {
    "inner": "inner",
    "left": "left outer",
    "right": "right outer",
    "full": "full outer",
    "semi": "left semi",
    "anti": "left anti",
}


@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize("swapped", [False, True], ids=["many-first", "few-first"])
def test_join_with_heavy_key_has_all_rows(sides, data, how, swapped):
    frames, (left, right) = sides, data[1:]
    if swapped:
        frames, left, right = frames[::-1], right, left
    joined = frames[0].join(frames[1], on="key", how=how)
    # Both keys of a full join stay, as in Polars.
    other = {"right_suffix": "_right", "coalesce_keys": False} if how == "full" else {}
    expected = left.join(right, "key", join_type=KINDS[how], **other)
    found = pa.table(joined.collect())
    assert rows_of(found).equals(rows_of(expected.select(found.column_names).cast(found.schema)))


def test_rows_of_heavy_key_are_on_all_ranks(sides):
    many, few = sides
    joined = many.join(few, on="key").group_by("key").agg(count().alias("rows"))
    assert is_spread(joined)
    usage = joined.collect().usage
    rows = [work.received_bytes for work in usage.ranks.values()]
    assert max(rows) <= 1.5 * sum(rows) / RANKS, usage.ranks


def test_join_without_heavy_key_is_not_divided(sides):
    many, few = sides
    joined = many.filter(col("key") != HEAVY).join(few, on="key")
    assert "HashJoinExec: mode=Partitioned" in joined.explain()
    assert not is_spread(joined)
