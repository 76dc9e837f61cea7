"""A join with half of its rows under one key, on several ranks."""

from __future__ import annotations

from typing import Any

from dayfly_frames._bench import data
from dayfly_frames._bench.engines import baseline
from dayfly_frames._bench.joins import Place, session_on
from dayfly_frames._bench.rows import WrongAnswerError, row, timed
from dayfly_frames._bench.tpch import same

RANKS = 4
#: Every second row has it.
HEAVY = 7
JOIN = "SELECT count(*) AS n, sum(many.v + few.w) AS s FROM many JOIN few ON many.k = few.k"


def skewed_join(place: Place) -> list[dict[str, Any]]:
    """The slowest rank beside the mean of all, and the query beside the same one over keys without a heavy one."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = place.scale.join_rows
    even = data.join_side(rows, "v", 11)
    is_heavy = pc.equal(pc.bit_wise_and(data.integers(rows, 1 << 30, 13), 1), 1)
    keys = pc.if_else(is_heavy, pa.scalar(HEAVY, pa.int64()), even["k"])
    many = even.set_column(0, "k", keys)
    few = pa.table({"k": pa.array(range(rows), pa.int64()), "w": data.integers(rows, 1 << 30, 12)})
    paths = {
        name: data.write_parquet(table, place.directory / name)
        for name, table in (("many", many), ("even", even), ("few", few))
    }
    inputs = {name: {"many": paths[name], "few": paths["few"]} for name in ("many", "even")}
    expected = {}
    for name, tables in inputs.items():
        with baseline(place.client, 2) as alone:
            alone.read(**tables)
            expected[name] = alone.query(JOIN)
    slowest: list[float] = []
    mean: list[float] = []
    seconds: dict[str, list[float]] = {name: [] for name in inputs}
    with session_on(place, RANKS, place.cores) as session:
        for turn in range(place.scale.runs + 1):
            for name, tables in inputs.items():
                frames = {table: session.scan_parquet(path) for table, path in tables.items()}
                took, found = timed(session.sql(JOIN, **frames).collect)
                if not same(expected[name], found):
                    raise WrongAnswerError(f"skewed-join: {found} instead of {expected[name]}")
                if not turn:
                    continue
                seconds[name].append(took)
                if name == "many":
                    work = [rank.core_seconds for rank in found.usage.ranks.values()]
                    slowest.append(max(work))
                    mean.append(sum(work) / RANKS)
    own, other = seconds["many"], seconds["even"]
    return [
        row("skewed-join-ranks", "s", slowest, f"mean of {RANKS} ranks, in seconds of a core", mean, checked=True),
        row("skewed-join", "s", own, "the same number of rows, without a heavy key", other, checked=True),
    ]
