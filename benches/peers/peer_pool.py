"""The standard library's multiprocessing.Pool."""

import multiprocessing
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from functions import increment, noop
from measure import ARGUMENT, Peer


def peer_of(pool: Any, workers: int, version: str) -> Peer:
    """Measures a pool with the standard library's interface."""
    return Peer(
        call=lambda argument: pool.apply(noop, (argument,)),
        submit_all=lambda count: [r.get() for r in [pool.apply_async(noop, (ARGUMENT,)) for _ in range(count)]],
        map_all=lambda items, chunk: pool.map(increment, items, chunksize=chunk),
        workers=workers,
        version=version,
    )


@contextmanager
def start(workers: int) -> Iterator[Peer]:
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        yield peer_of(pool, workers, platform.python_version())
