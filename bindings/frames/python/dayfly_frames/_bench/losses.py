"""A query that loses a rank half-way, beside the same one without a loss."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

from dayfly_frames._bench.cores import pinned, rank_processes
from dayfly_frames._bench.engines import JOIN, numbers
from dayfly_frames._bench.joins import Input, Place, session_on
from dayfly_frames._bench.rows import WrongAnswerError, note, row, timed
from dayfly_frames._table import Table

RANKS = 4


def killed_rank(place: Place) -> list[dict[str, Any]]:
    """The paper's join on four ranks. One is killed after half of the time that the join takes without a loss."""
    given = Input(place.directory, place.scale.join_rows)
    own: list[float] = []
    theirs: list[float] = []
    streamed: list[float] = []
    lost_runs: list[int] = []
    for _ in range(place.scale.losses):
        with session_on(place, RANKS, place.cores, recover="query") as session, pinned(place.cores):
            query = session.sql(JOIN, **{name: session.scan_parquet(path) for name, path in given.paths.items()})
            expected = numbers(query.collect())
            streamed.append(timed(query.collect)[0])
        before = set(rank_processes())
        with session_on(place, RANKS, place.cores, recover="tasks") as session, pinned(place.cores):
            ranks = [process for process in rank_processes() if process not in before]
            query = session.sql(JOIN, **{name: session.scan_parquet(path) for name, path in given.paths.items()})
            query.collect()
            seconds, table = timed(query.collect)
            took, killed = timed(_killing(query.collect, ranks[0], seconds / 2))
            usage = killed.usage
        for found in (table, killed):
            if numbers(found) != expected:
                raise WrongAnswerError(f"killed-rank: {numbers(found)} with a loss, {expected} without")
        theirs.append(seconds)
        own.append(took)
        lost_runs.append(usage.lost_runs if usage else 0)
        note(f"killed-rank: {took:.4f} s, {seconds:.4f} s without a loss, {lost_runs[-1]} runs of tasks lost")
    streamed.sort()
    told = f"runs of tasks that were lost: {lost_runs}; without kept outputs {streamed[len(streamed) // 2]:.4f} s"
    return [row("killed-rank", "s", own, f"the same {RANKS} ranks without a loss", theirs, checked=True, note=told)]


def _killing(collect: Callable[[], Table], rank: int, after: float) -> Callable[[], Table]:
    def run() -> Table:
        killer = threading.Timer(after, os.kill, (rank, signal.SIGKILL))
        killer.start()
        try:
            return collect()
        finally:
            killer.join()

    return run
