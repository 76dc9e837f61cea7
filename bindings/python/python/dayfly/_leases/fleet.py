"""Fleets: workers on many nodes as one executor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dayfly._errors import Error
from dayfly._leases.calls import Calls
from dayfly._leases.leased_executor import LeasedExecutor

if TYPE_CHECKING:
    from dayfly import _native
    from dayfly._connection import Connection

#: Maximum number of workers for which a map sends work before the fleet has any.
MAX_INITIAL_WIDTH = 4


class Fleet(LeasedExecutor):
    """Workers on many nodes behind one queue. Created by `Client.fleet`.

    A fleet is a `concurrent.futures.Executor`. It leases workers while calls wait, and gives leases back that are idle:

    >>> import dayfly
    >>> with dayfly.connect() as client, client.fleet(min=0, max=64) as fleet:  # doctest: +SKIP
    ...     sum(fleet.map(abs, range(-1000, 0)))
    500500

    A call that was not executed moves to another node if its node is lost or taken back. So does one that may have been
    executed, if its options say that it is idempotent; otherwise its future raises `dayfly.CallError` with the code
    ``maybe_executed``.
    """

    def __init__(self, native: _native.Fleet, pool: _native.Pool, client: Connection, most: int) -> None:
        super().__init__(native, pool, client)
        self._most = most

    @property
    def workers(self) -> int:
        """Number of workers at the moment."""
        workers, _, _ = self._status()
        return workers

    @property
    def nodes(self) -> list[str]:
        """Id of the node of each lease, including leases whose workers are being started or given back."""
        _, nodes, _ = self._status()
        return nodes

    @property
    def refusal(self) -> Error | None:
        """Why the last request for a lease was refused; None after a grant."""
        _, _, refusal = self._status()
        return refusal

    def wait_for_workers(self, workers: int, timeout: float = 60.0) -> bool:
        """Waits until the fleet has so many workers. Only calls that wait make a fleet grow beyond its minimum.

        Args:
            workers: number of workers.
            timeout: seconds to wait.

        Returns:
            Whether it has so many.
        """
        self._check_open()
        has_workers: bool = self._native.wait_for_workers(workers, timeout)
        return has_workers

    def options(self, *, deadline: float | None = None, idempotent: bool = False) -> Calls:
        """Returns a view of this fleet with options for its calls: ``fleet.options(idempotent=True).map(f, items)``.

        Args:
            deadline: seconds that the call may run. Its worker is then ended, and the call raises `DeadlineExceeded`.
            idempotent: whether the call may run again on another worker if its worker or node was lost during the call.

        Raises:
            ValueError: if ``deadline`` is not positive.
        """
        return Calls(self, self._native_options(deadline, idempotent, None, None))

    def _status(self) -> tuple[int, list[str], Error | None]:
        status: tuple[int, list[str], Error | None] = self._native.status()
        return status

    def _width(self) -> int:
        return max(self.workers, min(self._most, MAX_INITIAL_WIDTH))

    def _ready_workers(self) -> int:
        # A call that waits makes an empty fleet grow.
        return max(self.workers, 1)

    def __repr__(self) -> str:
        workers, nodes, _ = self._status()
        state = "shut down" if self._shut else f"{workers} of at most {self._most} workers"
        return f"<dayfly.Fleet of {state} on {len(set(nodes))} nodes>"
