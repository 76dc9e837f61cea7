"""Parsl's apps as durable tasks: ``from dayfly.parsl import bash_app, python_app``.

>>> from dayfly.parsl import load, python_app  # in place of `parsl`
>>> @python_app  # doctest: +SKIP
... def area(width, height):
...     return width * height
>>> with load(endpoint="cluster"):  # doctest: +SKIP
...     area(area(1, 2), 3).result()
6

Calling an app submits a task and returns its future. A task waits for the futures among its arguments and receives
their results. Parsl's files (``File``, ``outputs=``) are not supported: tasks return their results.
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
    from dayfly._futures.future import Future
    from dayfly._tasks.executor import Executor

__all__ = ["App", "Loaded", "bash_app", "clear", "load", "python_app", "wait_for_current_tasks"]

P = ParamSpec("P")
T = TypeVar("T")


class Loaded:
    """The configuration for apps. Created by `load`; leaving the context calls `clear`."""

    def __init__(self, client: Client | None, options: dict[str, Any]) -> None:
        self._client = client
        self._options = options
        self._executors: dict[tuple[str | None, bool], Executor] = {}
        self._lock = threading.Lock()
        #: The child of a fork needs connections of its own.
        self._pid = os.getpid()

    def executor(self, endpoint: str | None, memoize: bool) -> Executor:
        """Returns the executor for apps with these options."""
        from dayfly._client import connect
        from dayfly._tasks.executor import Executor

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
    """Holder of the current configuration."""

    loaded: Loaded | None = None


_lock = threading.Lock()


def load(client: Client | None = None, **options: Any) -> Loaded:
    """Configures where apps run. Without it, they run on the manager that `dayfly.connect` finds.

    Args:
        client: client of the manager to use.
        options: options of the `dayfly.Executor` for the apps, such as ``endpoint``, ``retries``, ``walltime`` or
            ``environment``.

    Returns:
        The configuration, as a context manager.

    Raises:
        RuntimeError: if a configuration is already loaded; see `clear`.
    """
    with _lock:
        if _Now.loaded is not None:
            raise RuntimeError("apps run somewhere already; `dayfly.parsl.clear()` ends that")
        _Now.loaded = Loaded(client, options)
        return _Now.loaded


def clear() -> None:
    """Waits for all tasks of apps, and discards the configuration."""
    with _lock:
        loaded, _Now.loaded = _Now.loaded, None
    if loaded is not None:
        loaded._end()


def wait_for_current_tasks() -> None:
    """Waits for all tasks of apps, successful or not."""
    if _Now.loaded is not None:
        _Now.loaded._end()


def _now() -> Loaded:
    with _lock:
        if _Now.loaded is None:
            _Now.loaded = Loaded(None, {})
        return _Now.loaded


class App(Generic[P, T]):
    """A function whose calls are tasks. Created by `python_app` and `bash_app`."""

    def __init__(self, fn: Callable[P, T], executors: Literal["all"] | Iterable[str], cache: bool) -> None:
        self.fn = fn
        names = [] if executors == "all" else [executors] if isinstance(executors, str) else list(executors)
        if len(names) > 1:
            raise ValueError(f"executors={names}: an app runs at one endpoint; name that, or none")
        self._endpoint = names[0] if names else None
        self._cache = cache
        functools.update_wrapper(self, fn)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Submits a task and returns its future."""
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
    """Turns a function into an app. Usable as a decorator with or without arguments.

    Args:
        function: the function.
        cache: whether a call may take the result of an earlier call of yours with the same arguments.
        executors: name of the endpoint to run on, if it differs from that of `load`.
    """
    if function is None:
        return lambda fn: App(fn, executors, cache)
    return App(function, executors, cache)


class _Bash:
    """Runs on a worker for a function that returns a shell command."""

    def __init__(self, fn: Callable[..., str]) -> None:
        self._fn = fn
        functools.update_wrapper(self, fn)

    def __call__(self, *args: Any, stdout: str | None = None, stderr: str | None = None, **kwargs: Any) -> int:
        command = self._fn(*args, **kwargs)
        if not isinstance(command, str):
            raise TypeError(f"a bash_app must return a command as a string, not {command!r}")
        with contextlib.ExitStack() as files:
            opened = [None if name is None else files.enter_context(open(name, "ab")) for name in (stdout, stderr)]
            done = subprocess.run(
                command,
                shell=True,
                executable="/bin/bash",
                check=False,
                stdin=subprocess.DEVNULL,
                # If both streams are the worker's own, the output is visible while the task runs.
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
    """Turns a function that returns a bash command into an app. Its tasks run the command and return 0.

    The arguments ``stdout=`` and ``stderr=`` of a call name files on the node, which the command appends to.

    Args:
        function: the function.
        cache: as for `python_app`.
        executors: as for `python_app`.

    Raises:
        CommandError: from a task's future, if the command exits with a status other than 0.
    """
    if function is None:
        return lambda fn: App(_Bash(fn), executors, cache)
    return App(_Bash(function), executors, cache)
