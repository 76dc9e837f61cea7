"""The measurements by their names."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

from dayfly import Client

from dayfly_frames._bench import data, joins, losses, memory, sessions, skew, sorts, tpch, transfers
from dayfly_frames._bench.engines import has
from dayfly_frames._bench.joins import Place
from dayfly_frames._bench.rows import WrongAnswerError, note
from dayfly_frames._bench.scale import QUICK, Scale

Measure = Callable[[Place], list[dict[str, Any]]]

MEASUREMENTS: dict[str, Measure] = {
    "paper-join-1": joins.paper_join_1,
    "paper-join-2": joins.paper_join_2,
    "paper-join-weak": joins.paper_join_weak,
    "paper-speedup": joins.speedup,
    "paper-weak": joins.weak,
    "skewed-join": skew.skewed_join,
    "sort-ranges": sorts.sort_ranges,
    "tpch-sf1": lambda place: tpch.tpch(place, "tpch-sf1", place.scale.tpch["tpch-sf1"]),
    "tpch-sf10": lambda place: tpch.tpch(place, "tpch-sf10", place.scale.tpch["tpch-sf10"]),
    "session-4": sessions.session_4,
    "small-query": sessions.small_query,
    "cancel": sessions.cancel,
    "result-1gib": transfers.result_1gib,
    "exchange-shm": transfers.exchange_shm,
    "killed-rank": losses.killed_rank,
    "beyond-memory": memory.beyond_memory,
}
#: Those that are measured only if they are named.
LONG = ("tpch-sf10", "beyond-memory")
#: Cores of the sides of each comparison.
CORES = 2


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the rows that ``dayfly bench frames`` prints.

    Raises:
        SystemExit: if a row has no such name, a package is missing, the machine has too few cores, or two sides
            computed different results.
    """
    names = options.only or [name for name in MEASUREMENTS if name not in LONG]
    if unknown := [name for name in names if name not in MEASUREMENTS]:
        raise SystemExit(f"There is no row {unknown[0]}. Choose from {', '.join(MEASUREMENTS)}")
    if not has("pyarrow"):
        raise SystemExit("The measurement needs PyArrow: pip install pyarrow")
    cores = sorted(os.sched_getaffinity(0))[:CORES]
    if len(cores) < CORES:
        raise SystemExit("The measurement needs two cores")
    scale = QUICK if options.quick else Scale()
    # The node and its workers inherit them.
    os.sched_setaffinity(0, cores)
    rows: list[dict[str, Any]] = []
    with Client._own() as client:
        for name in names:
            note(f"measuring {name}")
            with data.directory() as directory:
                try:
                    rows += MEASUREMENTS[name](Place(client, directory, cores, scale))
                except WrongAnswerError as wrong:
                    raise SystemExit(f"A wrong answer, so nothing is reported. {wrong}") from None
    return {"cores": len(cores), "rows": rows}
