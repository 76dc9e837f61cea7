"""Clocks that somebody sets while tasks wait and run: that of the manager's machine, by libfaketime."""

from __future__ import annotations

import glob
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import cloudpickle
import pytest
from harness.leaks import wait_until
from harness.managers import Manager

mayfly = pytest.importorskip("mayfly", reason="the package is not installed: make build")

# Workers cannot import what pytest made of this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

HOUR = 3600
DAY = 24 * HOUR
LIBRARY = next(iter(glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1")), "")
pytestmark = pytest.mark.skipif(not LIBRARY, reason="libfaketime not found: apt-get install faketime")

SetClock = Callable[[float], None]


@pytest.fixture
def clock(state: Path) -> SetClock:
    """``clock(3600)`` sets the manager's clock ahead of this machine's by an hour; that which nobody can set goes on."""

    def set_clock(seconds: float) -> None:
        state.parent.mkdir(parents=True, exist_ok=True)
        # In one step: a file that is being written has no time in it.
        new = state.parent / "clock.new"
        new.write_text(f"{seconds:+f}\n")
        new.rename(state.parent / "clock")

    set_clock(0)
    return set_clock


@pytest.fixture
def manager(clock: SetClock, state: Path) -> Iterator[Manager]:
    manager = Manager(
        state,
        LD_PRELOAD=LIBRARY,
        FAKETIME_TIMESTAMP_FILE=str(state.parent / "clock"),
        FAKETIME_NO_CACHE="1",
        FAKETIME_DONT_FAKE_MONOTONIC="1",
        DONT_FAKE_MONOTONIC="1",
    )
    yield manager
    manager.stop()


@pytest.fixture
def client(manager: Manager) -> Iterator[mayfly.Client]:
    with mayfly.connect(config=manager.state) as client:
        yield client


def behind(gate: str, number: int) -> int:
    while not Path(gate).exists():
        time.sleep(0.01)
    return number


def now(client: mayfly.Client) -> float:
    """What time it is for the manager."""
    return client.task_status(client.run(int).id)["submitted_at_ms"] / 1000


@pytest.mark.parametrize("ahead", [30 * DAY, HOUR, -HOUR, -30 * DAY])
def test_no_task_ends_because_a_clock_is_set(
    client: mayfly.Client, clock: SetClock, tmp_path: Path, ahead: float
) -> None:
    gate = tmp_path / "gate"
    with mayfly.Executor(client=client, deadline=50, walltime=40) as executor:
        # Those at work, and those that wait for them.
        futures = [executor.submit(behind, str(gate), number) for number in range(20)]
        wait_until(lambda: client.task_status(futures[0].id)["state"] == "running", "the first one runs")
        clock(ahead)
        wait_until(lambda: abs(now(client) - time.time() - ahead) < 60, "the manager goes by the new time")
        later = executor.submit(behind, str(gate), 20)
        gate.touch()
        assert [future.result(30) for future in [*futures, later]] == list(range(21))
    # How long they took is what it was.
    for future in futures:
        status = client.task_status(future.id)
        marks = [status[f"{mark}_at_ms"] for mark in ("submitted", "waiting", "started", "ended")]
        assert sorted(marks) == marks
        assert marks[-1] - marks[0] < 60_000


def test_a_deadline_ends_what_is_late_by_the_time_that_passed(
    client: mayfly.Client, clock: SetClock, tmp_path: Path
) -> None:
    with mayfly.Executor(client=client, deadline=3) as executor:
        futures = [executor.submit(behind, str(tmp_path / "never"), number) for number in range(10)]
        wait_until(lambda: client.task_status(futures[0].id)["state"] == "running", "the first one runs")
        clock(-DAY)
        begin = time.monotonic()
        for future in futures:
            with pytest.raises(mayfly.DeadlineExceeded):
                future.result(30)
    assert time.monotonic() - begin < 20


def test_what_ended_is_not_forgotten_because_a_clock_was_set_ahead(client: mayfly.Client, clock: SetClock) -> None:
    batch = client.map(bytes, [200_000] * 5, tag="kept")
    assert [len(result) for result in batch.results(timeout=30)] == [200_000] * 5
    clock(60 * DAY)
    # Several looks for what is too old have passed when this timer has come that often.
    looks = client.trigger("looks", int, timer="*/5 * * * * *", paused=True)
    assert looks.name == "looks"
    begin = time.monotonic()
    wait_until(lambda: now(client) > time.time() + 59 * DAY and time.monotonic() - begin > 12, "two looks", 30)
    clock(0)
    wait_until(lambda: abs(now(client) - time.time()) < 60, "the clock is right again")
    assert [len(result) for result in client.tasks("kept").results(timeout=30)] == [200_000] * 5


def seen(client: mayfly.Client, name: str) -> list[int]:
    """The times for which a timer has come, in the order in which it did."""
    statuses = [status for status in client.tasks(f"trigger:{name}").futures]
    return [future.result(30) for future in statuses]


def due(event: dict[str, int]) -> int:
    return event["due_ms"]


def test_a_timer_comes_once_for_each_time_wherever_the_clock_is_set(client: mayfly.Client, clock: SetClock) -> None:
    client.trigger("each-second", due, timer="* * * * * *")
    wait_until(lambda: len(seen(client, "each-second")) >= 2, "it comes", 20)
    # Ahead: what passed is one time, and then each second.
    clock(2 * HOUR)
    wait_until(lambda: seen(client, "each-second")[-1] / 1000 > time.time() + HOUR, "it comes at the new time", 20)
    ahead = seen(client, "each-second")
    assert sum(late - early > 60_000 for early, late in itertools.pairwise(ahead)) == 1
    # Far back, as by somebody who finds that the clock was wrong: it does not wait for years.
    clock(-3 * DAY)
    wait_until(lambda: seen(client, "each-second")[-1] / 1000 < time.time() - 2 * DAY, "it comes at the right time", 20)
    times = seen(client, "each-second")
    assert len(set(times)) == len(times)


def test_a_clock_that_is_set_back_a_little_brings_no_time_twice(client: mayfly.Client, clock: SetClock) -> None:
    client.trigger("each-second", due, timer="* * * * * *")
    wait_until(lambda: len(seen(client, "each-second")) >= 2, "it comes", 20)
    clock(-4)
    before = len(seen(client, "each-second"))
    wait_until(lambda: len(seen(client, "each-second")) >= before + 3, "it goes on", 20)
    times = seen(client, "each-second")
    assert len(set(times)) == len(times)
    assert sorted(times) == times


def test_leases_live_by_a_clock_that_nobody_sets(client: mayfly.Client, clock: SetClock) -> None:
    with client.lease(workers=1) as lease:
        assert lease.submit(pow, 2, 10).result(30) == 1024
        for ahead in (30 * DAY, -30 * DAY, 0):
            clock(ahead)
            assert lease.submit(pow, 2, 10).result(30) == 1024
            with client.lease(workers=1) as other:
                assert other.submit(pow, 2, 11).result(30) == 2048
