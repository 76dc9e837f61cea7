"""A decorator for functions that run as durable tasks."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

if TYPE_CHECKING:
    from dayfly._connection import Connection
    from dayfly._futures.future import Future
    from dayfly._tasks.batch import Batch
    from dayfly._tasks.executor import Executor

P = ParamSpec("P")
T = TypeVar("T")


class Durable(Generic[P, T]):
    """A function that can be called here, or submitted as a durable task. Created by `durable`."""

    def __init__(self, fn: Callable[P, T], options: dict[str, Any]) -> None:
        self._fn = fn
        self._given: Connection | None = options.pop("client", None)
        self._options = options
        self._lock = threading.Lock()
        # The child of a fork needs connections of its own.
        self._pid = 0
        self._client: Connection | None = None
        self._executor: Executor | None = None
        functools.update_wrapper(self, fn)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls the function in this process."""
        return self._fn(*args, **kwargs)

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Submits a task and returns its future."""
        return self._connected()[1].submit(self._fn, *args, **kwargs)

    async def asubmit(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Submits a task and awaits its result."""
        return await self._connected()[1].asubmit(self._fn, *args, **kwargs)

    def map(self, *iterables: Iterable[Any], tag: str | None = None, extend: bool = False) -> Batch:
        """Submits a task for every item; see `Client.map`."""
        from dayfly._tasks.batch import map_batch

        return map_batch(self._connected()[0], self._fn, iterables, tag, extend=extend, **self._options)

    def _connected(self) -> tuple[Connection, Executor]:
        with self._lock:
            if self._client is None or self._executor is None or self._pid != os.getpid():
                # A worker that receives such a function imports this module.
                from dayfly._connection import Connection
                from dayfly._tasks.executor import Executor

                self._pid, self._client = os.getpid(), self._given or Connection._open()
                self._executor = Executor(client=self._client, **self._options)
            return self._client, self._executor

    def __reduce__(self) -> tuple[Any, ...]:
        # The connection is not pickled.
        return Durable, (self._fn, dict(self._options))

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        # A method is called in this process, as any other.
        return self if instance is None else self._fn.__get__(instance, owner)

    def __repr__(self) -> str:
        return f"<dayfly.durable {getattr(self._fn, '__qualname__', self._fn)!r}>"


@overload
def durable(fn: Callable[P, T], /) -> Durable[P, T]: ...
@overload
def durable(**options: Any) -> Callable[[Callable[P, T]], Durable[P, T]]: ...
def durable(fn: Callable[P, T] | None = None, /, **options: Any) -> Any:
    """Decorates a function so that it can be submitted as a durable task, with these options.

    >>> @durable(endpoint="cluster", walltime=60, repeatable=True)
    ... def area(width, height):
    ...     return width * height
    >>> area(6, 7)
    42
    >>> area.submit(6, 7).result()  # doctest: +SKIP
    42
    >>> list(area.map(range(3), range(3)))  # doctest: +SKIP
    [0, 1, 4]

    Args:
        fn: the function, if the decorator is used without options.
        options: as for `Executor`.
    """
    if fn is not None:
        return Durable(fn, {})
    return lambda fn: Durable(fn, dict(options))
