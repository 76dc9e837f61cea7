"""Apps as Parsl's users write them, as durable tasks: ``from dayfly.parsl import bash_app, python_app``.

>>> from dayfly.parsl import load, python_app  # in place of `parsl`
>>> @python_app  # doctest: +SKIP
... def area(width, height):
...     return width * height
>>> with load(endpoint="cluster"):  # doctest: +SKIP
...     area(area(1, 2), 3).result()

A call of an app submits a task, and answers its future; futures among its arguments are waited for, and their results
take their places. Of Parsl's files (``File``, ``outputs=``) there are none: tasks answer what they have.
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, Self, TypeVar, overload

from dayfly._command import CommandError

if TYPE_CHECKING:
    from dayfly._client import Client
    from dayfly._future import Future
    from dayfly._tasks import Executor

__all__ = ["App", "Loaded", "bash_app", "clear", "load", "python_app", "wait_for_current_tasks"]

P = ParamSpec("P")
T = TypeVar("T")


class Loaded:
    """Where apps run from now on. Made by `load`; leaving it is `clear`."""

    def __init__(self, client: Client | None, options: dict[str, Any]) -> None:
        self._client = client
        self._options = options
        self._executors: dict[tuple[str | None, bool], Executor] = {}
        self._lock = threading.Lock()
        #: A child of a fork has connections of its own.
        self._pid = os.getpid()

    def executor(self, endpoint: str | None, memoize: bool) -> Executor:
        """That of some apps."""
        from dayfly._client import connect
        from dayfly._tasks import Executor

        with self._lock:
            if self._pid != os.getpid():
                self._client, self._executors, self._pid = None, {}, os.getpid()
            if self._client is None:
                self._client = connect()
            if (endpoint, memoize) not in self._executors:
                own = {"endpoint": endpoint} if endpoint is not None else {}
                memoized = {"memoize": True} if memoize else {}
                options = {**self._options, **own, **memoized}
                self._executors[endpoint, memoize] = Executor(client=self._client, **options)
            return self._executors[endpoint, memoize]

    def _end(self) -> None:
        with self._lock:
            executors, self._executors = list(self._executors.values()), {}
        for executor in executors:
            executor.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end()
        if _Now.loaded is self:
            _Now.loaded = None


class _Now:
    """Where apps run now."""

    loaded: Loaded | None = None


_lock = threading.Lock()


def load(client: Client | None = None, **options: Any) -> Loaded:
    """Says where apps run. Without it, they run where `dayfly.connect` leads.

    Args:
        client: of which manager.
        options: of the `dayfly.Executor` of the apps, such as ``endpoint``, ``retries``, ``walltime``, ``environment``.

    Raises:
        RuntimeError: they run somewhere already: see `clear`.
    """
    with _lock:
        if _Now.loaded is not None:
            raise RuntimeError("apps run somewhere already; `dayfly.parsl.clear()` ends that")
        _Now.loaded = Loaded(client, options)
        return _Now.loaded


def clear() -> None:
    """Waits for what apps have under way, and forgets where they run."""
    with _lock:
        loaded, _Now.loaded = _Now.loaded, None
    if loaded is not None:
        loaded._end()


def wait_for_current_tasks() -> None:
    """Waits for what apps have under way, whatever it ends with."""
    if _Now.loaded is not None:
        _Now.loaded._end()


def _now() -> Loaded:
    with _lock:
        if _Now.loaded is None:
            _Now.loaded = Loaded(None, {})
        return _Now.loaded


class App(Generic[P, T]):
    """A function whose calls are tasks. Made by `python_app` and `bash_app`."""

    def __init__(self, fn: Callable[P, T], executors: Literal["all"] | Iterable[str], cache: bool) -> None:
        self.fn = fn
        names = [] if executors == "all" else [executors] if isinstance(executors, str) else list(executors)
        if len(names) > 1:
            raise ValueError(f"executors={names}: an app runs at one endpoint; name that, or none")
        self._endpoint = names[0] if names else None
        self._cache = cache
        functools.update_wrapper(self, fn)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Submits a task, and answers its future."""
        return _now().executor(self._endpoint, self._cache).submit(self.fn, *args, **kwargs)

    def __repr__(self) -> str:
        return f"<dayfly.parsl app {getattr(self.fn, '__qualname__', self.fn)!s}>"


@overload
def python_app(
    function: Callable[P, T], *, cache: bool = ..., executors: Literal["all"] | Iterable[str] = ...
) -> App[P, T]: ...


@overload
def python_app(
    function: None = None, *, cache: bool = ..., executors: Literal["all"] | Iterable[str] = ...
) -> Callable[[Callable[P, T]], App[P, T]]: ...


def python_app(
    function: Callable[P, T] | None = None,
    *,
    cache: bool = False,
    executors: Literal["all"] | Iterable[str] = "all",
) -> App[P, T] | Callable[[Callable[P, T]], App[P, T]]:
    """Makes a function an app.

    Args:
        function: which.
        cache: whether a call may have the result of an earlier one of yours with the same arguments.
        executors: the endpoint that it runs at, by name, where that is not the one of `load`.
    """
    if function is None:
        return lambda fn: App(fn, executors, cache)
    return App(function, executors, cache)


class _Bash:
    """What runs on a worker for a function that answers a command."""

    def __init__(self, fn: Callable[..., str]) -> None:
        self._fn = fn
        functools.update_wrapper(self, fn)

    def __call__(self, *args: Any, stdout: str | None = None, stderr: str | None = None, **kwargs: Any) -> int:
        command = self._fn(*args, **kwargs)
        if not isinstance(command, str):
            raise TypeError(f"a bash_app answers a command, a text, and not {command!r}")
        with contextlib.ExitStack() as files:
            opened = [None if name is None else files.enter_context(open(name, "ab")) for name in (stdout, stderr)]
            done = subprocess.run(
                command,
                shell=True,
                executable="/bin/bash",
                check=False,
                stdin=subprocess.DEVNULL,
                # Where they are the worker's own, they are heard while the task runs.
                stdout=opened[0],
                stderr=opened[1],
            )
        if done.returncode:
            raise CommandError(command, done.returncode, "")
        return 0


@overload
def bash_app(
    function: Callable[..., str], *, cache: bool = ..., executors: Literal["all"] | Iterable[str] = ...
) -> App[..., int]: ...


@overload
def bash_app(
    function: None = None, *, cache: bool = ..., executors: Literal["all"] | Iterable[str] = ...
) -> Callable[[Callable[..., str]], App[..., int]]: ...


def bash_app(
    function: Callable[..., str] | None = None,
    *,
    cache: bool = False,
    executors: Literal["all"] | Iterable[str] = "all",
) -> App[..., int] | Callable[[Callable[..., str]], App[..., int]]:
    """Makes a function that answers a command for bash an app, whose tasks run that, and end with 0.

    ``stdout=`` and ``stderr=`` of a call name files on the node that are written on at their ends, and stay there.

    Raises:
        CommandError: of a task's future, where the command ended with another status.
    """
    if function is None:
        return lambda fn: App(_Bash(fn), executors, cache)
    return App(_Bash(function), executors, cache)
