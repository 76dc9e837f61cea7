"""Ways to call functions on leased workers: calls with options, and handles of functions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from dayfly import _native
from dayfly._errors import Error
from dayfly._futures.future import Future, failed_future
from dayfly._leases.chunks import results

if TYPE_CHECKING:
    from dayfly._leases.call_target import CallTarget

P = ParamSpec("P")
T = TypeVar("T")


class Calls:
    """A lease or fleet with options for its calls. Created by `Lease.options` and `Fleet.options`."""

    def __init__(self, lease: CallTarget, options: _native.Options) -> None:
        self._lease = lease
        self._options = options

    def _known(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> tuple[int, tuple[Any, ...]]:
        lease = self._lease
        if lease._shut:
            raise RuntimeError("cannot schedule new futures after shutdown")
        number = lease._functions.number(fn)
        return (lease._applier, (lease._carried(fn), *args)) if number is None else (number, args)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """As `Lease.submit`."""
        lease = self._lease
        if lease._shut:
            raise RuntimeError("cannot schedule new futures after shutdown")
        pool = lease._pool
        try:
            number, arguments = self._known(fn, args)
            return Future(pool.submit(number, arguments, kwargs, self._options), pool, lease)
        except Error:
            raise
        except Exception as error:
            return failed_future(error, pool, lease)

    def call(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """As `Lease.call`."""
        number, arguments = self._known(fn, args)
        result: T = self._lease._pool.call(number, arguments, kwargs, self._options)
        return result

    async def asubmit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """As `Lease.asubmit`."""
        return await self.submit(fn, *args, **kwargs)

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int | None = None,
        progress: bool = False,
    ) -> Iterator[T]:
        """As `Lease.map`. The deadline applies to each invocation."""
        return results(self._lease._chunks(fn, iterables, chunksize, progress, self._options), timeout)


class Function(Generic[P, T]):
    """A function that runs on leased workers. Created by `Lease.function` and `Fleet.function`."""

    def __init__(self, lease: CallTarget, fn: Callable[P, T]) -> None:
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
