"""Dayfly with hot workers, which poll. One core stays with the client, as a hot worker has a core of its own."""

from collections.abc import Iterator
from contextlib import contextmanager

import peer_dayfly_warm
from measure import Peer


@contextmanager
def start(workers: int) -> Iterator[Peer]:
    with peer_dayfly_warm.leased(max(workers - 1, 1), "hot", spin=None) as peer:
        yield peer
