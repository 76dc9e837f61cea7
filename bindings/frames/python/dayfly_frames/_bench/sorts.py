"""A sort of all rows by ranges on two ranks, beside one process with two threads."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from dayfly_frames._bench import data, engines
from dayfly_frames._bench.cores import pinned
from dayfly_frames._bench.joins import FILES, SHARED, Place, session_on
from dayfly_frames._bench.rows import Run, in_turns, row

#: Equal rows are equal in both columns, so there is one answer.
SORT = "SELECT k, v FROM l ORDER BY k, v"
NAME = "sort-ranges"


def sort_ranges(place: Place) -> list[dict[str, Any]]:
    """All rows in order, in this process: on two ranks with a range each, and by DataFusion alone."""
    import pyarrow as pa

    rows = place.scale.sort_rows
    table = data.join_side(rows, "v", 7)
    path = data.write_parquet(table, place.directory / "sorted")
    with ExitStack() as stack:
        held = stack.enter_context(engines.local(place.client, 2))
        session = stack.enter_context(session_on(place, 2, place.cores))
        stack.enter_context(pinned(place.cores))
        held.hold(l=table)
        query = session.sql(SORT, l=session.scan_parquet(path))
        if "RangesExec" not in query.explain():
            raise RuntimeError(f"{NAME}: the ranks do not sort ranges:\n{query.explain()}")
        sides: dict[str, Run] = {
            SHARED: lambda: pa.table(query.collect()),
            held.name: lambda: pa.table(held.query(SORT)),
        }
        seconds = in_turns(NAME, sides, place.scale.runs, same=lambda one, other: one.equals(other))
    note = f"{SHARED}; {FILES}"
    return [row(NAME, "s", seconds[SHARED], held.name, seconds[held.name], checked=True, rows=rows, note=note)]
