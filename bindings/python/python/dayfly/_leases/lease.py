"""Leases: the time-limited right to some workers, as an executor; and delegations, which are parts of leases."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar

from dayfly import _native, _output, _worker_streams
from dayfly._connection import Connection
from dayfly._errors import Error, LeaseError
from dayfly._leases.calls import Calls
from dayfly._leases.defaults import BULK, DAY, SLOTS, STRIDE
from dayfly._leases.leased_executor import LeasedExecutor
from dayfly._leases.stream import MAX_ITEMS, Stream

if TYPE_CHECKING:
    import numpy as np


P = ParamSpec("P")
T = TypeVar("T")


class Lease(LeasedExecutor):
    """Leased workers, until the lease ends. Created by `Client.lease`.

    A lease is a `concurrent.futures.Executor`:

    >>> import dayfly
    >>> with dayfly.connect() as client, client.lease(workers=2) as lease:  # doctest: +SKIP
    ...     lease.submit(pow, 2, 10).result()
    ...     list(lease.map(abs, [-1, 2, -3]))
    1024
    [1, 2, 3]
    """

    def __init__(
        self, native: _native.Lease, pool: _native.Pool, client: Connection | None, *, echo: bool = False
    ) -> None:
        super().__init__(native, pool, client)
        self._grant: dict[str, Any] = json.loads(native.grant())
        self._echo = _output.Echo(native) if echo else None
        #: Number of streams so far.
        self._streams = 0

    def _width(self) -> int:
        return self.workers

    def _alive(self) -> list[tuple[int, int]]:
        """Returns number and incarnation of each worker that has a channel now."""
        return [(number, incarnation) for number, incarnation in enumerate(self.incarnations()) if incarnation]

    def _ready_workers(self) -> int:
        return len(self._alive())

    # Properties

    @property
    def id(self) -> str:
        """Id of the lease."""
        lease: str = self._grant["lease"]
        return lease

    @property
    def workers(self) -> int:
        """Number of workers."""
        workers: int = self._grant["workers"]
        return workers

    @property
    def mode(self) -> str:
        """``hot`` if the workers poll on cores of their own, ``warm`` if they sleep while they wait."""
        mode: str = self._grant["mode"]
        return mode

    @property
    def transport(self) -> str:
        """Transport of the calls, such as ``shm``, ``tcp`` or ``tls``."""
        return self._pool.transport()

    @property
    def grant(self) -> dict[str, Any]:
        """Everything that the manager granted, as a copy."""
        return dict(self._grant)

    def incarnations(self) -> list[int]:
        """Returns the incarnation of each worker: how many times it was started; 0 if it is lost.

        State in a worker lives as long as its incarnation.
        """
        return self._pool.incarnations()

    def output(self, stream: Literal["out", "err"] | None = None) -> str:
        """Returns the workers' output so far, up to a minute after the end of the lease.

        The node keeps the last 256 KiB, and 16 KiB after the end of the lease. ``echo=True`` of `Client.lease` prints
        the output as it appears.

        Args:
            stream: ``out`` for standard output, ``err`` for standard error; both by default.
        """
        return _output.lease_output(self._native, stream)

    # Calls

    def options(
        self,
        *,
        deadline: float | None = None,
        idempotent: bool = False,
        worker: int | None = None,
        incarnation: int | None = None,
    ) -> Calls:
        """Returns a view of this lease with options for its calls: ``lease.options(deadline=2).submit(f, x)``.

        Args:
            deadline: seconds that the call may run. Its worker is then ended, and the call raises `DeadlineExceeded`.
            idempotent: whether the call may run again on another worker if its worker died during the call.
            worker: number of the only worker that may run the call.
            incarnation: incarnation of that worker whose state the call needs. If it is lost, the call raises
                `StateLost`.

        Raises:
            ValueError: if ``deadline`` is not positive.
        """
        return Calls(self, self._native_options(deadline, idempotent, worker, incarnation))

    # Streams

    def stream(self, fn: Callable[P, Iterable[T]], /, *args: P.args, **kwargs: P.kwargs) -> Stream[T]:
        """Calls a function that yields, and returns an iterator over its items, which come while the function runs.

        >>> def lines(path):
        ...     with open(path) as file:
        ...         yield from file
        >>> for line in lease.stream(lines, "/data/log"):  # doctest: +SKIP
        ...     print(line)

        The function runs only as far ahead as the caller needs: see `Stream`. Its state is in one worker, which serves
        other calls between the items.

        Raises:
            RuntimeError: after `shutdown`.
            dayfly.StateLost: from the iterator, if the worker was lost.
        """
        self._check_open()
        alive = self._alive()
        if not alive:
            # All are being replaced, or are lost: a call waits, or raises the reason.
            self.call(_worker_streams.close, 0)
            alive = self._alive()
        if not alive:
            raise LeaseError("all workers of this lease are lost: lease others", "lease_ended")
        worker, incarnation = alive[self._streams % len(alive)]
        self._streams += 1
        stream: Stream[T] = Stream(self, worker, self.options(worker=worker, incarnation=incarnation), MAX_ITEMS)
        stream._start(fn, args, kwargs)
        return stream

    # Shared memory

    def empty(self, shape: int | tuple[int, ...], dtype: Any = float) -> np.ndarray[Any, Any]:
        """Returns an uninitialized array in memory that the workers share. As an argument it travels without a copy.

        The function's writes to it are visible here. Do not change the array during a call that uses it.

        Args:
            shape: dimensions of the array.
            dtype: element type, as for NumPy.
        """
        import math

        import numpy as np

        kind = np.dtype(dtype)
        dimensions = (shape,) if isinstance(shape, int) else tuple(shape)
        memory = self._pool.shared_memory(math.prod(dimensions) * kind.itemsize)
        return np.ndarray(dimensions, kind, buffer=memoryview(memory))

    # Delegation

    def delegate(
        self, workers: int = 1, *, duration: float = DAY, users: Lease | None = None, wait: float = 60.0
    ) -> Delegation:
        """Delegates some of the workers to a function, which calls functions on them: see `Delegation`.

        This lease cannot use them until they are returned.

        Args:
            workers: number of workers.
            duration: seconds until the workers return by themselves; at most the remaining time of this lease.
            users: lease whose workers use the delegated ones; by default this lease. Isolated workers can reach only
                workers of their own node.
            wait: seconds to wait for calls that run on these workers.
        """
        self._check_open()
        text = self._pool.delegate(workers, duration, (users or self)._native, wait)
        return Delegation(text, self)

    # Renewal

    def renew(
        self,
        duration: float,
        *,
        workers: int | None = None,
        min_workers: int | None = None,
        mode: Literal["auto", "hot", "warm"] | None = None,
        hot_for: float | None = None,
        poll_for: float | None = None,
    ) -> None:
        """Extends the lease to end ``duration`` seconds from now, and changes the terms that are given.

        Returns when added workers serve. Idle workers are given back first; calls that a worker had not begun go to
        other workers.

        Args:
            duration: seconds from now.
            workers: number of workers. Memory follows in proportion.
            min_workers: the fewest workers to accept if there is no room for ``workers``. `Lease.workers` returns how
                many were granted.
            mode: as in `Client.lease`.
            hot_for: seconds that a hot worker polls after a call before it sleeps; ``math.inf`` for no limit.
            poll_for: seconds that a warm worker polls after a call before it sleeps; at most 0.01.

        Raises:
            dayfly.CapacityError: if there is no room, or no quota. The lease stays as it is.
            dayfly.Error: ``invalid_request`` if the lease cannot have the change: the number of workers of a gang, of a
                lease with GPUs, and of a lease under an allowance is fixed.
        """
        self._native.renew(duration, workers, min_workers, mode, hot_for, poll_for)
        self._grant = json.loads(self._native.grant())

    def __repr__(self) -> str:
        state = "shut down" if self._shut else self.mode
        return f"<dayfly.Lease ...{self.id[-12:]} of {self.workers} workers over {self.transport}, {state}>"


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
        native = _native.Lease.part(self._text)
        channels = {
            "transport": transport,
            "slots": SLOTS,
            "stride": STRIDE,
            "bulk": BULK,
            "spin": spin,
            "depth": depth,
            "retries": retries,
        }
        pool = native.pool(channels)
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
        lease = str(self._grant["lease"])
        return f"<dayfly.Delegation of {self.workers} workers of lease ...{lease[-12:]}>"
