"""Durable tasks: kept by the manager, run on an endpoint whether or not the submitter is there, fetched when it is."""

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

#: What is not called through pickled arguments, by its form in the API.
_KINDS: dict[str, type[Program]] = {"entry_point": EntryPoint, "plain": Symbol, "checked": Symbol, "source": Source}


class Registered:
    """A function that the manager keeps. Made by `Client.register`.

    Attributes:
        id: names this version of it everywhere.
        name: its name; the name alone means its last version.
        owner: whose it is: the tenant's name.
        version: from 1; 0 without a name.
    """

    def __init__(self, status: dict[str, Any], fn: Callable[..., Any] | None = None, *, trust: Trust = NOBODY) -> None:
        self.status = status
        #: Whose results of it are unpickled, beside one's own.
        self._trust = trust
        self._fn = fn
        self.id: str = status["id"]
        self.name: str | None = status["name"]
        self.owner: str = status["owner"]
        self.version: int = status["version"]
        self._number = bytes.fromhex(self.id)
        self._kind = _KINDS.get(status["form"]["form"])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls it here, if it was registered here."""
        if self._fn is None:
            raise TypeError(f"{self!r} is kept by the manager; run it there with client.run")
        return self._fn(*args, **kwargs)

    def diff(self, earlier: Registered) -> str:
        """What is different in its source, as lines of ``diff -u``; empty where nothing is."""
        import difflib

        before, after = (str(one.status["source"]).splitlines() for one in (earlier, self))
        return "\n".join(difflib.unified_diff(before, after, repr(earlier), repr(self), lineterm=""))

    def __repr__(self) -> str:
        name = f"{self.owner}/{self.name or self.status['form'].get('name', '')}"
        return f"<dayfly function {name} {f'v{self.version} ' if self.version else ''}{self.id[:8]}>"


class Executor(Watching, cf.Executor):
    """Durable tasks as a `concurrent.futures.Executor`.

    What was submitted is on the manager's disk, runs on the endpoint whether or not this process goes on, and each task
    ends in one outcome. All of them have a tag, by which they are found again: `Client.tasks`.

    Args:
        endpoint: where they run, by name, of those that `Client.endpoints` shows; by default that of ``dayfly up``, or
            the only one that there is.
        client: of which manager; by default the one that `dayfly.connect` finds.
        durable: whether what is submitted outlives this process. Where it need not, calls go straight to ``workers``
            workers that are leased for this executor, in microseconds, and end with it; what is only for durable tasks
            (tag, priority, deadline, retries, memoize) is refused then.
        workers: how many to lease where it is not durable; by default as many as cores are free.
        tag: a name of your own for all that belongs together; random by default.
        priority: higher ones of yours run first, from -128 to 127.
        deadline: seconds from its submission until a task's end, after which it is ended.
        walltime: seconds that one execution may take, after which it is ended with all its processes.
        retries: how often a task is executed again when its function raises.
        retry_wait: seconds before the first of these, an hour at most; before each further one, twice as long.
        repeatable: whether a task may be executed again when it may have been executed already, as by a node that died.
        memoize: whether a task may have the result of an earlier one of yours with the same function and arguments;
            those that come while it runs wait for it.
        environment: what functions import, as of `Client.register`, for those that are not registered.
        image: the container image that they run in instead.
        cores: of the worker that runs one; also for functions that are not registered, as all below.
        memory: bytes of that worker; 0 for the node's usual share.
        gpus: of that worker, which sees no others.
        ranks: workers that each task has at once, all of them or none. Each of them calls the function, in which
            ``MPI.COMM_WORLD`` of `dayfly.MPI` connects them, and the result is the list of theirs, by rank.
        placement: on which nodes those are, as of `Client.gang`.
        source: whether functions go as their text, as of `Client.register`.
        max_workers: the same as ``workers``, as other executors call it.
        initializer: what each worker calls before its first call of this executor. If it raises, calls fail as
            `InitializerFailed`, a ``concurrent.futures.BrokenExecutor``, and the executor takes no more of them.
        initargs: what the initializer is called with.
        max_tasks_per_child: refused: workers are not replaced after so many tasks.
        trust: other tenants whose results are unpickled here, beside those that its client trusts, as of
            `dayfly.connect`.
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
        #: What it says of functions, which those that are registered say themselves.
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

        # It knows nothing of this executor, which ends with its last user so, not with a collection of garbage.
        self._functions = Functions(number)
        #: How many tasks it has futures of.
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
        """What its tasks have in common."""
        return self._pool.tag()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Submits a task and answers its future. ``fn`` is a callable, or what `Client.register` answered.

        Futures of other tasks may stand among the arguments, also inside lists and the like: the task waits until those
        have ended, and gets their results in their place, which do not travel through this process. Where one of them
        does not end well, neither does this task: `DependencyFailed`.
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
            # As with other executors, what cannot be pickled fails in the future.
            return failed(error, self._pool, self)
        self._count(1)
        return trusting(Future(task, self._pool, self), fn)

    def _count(self, more: int) -> None:
        with self._lock:
            self._submitted += more

    async def asubmit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Submits a task and awaits its result. Where the wait is cancelled, so is the task."""
        from dayfly._async import submitted

        return await submitted(lambda: self.submit(fn, *args, **kwargs))

    def _program(self, fn: Any) -> tuple[bytes, type[Program]] | None:
        """Which one it is and of what kind, if it is one."""
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
            # What cannot be looked up, such as a method, is told what it is.
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
        """A function as it travels with its arguments."""
        return fn if self._wrap is None else self._wrap(fn)

    def map(
        self, fn: Callable[..., T], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1
    ) -> Iterator[T]:
        """Submits a task for every item, or for every ``chunksize`` items; results come in order, as they are needed.

        All are submitted at once: they run to their end even if this process does not.
        """
        futures, is_chunked = self._mapped(fn, iterables, chunksize)
        return _unchunked(futures, timeout) if is_chunked else _in_order(futures, timeout)

    async def amap(self, fn: Callable[..., T], *iterables: Iterable[Any], chunksize: int = 1) -> AsyncIterator[T]:
        """As `map`, for ``async for``; all are submitted when the first result is asked for."""
        from dayfly._async import ended, twin

        futures, is_chunked = await twin(Executor._mapped)(self, fn, iterables, chunksize)
        futures.reverse()
        while futures:
            # They go on without anybody who waits.
            result = await ended(futures.pop(), cancels=False)
            for one in _values(result) if is_chunked else (result,):
                yield one

    def _mapped(self, fn: Any, iterables: tuple[Iterable[Any], ...], chunksize: int) -> tuple[list[Future[Any]], bool]:
        """The tasks of a map, and whether each is of a chunk."""
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
        """Ends the executor, not its tasks: with ``wait`` once all have ended, else as soon as the manager has them.

        Args:
            wait: whether to return only once all tasks have ended.
            cancel_futures: whether to cancel tasks that no worker has been given. Those that run go on.
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
        """Says what an interrupted program waits for."""
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

    # Inside

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
    """The same, of this function: whoever trusts that unpickles its results."""
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
    """How tasks are treated, checked."""
    return TaskOptions(
        json.dumps(
            {
                "priority": _priority(priority),
                "deadline_ms": _milliseconds("deadline", deadline),
                "walltime_ms": _milliseconds("walltime", walltime),
                **_retries(retries, retry_wait),
                # A registered function has its own word on it.
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
    """What the manager is told of a function beside its code."""
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
    """Makes a function known to the manager; answers what it knows of it."""
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
