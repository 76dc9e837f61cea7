"""Dayfly with hot workers, which poll. Each hot worker owns a core, and one core is left for the client."""

from collections.abc import Iterator
from contextlib import contextmanager

import peer_dayfly_warm
from measure import Peer


@contextmanager
def start(workers: int) -> Iterator[Peer]:
    with peer_dayfly_warm.leased(max(workers - 1, 1), "hot", spin=None) as peer:
        yield peer
