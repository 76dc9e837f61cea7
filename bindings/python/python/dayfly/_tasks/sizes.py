"""The sizes that a client states for the calls of a function: nodes predict what calls need by them."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Sized
from typing import Any, TypeAlias

#: Maximum number of sizes of a call.
MAX_SIZES = 4

#: What ``size=`` may be: a function of the arguments that returns a number or several, or names of parameters.
SizeLike: TypeAlias = Callable[..., Any] | str | Iterable[str] | None
#: Returns the sizes of a call with these positional and keyword arguments.
Sizer: TypeAlias = Callable[[tuple[Any, ...], dict[str, Any]], list[float]]


def sizer_of(size: SizeLike, fn: Any) -> Sizer | None:
    """Returns what states the sizes of the calls of a function; None if its arguments state their own.

    Raises:
        ValueError: if ``size`` names a parameter that the function does not have, or too many.
        TypeError: if it is neither callable nor names.
    """
    if size is None:
        return None
    if callable(size):
        return _by_call(size)
    names = [size] if isinstance(size, str) else list(size) if isinstance(size, Iterable) else None
    if names is None or not all(isinstance(name, str) for name in names):
        raise TypeError(f"size={size!r}: pass a function of the arguments, or names of parameters")
    if not 0 < len(names) <= MAX_SIZES:
        raise ValueError(f"size={size!r}: name 1 to {MAX_SIZES} parameters")
    signature = inspect.signature(fn)
    for name in names:
        if name not in signature.parameters:
            raise ValueError(f"size={size!r}: the function has no parameter {name!r}")
    return _by_name(names, signature)


def _by_call(size: Callable[..., Any]) -> Sizer:
    def sizes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[float]:
        result = size(*args, **kwargs)
        many = not isinstance(result, (str, bytes)) and isinstance(result, Iterable)
        try:
            found = [float(one) for one in result] if many else [float(result)]
        except (TypeError, ValueError, OverflowError):
            found = []
        if not found or len(found) > MAX_SIZES:
            raise ValueError(f"size= returned {_short(result)}: return a number, or up to {MAX_SIZES} numbers")
        return _filled(found)

    return sizes


def _by_name(names: list[str], signature: inspect.Signature) -> Sizer:
    def sizes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[float]:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        found = []
        for name in names:
            value = bound.arguments[name]
            size = size_of(value)
            if size is None:
                raise ValueError(
                    f"size= names {name!r}, and {_short(value)} is no number and has no length; pass a function of the "
                    "arguments as size="
                )
            found.append(size)
        return _filled(found)

    return sizes


def size_of(value: Any) -> float | None:
    """Returns the size of a value: its bytes if it is an array, its value if it is a number, or its length."""
    try:
        if isinstance(value, Sized):
            return float(getattr(value, "nbytes", len(value)))
        return None if isinstance(value, (bool, str)) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _filled(found: list[float]) -> list[float]:
    """Returns four sizes. A value that no size can have counts as 0."""
    plausible = [size if math.isfinite(size) and size > 0 else 0.0 for size in found]
    return plausible + [0.0] * (MAX_SIZES - len(plausible))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
