"""Ctrl-C while a future reads the outcome of its call."""

from __future__ import annotations

import threading
from typing import Any

import pytest

pytest.importorskip("dayfly", reason="the package is not installed: make build")

from dayfly._codec.trust import NOBODY
from dayfly._errors import RemoteTraceback
from dayfly._futures.future import Future


class Call:
    """A call that has returned 7, which one thread can take."""

    id = 1

    def __init__(self) -> None:
        self.left: list[Any] = [7]

    def take(self, pool: Any, raw: bool) -> Any:
        return self.left.pop() if self.left else ...

    def wait(self, pool: Any, limit: float | None, raw: bool) -> Any:
        return self.take(pool, raw)

    def notify(self) -> None:
        pass


class Lease:
    """The owner of the future."""

    _trust = NOBODY

    def _watch(self, future: Any) -> None:
        pass


def interrupted_once(value: int) -> int:
    """Raises `KeyboardInterrupt` on its first call."""
    if not hasattr(interrupted_once, "done"):
        interrupted_once.done = True  # type: ignore[attr-defined]
        raise KeyboardInterrupt
    return value


@pytest.fixture
def future() -> Future[int]:
    interrupted_once.__dict__.clear()
    return Future(Call(), None, Lease(), interrupted_once)  # type: ignore[arg-type]


def test_interrupt_during_reading_a_result_is_raised(future: Future[int]) -> None:
    with pytest.raises(KeyboardInterrupt):
        future.done()
    with pytest.raises(KeyboardInterrupt):
        Future(Call(), None, Lease(), raise_interrupt).exception()  # type: ignore[arg-type]


def raise_interrupt(value: int) -> int:
    raise KeyboardInterrupt


def test_result_is_available_after_an_interrupt(future: Future[int]) -> None:
    with pytest.raises(KeyboardInterrupt):
        future.result()
    assert future.result(0) == 7
    assert future.exception() is None


def test_waiting_thread_reads_an_interrupted_ones_outcome(future: Future[int]) -> None:
    call: Any = future._call
    call.left, found = [], []
    thread = threading.Thread(target=lambda: found.append(future.result(30)))
    thread.start()
    while future._lazy_condition is None:
        thread.join(0.001)
    call.left = [7]
    with pytest.raises(KeyboardInterrupt):
        future.done()
    thread.join(30)
    assert found == [7]


def test_interrupt_raised_by_a_function_is_its_exception(future: Future[int]) -> None:
    def raised(value: int) -> int:
        raise KeyboardInterrupt from RemoteTraceback("there")

    future._decode = raised
    assert future.done()
    assert isinstance(future.exception(), KeyboardInterrupt)
