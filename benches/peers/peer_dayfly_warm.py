"""Dayfly with warm workers, which sleep while they wait."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version

from functions import increment, noop
from measure import ARGUMENT, Peer


@contextmanager
def leased(workers: int, mode: str, spin: float | None) -> Iterator[Peer]:
    import dayfly

    with dayfly.connect() as client, client.lease(workers=workers, mode=mode, transport="shm", spin=spin) as lease:
        yield Peer(
            call=lambda argument: lease.call(noop, argument),
            submit_all=lambda count: [f.result() for f in [lease.submit(noop, ARGUMENT) for _ in range(count)]],
            map_all=lambda items, _: list(lease.map(increment, items)),
            workers=workers,
            version=version("dayfly"),
            chunks=(0,),  # Dayfly chooses the chunk size
            note=f"{lease.mode}, {lease.transport}",
        )


@contextmanager
def start(workers: int) -> Iterator[Peer]:
    with leased(workers, "warm", spin=50e-6) as peer:
        yield peer
