"""Dask distributed: a local cluster of processes with one thread each."""

import itertools
from array import array
from collections.abc import Iterator
from contextlib import contextmanager

from functions import increment_array, noop
from measure import ARGUMENT, Peer, chunks_of


@contextmanager
def start(workers: int) -> Iterator[Peer]:
    import dask
    import distributed

    dask.config.set({"distributed.admin.tick.limit": "1h"})
    with (
        distributed.LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            dashboard_address=None,
            worker_dashboard_address=None,
        ) as cluster,
        distributed.Client(cluster) as client,
    ):

        def map_all(items: range, chunk: int) -> list[int]:
            # Arrays in both directions: Dask serializes a list number by number, which takes a hundred times as long.
            parts = [array("q", part) for part in chunks_of(items, chunk)]
            futures = client.map(increment_array, parts, pure=False)
            return list(itertools.chain.from_iterable(client.gather(futures)))

        yield Peer(
            call=lambda argument: client.submit(noop, argument, pure=False).result(),
            submit_all=lambda count: client.gather([client.submit(noop, ARGUMENT, pure=False) for _ in range(count)]),
            map_all=map_all,
            workers=workers,
            version=distributed.__version__,
            chunks=(10_000, 50_000, 125_000, 500_000),
            note="map over arrays instead of lists",
        )
