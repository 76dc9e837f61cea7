"""Delegations: parts of a lease for functions that call functions."""

from __future__ import annotations

import json
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from dayfly import _native
from dayfly._errors import Error

if TYPE_CHECKING:
    from dayfly._lease import Lease


class Delegation:
    """Workers of a lease, for the use of another process. Created by `Lease.delegate`; picklable.

    Pass it to a function as an argument, and the function calls other functions on these workers:

    >>> def parent(part, numbers):
    ...     with part.open() as workers:
    ...         return sum(workers.map(abs, numbers))
    >>> with lease.delegate(workers=2) as part:  # doctest: +SKIP
    ...     lease.submit(parent, part, [-1, 2, -3]).result()
    6

    A delegation is a secret: every process that has it can use the workers until they are taken back.
    """

    def __init__(self, text: str, owner: Lease | None = None) -> None:
        self._text = text
        self._owner = owner
        self._grant: dict[str, Any] = json.loads(text)["grant"]

    @property
    def workers(self) -> int:
        """Number of workers."""
        workers: int = self._grant["workers"]
        return workers

    def open(
        self,
        *,
        transport: Literal["auto", "shm", "tcp", "tls"] = "auto",
        spin: float | None = 50e-6,
        depth: int = 0,
        retries: int = 3,
    ) -> Lease:
        """Opens a channel to each of the workers. Returns a lease, which ends when the workers are taken back.

        The arguments are those of `Client.lease`.
        """
        from dayfly._client import BULK, SLOTS, STRIDE
        from dayfly._lease import Lease

        native = _native.Lease.part(self._text)
        pool = native.pool(
            transport=transport, slots=SLOTS, stride=STRIDE, bulk=BULK, spin=spin, depth=depth, retries=retries
        )
        return Lease(native, pool, None)

    def take_back(self) -> None:
        """Returns the workers to the lease. Calls on them may run for some more seconds. Their results are lost.

        Raises:
            RuntimeError: if this object is a copy: only the lease that delegated the workers can take them back.
        """
        if self._owner is None:
            raise RuntimeError("only the lease that delegated these workers can take them back")
        owner, self._owner = self._owner, None
        owner._pool.take_back(self._text)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._owner is None or self._owner._shut:
            return
        try:
            self.take_back()
        except Error:
            # The error raised inside the block is more informative, and may be why the lease has ended.
            if error is None:
                raise

    def __reduce__(self) -> tuple[type[Delegation], tuple[str]]:
        return Delegation, (self._text,)

    def __repr__(self) -> str:
        return f"<dayfly.Delegation of {self.workers} workers of lease {self._grant['lease'][:8]}>"
