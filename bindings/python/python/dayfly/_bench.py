"""``python -m dayfly._bench``: the Python part of ``dayfly bench``, which compares it with raw baselines.

``invoke`` prints one JSON object: round trips of a no-op function (``samples_ns``), calls per second through futures
(``futures_per_s``), and with ``--items`` the rate of `Lease.map` without a chunk size and that of the standard
library's ``Pool.map`` with its best one. ``describe`` prints what a Rust program needs to call a Python function.
``tasks`` measures durable tasks (see `dayfly._bench_tasks`), ``harvest`` the lending of idle cores (see
`dayfly._bench_harvest` and `dayfly._bench_record`), ``frames`` queries across ranks, which the package
``dayfly-frames`` measures.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import sys
import time
from collections.abc import Callable
from typing import Any

#: Number of calls. Warm round trips take ten times as long as hot ones.
HOT_CALLS, WARM_CALLS = 50_000, 5_000
FUTURES = 100_000
#: Chunk sizes, from 1000, with an overhead of a fifth, to the largest that leaves two chunks for each process.
CHUNKS = (1_000, 10_000, 50_000, 100_000)


def noop(argument: object) -> None:
    """Does nothing."""


def increment(number: int) -> int:
    """Does the minimum of work that has a result."""
    return number + 1


def _round_trips(call: Callable[..., Any], argument: bytes, calls: int) -> list[int]:
    clock = time.perf_counter_ns
    for _ in range(max(calls // 10, 100)):
        call(noop, argument)
    samples = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(calls):
            start = clock()
            call(noop, argument)
            samples.append(clock() - start)
    finally:
        gc.enable()
    return samples


def _best(repeats: int, work: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def invoke(options: argparse.Namespace) -> dict[str, Any]:
    """Measures round trips, futures and maps on a new lease."""
    import dayfly

    calls = options.calls or (HOT_CALLS if options.mode == "hot" else WARM_CALLS)
    found: dict[str, Any] = {}
    with (
        dayfly.Client._own() as client,
        client.lease(
            sandbox=options.sandbox,
            workers=options.workers,
            mode=options.mode,
            transport=options.transport,
            spin=None if options.mode == "hot" else 50e-6,
        ) as lease,
    ):
        argument = b"x" * options.size
        found["samples_ns"] = _round_trips(lease.call, argument, calls)
        futures = FUTURES if options.mode == "hot" else FUTURES // 10

        def through_futures() -> None:
            for future in [lease.submit(noop, argument) for _ in range(futures)]:
                future.result()

        found["futures_per_s"] = futures / _best(3, through_futures)
        if options.items:
            items = range(options.items)
            found["map_per_s"] = options.items / _best(3, lambda: list(lease.map(increment, items)))
    if options.items:
        with multiprocessing.get_context("fork").Pool(options.workers) as pool:
            rates = {
                chunk: options.items / _best(2, lambda chunk=chunk: pool.map(increment, items, chunksize=chunk))  # type: ignore[misc]
                for chunk in CHUNKS
            }
        found["pool_map_chunk"], found["pool_map_per_s"] = max(rates.items(), key=lambda each: each[1])
    return found


def describe(_: argparse.Namespace) -> dict[str, Any]:
    """Returns a pickled no-op function, and the runtime that it needs."""
    import cloudpickle

    from dayfly._functions.runtime import runtime

    wanted = runtime()
    # The last byte marks the payload as the only argument (`codec.rs`).
    return {
        "runtime": wanted,
        "form": {"form": "python", "python": wanted["version"], "cloudpickle": wanted["cloudpickle"]},
        "code": cloudpickle.dumps(noop, protocol=5).hex(),
        "input": (b"x" * 64 + b"\x04").hex(),
    }


def tasks(options: argparse.Namespace) -> dict[str, Any]:
    """Measures durable tasks, compared with Parsl's."""
    from dayfly._bench_tasks import measure

    return measure(options)


def harvest(options: argparse.Namespace) -> dict[str, Any]:
    """Measures what lending idle cores gives and costs."""
    from dayfly._bench_harvest import measure
    from dayfly._bench_record import record

    found = measure(options)
    record(options)
    return found


def frames(options: argparse.Namespace) -> dict[str, Any]:
    """Measures queries across ranks, beside other engines."""
    try:
        from dayfly.frames import Session  # noqa: F401
    except ImportError as error:
        raise SystemExit(str(error)) from None
    from dayfly_frames._bench.command import measure

    return measure(options)


def main() -> None:
    """Runs the command of the command line."""
    parser = argparse.ArgumentParser(prog="python -m dayfly._bench", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("invoke", help="latencies and rates of Python functions")
    command.set_defaults(run=invoke)
    command.add_argument("--transport", default="shm")
    command.add_argument("--mode", default="hot", choices=["hot", "warm"])
    command.add_argument("--size", type=int, default=1024)
    command.add_argument("--workers", type=int, default=1)
    command.add_argument("--calls", type=int, default=0)
    command.add_argument("--items", type=int, default=0)
    command.add_argument("--sandbox", default="process", choices=["process", "isolated", "container"])
    commands.add_parser("describe", help="a function as it travels").set_defaults(run=describe)
    command = commands.add_parser("tasks", help="durable tasks")
    command.set_defaults(run=tasks)
    command.add_argument("--tasks", type=int, default=20_000)
    command.add_argument("--calls", type=int, default=500)
    command.add_argument("--rounds", type=int, default=5)
    command.add_argument("--size", type=int, default=0)
    command.add_argument("--workers", type=int, default=2)
    command.add_argument("--parsl", default="")
    command = commands.add_parser("harvest", help="lending of idle cores")
    command.set_defaults(run=harvest)
    command.add_argument("--functions", required=True)
    command.add_argument("--record", required=True)
    command.add_argument("--rounds", type=int, default=6)
    command.add_argument("--bursts", type=int, default=12)
    command.add_argument("--only", action="append", default=[])
    command = commands.add_parser("frames", help="queries across ranks")
    command.set_defaults(run=frames)
    command.add_argument("--only", action="append", default=[])
    command.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    json.dump(options.run(options), sys.stdout)
    print()


if __name__ == "__main__":
    main()
