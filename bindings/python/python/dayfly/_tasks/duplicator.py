"""Inputs of many sizes, made from one sample, so that nodes learn a function at once (LIBRA, section 4.2)."""

from __future__ import annotations

import concurrent.futures as cf
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dayfly._tasks.executor import Executor
    from dayfly._tasks.registered import Registered

#: Maximum number of runs.
MAX_RUNS = 1000
#: Largest multiple of a sample.
MAX_TIMES = 100


def check(function: Registered, sizes: int, times: int) -> None:
    """Refuses what must not run only to be measured.

    Raises:
        ValueError: if the function is not repeatable, or a number is out of its bounds.
    """
    if not function.status["repeatable"]:
        raise ValueError(
            f"{function!r} is not registered as repeatable, so it must not run only to be measured; register it with "
            "repeatable=True if a further execution does no harm"
        )
    if not 1 <= sizes <= MAX_RUNS:
        raise ValueError(f"sizes={sizes}: ask for 1 to {MAX_RUNS}")
    if not 1 <= times <= MAX_TIMES:
        raise ValueError(f"times={times}: ask for 1 to {MAX_TIMES}")


def inputs(sample: tuple[Any, ...], sizes: int, times: int) -> list[tuple[Any, ...]]:
    """Returns inputs of evenly spaced sizes, the largest of ``times`` times the sample."""
    factors = [step * times / sizes for step in range(1, sizes + 1)]
    return [tuple(scaled(value, factor) for value in sample) for factor in factors]


def run(executor: Executor, function: Registered, inputs: list[tuple[Any, ...]], timeout: float | None) -> None:
    """Runs a function on inputs, and waits until all runs have ended.

    Raises:
        TimeoutError: if they have not ended in time.
        Exception: that of the last run, if all fail.
    """
    futures = [executor.submit(function, *args) for args in inputs]
    done, left = cf.wait(futures, timeout)
    if left:
        raise TimeoutError(
            f"{len(left)} of {len(futures)} runs have not ended; they continue with tag {executor.tag!r}"
        )
    errors = [future.exception() for future in done]
    if errors and all(error is not None for error in errors) and (last := errors[-1]) is not None:
        raise last


def scaled(value: Any, factor: float) -> Any:
    """Returns a value at a multiple of its size: content is cut or repeated, and a number is multiplied.

    Other values stay as they are.
    """
    if isinstance(value, (bool, complex)):
        return value
    if isinstance(value, (int, float)):
        return type(value)(round(value * factor) if isinstance(value, int) else value * factor)
    if isinstance(value, (str, bytes, bytearray, list, tuple)) and value:
        length = max(1, round(len(value) * factor))
        return (value * (length // len(value) + 1))[:length]
    if type(value).__module__ == "numpy" and getattr(value, "shape", None):
        import numpy as np

        return np.resize(value, (max(1, round(len(value) * factor)), *value.shape[1:]))
    return value
