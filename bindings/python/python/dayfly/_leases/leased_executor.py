"""Leased workers as an executor: what `Lease` and `Fleet` have in common."""

from __future__ import annotations

import concurrent.futures as cf
import functools
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Generic, ParamSpec, Self, TypeVar

from dayfly._errors import ConnectionFailed, Error
from dayfly._futures.future import Future, failed_future
from dayfly._leases.calls import CallTarget
from dayfly._leases.chunks import async_results, results
from dayfly._leases.library import Library
from dayfly._leases.share import share
from dayfly._native import OffloadPlanner

P = ParamSpec("P")
T = TypeVar("T")


class LeasedExecutor(CallTarget, cf.Executor):
    """The calls and the end of `Lease` and `Fleet`."""

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

    def share(self, fn: Callable[[Any], T], items: Iterable[Any], *, idempotent: bool = False) -> list[T]:
        """Calls ``fn`` on every item, partly in this thread and partly on the workers. Returns the results in order.

        Use it for a loop that this program would compute itself, each time again. As many items leave as the workers
        return before this thread has computed the rest: by the measured times of ``fn`` here and there, and by latency
        and bandwidth of the connection. Each loop refines them. Items that no worker has begun when this thread has
        finished, or that were lost before they ran, are computed here.

        >>> for step in range(1000):  # doctest: +SKIP
        ...     forces = fleet.share(force_on, particles)

        Args:
            fn: the function. It takes one item.
            items: the items. They are all kept in memory.
            idempotent: whether an item may be computed here again if it was lost while a worker computed it.

        Raises:
            RuntimeError: after `shutdown`.
            dayfly.Error: if a worker was lost with an item, and the loop is not idempotent. Exceptions of the function
                keep their own types, and end the loop.
        """
        if self._shut:
            raise RuntimeError("cannot schedule new futures after shutdown")
        if self._planner is None:
            self._planner = OffloadPlanner()
        options = self._native_options(None, True, None, None) if idempotent else None
        number = self._functions.number(fn)
        submit = self._chunk_submitter(fn, number, options)
        # A function that travels with its arguments has no number of its own.
        key = hash(getattr(fn, "__code__", fn)) & 0xFFFF_FFFF if number is None else number
        workers = self._ready_workers()
        return share(
            self._pool,
            self._planner,
            fn,
            list(items),
            key=key,
            workers=workers,
            submit=submit,
            idempotent=idempotent,
        )

    # asyncio

    async def asubmit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls a function on a worker and awaits its result. See `submit`."""
        return await self.submit(fn, *args, **kwargs)

    def amap(
        self, fn: Callable[..., T], *iterables: Iterable[Any], chunksize: int | None = None, progress: bool = False
    ) -> AsyncIterator[T]:
        """As `map`, for ``async for``."""
        return async_results(self._chunks(fn, iterables, chunksize, progress, None))

    # Shared libraries

    def library(self, path: str) -> Library:
        """Sends a shared library to the workers. Call its functions as ``library.name(data)``.

        Args:
            path: path of the shared library on this host.
        """
        self._check_open()
        return Library(self, path)

    # End

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Returns the workers. Idempotent.

        Args:
            wait: whether to wait for the calls. If False, the workers are returned in the background once the calls
                have ended.
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


class Function(Generic[P, T]):
    """A function that runs on leased workers. Created by `Lease.function` and `Fleet.function`."""

    def __init__(self, lease: LeasedExecutor, fn: Callable[P, T]) -> None:
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
