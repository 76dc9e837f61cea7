"""Streams: what a function in a worker yields, as an iterator of the caller."""

from __future__ import annotations

import concurrent.futures as cf
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast

from dayfly import _failures, _worker_streams
from dayfly._codec.trust import unpack_exception
from dayfly._errors import CallError, Error, StateLost
from dayfly._futures.future import Future

if TYPE_CHECKING:
    from types import TracebackType

    from dayfly._leases.calls import Calls, CallTarget
    from dayfly._worker_streams import Part

T = TypeVar("T")

#: Errors of a call whose worker is gone, and the state of the function with it.
LOST = frozenset({"state_lost", "maybe_executed", "not_executed"})
#: Maximum number of items of one call.
MAX_ITEMS = 10_000


class Stream(Generic[T], Iterator[T], AsyncIterator[T]):
    """The items that a function yields in a worker, in order. Created by `Lease.stream`.

    The worker is at most one part ahead of the caller: about half a millisecond of work, 1 MiB of arrays, or one item
    that takes longer. Between parts it serves other calls. Iterate with ``for`` or ``async for``, from one thread at a
    time. Use the stream as a context manager, or call `close`, to end the function early.
    """

    def __init__(self, lease: CallTarget, worker: int, calls: Calls, most: int) -> None:
        self._lease = lease
        self._worker = worker
        self._calls = calls
        self._most = most
        self._number: int | None = None
        self._items: deque[T] = deque()
        self._error: BaseException | None = None
        self._next: Future[Any] | None = None
        self._taken = 0

    @property
    def worker(self) -> int:
        """Number of the worker that has the function's state."""
        return self._worker

    def _start(self, fn: Callable[..., Iterable[T]], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._next = self._calls.submit(_worker_streams.start, self._most, self._lease._carried(fn), *args, **kwargs)

    def _accept(self, outcome: Any) -> None:
        """Takes a part, and requests the next one, which the worker computes while the caller uses this one."""
        if self._number is None:
            self._number, part = outcome
        else:
            part = outcome
        items, is_over, packed = cast("Part", part)
        self._items.extend(items)
        self._next = None
        if packed is not None:
            client = self._lease._client
            is_foreign = client is not None and bool(client._foreign)
            self._error = unpack_exception(packed) if is_foreign else _failures.unpack_exception(packed)
        elif not is_over:
            self._next = self._calls.submit(_worker_streams.advance, self._number, self._most)

    def _fail(self, error: BaseException) -> BaseException:
        self._next = None
        if isinstance(error, CallError) and error.code in LOST:
            text = f"the worker of this stream was lost after {self._taken} items: {error.message}"
            return StateLost(text, "state_lost")
        return error

    def _pop(self) -> T:
        self._taken += 1
        return self._items.popleft()

    def _end(self) -> BaseException | None:
        """Returns the exception of the function, once."""
        error, self._error = self._error, None
        return error

    def __next__(self) -> T:
        while not self._items:
            if self._next is None:
                error = self._end()
                raise StopIteration if error is None else error
            try:
                outcome = self._next.result()
            except Exception as error:
                raise self._fail(error) from error.__cause__
            self._accept(outcome)
        return self._pop()

    async def __anext__(self) -> T:
        while not self._items:
            if self._next is None:
                error = self._end()
                raise StopAsyncIteration if error is None else error
            try:
                outcome = await self._next
            except Exception as error:
                raise self._fail(error) from error.__cause__
            self._accept(outcome)
        return self._pop()

    def __iter__(self) -> Self:
        return self

    def __aiter__(self) -> Self:
        return self

    def close(self) -> None:
        """Ends the function, and drops items that were not taken. Idempotent."""
        ahead, self._next = self._next, None
        self._items.clear()
        self._error = None
        if ahead is None or self._lease._shut:
            return
        if self._number is None:
            # The number comes with the first part.
            ahead.add_done_callback(self._close_started)
            return
        ahead.cancel()
        self._close(self._number)

    def _close_started(self, started: cf.Future[Any]) -> None:
        if not started.cancelled() and started.exception() is None:
            self._close(started.result()[0])

    def _close(self, number: int) -> None:
        if not self._lease._shut:
            self._calls.submit(_worker_streams.close, number)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        try:
            self.close()
        except (Error, RuntimeError):
            # The lease ends, and its worker with it.
            return

    def __repr__(self) -> str:
        return f"<dayfly.Stream of worker {self._worker}, {self._taken} items taken>"
