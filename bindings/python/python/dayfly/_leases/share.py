"""Loops that are shared between this process and leased workers."""

from __future__ import annotations

import pickle
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from dayfly._codec.trust import failed_item
from dayfly._errors import Error
from dayfly._native import Call, Failure, OffloadPlanner, Pool
from dayfly._worker import FailedItem

#: Invocations into which the items of one worker are divided: so many steps in which items can still come back.
PARTS = 4
#: Items whose pickles are measured, for the bytes of one call.
SAMPLE = 8
#: Seconds between two looks for results while this process computes.
LOOK_S = 50e-6
#: Errors of calls that no worker has executed.
NOT_EXECUTED = frozenset({"not_executed", "rejected", "no_capacity", "stale_epoch"})
#: Errors of calls that a worker may have executed.
LOST = frozenset({"maybe_executed", "memory_returned", "unreachable", "lease_ended", "lease_expired"})


def share(
    pool: Pool,
    planner: OffloadPlanner,
    fn: Callable[[Any], Any],
    items: Sequence[Any],
    *,
    key: int,
    workers: int,
    submit: Callable[[list[Any], bool], Call],
    idempotent: bool,
) -> list[Any]:
    """Calls a function on every item, partly here and partly on workers. Returns the results in order."""
    if not items:
        return []
    size = _size_of(items)
    planner.set_workers(workers)
    split = planner.split(key, size, len(items))
    loop = _Loop(pool, planner, fn, items, key=key, size=size, submit=submit, idempotent=idempotent)
    try:
        loop.send(split["local"], workers)
        loop.compute(range(split["local"]))
        loop.take_back()
        loop.collect()
    finally:
        loop.cancel()
    return loop.results


def _size_of(items: Sequence[Any]) -> int:
    """Returns the mean bytes of an item that is sent."""
    step = max(len(items) // SAMPLE, 1)
    sample = list(items[::step])[:SAMPLE]
    buffers: list[pickle.PickleBuffer] = []
    try:
        pickled = len(pickle.dumps(sample, 5, buffer_callback=buffers.append))
    except Exception:
        # The codec that sends it can pickle more.
        return 0
    return (pickled + sum(buffer.raw().nbytes for buffer in buffers)) // len(sample)


class _Loop:
    """One loop under way."""

    def __init__(
        self,
        pool: Pool,
        planner: OffloadPlanner,
        fn: Callable[[Any], Any],
        items: Sequence[Any],
        *,
        key: int,
        size: int,
        submit: Callable[[list[Any], bool], Call],
        idempotent: bool,
    ) -> None:
        self.pool = pool
        self.planner = planner
        self.key = key
        self.size = size
        self.fn = fn
        self.items = items
        self.submit = submit
        self.idempotent = idempotent
        self.results: list[Any] = [None] * len(items)
        #: Calls that were sent, with their items, when they were sent, and for how long this thread sent them.
        self.sent: deque[tuple[Call, range, float, float]] = deque()

    def send(self, first: int, workers: int) -> None:
        """Sends the items from ``first`` on."""
        count = len(self.items) - first
        part = max(-(-count // (PARTS * max(workers, 1))), 1)
        for start in range(first, len(self.items), part):
            which = range(start, min(start + part, len(self.items)))
            began = time.monotonic()
            call = self.submit(list(self.items[which.start : which.stop]), False)
            self.sent.append((call, which, began, time.monotonic() - began))

    def compute(self, which: range) -> None:
        """Computes items here, and takes results of workers between them, so that their times are known."""
        fn, items, results = self.fn, self.items, self.results
        spent, looked = 0.0, time.monotonic()
        for at in which:
            began = time.monotonic()
            results[at] = fn(items[at])
            ended = time.monotonic()
            spent += ended - began
            if self.sent and ended - looked >= LOOK_S:
                while self.sent and self.sent[0][0].is_done():
                    self.take(is_exact=True)
                looked = time.monotonic()
        if which:
            self.planner.record_local(self.key, self.size, len(which), spent)

    def take_back(self) -> None:
        """Computes items here that no worker has got, the last ones first."""
        while self.sent:
            call, which, _, _ = self.sent[-1]
            if not call.cancel():
                return
            self.sent.pop()
            self.compute(which)

    def collect(self) -> None:
        """Waits for the workers."""
        while self.sent:
            # A call that has ended already may have ended long ago.
            self.take(is_exact=not self.sent[0][0].is_done())

    def take(self, *, is_exact: bool) -> None:
        """Takes the results of the first call. Items that its worker did not compute are computed here."""
        call, which, began, overhead = self.sent.popleft()
        outcome: Any = call.wait(self.pool)
        ended = time.monotonic()
        if type(outcome) is Failure:
            if not self._may_repeat(outcome.error):
                raise outcome.error
            self.compute(which)
            return
        cost_ns, any_failed, values = outcome
        if any_failed:
            raise next(failed_item(value) for value in values if type(value) is FailedItem)
        self.results[which.start : which.stop] = values
        # As if each item were a call: one journey, and its own part of the work.
        run = cost_ns / 1e9
        alone = run / len(which)
        self.planner.record_remote(
            self.key,
            self.size,
            began,
            max(ended - run + alone, began),
            overhead=overhead / len(which),
            run=alone,
            exact=is_exact,
        )

    def cancel(self) -> None:
        """Cancels calls that are left after an error."""
        for call, _, _, _ in self.sent:
            call.cancel()

    def _may_repeat(self, error: BaseException) -> bool:
        if not isinstance(error, Error):
            return False
        return error.code in NOT_EXECUTED or (self.idempotent and error.code in LOST)
