"""DragonHPC's multiprocessing pool. The process must have been started by `dragon`."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version

from measure import Peer
from peer_pool import peer_of


@contextmanager
def start(workers: int) -> Iterator[Peer]:
    import dragon  # noqa: F401  (registers the start method)
    import multiprocessing  # isort: skip

    multiprocessing.set_start_method("dragon")
    with multiprocessing.Pool(workers) as pool:
        yield peer_of(pool, workers, version("dragonhpc"))
