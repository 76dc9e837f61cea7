"""The join of the paper on serverless Cylon, on ranks of one core each."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dayfly import Client

from dayfly_frames._bench import data, engines
from dayfly_frames._bench.cores import pin, pinned, rank_processes
from dayfly_frames._bench.engines import JOIN, numbers
from dayfly_frames._bench.rows import Run, WrongAnswerError, in_turns, others, row
from dayfly_frames._bench.scale import Scale
from dayfly_frames._lease import Recover
from dayfly_frames._session import Session

SCAN = "SELECT count(*) AS n, sum(k) AS k, sum(x) AS x FROM (SELECT k, v AS x FROM l UNION ALL SELECT k, w FROM r)"
#: Seconds of one join of 9.1 million rows a rank on Lambda, at 2 ranks: table II of the paper.
PAPER_S = 42.04
FILES = "ranks read plain Parquet files in memory (tmpfs); engines have their input in memory, if they name no files"


@dataclass(frozen=True)
class Place:
    """Where and how much is measured."""

    client: Client
    directory: Path
    cores: list[int]
    scale: Scale


class Input:
    """Both sides of the join, as files and in memory."""

    def __init__(self, place: Path, rows: int) -> None:
        self.rows = rows
        self.left, self.right = data.join_side(rows, "v", 7), data.join_side(rows, "w", 11)
        self.paths = {
            "l": data.write_parquet(self.left, place / f"{rows}-l"),
            "r": data.write_parquet(self.right, place / f"{rows}-r"),
        }


@contextmanager
def session_on(
    place: Place, ranks: int, cores: list[int], *, apart: bool = False, recover: Recover = "query"
) -> Iterator[Session]:
    """Opens a session whose ranks share these cores, or with ``apart`` have one of them each, in turns."""
    scale = place.scale
    before = set(rank_processes())
    with place.client.frames(
        ranks=ranks, partition_bytes=scale.partition_bytes, memory=scale.memory, recover=recover
    ) as session:
        new = [process for process in rank_processes() if process not in before]
        if len(new) != ranks:
            raise RuntimeError(f"there are {len(new)} processes of ranks; {ranks} were to be pinned")
        for number, process in enumerate(new):
            pin(process, {cores[number % len(cores)]} if apart else cores)
        yield session


def query_of(session: Session, given: Input, text: str) -> Run:
    """Returns a query of a session over the join's input."""
    frames = {name: session.scan_parquet(path) for name, path in given.paths.items()}
    query = session.sql(text, **frames)
    return lambda: numbers(query.collect())


def paper_join_1(place: Place) -> list[dict[str, Any]]:
    """One rank of one core, beside one process on the same core."""
    cores = place.cores[:1]
    given = Input(place.directory, place.scale.join_rows)
    with ExitStack() as stack:
        held = stack.enter_context(engines.local(place.client, 1))
        session = stack.enter_context(session_on(place, 1, cores))
        stack.enter_context(pinned(cores))
        held.hold(l=given.left, r=given.right)
        sides: dict[str, Run] = {
            "1 rank": query_of(session, given, JOIN),
            held.name: lambda: numbers(held.query(JOIN)),
            **_engines_on_files(given, 1),
        }
        seconds = in_turns("paper-join-1", sides, place.scale.runs)
    return [_row("paper-join-1", seconds, "1 rank", held.name, given)]


def _engines_on_files(given: Input, threads: int) -> dict[str, Run]:
    """Returns the join of the files by DataFusion's own package, if it is installed."""
    if not engines.has("datafusion"):
        return {}
    alone = engines.DataFusion(threads)
    alone.read(**given.paths)
    return {f"{alone.name}, the same files": lambda: numbers(alone.query(JOIN))}


def _row(name: str, seconds: dict[str, list[float]], own: str, other: str, given: Input) -> dict[str, Any]:
    """Returns the row of one side beside another. The remaining sides are its others."""
    more = others({side: times for side, times in seconds.items() if side not in (own, other)})
    note = f"{own}; {FILES}"
    return row(name, "s", seconds[own], other, seconds[other], checked=True, rows=given.rows, others=more, note=note)


#: Sides that are ranks: both on both cores, and each on its own.
SHARED, APART = "2 ranks that share two cores", "2 ranks with a core each"


def paper_join_2(place: Place) -> list[dict[str, Any]]:
    """Two ranks, beside one process with two threads on the same two cores; and what reading costs."""
    given = Input(place.directory, place.scale.join_rows)
    with _beside_engines(place, given) as (session, sides, held):
        joined = in_turns("paper-join-2", sides, place.scale.runs)
        reading = {SHARED: query_of(session, given, SCAN), held.name: lambda: numbers(held.query(SCAN))}
        scanned = in_turns("paper-scan-2", reading, place.scale.runs)
    return [
        _row("paper-join-2", joined, SHARED, held.name, given),
        _row("paper-join-2-apart", {side: joined[side] for side in (APART, held.name)}, APART, held.name, given),
        _row("paper-scan-2", scanned, SHARED, held.name, given),
    ]


@contextmanager
def _beside_engines(place: Place, given: Input) -> Iterator[tuple[Session, dict[str, Run], engines.Local]]:
    """Opens two ranks and all engines. Returns the ranks that share cores, the join of each side, and the baseline."""
    with ExitStack() as stack:
        held = stack.enter_context(engines.local(place.client, 2))
        shared = stack.enter_context(session_on(place, 2, place.cores))
        apart = stack.enter_context(session_on(place, 2, place.cores, apart=True))
        single = stack.enter_context(place.client.frames(ranks=1, cores=2, memory=place.scale.memory))
        stack.enter_context(pinned(place.cores))
        sides: dict[str, Run] = {
            SHARED: query_of(shared, given, JOIN),
            APART: query_of(apart, given, JOIN),
            "1 rank of two cores, the same files": query_of(single, given, JOIN),
            **engines.joins_in_memory(held, given.left, given.right, 2),
            **_engines_on_files(given, 2),
        }
        yield shared, sides, held


def paper_join_weak(place: Place) -> list[dict[str, Any]]:
    """As many rows for each of two ranks as on Lambda, beside the fastest engine with two threads on all rows."""
    given = Input(place.directory, 2 * place.scale.weak_rows)
    with _beside_engines(place, given) as (_, sides, _held):
        seconds = in_turns("paper-join-weak", sides, place.scale.runs)
    theirs = {side: times for side, times in seconds.items() if "rank" not in side}
    fastest = min(theirs, key=lambda side: statistics.median(theirs[side]))
    made = _row("paper-join-weak", seconds, SHARED, fastest, given)
    ten = 10 * statistics.median(seconds[SHARED])
    note = f"{made['note']}; ten joins take {ten:.2f} s, one of the paper's {PAPER_S} s"
    return [made | {"ten_joins_s": ten, "paper_one_join_s": PAPER_S, "note": note}]


def speedup(place: Place) -> list[dict[str, Any]]:
    """From one rank to several, with the same rows."""
    given = Input(place.directory, place.scale.join_rows)
    seconds = _on_ranks(place, "paper-speedup", dict.fromkeys(place.scale.ranks, given))
    return [_scaling("paper-speedup", "speedup", seconds, len(place.cores))]


def weak(place: Place) -> list[dict[str, Any]]:
    """From one rank to several, with as many rows for each."""
    inputs = {ranks: Input(place.directory, ranks * place.scale.weak_rows) for ranks in place.scale.weak_ranks}
    seconds = _on_ranks(place, "paper-weak", inputs)
    return [_scaling("paper-weak", "efficiency", seconds, len(place.cores))]


def _scaling(name: str, what: str, seconds: dict[int, list[float]], cores: int) -> dict[str, Any]:
    medians = {ranks: statistics.median(times) for ranks, times in seconds.items()}
    figure = medians[1] / medians[2]
    all_of = ", ".join(f"{ranks} ranks {median:.3f} s" for ranks, median in medians.items())
    note = f"{what} from 1 to 2 ranks {figure:.3f}; {all_of}; on {cores} cores"
    more = {what: figure, "seconds_by_ranks": {str(ranks): median for ranks, median in medians.items()}}
    return row(name, "s", seconds[2], "1 rank of one core", seconds[1], checked=True, note=note, **more)


def _on_ranks(place: Place, name: str, inputs: dict[int, Input]) -> dict[int, list[float]]:
    """Returns the times of the join with its input for each number of ranks, in turns.

    Raises:
        WrongAnswerError: if one process computes another result.
    """
    seconds: dict[int, list[float]] = {ranks: [] for ranks in inputs}
    expected = {ranks: _in_one_process(place, given) for ranks, given in inputs.items()}
    for turn in range(place.scale.turns):
        for ranks, given in list(inputs.items())[:: 1 if turn % 2 == 0 else -1]:
            # One session at a time: the idle ranks of others poll for a while.
            # As many cores as ranks, at most all.
            with session_on(place, ranks, place.cores[:ranks]) as session, pinned(place.cores):
                own = query_of(session, given, JOIN)
                if own() != expected[ranks]:
                    raise WrongAnswerError(f"{name}: {ranks} ranks computed another result than one process")
                times = in_turns(name, {f"{ranks} ranks": own}, max(1, place.scale.runs // place.scale.turns))
                seconds[ranks] += times[f"{ranks} ranks"]
    return seconds


def _in_one_process(place: Place, given: Input) -> tuple[int, ...]:
    with engines.local(place.client, 2) as held:
        held.hold(l=given.left, r=given.right)
        return numbers(held.query(JOIN))
