"""Batches: durable tasks with a common tag, by which they are found again."""

from __future__ import annotations

import concurrent.futures as cf
import html
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar, cast
from urllib.parse import quote

from dayfly._connection import Connection
from dayfly._errors import ConnectionFailed, Error, TagInUse
from dayfly._futures.coroutines import async_variant, submit_and_await
from dayfly._futures.future import Future, await_task
from dayfly._progress import Progress
from dayfly._tasks.executor import Executor

T = TypeVar("T")

#: States of a task, in the order of its life.
STATES = ("queued", "waiting", "environment", "running", "done")
#: Prefix of the message of a task that the manager refused; see ``refused`` in the client library.
REFUSED = "the task was not accepted: "
#: Tasks in one page of a listing.
PAGE = 10_000


class Batch:
    """Tasks with one tag, in the order of submission. Created by `Client.batch`, `Client.map` and `Client.tasks`.

    The tasks run to their end even if the batch or the process ends. ``client.tasks(tag)`` finds them again.

    Attributes:
        futures: the futures of the tasks.
    """

    def __init__(self, client: Connection, executor: Executor, futures: list[Future[Any]]) -> None:
        self._client = client
        self._executor = executor
        self.futures = futures

    @property
    def tag(self) -> str:
        """The common tag of the tasks."""
        return self._executor.tag

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Submits one more task and returns its future."""
        future = self._executor.submit(fn, *args, **kwargs)
        self.futures.append(future)
        return future

    async def asubmit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Submits one more task and awaits its result. Cancelling the wait cancels the task."""
        return await submit_and_await(lambda: self.submit(fn, *args, **kwargs))

    def extend(self, fn: Callable[..., Any], *iterables: Iterable[Any]) -> None:
        """Submits one more task for every item.

        Args:
            fn: the function. It takes as many arguments as there are iterables.
            iterables: sources of the arguments. The shortest determines the number of tasks.
        """
        submit = self._executor.submit
        self.futures.extend([submit(fn, *args) for args in zip(*iterables, strict=False)])

    def flush(self, timeout: float = 60.0) -> None:
        """Waits until the manager has stored all submitted tasks on disk.

        Args:
            timeout: seconds to wait.

        Raises:
            TimeoutError: after ``timeout`` seconds.
        """
        if not self._executor._pool.flush(timeout):
            raise TimeoutError(f"the manager did not accept all tasks within {timeout} s")

    def _raise_refused(self) -> None:
        """Raises the manager's error if the manager refused the first task."""
        if self.futures and self.futures[0].done() and not self.futures[0].cancelled():
            error = self.futures[0].exception()
            if isinstance(error, Error) and error.message.startswith(REFUSED):
                raise error

    def results(self, timeout: float | None = None, *, progress: bool = False) -> Iterator[Any]:
        """Yields the results in the order of submission, each as soon as it and all before it have arrived.

        Args:
            timeout: seconds until all results must have arrived; None for no limit.
            progress: whether to draw a progress bar on standard error.

        Raises:
            TimeoutError: if a result is not there in time.
            Exception: the exception of a task, in place of its result.
        """
        return _with_progress(self._results(timeout), len(self.futures) if progress else None)

    def _results(self, timeout: float | None) -> Iterator[Any]:
        until = None if timeout is None else time.monotonic() + timeout
        for future in self.futures:
            yield future.result(None if until is None else until - time.monotonic())

    def as_completed(self, timeout: float | None = None, *, progress: bool = False) -> Iterator[Future[Any]]:
        """Yields the futures in the order in which they end.

        Args:
            timeout: seconds until all futures must have ended; None for no limit.
            progress: whether to draw a progress bar on standard error.

        Raises:
            TimeoutError: if not all futures have ended in time.
        """
        completed = cf.as_completed(cast(list[cf.Future[Any]], self.futures), timeout)
        return _with_progress(cast(Iterator[Future[Any]], completed), len(self.futures) if progress else None)

    def done(self) -> int:
        """Returns the number of ended tasks, as far as this process knows. Does not ask the manager."""
        return len(self.futures) - self._executor._pool.pending()

    def counts(self) -> dict[str, int]:
        """Asks the manager for the number of tasks in each state.

        The states are ``queued``, ``waiting``, ``environment``, ``running`` and ``done``.
        """
        counts = self._ask_counts()
        return {state: counts[state] for state in STATES}

    def times(self) -> dict[str, float]:
        """Returns the seconds that the tasks have spent in each state before ``done``, in total.

        Time before the last attempt of a task counts as queued.
        """
        times = self._ask_counts()["times"]
        return {state: times[f"{state}_ms"] / 1000 for state in STATES[:-1]}

    def _ask_counts(self) -> dict[str, Any]:
        counts: dict[str, Any] = json.loads(
            self._client._native.get(f"/v1/tasks/counts?tag={quote(self.tag, safe='')}")
        )
        return counts

    def cancel(self) -> dict[str, int]:
        """Cancels all tasks that no worker has received. See `kill` for tasks that run.

        Returns:
            ``ended``, the number of tasks that never begin, and ``running``, the number of tasks that continue.
        """
        self.flush()
        return end_tasks(self._client, {"tag": self.tag, "only_waiting": True})

    def kill(self) -> dict[str, int]:
        """Ends all tasks that have not ended, including those that run.

        Returns:
            ``ended``, the number of tasks that never begin, and ``told``, the number of running tasks that are being
            ended.
        """
        self.flush()
        return end_tasks(self._client, {"tag": self.tag})

    acancel = async_variant(cancel)
    akill = async_variant(kill)

    def __len__(self) -> int:
        return len(self.futures)

    def __iter__(self) -> Iterator[Any]:
        return self.results()

    async def __aiter__(self) -> AsyncIterator[Any]:
        """Yields the results in the order of submission. The tasks continue if the iteration is abandoned."""
        for future in self.futures:
            yield await await_task(future, cancels=False)

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
            # Without a manager, show the local counts only.
            counts = {}
        named = [f"{counts[name]} {name}" for name in ("running", "failed") if counts.get(name)]
        return (
            f"<div>{html.escape(self.tag)}: {done} of {len(self)} tasks done<br>"
            f'<progress value="{done}" max="{count}" style="width: 20em"></progress> {", ".join(named)}</div>'
        )


def _with_progress(given: Iterator[T], total: int | None) -> Iterator[T]:
    """Yields the given values, and draws a progress bar if ``total`` is not None."""
    bar = None if total is None else Progress(total)
    try:
        for one in given:
            if bar is not None:
                bar.advance(1)
            yield one
    finally:
        if bar is not None:
            bar.close()


def statuses(client: Connection, tag: str) -> list[dict[str, Any]]:
    """Returns the statuses of all tasks of a tag, the earliest first."""
    found: list[dict[str, Any]] = []
    before = ""
    while True:
        page = json.loads(client._native.get(f"/v1/tasks?tag={quote(tag, safe='')}&limit={PAGE}{before}"))
        found += page
        if len(page) < PAGE:
            found.reverse()
            return found
        before = f"&before={page[-1]['id']}"


def new_batch(client: Connection, tag: str | None, *, extend: bool, **options: Any) -> Batch:
    """Returns an empty batch. The arguments are those of `Client.batch`."""
    if tag is not None and not extend:
        _check_tag(client, tag)
    return Batch(client, Executor(client=client, tag=tag, **options), [])


def map_batch(
    client: Connection, fn: Any, iterables: tuple[Iterable[Any], ...], tag: str | None, *, extend: bool, **options: Any
) -> Batch:
    """Submits a task for every item, and waits until the manager has stored all of them. See `Client.map`."""
    batch = new_batch(client, tag, extend=extend, **options)
    batch.extend(fn, *iterables)
    batch.flush(timeout=3600.0)
    batch._raise_refused()
    return batch


def _check_tag(client: Connection, tag: str) -> None:
    """Raises `TagInUse` if a tag already has tasks."""
    try:
        counts = json.loads(client._native.get(f"/v1/tasks/counts?tag={quote(tag, safe='')}"))
    except ConnectionFailed:
        # Submitted tasks wait for the manager.
        return
    count = sum(counts[state] for state in ("queued", "waiting", "environment", "running", "done"))
    if count:
        raise TagInUse(
            f"the tag {tag!r} has {count:,} tasks already, {counts['done']:,} of them done: client.tasks({tag!r}) "
            "has them. Add extend=True to submit more tasks with this tag, or take another",
            "invalid_request",
        )


def end_tasks(client: Connection, which: dict[str, Any]) -> dict[str, int]:
    """Ends tasks. Returns how many, as `Client.cancel` and `Client.kill` do."""
    ended: dict[str, int] = json.loads(client._native.post("/v1/tasks/cancel", json.dumps(which)))
    return ended
