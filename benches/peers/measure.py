"""Measures one peer. Each peer is a context manager that yields a `Peer`."""

import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

ARGUMENT = b"x" * 1024
ITEMS = 1_000_000
ROUNDS = 3
# From 1000 items, with much overhead, to one chunk for each of the two workers.
CHUNKS = (1_000, 10_000, 50_000, 125_000, 500_000)


@dataclass
class Peer:
    """The three measured operations of a peer."""

    call: Callable[[bytes], Any]  # a round trip
    submit_all: Callable[[int], Any]  # submits this many calls and waits for all results
    map_all: Callable[[Sequence[int], int], list[int]]  # items and chunk size; 0 if the peer needs none
    workers: int
    version: str
    chunks: Sequence[int] = CHUNKS
    note: str = ""


def chunks_of(items: Sequence[int], size: int) -> Iterator[list[int]]:
    for start in range(0, len(items), size):
        yield list(items[start : start + size])


def _seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _progress(what: str) -> None:
    """Prints the progress. The report contains the last lines if the peer fails or exceeds its deadline."""
    print(f"[peer] {what}", file=sys.stderr, flush=True)


def _round_trips(call: Callable[[bytes], Any], calls: int) -> list[int]:
    clock = time.perf_counter_ns
    samples = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(calls):
            start = clock()
            call(ARGUMENT)
            samples.append(clock() - start)
    finally:
        gc.enable()
    return samples


def _fitting(one: float, seconds: float, least: int, most: int) -> int:
    """Returns how many operations of this duration fit into the time."""
    return max(least, min(most, int(seconds / one)))


def measure(peer: Peer, say: Callable[[dict[str, Any]], None]) -> None:
    """Warms the peer up, then measures all operations in alternating rounds. Reports the figures after every round, so
    that a peer that exceeds its deadline keeps the earlier ones."""
    _progress("round trips")
    for _ in range(50):
        peer.call(ARGUMENT)
    calls = _fitting(statistics.median(_round_trips(peer.call, 50)) / 1e9, 0.7, 100, 20_000)
    _progress("futures")
    peer.submit_all(100)
    futures = _fitting(min(_seconds(lambda: peer.submit_all(300)) for _ in range(2)) / 300, 0.7, 300, 50_000)

    _progress("map")
    items = range(ITEMS)
    if peer.map_all(items, peer.chunks[len(peer.chunks) // 2]) != list(range(1, ITEMS + 1)):
        raise AssertionError("the map's result is wrong")
    sweep = {chunk: ITEMS / _seconds(lambda chunk=chunk: peer.map_all(items, chunk)) for chunk in peer.chunks}
    best = max(sweep, key=sweep.__getitem__)

    samples: list[int] = []
    submit_rates: list[float] = []
    map_rates: list[float] = []
    for turn in range(ROUNDS):
        _progress(f"round {turn + 1}: {calls} round trips, {futures} futures, map in chunks of {best}")
        samples += _round_trips(peer.call, calls)
        submit_rates.append(futures / _seconds(lambda: peer.submit_all(futures)))
        map_rates.append(ITEMS / _seconds(lambda: peer.map_all(items, best)))
        ordered = sorted(samples)
        say(
            {
                "version": peer.version,
                "workers": peer.workers,
                "note": peer.note,
                "rounds": len(map_rates),
                "calls": len(ordered),
                "p50_ns": ordered[len(ordered) // 2],
                "p99_ns": ordered[len(ordered) * 99 // 100],
                "futures": futures,
                # Use the best round: other processes on the machine can only reduce the rate.
                "futures_per_s": max(submit_rates),
                "futures_per_s_rounds": submit_rates,
                "map_items": ITEMS,
                "map_per_s": max(map_rates),
                "map_per_s_rounds": map_rates,
                "map_chunk": best,
                "map_sweep_per_s": sweep,
            }
        )
