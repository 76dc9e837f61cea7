"""Measures sides in turns, and states what is certain about their difference."""

from __future__ import annotations

import gc
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

#: Fewer rounds have no interval of 95 %: the extremes of five include the median in 93.8 % of the cases.
MIN_ROUNDS = 6
CONFIDENCE = 0.95


#: Rows, and what was left out.
Measured = tuple[list[dict[str, Any]], list[dict[str, str]]]


class WrongResultError(Exception):
    """A side computed something else than it should."""


def note(text: str) -> None:
    """Prints the progress to standard error."""
    print(f"[apps] {text}", file=sys.stderr, flush=True)


def interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Returns an interval that includes the median with at least this probability, whatever the distribution: two order
    statistics by the binomial distribution. Of fewer than six values, it returns the extremes."""
    ordered, n = sorted(values), len(values)
    if not ordered:
        return math.nan, math.nan
    rank, outside = 0, 0.0
    while rank < n // 2:
        outside += 2 * math.comb(n, rank) / 2**n
        if outside > 1 - confidence:
            break
        rank += 1
    rank = max(rank, 1)
    return ordered[rank - 1], ordered[n - rank]


def ratios(ours: Sequence[float], against: Sequence[float]) -> list[float]:
    """Returns how many times as fast ours was, round by round."""
    return [theirs / own for own, theirs in zip(ours, against, strict=True)]


def in_turns(sides: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Returns the milliseconds of each side in each round. The order changes from round to round."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    names = list(sides)
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            gc.collect()
            begun = time.perf_counter()
            sides[name]()
            times[name].append((time.perf_counter() - begun) * 1e3)
    return times


def verdict(app: str, ours: str, against: str, found: tuple[float, float, float], why: Mapping[str, str]) -> str:
    """Returns a sentence that states who won, and why."""
    speedup, low, high = found
    times = f"{speedup:.2f} times as fast (95 %: {low:.2f} to {high:.2f})"
    if low > 1:
        return f"{app}: {ours} won over {against}, {times}: {why['won']}."
    if high < 1:
        return f"{app}: {against} won over {ours}, which is {times}: {why['lost']}."
    return f"{app}: neither {ours} nor {against} won with certainty, {times}: {why.get('even', why['lost'])}."


def row(
    app: str,
    ours: str,
    against: str,
    times: Mapping[str, Sequence[float]],
    *,
    why: Mapping[str, str],
    cores: int,
    leased_cores: int,
    checked: bool,
    **more: Any,
) -> dict[str, Any]:
    """Returns one comparison. ``times`` are milliseconds in rounds, by side."""
    values = ratios(times[ours], times[against])
    low, high = interval(values)
    speedup = statistics.median(values)
    ours_low, ours_high = interval(times[ours])
    against_low, against_high = interval(times[against])
    found = {
        "app": app,
        "ours": ours,
        "against": against,
        "speedup": speedup,
        "low": low,
        "high": high,
        "rounds": len(values),
        "ours_ms": statistics.median(times[ours]),
        "ours_low_ms": ours_low,
        "ours_high_ms": ours_high,
        "against_ms": statistics.median(times[against]),
        "against_low_ms": against_low,
        "against_high_ms": against_high,
        "cores": cores,
        "leased_cores": leased_cores,
        "checked": checked,
        "said": verdict(app, ours, against, (speedup, low, high), why),
        **more,
    }
    return {name: rounded(value) for name, value in found.items()}


def rounded(value: Any) -> Any:
    """Returns a number with six digits, which every program reads back as the same one; other values as they are."""
    return float(f"{value:.6g}") if isinstance(value, float) else value
