"""The requests of a client for durable tasks."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal

from dayfly._codec.trust import TrustLike, trust_of
from dayfly._futures.coroutines import async_variant, iterate_in_thread, submit_and_await
from dayfly._tasks.function_client import FunctionClient

if TYPE_CHECKING:
    from dayfly._futures.future import Future
    from dayfly._tasks.batch import Batch
    from dayfly._tasks.registered import Registered


#: Hexadecimal digits of a complete id.
ID_DIGITS = 32
#: Seconds to wait until the manager has accepted a task, before its output is read.
_ACCEPTED = 60.0


class TaskClient(FunctionClient):
    """The part of `Client` that submits durable tasks, and finds them again."""

    def run(self, fn: Callable[..., Any] | Registered, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Submits a durable task and returns its future. The task runs even if this process ends.

        Args:
            fn: a callable or a registered function.
            args: positional arguments.
            kwargs: keyword arguments.
        """
        return self._executor().submit(fn, *args, **kwargs)

    def batch(self, /, tag: str | None = None, *, extend: bool = False, **options: Any) -> Batch:
        """Returns an empty batch of durable tasks: ``with client.batch() as batch: batch.submit(f, x)``.

        Args:
            tag: tag by which `tasks` finds the tasks again; random by default.
            extend: whether to allow a tag that already has tasks. The batch adds to them.
            options: as for `Executor`.

        Raises:
            dayfly.TagInUse: if the tag already has tasks and ``extend`` is False.
        """
        from dayfly._tasks.batch import new_batch

        return new_batch(self, tag, extend=extend, **options)

    def map(
        self,
        /,
        fn: Callable[..., Any] | Registered,
        *iterables: Iterable[Any],
        tag: str | None = None,
        extend: bool = False,
        **options: Any,
    ) -> Batch:
        """Submits a durable task for every item. When it returns, the manager has stored all of them on disk.

        Args:
            fn: the function. It takes as many arguments as there are iterables.
            iterables: sources of the arguments. The shortest determines the number of tasks.
            tag: tag by which `tasks` finds the tasks again; random by default.
            extend: whether to allow a tag that already has tasks. The new tasks are added to them.
            options: as for `Executor`.

        Returns:
            The batch of the submitted tasks.

        Raises:
            dayfly.TagInUse: if the tag already has tasks, for example because a script runs again, and ``extend`` is
                False.
            dayfly.Error: if the manager refused the first task.
            TimeoutError: if the manager has not accepted all tasks within an hour.
        """
        from dayfly._tasks.batch import map_batch

        return map_batch(self, fn, iterables, tag, extend=extend, **options)

    def tasks(self, tag: str, *, trust: TrustLike = None) -> Batch:
        """Returns the tasks of a tag, from any process or machine, for example after a crash.

        Args:
            tag: tag of the tasks.
            trust: tenants whose results are unpickled, as for `connect`.
        """
        from dayfly._tasks.batch import statuses

        batch = self.batch(tag, extend=True, trust=trust)
        executor = batch._executor
        batch.futures = executor._adopt(statuses(self, tag))
        return batch

    def task(self, task: str, *, trust: TrustLike = None) -> Future[Any]:
        """Returns the future of one task.

        Args:
            task: id of the task, or at least six digits of the beginning or end of its id, if they match only one of
                your tasks.
            trust: tenants whose results are unpickled, as for `connect`.

        Raises:
            dayfly.RequestError: ``not_found`` if no task matches, ``ambiguous`` if several do.
        """
        status = self.task_status(task)
        [future] = self._executor(status["tag"])._adopt([status])
        future._trust = trust_of(trust)
        return future

    def task_status(self, task: str | Future[Any]) -> dict[str, Any]:
        """Returns the state of a task and its timestamps, as the API's ``TaskStatus``.

        Args:
            task: id or future of the task.
        """
        status: dict[str, Any] = json.loads(self._native.get(f"/v1/tasks/{_id_of(task)}"))
        return status

    def loans(self, task: str | Future[Any]) -> dict[str, Any]:
        """Returns what the last execution of a task owned, used, lent and borrowed, as the API's ``TaskLoans``.

        Nodes that harvest (``--harvest watch`` or ``on``) measure executions of 20 ms and more on one worker, from the
        second one of a worker on. The manager has it a moment after the task's end, and keeps it with the outcome.

        Args:
            task: id or future of the task.

        Returns:
            ``us``, the measured time in microseconds; ``sums``, with ``core_us`` (microseconds of one core) and
            ``mib_s`` (MiB times seconds) of what was ``owned``, ``used``, ``lent`` and ``borrowed``; and ``points``: at
            most 64 spans of ``us`` microseconds that follow each other, with the same four as means in ``milli_cores``
            (thousandths of a core) and ``memory_bytes``.

        Raises:
            dayfly.RequestError: ``not_found`` with the reason if it is not known.
        """
        loans: dict[str, Any] = json.loads(self._native.get(f"/v1/tasks/{_id_of(task)}/loans"))
        return loans

    def _full_id(self, task: str | Future[Any]) -> str:
        """Returns the complete id of a task, given by its future, its id, or a beginning or end of its id."""
        given = _id_of(task)
        return given if len(given) == ID_DIGITS else str(self.task_status(given)["id"])

    def cancel(self, tasks: str | Future[Any] | Iterable[str | Future[Any]]) -> dict[str, int]:
        """Cancels those of the tasks that no worker has received. See `kill` for tasks that run.

        Args:
            tasks: one or several tasks, by id or future. `Batch.cancel` cancels all tasks of a tag.

        Returns:
            ``ended``, the number of tasks that never begin, and ``running``, the number of tasks that continue.
        """
        from dayfly._tasks.batch import end_tasks

        return end_tasks(self, {"tasks": [self._full_id(task) for task in _ids_of(tasks)], "only_waiting": True})

    def kill(self, tasks: str | Future[Any] | Iterable[str | Future[Any]]) -> dict[str, int]:
        """Ends tasks, including those that run.

        Args:
            tasks: one or several tasks, by id or future. `Batch.kill` ends all tasks of a tag.

        Returns:
            ``ended``, the number of tasks that never begin, and ``told``, the number of running tasks that are being
            ended.
        """
        from dayfly._tasks.batch import end_tasks

        return end_tasks(self, {"tasks": [self._full_id(task) for task in _ids_of(tasks)]})

    def forget(self, tasks: Iterable[str | Future[Any]] = (), *, tag: str | None = None) -> dict[str, int]:
        """Deletes ended tasks and their results before their retention expires.

        Args:
            tasks: ids or futures. Tasks that have not ended, or that other tasks depend on, are kept.
            tag: delete all tasks with this tag.

        Returns:
            ``forgotten``, the number of deleted tasks, and ``left``, the number of kept tasks.
        """
        spec = json.dumps({"tasks": [self._full_id(task) for task in tasks], "tag": tag})
        forgotten: dict[str, int] = json.loads(self._native.post("/v1/tasks/forget", spec))
        return forgotten

    def output(self, task: str | Future[Any], stream: Literal["out", "err"] | None = None) -> str:
        """Returns the output of a durable task so far. The manager keeps the last 64 KiB with the task's outcome.

        Args:
            task: id or future of the task.
            stream: ``out`` for standard output, ``err`` for standard error; both by default.

        Raises:
            TypeError: if the future belongs to a call of a lease. Use `Lease.output` instead.
        """
        from dayfly._output import task_output

        return "".join(text for _, text in task_output(self._native, _id_of(task), stream, follow=False))

    def follow(
        self, task: str | Future[Any], stream: Literal["out", "err"] | None = None
    ) -> Iterator[tuple[Literal["out", "err"], str]]:
        """Yields the output of a durable task as it appears, until the task ends: pairs of stream and text.

        The arguments are those of `output`.
        """
        from dayfly._output import task_output

        return task_output(self._native, _id_of(task), stream, follow=True)

    # Variants for asyncio

    amap = async_variant(map)
    atask = async_variant(task)
    atasks = async_variant(tasks)
    acancel = async_variant(cancel)
    akill = async_variant(kill)

    async def arun(self, fn: Callable[..., Any] | Registered, /, *args: Any, **kwargs: Any) -> Any:
        """Submits a durable task and awaits its result. Cancelling the wait cancels the task."""
        return await submit_and_await(lambda: self.run(fn, *args, **kwargs))

    @contextlib.asynccontextmanager
    async def abatch(self, tag: str | None = None, *, extend: bool = False, **options: Any) -> AsyncIterator[Batch]:
        """As `batch`, for ``async with``. On exit, the manager has accepted all tasks."""
        batch = await async_variant(TaskClient.batch)(self, tag, extend=extend, **options)
        try:
            yield batch
        finally:
            await async_variant(type(batch).flush)(batch)

    def afollow(
        self, task: str | Future[Any], stream: Literal["out", "err"] | None = None
    ) -> AsyncIterator[tuple[Literal["out", "err"], str]]:
        """As `follow`, for ``async for``."""
        return iterate_in_thread(lambda: self.follow(task, stream))


def _id_of(task: str | Future[Any]) -> str:
    """Returns the id of a task, once the manager has accepted the task."""
    if isinstance(task, str):
        return task
    named = task.id
    if not isinstance(named, str):
        raise TypeError("what calls of a lease print is `Lease.output`; this is for durable tasks")
    tasks: Any = task._pool
    tasks.flush(_ACCEPTED)
    return named


def _ids_of(tasks: str | Future[Any] | Iterable[str | Future[Any]]) -> list[str]:
    from dayfly._futures.future import Future

    some: Iterable[Any] = [tasks] if isinstance(tasks, (str, Future)) else tasks
    return [_id_of(task) for task in some]
