"""The 22 queries of TPC-H, beside DataFusion in one process."""

from __future__ import annotations

import functools
import math
import statistics
from importlib.resources import files
from pathlib import Path
from typing import Any

from dayfly_frames._bench import data
from dayfly_frames._bench.cores import pin, pinned, rank_processes
from dayfly_frames._bench.engines import Engine, baseline
from dayfly_frames._bench.joins import Place, session_on
from dayfly_frames._bench.rows import Run, in_turns
from dayfly_frames._session import Session

#: Relative difference of floating point numbers that are the same: sums differ by the order of their terms.
TOLERANCE = 1e-9


def queries() -> dict[str, str]:
    """Returns the texts of the queries by their names: q01 to q22."""
    found = files("dayfly_frames._bench").joinpath("tpch").iterdir()
    return {Path(file.name).stem: file.read_text() for file in sorted(found, key=lambda file: file.name)}


def answer(table: Any) -> list[tuple[Any, ...]]:
    """Returns the rows of a table, in an order that does not depend on that of equal keys."""
    import pyarrow as pa

    rows = [tuple(each.values()) for each in pa.table(table).to_pylist()]
    return sorted(rows, key=lambda each: [f"{value:.6g}" if isinstance(value, float) else str(value) for value in each])


def same(one: Any, other: Any) -> bool:
    """Returns whether two tables have the same rows."""
    left, right = answer(one), answer(other)
    return len(left) == len(right) and all(
        len(a) == len(b) and all(map(_same_value, a, b)) for a, b in zip(left, right, strict=True)
    )


def _same_value(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return math.isclose(left, right, rel_tol=TOLERANCE)
    return bool(left == right)


def tpch(place: Place, name: str, scale: float) -> list[dict[str, Any]]:
    """Two ranks and one, beside one process with two threads."""
    tables = data.tpch(place.directory, scale)
    if tables is None:
        return []
    with baseline(place.client, 2) as alone, pinned(place.cores):
        alone.read(**{table.name: table for table in tables.iterdir()})
        with session_on(place, 2, place.cores) as session:
            two = _beside(place, name, session, tables, alone)
        before = set(rank_processes())
        with place.client.frames(ranks=1, cores=2, memory=place.scale.memory) as session:
            for process in set(rank_processes()) - before:
                pin(process, place.cores)
            one = _beside(place, f"{name}-one-rank", session, tables, alone)
    return [
        _row(name, "2 ranks that share two cores", alone.name, two),
        _row(f"{name}-one-rank", "1 rank of two cores", alone.name, one),
    ]


def _queries_of(session: Session, tables: Path) -> dict[str, Run]:
    frames = {table.name: session.scan_parquet(table) for table in tables.iterdir()}
    planned = {name: session.sql(text, **frames) for name, text in queries().items()}
    return {name: frame.collect for name, frame in planned.items()}


def _beside(
    place: Place, name: str, session: Session, tables: Path, alone: Engine
) -> dict[str, tuple[list[float], list[float]]]:
    own, found = _queries_of(session, tables), {}
    for number, text in queries().items():
        sides: dict[str, Run] = {"ranks": own[number], alone.name: functools.partial(alone.query, text)}
        ours, theirs = in_turns(f"{name} {number}", sides, place.scale.tpch_runs, same).values()
        found[number] = (ours, theirs)
    return found


def _row(name: str, side: str, other: str, times: dict[str, tuple[list[float], list[float]]]) -> dict[str, Any]:
    medians = {query: (statistics.median(own), statistics.median(theirs)) for query, (own, theirs) in times.items()}
    ratios = {query: own / theirs for query, (own, theirs) in medians.items()}
    worst = max(ratios, key=lambda query: ratios[query])
    means = [statistics.geometric_mean(side) for side in zip(*medians.values(), strict=True)]
    # The tails are those of the slowest query.
    slowest = [max(max(side) for side in sides) for sides in zip(*times.values(), strict=True)]
    runs = min(len(own) for own, _ in times.values())
    what = f"{side}; geometric means of 22 queries; worst {worst} with {ratios[worst]:.2f}"
    return {
        "name": name,
        "value": means[0],
        "unit": "s",
        "baseline": other,
        "baseline_value": means[1],
        "ratio": statistics.geometric_mean(ratios.values()),
        "checked": True,
        "runs": runs,
        "worst": slowest[0],
        "baseline_worst": slowest[1],
        "worst_ratio": ratios[worst],
        "worst_query": worst,
        "queries": {
            query: {"value": own, "baseline_value": theirs, "ratio": ratios[query]}
            for query, (own, theirs) in medians.items()
        },
        "note": f"{what}; both sides read the same files; the baseline is another build than that of the ranks",
    }
