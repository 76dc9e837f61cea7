"""Loops that are shared between a process and its leased workers."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import cloudpickle
import pytest

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def place_and_square(number: int) -> tuple[int, int]:
    time.sleep(0.002)
    return os.getpid(), number * number


def square(number: int) -> int:
    return number * number


def fail_at_seven(number: int) -> int:
    if number == 7:
        raise KeyError(number)
    return number


def total(array: Any) -> float:
    return float(array.sum())


@pytest.fixture
def fleet(client: dayfly.Client) -> Iterator[dayfly.Fleet]:
    with client.fleet(min=2, max=2, mode="warm") as fleet:
        assert fleet.wait_for_workers(2)
        yield fleet


def test_shared_loop_keeps_order_of_results(lease: dayfly.Lease) -> None:
    for count in (0, 1, 5, 1000):
        assert lease.share(square, range(count)) == [number * number for number in range(count)]


def test_workers_take_their_part_of_slow_items(fleet: dayfly.Fleet) -> None:
    places: dict[int, int] = {}
    for _ in range(6):
        results = fleet.share(place_and_square, range(120))
        assert [value for _, value in results] == [number * number for number in range(120)]
        places = {pid: sum(own == pid for own, _ in results) for pid, _ in results}
    # Sleeping items share no core, so each of the three processes could take a third.
    assert len(places) == 3
    assert places[os.getpid()] < 80


def test_cheap_items_stay_in_the_process(lease: dayfly.Lease) -> None:
    for _ in range(20):
        lease.share(square, range(50))
    began = time.monotonic()
    for _ in range(100):
        lease.share(square, range(50))
    # A round trip for every item would take far longer.
    assert time.monotonic() - began < 2.0


def test_exception_of_shared_item_is_raised(lease: dayfly.Lease) -> None:
    with pytest.raises(KeyError):
        lease.share(fail_at_seven, range(20))
    assert lease.share(square, range(4)) == [0, 1, 4, 9]


def test_arrays_are_shared_items(lease: dayfly.Lease) -> None:
    import numpy as np

    arrays = [np.full(1000, number, dtype=float) for number in range(40)]
    for _ in range(4):
        assert lease.share(total, arrays) == [1000.0 * number for number in range(40)]


def test_lost_worker_leaves_no_gap(own: dayfly.Lease) -> None:
    def die_once(number: int) -> int:
        if os.getpid() != here and number % 2:
            os._exit(1)
        time.sleep(0.001)
        return number

    here = os.getpid()
    for _ in range(5):
        assert own.share(die_once, range(40), idempotent=True) == list(range(40))


def test_share_after_shutdown_is_refused(client: dayfly.Client) -> None:
    with client.lease(mode="warm") as lease:
        pass
    with pytest.raises(RuntimeError, match="shutdown"):
        lease.share(square, range(3))
