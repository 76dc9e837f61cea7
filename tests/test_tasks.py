"""Durable tasks while what runs them is killed: every accepted task ends in one outcome."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.daemons import Daemon, free_port, private_directory
from harness.leaks import wait_until
from harness.programs import bin_dir

mayfly = pytest.importorskip("mayfly", reason="the package is not installed: make build")


@pytest.fixture
def manager() -> Iterator[Daemon]:
    """A manager that can be killed, and started again at the same place."""
    os.environ.setdefault("MAYFLY_BIN", str(bin_dir() / "mayfly"))
    with private_directory() as directory:
        daemon = Daemon("up", "--listen", f"127.0.0.1:{free_port()}", state=Path(directory) / "state")
        started = [daemon]

        def again() -> Daemon:
            started[-1].kill_tree()
            started.append(started[-1].restart())
            return started[-1]

        daemon.again = again  # type: ignore[attr-defined]
        yield daemon
        started[-1].stop()


def leave_a_mark(path: str, task: int) -> int:
    """One byte for each execution."""
    with open(f"{path}/{task}", "ab") as mark:
        mark.write(b"x")
    time.sleep(0.001)
    return task


def executions(directory: Path) -> Counter[int]:
    """How often each task was executed."""
    return Counter({int(mark.name): mark.stat().st_size for mark in directory.iterdir()})


def outcomes(batch: mayfly.Batch) -> Counter[str]:
    """How many ended well, each with its own number as result, and with which codes the others."""
    ended = Counter[str]()
    for task, future in enumerate(batch.futures):
        try:
            result = future.result(120)
        except mayfly.Error as error:
            ended[error.code] += 1
        else:
            assert result == task
            ended["well"] += 1
    return ended


def test_tasks_survive_the_death_of_everything_and_none_is_executed_twice(manager: Daemon, tmp_path: Path) -> None:
    count = 3_000
    with mayfly.connect(config=manager.state) as client:
        batch = client.map(leave_a_mark, [str(tmp_path)] * count, range(count))
        for _ in range(3):
            done = batch.done()
            wait_until(lambda done=done: batch.done() > min(done + 100, count - 1), "tasks go on", timeout=60)
            manager.again()  # type: ignore[attr-defined]
        ended = outcomes(batch)
    assert set(ended) <= {"well", "maybe_executed"}
    assert ended.total() == count
    # What may have been executed is what was at the dispatcher when it died, and no more.
    assert ended["maybe_executed"] < 1_500
    executed = executions(tmp_path)
    assert max(executed.values()) == 1
    assert len(executed) >= ended["well"]


def test_repeatable_tasks_all_end_well_whatever_dies(manager: Daemon, tmp_path: Path) -> None:
    count = 2_000
    with mayfly.connect(config=manager.state) as client:
        batch = client.map(leave_a_mark, [str(tmp_path)] * count, range(count), repeatable=True)
        done = batch.done()
        wait_until(lambda: batch.done() > done + 50, "tasks go on", timeout=60)
        manager.again()  # type: ignore[attr-defined]
        assert list(batch.results(timeout=120)) == list(range(count))
    assert len(executions(tmp_path)) == count


def test_a_submission_waits_for_a_manager_that_comes_back(manager: Daemon) -> None:
    with mayfly.connect(config=manager.state) as client:
        assert client.run(abs, -1).result(30) == 1
        manager.kill_tree()
        future = client.run(abs, -2)
        with pytest.raises(TimeoutError):
            future.result(0.5)
        manager.again()  # type: ignore[attr-defined]
        assert future.result(30) == 2


def test_workers_and_executors_that_are_killed_lose_no_task(manager: Daemon, tmp_path: Path) -> None:
    count = 2_000
    chance = random.Random(7)
    with mayfly.connect(config=manager.state) as client:
        batch = client.map(leave_a_mark, [str(tmp_path)] * count, range(count))
        # Sooner than an executor can be started, at times; so there must be an end to it.
        for pause in [0.05] * 60 + [0.3] * 10:
            if below := list(manager.processes()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(chance.choice(below), signal.SIGKILL)
            time.sleep(pause)
        ended = outcomes(batch)
    assert set(ended) <= {"well", "maybe_executed"}
    assert ended.total() == count
    assert max(executions(tmp_path).values()) == 1
