"""Rows of the report: both sides of a comparison, in turns."""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

#: Computes a result, which is compared with those of other sides.
Run = Callable[[], Any]


class WrongAnswerError(Exception):
    """Two sides of a row computed different results."""


def note(text: str) -> None:
    """Reports progress."""
    print(text, file=sys.stderr, flush=True)


def timed(run: Run) -> tuple[float, Any]:
    """Returns how many seconds a run takes, and its result."""
    gc.collect()
    start = time.perf_counter()
    result = run()
    return time.perf_counter() - start, result


def in_turns(
    name: str, sides: Mapping[str, Run], runs: int, same: Callable[[Any, Any], bool] = lambda a, b: a == b
) -> dict[str, list[float]]:
    """Runs all sides in turns, each once before the first turn. Returns the seconds of each.

    Raises:
        WrongAnswerError: if a side's result differs from that of the first side.
    """
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    expected: Any = None
    for turn in range(runs + 1):
        order = list(sides.items())
        # Every other turn backwards, so that no side always follows the same one. The first turn warms up.
        for side, run in order if turn % 2 == 0 else order[::-1]:
            took, result = timed(run)
            if expected is None:
                expected = result
            elif not same(expected, result):
                raise WrongAnswerError(f"{name}: {side} computed {_short(result)}, another side {_short(expected)}")
            if turn:
                seconds[side].append(took)
    for side, times in seconds.items():
        note(f"{name}: {side}: {statistics.median(times):.4f} s median, {min(times):.4f} to {max(times):.4f}")
    return seconds


def _short(result: Any) -> str:
    text = repr(result)
    return text if len(text) < 200 else text[:200] + "…"


def row(
    name: str, unit: str, own: list[float], baseline: str, theirs: list[float], *, checked: bool, **more: Any
) -> dict[str, Any]:
    """Returns a row of two sides' times."""
    value, other = statistics.median(own), statistics.median(theirs)
    return {
        "name": name,
        "value": value,
        "unit": unit,
        "baseline": baseline,
        "baseline_value": other,
        "ratio": value / other,
        "checked": checked,
        "runs": len(own),
        "worst": max(own),
        "baseline_worst": max(theirs),
        **more,
    }


def others(seconds: Mapping[str, list[float]]) -> list[dict[str, Any]]:
    """Returns the figures of further engines."""
    return [
        {"name": side, "value": statistics.median(times), "worst": max(times), "runs": len(times)}
        for side, times in seconds.items()
    ]
