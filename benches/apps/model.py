"""Predicts how much leased cores give, from one core's time and the cost of a call.

A step that takes T on one core is divided between the program and w workers. A call costs a latency L and g for each
byte, which the program pays by itself for all workers:

    T(w) = share(w) * T + calls * L + bytes(w) * g

``share`` is 1 / (w + 1) where all parts can run at once. A prefix scan needs 2 / (w + 2), because its wide form has
twice the products.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from measure import rounded

#: Leased cores for which a prediction is printed.
MORE = (1, 3, 7, 15, 31)


def divided(workers: int) -> float:
    return 1 / (workers + 1)


def scanned(workers: int) -> float:
    return 2 / (workers + 2)


@dataclass(frozen=True)
class Model:
    """What is known of an application."""

    alone_ms: float
    call_ms: float
    ns_per_byte: float
    #: Calls to each worker in turn.
    calls: float
    #: Bytes that each worker gets or returns, however many there are.
    bytes_each: float
    #: Bytes that are divided between the workers and the program.
    bytes_divided: float
    share: Callable[[int], float] = divided

    def time_ms(self, workers: int) -> float:
        remote = 1 - divided(workers)
        moved = self.bytes_each * workers + self.bytes_divided * remote
        return self.share(workers) * self.alone_ms + self.calls * self.call_ms + moved * self.ns_per_byte / 1e6

    def speedup(self, workers: int) -> float:
        return self.alone_ms / self.time_ms(workers)

    def beside(self, measured: float) -> dict[str, Any]:
        """Returns the prediction for one leased core beside the measurement, and those for more."""
        predicted = self.speedup(1)
        return {
            "predicted": rounded(predicted),
            "measured": measured,
            "error": rounded(predicted / measured - 1),
            "more": {str(workers): rounded(self.speedup(workers)) for workers in MORE[1:]},
        }


def sentence(found: dict[str, Any]) -> str:
    more = ", ".join(f"{speedup:.1f} with {workers}" for workers, speedup in found["more"].items())
    return (
        f"The model predicts {found['predicted']:.2f} with one leased core, and {found['measured']:.2f} was measured "
        f"({found['error']:+.0%}). For more leased cores, each with memory bandwidth of its own, it predicts {more}."
    )
