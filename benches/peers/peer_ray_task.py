"""Ray's tasks."""

import itertools
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import loopback
from functions import increment_all, noop
from measure import ARGUMENT, Peer, chunks_of


@contextmanager
def cluster(workers: int) -> Iterator[None]:
    # Some of Ray's daemons listen on all addresses, regardless of the configured one.
    loopback.confine()
    import ray

    ray.init(
        num_cpus=workers,
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
        _node_ip_address="127.0.0.1",
        _temp_dir=tempfile.gettempdir(),
        object_store_memory=512 * 1024 * 1024,
    )
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def start(workers: int) -> Iterator[Peer]:
    with cluster(workers):
        import ray

        nothing, chunked = ray.remote(noop), ray.remote(increment_all)

        def map_all(items: range, chunk: int) -> list[int]:
            parts = ray.get([chunked.remote(part) for part in chunks_of(items, chunk)])
            return list(itertools.chain.from_iterable(parts))

        yield Peer(
            call=lambda argument: ray.get(nothing.remote(argument)),
            submit_all=lambda count: ray.get([nothing.remote(ARGUMENT) for _ in range(count)]),
            map_all=map_all,
            workers=workers,
            version=ray.__version__,
        )
