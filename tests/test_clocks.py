"""Clocks that somebody sets while tasks wait and run: that of the manager's machine, by a clock of the test's own."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import pytest
from harness.clock import Clock
from harness.leaks import wait_until
from harness.managers import Manager

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")

# Workers cannot import what pytest made of this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

HOUR = 3600
DAY = 24 * HOUR


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    return Clock(tmp_path / "clock")


@pytest.fixture
def manager(clock: Clock, state: Path) -> Iterator[Manager]:
    manager = Manager(state, **clock.environment)
    yield manager
    manager.stop()


@pytest.fixture
def client(manager: Manager) -> Iterator[dayfly.Client]:
    with dayfly.connect(config=manager.state) as client:
        yield client


def behind(gate: str, number: int) -> int:
    while not Path(gate).exists():
        time.sleep(0.01)
    return number


def now(client: dayfly.Client) -> float:
    """What time it is for the manager."""
    with client.batch() as batch:
        future = batch.submit(int)
    return float(client.task_status(future.id)["submitted_at_ms"]) / 1000


@pytest.mark.parametrize("ahead", [30 * DAY, HOUR, -HOUR, -30 * DAY])
def test_setting_a_clock_ends_no_task(client: dayfly.Client, clock: Clock, tmp_path: Path, ahead: int) -> None:
    gate = tmp_path / "gate"
    # Those at work, and those that wait for them.
    batch = client.map(behind, [str(gate)] * 20, range(20), deadline=50, walltime=40)
    wait_until(lambda: client.task_status(batch[0].id)["state"] == "running", "the first one runs")
    clock.set(ahead)
    wait_until(lambda: abs(now(client) - time.time() - ahead) < 60, "the manager goes by the new time")
    later = batch.submit(behind, str(gate), 20)
    gate.touch()
    assert list(batch.results(timeout=30)) == list(range(21))
    # How long they took is what it was.
    for future in (*batch.futures, later):
        status = client.task_status(future.id)
        marks = [status[f"{mark}_at_ms"] for mark in ("submitted", "waiting", "started", "ended")]
        assert sorted(marks) == marks
        assert marks[-1] - marks[0] < 60_000


def test_deadline_counts_elapsed_time_only(client: dayfly.Client, clock: Clock, tmp_path: Path) -> None:
    batch = client.map(behind, [str(tmp_path / "never")] * 10, range(10), deadline=3)
    wait_until(lambda: client.task_status(batch[0].id)["state"] == "running", "the first one runs")
    clock.set(-DAY)
    begin = time.monotonic()
    for future in batch.futures:
        with pytest.raises(dayfly.DeadlineExceeded):
            future.result(30)
    assert time.monotonic() - begin < 20


def test_clock_set_ahead_deletes_no_ended_task(client: dayfly.Client, clock: Clock) -> None:
    batch = client.map(bytes, [200_000] * 5, tag="kept")
    assert [len(result) for result in batch.results(timeout=30)] == [200_000] * 5
    clock.set(60 * DAY)
    begin = time.monotonic()
    # There is a look every five seconds.
    wait_until(lambda: now(client) > time.time() + 59 * DAY and time.monotonic() - begin > 12, "two looks", 30)
    clock.set(0)
    wait_until(lambda: abs(now(client) - time.time()) < 60, "the clock is right again")
    assert [len(result) for result in client.tasks("kept").results(timeout=30)] == [200_000] * 5


def seen(client: dayfly.Client, name: str) -> list[int]:
    """The times for which a timer has come."""
    return list(client.tasks(f"trigger:{name}").results(timeout=30))


def due(event: dict[str, int]) -> int:
    return event["due_ms"]


def test_timer_fires_once_whatever_the_clock_does(client: dayfly.Client, clock: Clock) -> None:
    client.trigger("each-second", due, timer="* * * * * *")
    wait_until(lambda: len(seen(client, "each-second")) >= 2, "it comes", 20)
    # Ahead: what passed is one time, and then each second.
    clock.set(2 * HOUR)
    wait_until(lambda: max(seen(client, "each-second")) / 1000 > time.time() + HOUR, "it comes at the new time", 20)
    ahead = sorted(seen(client, "each-second"))
    assert sum(late - early > 60_000 for early, late in itertools.pairwise(ahead)) == 1
    # Far back, as by somebody who finds that the clock was wrong: it does not wait for years.
    clock.set(-3 * DAY)
    wait_until(lambda: min(seen(client, "each-second")) / 1000 < time.time() - 2 * DAY, "it comes at that time", 20)
    times = seen(client, "each-second")
    assert len(set(times)) == len(times)


def test_clock_set_back_repeats_no_timer(client: dayfly.Client, clock: Clock) -> None:
    client.trigger("each-second", due, timer="* * * * * *")
    wait_until(lambda: len(seen(client, "each-second")) >= 2, "it comes", 20)
    clock.set(-4)
    before = len(seen(client, "each-second"))
    wait_until(lambda: len(seen(client, "each-second")) >= before + 3, "it goes on", 20)
    times = seen(client, "each-second")
    assert len(set(times)) == len(times)


def test_leases_use_the_monotonic_clock(client: dayfly.Client, clock: Clock) -> None:
    with client.lease(workers=1) as lease:
        assert lease.submit(pow, 2, 10).result(30) == 1024
        for ahead in (30 * DAY, -30 * DAY, 0):
            clock.set(ahead)
            assert abs(now(client) - time.time() - ahead) < 60
            assert lease.submit(pow, 2, 10).result(30) == 1024
            # Another kind of tasks takes workers of its own, from the dispatcher, which is where the node is.
            assert client.batch(cores=2).submit(pow, 2, 11).result(30) == 2048
