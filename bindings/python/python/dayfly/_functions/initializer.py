"""Initializers of executors, which run in a worker before its first call."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from typing import Any

import cloudpickle

from dayfly._functions.own_code import current_version, tracker
from dayfly._worker import InitializedFunction, apply, apply_map


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
        tracker.note(called)
    return InitializedFunction(current_version(fn), current_version(initializer), initargs, token)
