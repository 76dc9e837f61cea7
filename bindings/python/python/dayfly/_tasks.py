"""Durable tasks: stored by the manager and run on an endpoint, whether or not the submitter stays connected."""

from __future__ import annotations

import concurrent.futures as cf
import functools
import json
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar, cast

import cloudpickle

from dayfly import _worker
from dayfly._entry_point import EntryPoint
from dayfly._environment import Environment, EnvironmentLike, environment_of
from dayfly._errors import Error
from dayfly._functions import Functions
from dayfly._future import Future, Watching, failed, serve, taking
from dayfly._initializer import check_endpoint, workers_of, wrapper
from dayfly._native import TaskOptions
from dayfly._native import Tasks as NativeTasks
from dayfly._programs import Kept, Pickled, Program
from dayfly._source import Source
from dayfly._symbol import Symbol
from dayfly._trust import NOBODY, Trust, TrustLike, joined, trust_of

if TYPE_CHECKING:
    from dayfly._client import Client

P = ParamSpec("P")
T = TypeVar("T")
Placement = Literal["packed", "spread", "together", "fabric"]

#: Classes of programs that are not called with pickled arguments, by the ``form`` in the API.
_KINDS: dict[str, type[Program]] = {"entry_point": EntryPoint, "plain": Symbol, "checked": Symbol, "source": Source}


class Registered:
    """A function that is registered with the manager. Created by `Client.register`.

    Attributes:
        id: id of this version of the function, the hash of its code and runtime.
        name: name of the function. The name alone means the last version.
        owner: name of the tenant that registered it.
        version: number of the version, from 1; 0 without a name.
        status: the manager's description of the function.
    """

    def __init__(self, status: dict[str, Any], fn: Callable[..., Any] | None = None, *, trust: Trust = NOBODY) -> None:
        self.status = status
        #: Tenants whose results of this function are unpickled.
        self._trust = trust
        self._fn = fn
        self.id: str = status["id"]
        self.name: str | None = status["name"]
        self.owner: str = status["owner"]
        self.version: int = status["version"]
        self._number = bytes.fromhex(self.id)
        self._kind = _KINDS.get(status["form"]["form"])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function in this process.

        Raises:
            TypeError: if the function was not registered from this process.
        """
        if self._fn is None:
            raise TypeError(f"{self!r} is kept by the manager; run it there with client.run")
        return self._fn(*args, **kwargs)

    def diff(self, earlier: Registered) -> str:
        """Returns the changes to an earlier version's source in the format of ``diff -u``; empty if there are none."""
        import difflib

        before, after = (str(one.status["source"]).splitlines() for one in (earlier, self))
        return "\n".join(difflib.unified_diff(before, after, repr(earlier), repr(self), lineterm=""))

    def __repr__(self) -> str:
        name = f"{self.owner}/{self.name or self.status['form'].get('name', '')}"
        return f"<dayfly function {name} {f'v{self.version} ' if self.version else ''}{self.id[:8]}>"


class Executor(Watching, cf.Executor):
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
        cores: cores of the worker, for functions that are not registered, as all options below.
        memory: bytes of memory of the worker; 0 for the node's default share.
        gpus: GPUs of the worker, which sees no others.
        ranks: number of workers that each task has at the same time, all or none. Each worker calls the function,
            where ``MPI.COMM_WORLD`` of `dayfly.MPI` connects them. The result is the list of the ranks' results.
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
        from dayfly._direct import Direct

        return cast(Self, super().__new__(Direct))

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        client: Client | None = None,
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
        cores: int = 1,
        memory: int = 0,
        gpus: int = 0,
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
        if workers_of(workers, max_workers, max_tasks_per_child) is not None:
            named = f"workers={workers}" if max_workers is None else f"max_workers={max_workers}"
            raise ValueError(
                f"{named}: an endpoint decides how many run durable tasks; add durable=False, or leave it out"
            )
        self._wrap = wrapper(initializer, initargs)
        if source and self._wrap is not None:
            raise ValueError("initializer= goes with pickled functions: leave it out, or source=True")
        self._own_client = client is None
        if client is None:
            from dayfly._client import connect

            client = connect()
        self._client = client
        if endpoint is not None:
            try:
                client._check_endpoint(endpoint)
            except BaseException:
                if self._own_client:
                    client.close()
                raise
        self._trust = joined(client._trust, trust_of(trust))
        self._pool: NativeTasks = client._native.tasks(tag, endpoint)
        self._options = options(
            priority=priority,
            deadline=deadline,
            walltime=walltime,
            retries=retries,
            retry_wait=retry_wait,
            repeatable=repeatable,
            memoize=memoize,
        )
        self._ranks = ranks
        given = {
            "environment": environment is not None,
            "image": image is not None,
            "cores": cores != 1,
            "memory": memory != 0,
            "gpus": gpus != 0,
            "ranks": ranks != 0,
            "placement": placement is not None,
            "source": source,
            "initializer": initializer is not None,
        }
        #: Options that describe functions. Registered functions have their own.
        self._given = [name for name, is_given in given.items() if is_given]
        self._register = functools.partial(
            _register,
            self._pool,
            environment=environment_of(environment),
            image=image,
            cores=cores,
            memory=memory,
            gpus=gpus,
            ranks=ranks,
            placement=placement,
        )
        self._numbers: list[bytes] = []
        self._programs: dict[Hashable, bytes] = {}
        self._sources: weakref.WeakKeyDictionary[Any, Source] | None = weakref.WeakKeyDictionary() if source else None
        numbers, known, wrap = self._numbers, self._register, self._wrap

        def number(fn: Any) -> int:
            numbers.append(known(fn if wrap is None else wrap(fn)))
            return len(numbers) - 1

        # Does not refer to this executor, so that the executor is freed with its last reference, without a collection.
        self._functions = Functions(number)
        #: Number of tasks that this executor has futures of.
        self._submitted = 0
        self._shut = False
        self._lock = threading.Lock()
        self._watched = {}
        weakref.finalize(self, self._pool.close).atexit = False
        self._helper = threading.Thread(
            target=serve, args=(weakref.ref(self), self._pool), name="dayfly tasks", daemon=True
        )
        self._helper.start()
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

    def _submit(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], options: TaskOptions) -> Future[Any]:
        self._check_open()
        if (program := self._program(fn)) is not None:
            function, kind = program
            task = self._pool.submit_raw(function, kind.packed(args, kwargs), options)
            self._count(1)
            return trusting(Future(task, self._pool, self, raw=kind.raw), fn)
        try:
            function, arguments = self._known(fn, args)
            with taking(self) as taken:
                task = self._pool.submit(function, arguments, kwargs, options, taken)
        except (Error, cf.TimeoutError):
            raise
        except Exception as error:
            # As with other executors, a value that cannot be pickled fails in the future.
            return failed(error, self._pool, self)
        self._count(1)
        return trusting(Future(task, self._pool, self), fn)

    def _count(self, more: int) -> None:
        with self._lock:
            self._submitted += more

    async def asubmit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Submits a task and awaits its result. Cancelling the wait cancels the task."""
        from dayfly._async import submitted

        return await submitted(lambda: self.submit(fn, *args, **kwargs))

    def _program(self, fn: Any) -> tuple[bytes, type[Program]] | None:
        """Returns the id and kind of a program, registering it if needed; None for a pickled function."""
        if type(fn) is Registered:
            if self._given:
                said = ", ".join(f"{name}=" for name in self._given)
                raise ValueError(
                    f"{said} of this executor says nothing about {fn!r}, which has what it was registered with; "
                    "register it with that, and leave it out here"
                )
            return None if fn._kind is None else (fn._number, fn._kind)
        if self._sources is not None:
            fn = self._as_source(fn, self._sources)
        if not isinstance(fn, Program):
            return None
        if self._wrap is not None:
            raise ValueError(f"initializer= goes with functions that are pickled, and {fn!r} is none: leave it out")
        key = fn.key
        if key not in self._programs:
            self._programs[key] = self._register(fn)
        return self._programs[key], type(fn)

    @staticmethod
    def _as_source(fn: Any, known: weakref.WeakKeyDictionary[Any, Source]) -> Source:
        try:
            found = known.get(fn)
        except TypeError:
            # Not hashable or not weakly referable, such as a method: Source explains the problem to the user.
            return Source(fn)
        if found is None:
            found = known[fn] = Source(fn)
        return found

    def _known(self, fn: Any, args: tuple[Any, ...]) -> tuple[bytes, tuple[Any, ...]]:
        if type(fn) is Registered:
            return fn._number, args
        number = self._functions.number(fn)
        if number is None:
            return self._applier, (self._carried(fn), *args)
        return self._numbers[number], args

    def _carried(self, fn: Any) -> Any:
        """Returns a function in the form that travels with its arguments."""
        return fn if self._wrap is None else self._wrap(fn)

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
        return _unchunked(futures, timeout) if is_chunked else _in_order(futures, timeout)

    async def amap(self, fn: Callable[..., T], *iterables: Iterable[Any], chunksize: int = 1) -> AsyncIterator[T]:
        """As `map`, for ``async for``. All tasks are submitted when the first result is requested."""
        from dayfly._async import ended, twin

        futures, is_chunked = await twin(Executor._mapped)(self, fn, iterables, chunksize)
        futures.reverse()
        while futures:
            # The tasks continue if the iteration is abandoned.
            result = await ended(futures.pop(), cancels=False)
            for one in _values(result) if is_chunked else (result,):
                yield one

    def _mapped(self, fn: Any, iterables: tuple[Iterable[Any], ...], chunksize: int) -> tuple[list[Future[Any]], bool]:
        """Submits the tasks of a map. Returns their futures, and whether each task is a chunk of items."""
        self._check_open()
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        if chunksize > 1 and self._ranks:
            raise ValueError(f"chunksize={chunksize}: ranks call the function once for each item; leave it out")
        if not iterables:
            raise TypeError("map() takes at least one iterable")
        if chunksize == 1 or self._program(fn) is not None:
            return [self._submit(fn, args, {}, self._options) for args in zip(*iterables, strict=False)], False
        return self._chunks(fn, iterables, chunksize), True

    def _chunks(self, fn: Any, iterables: tuple[Iterable[Any], ...], chunksize: int) -> list[Future[Any]]:
        from itertools import islice

        star = len(iterables) != 1
        items = zip(*iterables, strict=False) if star else iter(iterables[0])
        futures: list[Future[Any]] = []
        function, extra = self._known(fn, ())
        while chunk := list(islice(items, chunksize)):
            if extra:
                pickled = cloudpickle.dumps(self._carried(fn), protocol=5)
                call = self._pool.submit(self._mapper, (pickled, chunk, star), {}, self._options, {})
            else:
                call = self._pool.submit_map(function, chunk, star, self._options)
            futures.append(trusting(Future(call, self._pool, self), fn))
        self._count(len(futures))
        return futures

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

    def _interrupt(self) -> None:
        """Prints how many tasks an interrupted program waits for."""
        left = 0 if self._shut else self._pool.pending()
        if left:
            print(
                f"dayfly: interrupted, and waiting for {left} tasks, which run on in any case. Press Ctrl-C again to "
                f"end the wait; client.tasks({self.tag!r}) finds them",
                file=sys.stderr,
            )

    def __repr__(self) -> str:
        return (
            f"<dayfly.Executor {self.tag!r}: {self._submitted - self._pool.pending()} of {self._submitted} tasks done>"
        )

    # Internals

    def _check_open(self) -> None:
        if self._shut:
            raise RuntimeError("cannot schedule new futures after shutdown")
        self._check_whole()

    @property
    def _applier(self) -> bytes:
        return self._numbers[self._functions.fixed(_worker.apply)]

    @property
    def _mapper(self) -> bytes:
        return self._numbers[self._functions.fixed(_worker.apply_map)]

    def _adopt(self, statuses: list[dict[str, Any]]) -> list[Future[Any]]:
        tasks = self._pool.adopt([status["id"] for status in statuses])
        self._count(len(tasks))
        return [
            Future(task, self._pool, self, raw=status.get("raw", False))
            for task, status in zip(tasks, statuses, strict=True)
        ]


def trusting(future: Future[T], fn: Any) -> Future[T]:
    """Returns the future, which now also trusts the tenants that the registered function trusts."""
    if type(fn) is Registered and fn._trust:
        future._trust = fn._trust
    return future


def options(
    *,
    priority: int,
    deadline: float | None,
    walltime: float | None,
    retries: int,
    retry_wait: float = 0.0,
    repeatable: bool,
    memoize: bool,
) -> TaskOptions:
    """Checks the options of tasks and returns them in native form."""
    return TaskOptions(
        json.dumps(
            {
                "priority": _priority(priority),
                "deadline_ms": _milliseconds("deadline", deadline),
                "walltime_ms": _milliseconds("walltime", walltime),
                **_retries(retries, retry_wait),
                # None leaves it to the registered function.
                "repeatable": True if repeatable else None,
                "memoize": memoize,
            }
        )
    )


def _retries(retries: int, retry_wait: float) -> dict[str, int]:
    if not 0 <= retries <= 1000:
        raise ValueError(f"retries={retries}: ask for 0 to 1000")
    if not 0 <= retry_wait <= 3600:
        raise ValueError(f"retry_wait={retry_wait}: ask for 0 to 3600 seconds")
    return {"retries": retries, "retry_wait_ms": round(retry_wait * 1000)}


def _priority(priority: int) -> int:
    if not -128 <= priority <= 127:
        raise ValueError(f"priority={priority}: ask for -128 to 127")
    return priority


def _milliseconds(name: str, seconds: float | None) -> int:
    if seconds is None:
        return 0
    if seconds <= 0:
        raise ValueError(f"{name}={seconds}: ask for a positive number of seconds")
    return max(1, min(round(seconds * 1000), 0xFFFF_FFFF))


def describe(
    kept: Kept,
    *,
    name: str | None = None,
    description: str | None = None,
    cores: int = 1,
    memory: int = 0,
    gpus: int = 0,
    walltime: float | None = None,
    repeatable: bool = False,
    share: Iterable[str] = (),
    environment: Environment | None = None,
    image: str | None = None,
    ranks: int = 0,
    placement: Placement | None = None,
) -> dict[str, Any]:
    """Returns the description of a function for the manager, without its code."""
    return {
        "name": name,
        "description": kept.about if description is None else description,
        "source": kept.source,
        "form": kept.form(image),
        "runtime": kept.runtime(environment),
        "resources": {
            "cores": cores,
            "memory_bytes": memory,
            "gpus": gpus,
            "walltime_ms": _milliseconds("walltime", walltime),
            "ranks": ranks,
            **({} if placement is None else {"placement": placement}),
        },
        "repeatable": repeatable,
        "shared_with": [share] if isinstance(share, str) else list(share),
        **({} if image is None else {"image": image}),
    }


def register(tasks: NativeTasks, fn: Any, *, source: bool = False, **about: Any) -> dict[str, Any]:
    """Registers a function with the manager and returns its status."""
    kept = Source(fn) if source else fn if isinstance(fn, Kept) else Pickled(fn)
    status: dict[str, Any] = json.loads(tasks.register(json.dumps(describe(kept, **about)), kept.code))
    return status


def _register(tasks: NativeTasks, fn: Any, **about: Any) -> bytes:
    return bytes.fromhex(register(tasks, fn, description="", **about)["id"])


def _in_order(futures: list[Future[T]], timeout: float | None) -> Iterator[T]:
    import time

    until = None if timeout is None else time.monotonic() + timeout

    def results() -> Iterator[T]:
        futures.reverse()
        while futures:
            yield futures.pop().result(None if until is None else until - time.monotonic())

    return results()


def _unchunked(futures: list[Future[Any]], timeout: float | None) -> Iterator[Any]:
    for chunk in _in_order(futures, timeout):
        yield from _values(chunk)


def _values(chunk: tuple[int, bool, list[Any]]) -> Iterator[Any]:
    from dayfly._errors import failed_item

    _, any_failed, values = chunk
    for value in values:
        if any_failed and type(value) is _worker.Failed:
            raise failed_item(value)
        yield value
