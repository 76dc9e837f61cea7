"""Streams: functions that yield in a worker, iterated by the caller."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from harness.leaks import wait_until

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def numbers(count: int) -> Iterator[int]:
    yield from range(count)


def logged(path: str, count: int, pause: float = 0.0) -> Iterator[int]:
    """Appends a byte for each item that it computes, and another name at its end."""
    try:
        for number in range(count):
            with Path(path).open("ab") as log:
                log.write(b".")
            yield number
            time.sleep(pause)
    finally:
        Path(path + ".ended").touch()


def failing(count: int) -> Iterator[int]:
    yield from range(count)
    raise KeyError("the end")


def arrays(count: int, size: int) -> Iterator[Any]:
    import numpy as np

    for number in range(count):
        yield np.full(size, number)


def not_iterable() -> int:
    return 3


def own_process() -> Iterator[int]:
    while True:
        yield os.getpid()


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def test_stream_yields_all_items_in_order(lease: dayfly.Lease) -> None:
    assert list(lease.stream(numbers, 100_000)) == list(range(100_000))
    assert list(lease.stream(numbers, count=0)) == []
    assert list(lease.stream(range, 5)) == [0, 1, 2, 3, 4]


def test_item_arrives_while_function_runs(lease: dayfly.Lease, tmp_path: Path) -> None:
    path = tmp_path / "log"
    stream = lease.stream(logged, str(path), 1000, 0.05)
    assert next(stream) == 0
    assert size_of(path) < 10
    stream.close()


def test_worker_waits_for_slow_caller(lease: dayfly.Lease, tmp_path: Path) -> None:
    path = tmp_path / "log"
    with lease.stream(logged, str(path), 1_000_000) as stream:
        assert next(stream) == 0
        wait_until(lambda: stream._next is None or stream._next.done(), "the part ahead")
        computed = size_of(path)
        # A call of the same worker shows that the function does not run on.
        lease.options(worker=stream.worker).call(time.sleep, 0.05)
        assert size_of(path) == computed
        assert next(stream) == 1


def test_worker_serves_calls_between_items(own: dayfly.Lease) -> None:
    stream = own.stream(own_process)
    pid = next(stream)
    assert own.call(os.getpid) == pid
    assert next(stream) == pid


def test_closed_stream_ends_its_function(lease: dayfly.Lease, tmp_path: Path) -> None:
    for name in ("closed", "dropped", "started"):
        path = tmp_path / name
        stream = lease.stream(logged, str(path), 1_000_000)
        if name != "started":
            next(stream)
        if name == "dropped":
            del stream
        else:
            stream.close()
            assert list(stream) == []
        wait_until((tmp_path / f"{name}.ended").exists, f"the end of the {name} function")


def test_exception_comes_after_items_before_it(lease: dayfly.Lease) -> None:
    stream = lease.stream(failing, 3)
    assert [next(stream), next(stream), next(stream)] == [0, 1, 2]
    with pytest.raises(KeyError, match="the end"):
        next(stream)
    assert list(stream) == []


def test_stream_of_function_without_items_is_refused(lease: dayfly.Lease) -> None:
    with pytest.raises(TypeError, match="function that yields"):
        next(lease.stream(not_iterable))


def test_large_arrays_stream_one_by_one(lease: dayfly.Lease) -> None:
    total = 0
    for number, array in enumerate(lease.stream(arrays, 20, 1 << 18)):
        assert array[0] == array[-1] == number
        total += array.nbytes
    assert total == 20 << 21


def test_async_for_iterates_over_stream(lease: dayfly.Lease) -> None:
    async def total() -> int:
        return sum([number async for number in lease.stream(numbers, 20_000)])

    assert asyncio.run(total()) == sum(range(20_000))


def test_streams_share_workers_evenly(lease: dayfly.Lease) -> None:
    streams = [lease.stream(own_process) for _ in range(4)]
    assert len({next(stream) for stream in streams}) == 2
    assert sorted(stream.worker for stream in streams) == [0, 0, 1, 1]


def test_lost_worker_ends_stream_with_name(own: dayfly.Lease) -> None:
    stream = own.stream(own_process)
    pid = next(stream)
    os.kill(pid, 9)
    with pytest.raises(dayfly.StateLost, match=r"after \d+ items"):
        list(stream)
    assert next(own.stream(own_process)) != pid


def test_forgotten_streams_are_bounded(client: dayfly.Client) -> None:
    from dayfly._worker_streams import MAX_STREAMS, start

    def forget(count: int) -> int:
        for _ in range(count):
            start(1, iter, [1, 2])
        return count

    with client.lease(mode="warm") as lease:
        assert lease.call(forget, MAX_STREAMS) == MAX_STREAMS
        with pytest.raises(RuntimeError, match=f"{MAX_STREAMS} streams"):
            next(lease.stream(numbers, 3))


def test_stream_after_shutdown_is_refused(client: dayfly.Client) -> None:
    lease = client.lease(mode="warm")
    stream = lease.stream(numbers, 1_000_000)
    next(stream)
    lease.shutdown()
    stream.close()
    with pytest.raises(RuntimeError, match="shutdown"):
        lease.stream(numbers, 3)
