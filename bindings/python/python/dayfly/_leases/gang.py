"""Gangs: workers on one node or several, leased together."""

from __future__ import annotations

import concurrent.futures as cf
import functools
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

if TYPE_CHECKING:
    from dayfly._leases.calls import Calls
    from dayfly._leases.lease import Lease

T = TypeVar("T")


def run_parallel(todo: Sequence[Callable[[], T]]) -> list[T]:
    """Runs the functions in parallel and waits for all of them. Raises the first error, if any."""
    if len(todo) == 1:
        return [todo[0]()]
    with cf.ThreadPoolExecutor(len(todo)) as threads:
        return list(threads.map(lambda one: one(), todo))


class Gang:
    """Workers on one or several nodes, numbered by rank. Created by `Client.gang`.

    >>> with client.gang(4, placement="spread") as gang:  # doctest: +SKIP
    ...     futures = [gang.rank(rank).submit(pow, rank, 2) for rank in range(len(gang))]
    """

    def __init__(self, leases: list[Lease]) -> None:
        self._leases = leases
        self._places = [(lease, worker) for lease in leases for worker in range(lease.workers)]

    def __len__(self) -> int:
        return len(self._places)

    @property
    def leases(self) -> list[Lease]:
        """The leases, one for each node, in the order of the ranks."""
        return list(self._leases)

    @property
    def nodes(self) -> list[str]:
        """Name of the node of each rank."""
        return [lease.grant["node"]["name"] for lease, _ in self._places]

    def rank(self, rank: int, **options: Any) -> Calls:
        """Returns calls on one rank's worker: ``gang.rank(3).submit(f, x)``.

        Args:
            rank: number of the worker, from 0.
            options: further options, as for `Lease.options`.
        """
        lease, worker = self._places[rank]
        return lease.options(worker=worker, **options)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends all leases of the gang, as `Lease.shutdown` does."""
        run_parallel([functools.partial(lease.shutdown, wait, cancel_futures=cancel_futures) for lease in self._leases])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.shutdown(wait=True)

    def __repr__(self) -> str:
        return f"<dayfly.Gang of {len(self)} workers on {len(self._leases)} nodes>"
