"""The submission of tasks: what `Executor` does below its interface."""

from __future__ import annotations

import concurrent.futures as cf
import json
import sys
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

import cloudpickle

from dayfly import _worker
from dayfly._codec.trust import Trust, failed_item
from dayfly._connection import Connection
from dayfly._errors import Error
from dayfly._functions.captures import Functions
from dayfly._functions.kinds import Program
from dayfly._functions.source import Source
from dayfly._futures.future import DependencyCollector, Future, FutureOwner, complete_futures, failed_future
from dayfly._native import TaskOptions, Tasks
from dayfly._tasks.registered import Registered, register

T = TypeVar("T")


class TaskSubmitter(FutureOwner):
    """The base of `Executor`: the tasks of one tag, and the functions that they call."""

    def _begin(
        self,
        client: Connection,
        pool: Tasks,
        options: TaskOptions,
        trust: Trust,
        *,
        wrap: Callable[[Any], Any] | None,
        source: bool,
        about: Mapping[str, Any],
        given: Sequence[str],
    ) -> None:
        """Initializes this object and starts its helper thread.

        Args:
            client: client of the manager.
            pool: the tasks.
            options: options of the tasks.
            trust: tenants whose results are unpickled.
            wrap: wraps functions, if there is an initializer.
            source: whether to send functions as source text.
            about: description of functions, as for `register`.
            given: options that describe functions and were given. Registered functions have their own.
        """
        self._client = client
        self._pool = pool
        self._options = options
        self._trust = trust
        self._wrap = wrap
        self._given = given
        self._ranks: int = about["ranks"]

        # These do not refer to this object, so that it is freed with its last reference, without a collection.
        def register_kept(fn: Any) -> bytes:
            return _register(pool, fn, **about)

        self._register = register_kept
        self._numbers: list[bytes] = []
        self._programs: dict[Hashable, bytes] = {}
        self._sources: weakref.WeakKeyDictionary[Any, Source] | None = weakref.WeakKeyDictionary() if source else None
        numbers = self._numbers

        def number(fn: Any) -> int:
            numbers.append(register_kept(fn if wrap is None else wrap(fn)))
            return len(numbers) - 1

        self._functions = Functions(number)
        #: Number of tasks that this object has futures of.
        self._submitted = 0
        self._shut = False
        self._lock = threading.Lock()
        self._watched = {}
        weakref.finalize(self, pool.close).atexit = False
        self._helper = threading.Thread(
            target=complete_futures, args=(weakref.ref(self), pool), name="dayfly tasks", daemon=True
        )
        self._helper.start()

    def _submit(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], options: TaskOptions) -> Future[Any]:
        self._check_open()
        if (program := self._program(fn)) is not None:
            function, kind = program
            task = self._pool.submit_raw(function, kind.packed(args, kwargs), options)
            self._count(1)
            return _trusting(Future(task, self._pool, self, raw=kind.raw), fn)
        sizes = fn._sizer(args, kwargs) if type(fn) is Registered and fn._sizer is not None else None
        try:
            function, arguments = self._known(fn, args)
            with DependencyCollector(self) as taken:
                task = self._pool.submit(function, arguments, kwargs, options, taken, sizes)
        except (Error, cf.TimeoutError):
            raise
        except Exception as error:
            # As with other executors, a value that cannot be pickled fails in the future.
            return failed_future(error, self._pool, self)
        self._count(1)
        return _trusting(Future(task, self._pool, self), fn)

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
            futures.append(_trusting(Future(call, self._pool, self), fn))
        self._count(len(futures))
        return futures

    def _program(self, fn: Any) -> tuple[bytes, type[Program]] | None:
        """Returns the id and kind of a program, registering it if needed; None for a pickled function."""
        if type(fn) is Registered:
            if self._given:
                options = ", ".join(f"{name}=" for name in self._given)
                raise ValueError(
                    f"{options} of this executor has no effect on {fn!r}, which keeps the options of its registration; "
                    "register the function with it, and leave it out here"
                )
            return None if fn._kind is None else (fn._number, fn._kind)
        if self._sources is not None:
            fn = self._as_source(fn, self._sources)
        if not isinstance(fn, Program):
            return None
        if self._wrap is not None:
            raise ValueError(f"initializer= needs a pickled function, and {fn!r} is not one; leave it out")
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

    def _check_open(self) -> None:
        if self._shut:
            raise RuntimeError("cannot schedule new futures after shutdown")
        self._check_usable()

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

    def _count(self, more: int) -> None:
        with self._lock:
            self._submitted += more

    def _interrupt(self) -> None:
        """Prints how many tasks an interrupted program waits for."""
        left = 0 if self._shut else self._pool.pending()
        if left:
            print(
                f"dayfly: interrupted, and waiting for {left} tasks, which run on in any case. Press Ctrl-C again to "
                f"end the wait; client.tasks({self._pool.tag()!r}) finds them",
                file=sys.stderr,
            )

    def _state_of(self, task: str) -> str:
        """Asks the manager for the state of a task."""
        state: str = json.loads(self._client._native.get(f"/v1/tasks/{task}"))["state"]
        return state


def _register(tasks: Tasks, fn: Any, **about: Any) -> bytes:
    return bytes.fromhex(register(tasks, fn, description="", **about)["id"])


def _trusting(future: Future[T], fn: Any) -> Future[T]:
    """Returns the future, which now also trusts the tenants that the registered function trusts."""
    if type(fn) is Registered and fn._trust:
        future._trust = fn._trust
    return future


def in_order(futures: list[Future[T]], timeout: float | None) -> Iterator[T]:
    """Returns an iterator over the results, which drops each future with its result. The time limit begins now."""
    until = None if timeout is None else time.monotonic() + timeout

    def results() -> Iterator[T]:
        futures.reverse()
        while futures:
            yield futures.pop().result(None if until is None else until - time.monotonic())

    return results()


def unchunked(futures: list[Future[Any]], timeout: float | None) -> Iterator[Any]:
    """Yields the results of all items, for futures of chunks."""
    for chunk in in_order(futures, timeout):
        yield from values_of(chunk)


def values_of(chunk: tuple[int, bool, list[Any]]) -> Iterator[Any]:
    """Yields the results of a chunk's items. Raises the exception of the first item that failed."""
    _, any_failed, values = chunk
    for value in values:
        if any_failed and type(value) is _worker.FailedItem:
            raise failed_item(value)
        yield value
