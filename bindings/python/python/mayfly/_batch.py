"""Durable tasks that belong together, and are found again by their tag."""

from __future__ import annotations

import concurrent.futures as cf
import html
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from mayfly._future import Future
from mayfly._progress import Progress

if TYPE_CHECKING:
    from mayfly._client import Client
    from mayfly._tasks import Executor

#: Where tasks may be, in the order of their lives.
STATES = ("queued", "waiting", "environment", "running", "done")
#: Tasks that are listed in one request.
PAGE = 10_000


class Batch:
    """Tasks with one tag, in the order of their submission. Made by `Client.batch`, `Client.map` and `Client.tasks`.

    Leaving it, or the process, leaves the tasks alone: they run to their end, and ``client.tasks(tag)`` finds them.
    """

    def __init__(self, client: Client, executor: Executor, futures: list[Future[Any]]) -> None:
        self._client = client
        self._executor = executor
        self.futures = futures

    @property
    def tag(self) -> str:
        """What its tasks have in common."""
        return self._executor.tag

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """One more task."""
        future = self._executor.submit(fn, *args, **kwargs)
        self.futures.append(future)
        return future

    def extend(self, fn: Callable[..., Any], *iterables: Iterable[Any]) -> None:
        """One more task for every item."""
        submit = self._executor.submit
        self.futures.extend([submit(fn, *args) for args in zip(*iterables, strict=False)])

    def flush(self, timeout: float = 60.0) -> None:
        """Returns once the manager has all that was submitted on its disk.

        Raises:
            TimeoutError: after so many seconds.
        """
        if not self._executor._pool.flush(timeout):
            raise TimeoutError(f"the manager did not accept all tasks within {timeout} s")

    def results(self, timeout: float | None = None, *, progress: bool = False) -> Iterator[Any]:
        """Results in the order of submission, each as soon as it and all before it are there.

        Args:
            timeout: seconds until all must have come.
            progress: whether to draw a bar on standard error.
        """
        until = None if timeout is None else time.monotonic() + timeout
        bar = Progress(len(self.futures)) if progress else None
        try:
            for future in self.futures:
                yield future.result(None if until is None else until - time.monotonic())
                if bar is not None:
                    bar.advance(1)
        finally:
            if bar is not None:
                bar.close()

    def as_completed(self, timeout: float | None = None) -> Iterator[Future[Any]]:
        """Futures in the order in which they are done."""
        return cast(Iterator[Future[Any]], cf.as_completed(cast(list[cf.Future[Any]], self.futures), timeout))

    def done(self) -> int:
        """How many have ended, as far as is known here."""
        return len(self.futures) - self._executor._pool.pending()

    def counts(self) -> dict[str, int]:
        """How many are where, by the manager: ``queued``, ``waiting``, ``environment``, ``running``, or ``done``."""
        counts = dict.fromkeys(STATES, 0)
        for status in statuses(self._client, self.tag):
            counts[status["state"]] += 1
        return counts

    def times(self) -> dict[str, float]:
        """Seconds that its tasks have been in each state before ``done``, added up.

        What came before another attempt of a task counts as queued.
        """
        spent = dict.fromkeys(STATES[:-1], 0.0)
        now_ms = time.time() * 1000
        for status in statuses(self._client, self.tag):
            until = status["ended_at_ms"] or now_ms
            marks = (status[f"{came}_at_ms"] for came in ("started", "environment", "waiting", "submitted"))
            for state, mark in zip(reversed(spent), marks, strict=True):
                if mark > 0:
                    spent[state] += max(0.0, until - mark) / 1000
                    until = mark
        return spent

    def cancel(self) -> dict[str, int]:
        """Ends all that have not ended. How many had not begun, and how many were told to end."""
        self.flush()
        cancelled: dict[str, int] = json.loads(
            self._client._native.post("/v1/tasks/cancel", json.dumps({"tag": self.tag}))
        )
        return cancelled

    def __len__(self) -> int:
        return len(self.futures)

    def __iter__(self) -> Iterator[Any]:
        return self.results()

    async def __aiter__(self) -> AsyncIterator[Any]:
        """Results in the order of submission, each awaited."""
        for future in self.futures:
            yield await future

    def __getitem__(self, index: int) -> Future[Any]:
        return self.futures[index]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.flush()

    def __repr__(self) -> str:
        return f"<mayfly.Batch {self.tag!r}: {self.done()} of {len(self)} done>"

    def _repr_html_(self) -> str:
        done, count = self.done(), max(1, len(self))
        return (
            f"<div>{html.escape(self.tag)}: {done} of {len(self)} tasks done<br>"
            f'<progress value="{done}" max="{count}" style="width: 20em"></progress></div>'
        )


def statuses(client: Client, tag: str) -> list[dict[str, Any]]:
    """All tasks of a tag, the earliest first."""
    from urllib.parse import quote

    found: list[dict[str, Any]] = []
    before = ""
    while True:
        page = json.loads(client._native.get(f"/v1/tasks?tag={quote(tag, safe='')}&limit={PAGE}{before}"))
        found += page
        if len(page) < PAGE:
            found.reverse()
            return found
        before = f"&before={page[-1]['id']}"
