"""Leased workers as an executor: what `Lease` and `Fleet` have in common."""

from __future__ import annotations

import concurrent.futures as cf
import functools
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar

import cloudpickle

from dayfly import _native, _worker
from dayfly._errors import ConnectionFailed, Error
from dayfly._functions.captures import Functions
from dayfly._functions.kinds import PickledFunction, name_of
from dayfly._functions.runtime import PYTHON
from dayfly._futures.future import Future, FutureOwner, complete_futures, failed_future
from dayfly._leases.calls import Calls, Function
from dayfly._leases.chunks import Chunks, async_results, length_of, results
from dayfly._leases.library import Library
from dayfly._progress import Progress

if TYPE_CHECKING:
    from dayfly._connection import Connection
    from dayfly._output import Echo

P = ParamSpec("P")
T = TypeVar("T")

#: Maximum number of combinations of options that are kept for later calls.
MAX_OPTIONS = 1000


class CallTarget(FutureOwner, cf.Executor):
    """The base of `Lease` and `Fleet`: leased workers, and the functions that are registered with them."""

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

    # Below the interface

    def __init__(self, native: _native.Lease | _native.Fleet, pool: _native.Pool, client: Connection | None) -> None:
        self._native: Any = native
        self._pool = pool
        self._client = client
        # Not a method: a reference cycle would keep the channels open until garbage collection.
        self._register = functools.partial(_register, native, pool)
        self._functions = Functions(self._register)
        #: Wraps functions whose executor has an initializer.
        self._wrap: Callable[[Any], Any] | None = None
        self._shut = False
        self._lock = threading.Lock()
        self._watched = {}
        self._maps: weakref.WeakSet[Chunks] = weakref.WeakSet()
        self._options: dict[tuple[Any, ...], _native.Options] = {}
        self._echo: Echo | None = None
        # Dropping a lease without a shutdown closes the pool, which ends the helper and releases the workers.
        weakref.finalize(self, pool.close).atexit = False
        self._helper = threading.Thread(
            target=complete_futures, args=(weakref.ref(self), pool), name="dayfly helper", daemon=True
        )
        self._helper.start()

    def _width(self) -> int:
        """Returns the number of workers that a map keeps busy."""
        raise NotImplementedError

    def _chunks(
        self,
        fn: Callable[..., Any],
        iterables: tuple[Iterable[Any], ...],
        chunksize: int | None,
        progress: bool,
        options: _native.Options | None,
    ) -> Chunks:
        if self._shut:
            raise RuntimeError("cannot schedule new futures after shutdown")
        if chunksize is not None and chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        if not iterables:
            raise TypeError("map() takes at least one iterable")
        number = self._functions.number(fn)
        pool = self._pool
        if number is None:
            pickled = cloudpickle.dumps(self._carried(fn), protocol=5)
            mapper = self._mapper

            def submit(items: list[Any], star: bool) -> _native.Call:
                return pool.submit(mapper, (pickled, items, star), None, options)

        else:

            def submit(items: list[Any], star: bool) -> _native.Call:
                return pool.submit_map(number, items, star, options)

        bar = Progress(length_of(iterables)) if progress else None
        chunks = Chunks(self, pool, submit, iterables, width=self._width, chunksize=chunksize, progress=bar)
        chunks.fill()
        self._maps.add(chunks)
        return chunks

    def _initialize_with(self, wrap: Callable[[Any], Any]) -> None:
        """Wraps all functions called from now on, for an initializer."""
        register = self._register
        self._wrap = wrap
        self._functions = Functions(lambda fn: register(wrap(fn)))

    def _carried(self, fn: Any) -> Any:
        """Returns a function in the form that travels with its arguments."""
        return fn if self._wrap is None else self._wrap(fn)

    @property
    def _applier(self) -> int:
        return self._functions.fixed(_worker.apply)

    @property
    def _mapper(self) -> int:
        return self._functions.fixed(_worker.apply_map)

    @staticmethod
    def _milliseconds(deadline: float | None) -> int:
        if deadline is None:
            return 0
        if deadline <= 0:
            raise ValueError(f"deadline={deadline}: ask for a positive number of seconds")
        return max(1, min(round(deadline * 1000), 0xFFFFFFFF))

    def _check_open(self) -> None:
        if self._shut:
            raise RuntimeError("cannot use workers after the shutdown of their lease or fleet")

    def _with_options(
        self, deadline: float | None, idempotent: bool, worker: int | None, incarnation: int | None
    ) -> Calls:
        key = (deadline, idempotent, worker, incarnation)
        made = self._options.get(key)
        if made is None:
            made = _native.Options(
                deadline_ms=self._milliseconds(deadline), idempotent=idempotent, worker=worker, incarnation=incarnation
            )
            if len(self._options) < MAX_OPTIONS:
                self._options[key] = made
        return Calls(self, made)


def _register(native: _native.Lease | _native.Fleet, pool: _native.Pool, fn: Callable[..., Any]) -> int:
    code = native.put_code(PickledFunction(fn).code)
    return pool.register_python(code, PYTHON, cloudpickle.__version__, name_of(fn))
