"""Executors of durable tasks, which the manager stores and an endpoint runs, and of calls on leased workers.

Both are in this module, because ``Executor(durable=False)`` makes the other one.
"""

from __future__ import annotations

import concurrent.futures as cf
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, cast
from urllib.parse import quote

from dayfly import _native
from dayfly._codec.trust import TrustLike, merged_trust, trust_of, untrusted_owners
from dayfly._connection import Connection
from dayfly._errors import Error
from dayfly._functions.environment import EnvironmentLike, environment_of
from dayfly._functions.initializer import wrapper
from dayfly._functions.kinds import Program
from dayfly._futures.coroutines import async_variant, submit_and_await
from dayfly._futures.future import Future, await_task
from dayfly._leases.chunks import async_results
from dayfly._leases.client import LeaseClient
from dayfly._leases.defaults import Borrow, Placement
from dayfly._tasks.options import check_endpoint, task_options, workers_of
from dayfly._tasks.registered import Registered
from dayfly._tasks.submission import TaskSubmitter, in_order, unchunked, values_of

P = ParamSpec("P")
T = TypeVar("T")

#: The endpoint whose nodes belong to the client's own manager.
LOCAL = "local"
#: Seconds to wait for capacity and for the environment.
WAIT = 1800.0


class Executor(TaskSubmitter, cf.Executor):
    """Durable tasks as a `concurrent.futures.Executor`.

    The manager stores submitted tasks on disk, and the endpoint runs them even if this process ends. Each task ends in
    exactly one outcome. All tasks of an executor have the same tag, by which `Client.tasks` finds them.

    Args:
        endpoint: name of the endpoint that runs the tasks, one of `Client.endpoints`; by default the endpoint of
            ``dayfly up``, or the only one there is.
        client: client of the manager to use; by default a connection of its own, made as by `dayfly.connect`.
        durable: whether tasks outlive this process. If False, calls go directly to ``workers`` workers that this
            executor leases, in microseconds, and end with it. Options for durable tasks only (tag, priority,
            deadline, retries, memoize) are then refused.
        workers: number of workers to lease if ``durable`` is False; by default the number of free cores.
        tag: common tag of the tasks; random by default.
        priority: tasks of yours with a higher priority run first; -128 to 127.
        deadline: seconds from submission until a task must have ended. It is then ended.
        walltime: maximum seconds of one execution. The execution is then killed with all its processes.
        retries: how many times a task is executed again if the function raises.
        retry_wait: seconds before the first retry, at most 3600. The wait doubles with each further retry.
        repeatable: whether a task may be executed again if it may have been executed already, for example by a node
            that was lost.
        memoize: whether a task may take the result of an earlier task of yours with the same function and arguments.
            A task submitted while the earlier one runs waits for it.
        environment: packages for functions that are not registered, as for `Client.register`.
        image: container image for functions that are not registered.
        cores: cores of the worker, such as 0.5, for functions that are not registered, as all options below.
        memory: bytes of memory of the worker; 0 for the node's default share.
        gpus: GPUs of the worker, which sees no others.
        lend: whether executions lend cores and memory that they do not use, as for `Client.lease`.
        borrow: what executions may borrow, as for `Client.lease`.
        ranks: number of workers that each task has at the same time, all or none. Each worker calls the function,
            where ``MPI.COMM_WORLD`` of ``dayfly.MPI`` connects them. The result is the list of the ranks' results.
        placement: placement of the ranks on nodes, as for `Client.gang`.
        source: whether to send functions as source text, as for `Client.register`.
        max_workers: the same as ``workers``, as other executors name it.
        initializer: function that each worker calls before its first call of this executor. If it raises, calls
            fail with `InitializerFailed`, a ``concurrent.futures.BrokenExecutor``, and the executor accepts no more.
        initargs: arguments of the initializer.
        max_tasks_per_child: not supported: workers are not replaced after a number of tasks.
        trust: other tenants whose results this process unpickles, in addition to those that the client trusts, as
            for `dayfly.connect`.

    Raises:
        ValueError: if options do not fit together, or a value is out of range.
        dayfly.RequestError: ``not_found`` if there is no such endpoint.
    """

    def __new__(cls, *_: Any, durable: bool = True, **__: Any) -> Self:
        if durable or cls is not Executor:
            return super().__new__(cls)
        return cast(Self, super().__new__(DirectExecutor))

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        client: Connection | None = None,
        durable: bool = True,
        workers: int | None = None,
        tag: str | None = None,
        priority: int = 0,
        deadline: float | None = None,
        walltime: float | None = None,
        retries: int = 0,
        retry_wait: float = 0.0,
        repeatable: bool = False,
        memoize: bool = False,
        environment: EnvironmentLike = None,
        image: str | None = None,
        cores: float = 1,
        memory: int = 0,
        gpus: int = 0,
        lend: bool = True,
        borrow: Borrow = "cpu",
        ranks: int = 0,
        placement: Placement | None = None,
        source: bool = False,
        max_workers: int | None = None,
        max_tasks_per_child: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        trust: TrustLike = None,
    ) -> None:
        check_endpoint(endpoint)
        _native.check_cores(cores)
        if workers_of(workers, max_workers, max_tasks_per_child) is not None:
            named = f"workers={workers}" if max_workers is None else f"max_workers={max_workers}"
            raise ValueError(
                f"{named}: an endpoint decides how many run durable tasks; add durable=False, or leave it out"
            )
        wrap = wrapper(initializer, initargs)
        if source and wrap is not None:
            raise ValueError("initializer= goes with pickled functions: leave it out, or source=True")
        self._own_client = client is None
        if client is None:
            client = Connection._open()
        if endpoint is not None:
            try:
                client._check_endpoint(endpoint)
            except BaseException:
                if self._own_client:
                    client.close()
                raise
        given = {
            "environment": environment is not None,
            "image": image is not None,
            "cores": cores != 1,
            "memory": memory != 0,
            "gpus": gpus != 0,
            "lend": not lend,
            "borrow": borrow != "cpu",
            "ranks": ranks != 0,
            "placement": placement is not None,
            "source": source,
            "initializer": initializer is not None,
        }
        self._begin(
            client,
            client._native.tasks(tag, endpoint),
            task_options(
                priority=priority,
                deadline=deadline,
                walltime=walltime,
                retries=retries,
                retry_wait=retry_wait,
                repeatable=repeatable,
                memoize=memoize,
            ),
            merged_trust(client._trust, trust_of(trust)),
            wrap=wrap,
            source=source,
            about={
                "environment": environment_of(environment),
                "image": image,
                "cores": cores,
                "memory": memory,
                "gpus": gpus,
                "lend": lend,
                "borrow": borrow,
                "ranks": ranks,
                "placement": placement,
            },
            given=[name for name, is_given in given.items() if is_given],
        )
        client._keep(self)

    @property
    def tag(self) -> str:
        """The common tag of the tasks."""
        return self._pool.tag()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Submits a task and returns its future.

        Arguments may contain futures of other tasks, also inside lists and other containers. The task then waits until
        those have ended, and receives their results, which do not travel through this process. If one of them fails,
        this task fails with `DependencyFailed`.

        Args:
            fn: a callable or a registered function.
            args: positional arguments.
            kwargs: keyword arguments.

        Raises:
            RuntimeError: after `shutdown`.
            ValueError: if an option of this executor conflicts with a registered function.
            dayfly.Error: if the task cannot be submitted. If its arguments cannot be pickled, the future raises
            instead.
        """
        return self._submit(fn, args, kwargs, self._options)

    async def asubmit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Submits a task and awaits its result. Cancelling the wait cancels the task."""
        return await submit_and_await(lambda: self.submit(fn, *args, **kwargs))

    def map(
        self, fn: Callable[..., T], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1
    ) -> Iterator[T]:
        """Submits a task for every item, or for every ``chunksize`` items, and returns an iterator over the results.

        All tasks are submitted at once, and run to their end even if this process ends. Results come in order.

        Args:
            fn: the function. It takes as many arguments as there are iterables.
            iterables: sources of the arguments.
            timeout: seconds until all results must have arrived; None for no limit.
            chunksize: items in one task.

        Raises:
            TimeoutError: from the iterator, if a result is not there in time.
        """
        futures, is_chunked = self._mapped(fn, iterables, chunksize)
        return unchunked(futures, timeout) if is_chunked else in_order(futures, timeout)

    async def amap(self, fn: Callable[..., T], *iterables: Iterable[Any], chunksize: int = 1) -> AsyncIterator[T]:
        """As `map`, for ``async for``. All tasks are submitted when the first result is requested."""
        futures, is_chunked = await async_variant(Executor._mapped)(self, fn, iterables, chunksize)
        futures.reverse()
        while futures:
            # The tasks continue if the iteration is abandoned.
            result = await await_task(futures.pop(), cancels=False)
            for one in values_of(result) if is_chunked else (result,):
                yield one

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the executor. Its tasks continue unless they are cancelled.

        Args:
            wait: whether to return only when all tasks have ended. If False, it returns as soon as the manager has
                accepted them.
            cancel_futures: whether to cancel tasks that no worker has received. Running tasks continue.
        """
        with self._lock:
            if self._shut:
                return
            self._shut = True
        if cancel_futures:
            self._pool.cancel_all()
        if wait:
            self._pool.drain()
        self._pool.close()
        if self._helper is not threading.current_thread():
            self._helper.join()
        if self._own_client:
            self._client.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        if kind is KeyboardInterrupt:
            self._interrupt()
        self.shutdown(wait=True)
        return None

    def __repr__(self) -> str:
        return (
            f"<dayfly.Executor {self.tag!r}: {self._submitted - self._pool.pending()} of {self._submitted} tasks done>"
        )


class DirectExecutor(Executor):
    """The executor that ``Executor(durable=False)`` returns; see `Executor`."""

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        client: LeaseClient | None = None,
        durable: bool = False,
        workers: int | None = None,
        walltime: float | None = None,
        repeatable: bool = False,
        environment: EnvironmentLike = None,
        image: str | None = None,
        cores: float = 1,
        memory: int = 0,
        gpus: int = 0,
        lend: bool = True,
        borrow: Borrow = "cpu",
        max_workers: int | None = None,
        max_tasks_per_child: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        trust: TrustLike = None,
        **durable_alone: Any,
    ) -> None:
        check_endpoint(endpoint)
        workers = workers_of(workers, max_workers, max_tasks_per_child)
        wrap = wrapper(initializer, initargs)
        if asked := sorted(name for name, value in durable_alone.items() if value):
            raise ValueError(f"{', '.join(asked)}: only for durable tasks; leave it out, or durable=False itself")
        self._own_client = client is None
        if client is None:
            client = LeaseClient._open()
        if endpoint not in (None, LOCAL):
            own = client
            try:
                own._check_endpoint(str(endpoint))
                foreign = untrusted_owners(_others(own, str(endpoint)), merged_trust(own._trust, trust_of(trust)))
                # Through the endpoint's own manager, to which the endpoint invites us.
                client = _manager_of(own, str(endpoint))
                client._foreign = foreign
            finally:
                if self._own_client:
                    own.close()
            self._own_client = True
        self._client = client
        try:
            if workers is None:
                # Without a node, ask for one worker: a waiting request makes the endpoint start a node.
                workers = max(1, sum(node["free"]["cores"] for node in client.nodes()))
            self._lease = client.lease(
                workers,
                mode="warm",
                cores=cores,
                memory=memory * workers,
                gpus=gpus,
                lend=lend,
                borrow=borrow,
                environment=environment,
                image=image,
                wait=WAIT,
            )
        except BaseException as error:
            if isinstance(error, Error) and error.code == "unreachable" and endpoint not in (None, LOCAL):
                error.add_note(
                    f"from here the nodes of {endpoint!r} cannot be reached; leave durable=False out: durable tasks "
                    "need no way to them"
                )
            if self._own_client:
                client.close()
            raise
        if wrap is not None:
            self._lease._initialize_with(wrap)
        self._calls = self._lease.options(deadline=walltime, idempotent=repeatable)

    @property
    def tag(self) -> str:
        """Empty: calls that are not durable cannot be found again."""
        return ""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Calls a function on a leased worker, and returns the future."""
        self._lease._check_usable()
        return self._calls.submit(_callable(fn), *args, **kwargs)

    def map(
        self, fn: Callable[..., T], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 0
    ) -> Iterator[T]:
        """Calls a function on every item, and returns an iterator over the results, in order.

        By default, ``chunksize`` adapts to about half a millisecond of work in one call.
        """
        self._lease._check_usable()
        return self._calls.map(_callable(fn), *iterables, timeout=timeout, chunksize=chunksize or None)

    async def amap(self, fn: Callable[..., T], *iterables: Iterable[Any], chunksize: int = 0) -> AsyncIterator[T]:
        """As `map`, for ``async for``."""
        self._lease._check_usable()
        chunks = self._lease._chunks(_callable(fn), iterables, chunksize or None, False, self._calls._options)
        async for result in async_results(chunks):
            yield result

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the executor and its lease. Without ``wait``, the lease ends in the background, after its calls."""
        self._lease.shutdown(wait=wait or self._own_client, cancel_futures=cancel_futures)
        if self._own_client:
            self._client.close()

    def _interrupt(self) -> None:
        self._lease._interrupt()

    def __repr__(self) -> str:
        return f"<dayfly.Executor on {self._lease!r}>"


def _callable(fn: Any) -> Any:
    """Returns the callable for a worker."""
    if type(fn) is Registered:
        if fn._fn is None:
            raise TypeError(f"{fn!r} is kept by the manager, for durable tasks; pass the function itself")
        fn = fn._fn
    if isinstance(fn, Program):
        raise TypeError(f"{fn!r} runs as a durable task alone; leave durable=False out")
    return fn


def _others(client: LeaseClient, endpoint: str) -> list[str]:
    """Returns the tenant that runs an endpoint, if it is another; an empty name if that is unknown."""
    statuses = client.endpoints()
    found = next((status for status in statuses if endpoint in (status["name"], status["id"])), None)
    if found is None:
        return [""]
    return [found["owner"]] if found.get("foreign") else []


def _manager_of(client: LeaseClient, endpoint: str) -> LeaseClient:
    """Returns a client of the manager of an endpoint's own nodes, by the endpoint's invitation."""
    place = json.loads(client._native.post(f"/v1/endpoints/{quote(endpoint, safe='')}/invitation", "{}"))
    return LeaseClient(_native.Client.manager(place["manager"], place["token"], place["ca_pem"]))
