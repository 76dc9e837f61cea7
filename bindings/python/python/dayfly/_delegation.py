"""Parts of a lease for others: functions that call functions."""

from __future__ import annotations

import json
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from dayfly import _native
from dayfly._errors import Error

if TYPE_CHECKING:
    from dayfly._lease import Lease


class Delegation:
    """Some workers of a lease, for whoever holds this. Made by `Lease.delegate`; can be pickled.

    Give it to a function as an argument, and the function calls functions of its own:

    >>> def parent(part, numbers):
    ...     with part.open() as workers:
    ...         return sum(workers.map(abs, numbers))
    >>> with lease.delegate(workers=2) as part:  # doctest: +SKIP
    ...     lease.submit(parent, part, [-1, 2, -3]).result()
    6

    It is as good as a password: whoever reads it can use those workers until they are taken back.
    """

    def __init__(self, text: str, owner: Lease | None = None) -> None:
        self._text = text
        self._owner = owner
        self._grant: dict[str, Any] = json.loads(text)["grant"]

    @property
    def workers(self) -> int:
        """How many workers it is for."""
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
        """Opens a channel to each of its workers: a lease like any other, which ends when they are taken back.

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
        """Takes the workers back. Calls on them may go on for some seconds, and nobody hears of their results."""
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
            # What happened inside says more, and the lease may have ended of it.
            if error is None:
                raise

    def __reduce__(self) -> tuple[type[Delegation], tuple[str]]:
        return Delegation, (self._text,)

    def __repr__(self) -> str:
        return f"<dayfly.Delegation of {self.workers} workers of lease {self._grant['lease'][:8]}>"
