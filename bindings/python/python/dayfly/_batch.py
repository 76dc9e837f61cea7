"""Durable tasks that belong together, and are found again by their tag."""

from __future__ import annotations

import concurrent.futures as cf
import html
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast
from urllib.parse import quote

from dayfly._async import twin
from dayfly._errors import Error
from dayfly._future import Future
from dayfly._progress import Progress

if TYPE_CHECKING:
    from dayfly._client import Client
    from dayfly._tasks import Executor

T = TypeVar("T")

#: Where tasks may be, in the order of their lives.
STATES = ("queued", "waiting", "environment", "running", "done")
#: How the outcome of a task begins that the manager did not accept; see ``refused`` of the client library.
REFUSED = "the task was not accepted: "
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

    async def asubmit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """One more task, whose result is awaited. Where the wait is cancelled, so is the task."""
        from dayfly._async import submitted

        return await submitted(lambda: self.submit(fn, *args, **kwargs))

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

    def _raise_refused(self) -> None:
        """Raises what the manager refused the tasks for, if it did not accept the first."""
        if self.futures and self.futures[0].done() and not self.futures[0].cancelled():
            error = self.futures[0].exception()
            if isinstance(error, Error) and error.message.startswith(REFUSED):
                raise error

    def results(self, timeout: float | None = None, *, progress: bool = False) -> Iterator[Any]:
        """Results in the order of submission, each as soon as it and all before it are there.

        Args:
            timeout: seconds until all must have come.
            progress: whether to draw a bar on standard error.
        """
        return _drawn(self._results(timeout), len(self.futures) if progress else None)

    def _results(self, timeout: float | None) -> Iterator[Any]:
        until = None if timeout is None else time.monotonic() + timeout
        for future in self.futures:
            yield future.result(None if until is None else until - time.monotonic())

    def as_completed(self, timeout: float | None = None, *, progress: bool = False) -> Iterator[Future[Any]]:
        """Futures in the order in which they are done.

        Args:
            timeout: seconds until all must be.
            progress: whether to draw a bar on standard error.
        """
        completed = cf.as_completed(cast(list[cf.Future[Any]], self.futures), timeout)
        return _drawn(cast(Iterator[Future[Any]], completed), len(self.futures) if progress else None)

    def done(self) -> int:
        """How many have ended, as far as is known here."""
        return len(self.futures) - self._executor._pool.pending()

    def counts(self) -> dict[str, int]:
        """How many are where, by the manager: ``queued``, ``waiting``, ``environment``, ``running``, or ``done``."""
        counts = self._ask_counts()
        return {state: counts[state] for state in STATES}

    def times(self) -> dict[str, float]:
        """Seconds that its tasks have been in each state before ``done``, added up.

        What came before another attempt of a task counts as queued.
        """
        times = self._ask_counts()["times"]
        return {state: times[f"{state}_ms"] / 1000 for state in STATES[:-1]}

    def _ask_counts(self) -> dict[str, Any]:
        counts: dict[str, Any] = json.loads(
            self._client._native.get(f"/v1/tasks/counts?tag={quote(self.tag, safe='')}")
        )
        return counts

    def cancel(self) -> dict[str, int]:
        """Cancels all tasks that no worker has been given. How many never begin (``ended``), and how many run on
        (``running``). See `kill`.
        """
        self.flush()
        return self._client._end_tasks({"tag": self.tag, "only_waiting": True})

    def kill(self) -> dict[str, int]:
        """Ends all that have not ended, also those that run. How many never begin (``ended``), and how many are being
        ended (``told``).
        """
        self.flush()
        return self._client._end_tasks({"tag": self.tag})

    acancel = twin(cancel)
    akill = twin(kill)

    def __len__(self) -> int:
        return len(self.futures)

    def __iter__(self) -> Iterator[Any]:
        return self.results()

    async def __aiter__(self) -> AsyncIterator[Any]:
        """Results in the order of submission, each awaited. Tasks go on where nobody waits any more."""
        from dayfly._async import ended

        for future in self.futures:
            yield await ended(future, cancels=False)

    def __getitem__(self, index: int) -> Future[Any]:
        return self.futures[index]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.flush()

    def __repr__(self) -> str:
        return f"<dayfly.Batch {self.tag!r}: {self.done()} of {len(self)} done>"

    def _repr_html_(self) -> str:
        done, count = self.done(), max(1, len(self))
        try:
            counts = self._ask_counts()
        except Error:
            # What is known here is shown without a manager, too.
            counts = {}
        named = [f"{counts[name]} {name}" for name in ("running", "failed") if counts.get(name)]
        return (
            f"<div>{html.escape(self.tag)}: {done} of {len(self)} tasks done<br>"
            f'<progress value="{done}" max="{count}" style="width: 20em"></progress> {", ".join(named)}</div>'
        )


def _drawn(given: Iterator[T], total: int | None) -> Iterator[T]:
    """The same, with a bar that says how many of so many there were; without one if it is not known."""
    bar = None if total is None else Progress(total)
    try:
        for one in given:
            if bar is not None:
                bar.advance(1)
            yield one
    finally:
        if bar is not None:
            bar.close()


def statuses(client: Client, tag: str) -> list[dict[str, Any]]:
    """All tasks of a tag, the earliest first."""
    found: list[dict[str, Any]] = []
    before = ""
    while True:
        page = json.loads(client._native.get(f"/v1/tasks?tag={quote(tag, safe='')}&limit={PAGE}{before}"))
        found += page
        if len(page) < PAGE:
            found.reverse()
            return found
        before = f"&before={page[-1]['id']}"
