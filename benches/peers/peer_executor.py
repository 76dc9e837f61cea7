"""The standard library's ProcessPoolExecutor."""

import platform
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

from functions import increment, noop
from measure import ARGUMENT, Peer


@contextmanager
def start(workers: int) -> Iterator[Peer]:
    with ProcessPoolExecutor(workers) as pool:
        yield Peer(
            call=lambda argument: pool.submit(noop, argument).result(),
            submit_all=lambda count: [f.result() for f in [pool.submit(noop, ARGUMENT) for _ in range(count)]],
            map_all=lambda items, chunk: list(pool.map(increment, items, chunksize=chunk)),
            workers=workers,
            version=platform.python_version(),
        )
