"""Leases: the time-limited right to some workers, as an executor; and delegations, which are parts of leases."""

from __future__ import annotations

import concurrent.futures as cf
import functools
import json
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, Self, TypeVar

from dayfly import _native, _output
from dayfly._errors import ConnectionFailed, Error
from dayfly._futures.future import Future, failed_future
from dayfly._leases.calls import Calls, CallTarget
from dayfly._leases.chunks import async_results, results
from dayfly._leases.defaults import BULK, DAY, SLOTS, STRIDE
from dayfly._leases.library import Library

if TYPE_CHECKING:
    import numpy as np

P = ParamSpec("P")
T = TypeVar("T")


class Lease(CallTarget, cf.Executor):
    """Leased workers, until the lease ends. Created by `Client.lease`.

    A lease is a `concurrent.futures.Executor`:

    >>> import dayfly
    >>> with dayfly.connect() as client, client.lease(workers=2) as lease:  # doctest: +SKIP
    ...     lease.submit(pow, 2, 10).result()
    ...     list(lease.map(abs, [-1, 2, -3]))
    1024
    [1, 2, 3]
    """

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

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Sends a call to a worker and returns its future. `options` sets a deadline and other options.

        Args:
            fn: the function.
            args: positional arguments.
            kwargs: keyword arguments.

        Raises:
            RuntimeError: after `shutdown`.
            dayfly.Error: if the call cannot be sent. If its arguments cannot be pickled, the future raises instead.
        """
        if self._shut:
            raise RuntimeError("cannot schedule new futures after shutdown")
        try:
            number = self._functions.number(fn)
            if number is None:
                return Future(self._pool.submit(self._applier, (self._carried(fn), *args), kwargs), self._pool, self)
            return Future(self._pool.submit(number, args, kwargs), self._pool, self)
        except Error:
            raise
        except Exception as error:
            # As with other executors, a value that cannot be pickled fails in the future.
            return failed_future(error, self._pool, self)

    def call(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls a function on a worker and returns its result. This has the lowest latency.

        Raises:
            RuntimeError: after `shutdown`.
            dayfly.Error: if the call failed. Exceptions of the function keep their own types.
        """
        if self._shut:
            raise RuntimeError("cannot schedule new futures after shutdown")
        number = self._functions.number(fn)
        if number is None:
            result: T = self._pool.call(self._applier, (self._carried(fn), *args), kwargs)
        else:
            result = self._pool.call(number, args, kwargs)
        return result

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
        key = (deadline, idempotent, worker, incarnation)
        made = self._deadlines.get(key)
        if made is None:
            made = _native.Options(
                deadline_ms=self._milliseconds(deadline), idempotent=idempotent, worker=worker, incarnation=incarnation
            )
            if len(self._deadlines) < 1000:
                self._deadlines[key] = made
        return Calls(self, made)

    def function(self, fn: Callable[P, T]) -> Function[P, T]:
        """Returns a handle that calls ``fn`` on a worker when it is called."""
        return Function(self, fn)

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int | None = None,
        progress: bool = False,
    ) -> Iterator[T]:
        """Calls ``fn`` on every item and returns an iterator over the results, in order.

        Args:
            fn: the function. It takes as many arguments as there are iterables.
            iterables: sources of the arguments.
            timeout: seconds until all results must have arrived; None for no limit.
            chunksize: items in one invocation. By default it adapts to about half a millisecond of work, from the
                measured times of earlier invocations.
            progress: whether to draw a progress bar on standard error.

        Raises:
            RuntimeError: after `shutdown`.
            TimeoutError: from the iterator, if a result is not there in time.
        """
        return results(self._chunks(fn, iterables, chunksize, progress, None), timeout)

    # asyncio

    async def asubmit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls a function on a worker and awaits its result. See `submit`."""
        return await self.submit(fn, *args, **kwargs)

    def amap(
        self, fn: Callable[..., T], *iterables: Iterable[Any], chunksize: int | None = None, progress: bool = False
    ) -> AsyncIterator[T]:
        """As `map`, for ``async for``."""
        return async_results(self._chunks(fn, iterables, chunksize, progress, None))

    # Shared libraries, shared memory

    def library(self, path: str) -> Library:
        """Sends a shared library to the workers. Call its functions as ``library.name(data)``.

        Args:
            path: path of the shared library on this host.
        """
        self._check_open()
        return Library(self, path)

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

    # Renewal and shutdown

    def renew(self, duration: float) -> None:
        """Extends the lease to end ``duration`` seconds from now."""
        self._native.renew(duration)
        self._grant = json.loads(self._native.grant())

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the lease and returns its workers. Idempotent.

        Args:
            wait: whether to wait for the calls. If False, the lease is released in the background once they have ended.
            cancel_futures: whether to cancel calls that have not begun.
        """
        with self._lock:
            if self._shut:
                return
            self._shut = True
        for chunks in list(self._maps):
            if cancel_futures:
                chunks.exhausted = True
            else:
                chunks.send_rest()
        if cancel_futures:
            self._pool.cancel_all()
        if wait:
            self._end()
        else:
            threading.Thread(target=self._end, name="dayfly shutdown").start()

    def _interrupt(self) -> None:
        """Cancels calls that have not begun, and prints how many calls an interrupted program waits for."""
        if self._shut:
            return
        before = self._pool.pending()
        for chunks in list(self._maps):
            chunks.exhausted = True
        self._pool.cancel_all()
        left = self._pool.pending()
        if left:
            print(
                f"dayfly: interrupted, and waiting for {left} calls that run ({before - left} that had not begun are "
                "cancelled). Press Ctrl-C again to end them",
                file=sys.stderr,
            )

    def _end(self) -> None:
        try:
            self._pool.drain()
        finally:
            # The helper completes watched futures before it exits.
            self._pool.close()
            if self._helper is not threading.current_thread():
                self._helper.join()
            try:
                self._native.release()
            except ConnectionFailed:
                # Neither manager nor node can be reached. The calls have ended, and the node reclaims unused workers
                # itself, so the caller keeps its results.
                pass
            finally:
                self._pool.disconnect()
                if self._echo is not None:
                    self._echo.finish()
                if self._client is not None:
                    self._client._forget(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        if kind is KeyboardInterrupt:
            self._interrupt()
        self.shutdown(wait=True)
        return None

    def __repr__(self) -> str:
        state = "shut down" if self._shut else self.mode
        return f"<dayfly.Lease ...{self.id[-12:]} of {self.workers} workers over {self.transport}, {state}>"


class Function(Generic[P, T]):
    """A function that runs on a lease's workers. Created by `Lease.function`."""

    def __init__(self, lease: Lease, fn: Callable[P, T]) -> None:
        functools.update_wrapper(self, fn)
        self._lease = lease
        self._fn = fn

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls the function on a worker and returns its result."""
        return self._lease.call(self._fn, *args, **kwargs)

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """As `Lease.submit`."""
        return self._lease.submit(self._fn, *args, **kwargs)

    def map(self, *iterables: Iterable[Any], **options: Any) -> Iterator[T]:
        """As `Lease.map`."""
        return self._lease.map(self._fn, *iterables, **options)


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
        lease = str(self._grant["lease"])
        return f"<dayfly.Delegation of {self.workers} workers of lease ...{lease[-12:]}>"
