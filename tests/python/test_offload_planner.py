"""The planner behind loops that are shared with leased workers."""

from __future__ import annotations

import math

from dayfly._native import OffloadPlanner

#: A function's number, and the bytes of a call.
WHICH = (7, 1000)


def test_known_times_divide_a_loop():
    planner = OffloadPlanner(workers=2)
    planner.record_local(*WHICH, calls=10, seconds=0.01)
    for start in range(1, 9):
        planner.record_remote(*WHICH, start, start + 0.0011, overhead=1e-6)
    split = planner.split(*WHICH, calls=300)
    assert split["local"] + split["remote"] == 300
    assert 95 <= split["local"] <= 105
    assert sum(calls for _, calls in split["by_worker"]) == split["remote"]
    assert split["remote_seconds"] <= split["local_seconds"]
    assert planner.local(*WHICH) == (0.001, 0.001)
    assert all(known["latency"] < 0.0001 for known in planner.estimates(*WHICH))


def test_program_without_workers_computes_everything():
    planner = OffloadPlanner()
    assert planner.split(*WHICH, calls=8) | {"local": 8, "remote": 0} == planner.split(*WHICH, calls=8)


def test_times_that_cannot_be_are_ignored():
    planner = OffloadPlanner(workers=1)
    for nonsense in (math.nan, math.inf, -1.0, 1e300):
        planner.record_local(*WHICH, calls=1, seconds=nonsense)
        planner.record_remote(*WHICH, 0.0, nonsense, overhead=nonsense, run=nonsense)
    assert planner.local(*WHICH) is None
    split = planner.split(*WHICH, calls=16)
    assert (split["local"], split["remote"]) == (14, 2)
    assert planner.split(*WHICH, calls=2**64 - 1)["local"] > 0
