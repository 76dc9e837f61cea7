"""Initializers of executors, which run in a worker before its first call."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from typing import Any

import cloudpickle

from dayfly._code import current, own
from dayfly._worker import Initialized, apply, apply_map


def wrapper(initializer: Any, initargs: tuple[Any, ...]) -> Callable[[Any], Any] | None:
    """Returns a function that makes others run after the initializer; None without an initializer.

    Raises:
        TypeError: if ``initializer`` is not callable.
    """
    if initializer is None:
        if initargs:
            raise ValueError(f"initargs={initargs!r} without an initializer: name it, or leave initargs out")
        return None
    if not callable(initializer):
        raise TypeError("initializer must be a callable")
    # The token is the same in all executors with this initializer and arguments, so a shared worker runs it once.
    token = hashlib.sha256(cloudpickle.dumps((initializer, initargs), protocol=5)).hexdigest()
    return functools.partial(_initialized, initializer, tuple(initargs), token)


def _initialized(initializer: Callable[..., Any], initargs: tuple[Any, ...], token: str, fn: Any) -> Any:
    if fn is apply or fn is apply_map:
        # The function that they call is wrapped instead.
        return fn
    for called in (fn, initializer):
        own.note(called)
    return Initialized(current(fn), current(initializer), initargs, token)


def workers_of(workers: int | None, max_workers: int | None, max_tasks_per_child: int | None) -> int | None:
    """Returns the requested number of workers, by either name; None if none is given.

    Raises:
        ValueError: if the values conflict, or ask for something unsupported.
    """
    if max_tasks_per_child is not None:
        raise ValueError(
            f"max_tasks_per_child={max_tasks_per_child}: workers are not replaced after so many tasks; leave it out"
        )
    if max_workers is not None and max_workers <= 0:
        raise ValueError("max_workers must be greater than 0")
    if workers is not None and max_workers is not None:
        raise ValueError("workers= and max_workers= are the same: give one of them")
    return workers if max_workers is None else max_workers


def check_endpoint(endpoint: Any) -> None:
    """Checks that ``endpoint`` is not a number of workers, as in other executors.

    Raises:
        TypeError: if it is not a name.
    """
    if endpoint is not None and not isinstance(endpoint, str):
        raise TypeError(f"endpoint={endpoint!r} is no name: the first argument is where tasks run; see max_workers=")
