"""Calls on leased workers: what `Lease` and `Fleet` do below their interface, and `Calls`, which have options."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import cloudpickle

from dayfly import _native, _worker
from dayfly._errors import Error
from dayfly._functions.captures import Functions
from dayfly._functions.kinds import PickledFunction, name_of
from dayfly._functions.runtime import PYTHON
from dayfly._futures.future import Future, FutureOwner, complete_futures, failed_future
from dayfly._leases.chunks import Chunks, length_of, results
from dayfly._progress import Progress

if TYPE_CHECKING:
    from dayfly._connection import Connection
    from dayfly._output import Echo

P = ParamSpec("P")
T = TypeVar("T")

#: Maximum number of combinations of options that are kept for later calls.
MAX_OPTIONS = 1000


class CallTarget(FutureOwner):
    """The base of leases and fleets: leased workers, and the functions that are registered with them."""

    def __init__(self, native: _native.Lease | _native.Fleet, pool: _native.Pool, client: Connection | None) -> None:
        self._native: Any = native
        self._pool = pool
        self._client = client
        # Not a method: a reference cycle would keep the channels open until garbage collection.
        self._register = functools.partial(_register, native, pool)
        self._functions = Functions(self._register)
        #: Wraps functions whose executor has an initializer.
        self._wrap: Callable[[Any], Any] | None = None
        self._shut = False
        self._lock = threading.Lock()
        self._watched = {}
        self._maps: weakref.WeakSet[Chunks] = weakref.WeakSet()
        self._options: dict[tuple[Any, ...], _native.Options] = {}
        self._echo: Echo | None = None
        #: Divides the loops of `share`.
        self._planner: _native.OffloadPlanner | None = None
        # Dropping a lease without a shutdown closes the pool, which ends the helper and releases the workers.
        weakref.finalize(self, pool.close).atexit = False
        self._helper = threading.Thread(
            target=complete_futures, args=(weakref.ref(self), pool), name="dayfly helper", daemon=True
        )
        self._helper.start()

    def _width(self) -> int:
        """Returns the number of workers that a map keeps busy."""
        raise NotImplementedError

    def _ready_workers(self) -> int:
        """Returns the number of workers that have a channel now."""
        raise NotImplementedError

    def _chunks(
        self,
        fn: Callable[..., Any],
        iterables: tuple[Iterable[Any], ...],
        chunksize: int | None,
        progress: bool,
        options: _native.Options | None,
    ) -> Chunks:
        if self._shut:
            raise RuntimeError("cannot schedule new futures after shutdown")
        if chunksize is not None and chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        if not iterables:
            raise TypeError("map() takes at least one iterable")
        submit = self._chunk_submitter(fn, self._functions.number(fn), options)
        bar = Progress(length_of(iterables)) if progress else None
        chunks = Chunks(self, self._pool, submit, iterables, width=self._width, chunksize=chunksize, progress=bar)
        chunks.fill()
        self._maps.add(chunks)
        return chunks

    def _chunk_submitter(
        self, fn: Callable[..., Any], number: int | None, options: _native.Options | None
    ) -> Callable[[list[Any], bool], _native.Call]:
        """Returns a function that sends one invocation for a list of items. ``number`` is that of ``fn``."""
        pool = self._pool
        if number is not None:
            return lambda items, star: pool.submit_map(number, items, star, options)
        pickled = cloudpickle.dumps(self._carried(fn), protocol=5)
        mapper = self._mapper
        return lambda items, star: pool.submit(mapper, (pickled, items, star), None, options)

    def _initialize_with(self, wrap: Callable[[Any], Any]) -> None:
        """Wraps all functions called from now on, for an initializer."""
        register = self._register
        self._wrap = wrap
        self._functions = Functions(lambda fn: register(wrap(fn)))

    def _carried(self, fn: Any) -> Any:
        """Returns a function in the form that travels with its arguments."""
        return fn if self._wrap is None else self._wrap(fn)

    @property
    def _applier(self) -> int:
        return self._functions.fixed(_worker.apply)

    @property
    def _mapper(self) -> int:
        return self._functions.fixed(_worker.apply_map)

    @staticmethod
    def _milliseconds(deadline: float | None) -> int:
        if deadline is None:
            return 0
        if deadline <= 0:
            raise ValueError(f"deadline={deadline}: ask for a positive number of seconds")
        return max(1, min(round(deadline * 1000), 0xFFFFFFFF))

    def _check_open(self) -> None:
        if self._shut:
            raise RuntimeError("cannot use workers after the shutdown of their lease or fleet")

    def _native_options(
        self, deadline: float | None, idempotent: bool, worker: int | None, incarnation: int | None
    ) -> _native.Options:
        key = (deadline, idempotent, worker, incarnation)
        made = self._options.get(key)
        if made is None:
            made = _native.Options(
                deadline_ms=self._milliseconds(deadline), idempotent=idempotent, worker=worker, incarnation=incarnation
            )
            if len(self._options) < MAX_OPTIONS:
                self._options[key] = made
        return made


def _register(native: _native.Lease | _native.Fleet, pool: _native.Pool, fn: Callable[..., Any]) -> int:
    code = native.put_code(PickledFunction(fn).code)
    return pool.register_python(code, PYTHON, cloudpickle.__version__, name_of(fn))


class Calls:
    """A lease or fleet with options for its calls. Created by `Lease.options` and `Fleet.options`."""

    def __init__(self, lease: CallTarget, options: _native.Options) -> None:
        self._lease = lease
        self._options = options

    def _known(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> tuple[int, tuple[Any, ...]]:
        lease = self._lease
        if lease._shut:
            raise RuntimeError("cannot schedule new futures after shutdown")
        number = lease._functions.number(fn)
        return (lease._applier, (lease._carried(fn), *args)) if number is None else (number, args)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """As `Lease.submit`."""
        lease = self._lease
        if lease._shut:
            raise RuntimeError("cannot schedule new futures after shutdown")
        pool = lease._pool
        try:
            number, arguments = self._known(fn, args)
            return Future(pool.submit(number, arguments, kwargs, self._options), pool, lease)
        except Error:
            raise
        except Exception as error:
            return failed_future(error, pool, lease)

    def call(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """As `Lease.call`."""
        number, arguments = self._known(fn, args)
        result: T = self._lease._pool.call(number, arguments, kwargs, self._options)
        return result

    async def asubmit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """As `Lease.asubmit`."""
        return await self.submit(fn, *args, **kwargs)

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int | None = None,
        progress: bool = False,
    ) -> Iterator[T]:
        """As `Lease.map`. The deadline applies to each invocation."""
        return results(self._lease._chunks(fn, iterables, chunksize, progress, self._options), timeout)
