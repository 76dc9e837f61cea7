"""``map`` over a lease: packs items into invocations according to their measured cost."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sized
from typing import TYPE_CHECKING, Any

from dayfly._codec.trust import failed_item
from dayfly._futures.future import Future, FutureOwner
from dayfly._native import Call, Failure, Pool
from dayfly._worker import FailedItem

if TYPE_CHECKING:
    from dayfly._progress import Progress

#: Work in one invocation, in nanoseconds. Large compared to the overhead of an invocation (a few microseconds), small
#: compared to the time that an idle worker would waste at the end.
TARGET_NS = 500_000
#: Chunks in flight for each worker: one that runs, some that are queued, and results that wait for a slower chunk.
WINDOW = 8
#: Maximum factor by which a chunk is larger than the one whose cost was measured.
GROWTH = 16
MAX_ITEMS = 1 << 20
#: Results of chunks up to this size are released one by one as the caller takes them: each took a worker 2 us or more.
MAX_RELEASED_ITEMS = 256


class Chunks:
    """The state of one map: the chunks in flight, the remaining items, and the size of the next chunk."""

    def __init__(
        self,
        owner: FutureOwner,
        pool: Pool,
        submit: Callable[[list[Any], bool], Call],
        iterables: tuple[Iterable[Any], ...],
        *,
        width: Callable[[], int],
        chunksize: int | None,
        progress: Progress | None,
    ) -> None:
        self.owner = owner
        self.pool = pool
        self.submit = submit
        self.star = len(iterables) != 1
        self.items: Iterator[Any] = zip(*iterables, strict=False) if self.star else iter(iterables[0])
        self.size = chunksize or 1
        self.fixed = chunksize is not None
        #: Number of workers to keep busy. That of a fleet changes.
        self.width = width
        self.window = WINDOW * width()
        self.sent: deque[tuple[Call, int]] = deque()
        self.progress = progress
        self.exhausted = False
        self.started = False

    def fill(self, limit: int | None = None) -> None:
        """Sends chunks until ``limit`` of them are in flight; by default the window."""
        limit = self.window if limit is None else limit
        while not self.exhausted and len(self.sent) < limit:
            chunk = list(itertools.islice(self.items, self.size))
            if not chunk:
                self.exhausted = True
                return
            self.sent.append((self.submit(chunk, self.star), len(chunk)))

    def learn(self, cost_ns: int, items: int) -> None:
        """Adapts the size of the next chunk to the measured cost of the last one, and the window to the workers."""
        self.window = WINDOW * self.width()
        if self.fixed:
            return
        each = max(cost_ns / items, 1.0)
        wanted = min(int(TARGET_NS / each), items * GROWTH, MAX_ITEMS)
        # Shrink by half at most, so that one slow chunk does not lead to many tiny ones.
        self.size = max(1, wanted, self.size // 2 if wanted < self.size else 0)

    def accept(self, outcome: Any, items: int) -> tuple[bool, list[Any]]:
        """Returns whether any item of a chunk failed, and the results. Raises if the whole chunk failed."""
        if type(outcome) is Failure:
            raise outcome.error
        cost_ns, any_failed, results = outcome
        self.learn(cost_ns, items)
        if self.progress is not None:
            self.progress.advance(items)
        return any_failed, results

    def abandon(self) -> None:
        """Cancels chunks that no worker has received."""
        self.exhausted = True
        while self.sent:
            self.sent.popleft()[0].cancel()
        if self.progress is not None:
            self.progress.close()

    def send_rest(self) -> None:
        """Sends all remaining items, without waiting for results."""
        while not self.exhausted:
            self.fill(len(self.sent) + self.window)

    def __del__(self) -> None:
        # As with other executors, a map whose results nobody requested still runs to its end.
        if not self.started and not self.exhausted:
            try:
                self.send_rest()
            except Exception:
                return


def results(chunks: Chunks, timeout: float | None) -> Iterator[Any]:
    """Returns an iterator over the results in order, each chunk as soon as it and all before it have arrived."""
    until = None if timeout is None else time.monotonic() + timeout
    return itertools.chain.from_iterable(_by_chunk(chunks, until, timeout))


def _by_chunk(chunks: Chunks, until: float | None, timeout: float | None) -> Iterator[Iterable[Any]]:
    chunks.started = True
    pool = chunks.pool
    try:
        while True:
            chunks.fill()
            if not chunks.sent:
                return
            call, items = chunks.sent.popleft()
            outcome = call.wait(pool, None if until is None else until - time.monotonic())
            if outcome is NotImplemented:
                chunks.sent.appendleft((call, items))
                raise TimeoutError(f"the results did not come within {timeout} s")
            any_failed, values = chunks.accept(outcome, items)
            # Keep the workers busy while the caller processes these results.
            chunks.fill()
            if any_failed:
                yield from _until_failure(values)
            else:
                # Cheap items come in large chunks, for which keeping the references is faster.
                yield _released(values) if len(values) <= MAX_RELEASED_ITEMS else values
    finally:
        chunks.abandon()


def _released(values: list[Any]) -> Iterator[Any]:
    """Yields the values, and drops each reference before the caller receives the next value."""
    values.reverse()
    while values:
        yield values.pop()


def _until_failure(values: list[Any]) -> Iterator[list[Any]]:
    for index, value in enumerate(values):
        if type(value) is FailedItem:
            yield values[:index]
            raise failed_item(value)


async def async_results(chunks: Chunks) -> AsyncIterator[Any]:
    """As `results`, for asyncio."""
    chunks.started = True
    try:
        while True:
            chunks.fill()
            if not chunks.sent:
                return
            call, items = chunks.sent.popleft()
            future: Future[Any] = Future(call, chunks.pool, chunks.owner)
            cost_ns, _, values = await future
            chunks.learn(cost_ns, items)
            if chunks.progress is not None:
                chunks.progress.advance(items)
            chunks.fill()
            for value in _released(values):
                if type(value) is FailedItem:
                    raise failed_item(value)
                yield value
    finally:
        chunks.abandon()


def length_of(iterables: tuple[Iterable[Any], ...]) -> int | None:
    """Returns the number of items, or None if no iterable has a length."""
    lengths = [len(each) for each in iterables if isinstance(each, Sized)]
    return min(lengths) if lengths else None
