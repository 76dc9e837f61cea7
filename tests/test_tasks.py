"""Durable tasks while what runs them is killed: every accepted task ends in one outcome."""

from __future__ import annotations

import concurrent.futures as cf
import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.daemons import private_directory
from harness.managers import Manager
from harness.marks import executions, go_on, leave_a_mark, leave_a_mark_behind, outcomes

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")


@pytest.fixture
def manager() -> Iterator[Manager]:
    with private_directory() as directory:
        manager = Manager(Path(directory) / "state")
        yield manager
        manager.daemon.stop()


def test_tasks_survive_killed_processes_and_run_once(manager: Manager, tmp_path: Path) -> None:
    count = 3_000
    with dayfly.connect(config=manager.state) as client:
        batch = client.map(leave_a_mark, [str(tmp_path)] * count, range(count))
        for _ in range(3):
            go_on(batch, 100)
            manager.again()
        ended = outcomes(batch)
    assert set(ended) <= {"well", "maybe_executed"}
    assert ended.total() == count
    # What may have been executed is what was at the dispatcher when it died, and no more.
    assert ended["maybe_executed"] < 1_500
    executed = executions(tmp_path)
    assert max(executed.values()) == 1
    assert len(executed) >= ended["well"]


def test_idempotent_tasks_all_succeed_despite_kills(manager: Manager, tmp_path: Path) -> None:
    count = 2_000
    with dayfly.connect(config=manager.state) as client:
        batch = client.map(leave_a_mark, [str(tmp_path)] * count, range(count), repeatable=True)
        go_on(batch, 50)
        manager.again()
        assert list(batch.results(timeout=120)) == list(range(count))
    assert len(executions(tmp_path)) == count


def test_submission_waits_for_returning_manager(manager: Manager) -> None:
    with dayfly.connect(config=manager.state) as client:
        assert client.run(abs, -1).result(30) == 1
        manager.kill()
        future = client.run(abs, -2)
        with pytest.raises(TimeoutError):
            future.result(0.5)
        manager.again()
        assert future.result(30) == 2


def test_first_use_of_function_waits_for_manager(manager: Manager) -> None:
    with dayfly.connect(config=manager.state) as client, cf.ThreadPoolExecutor() as threads:
        manager.kill()
        task = threads.submit(client.run, lambda: "ran")
        registered = threads.submit(client.register, lambda: "registered", name="named")
        done, _ = cf.wait([task, registered], timeout=0.5)
        assert not done
        manager.start_again()
        assert task.result(30).result(30) == "ran"
        assert registered.result(30).name == "named"


def test_memoized_tasks_run_once_despite_kills(manager: Manager, tmp_path: Path) -> None:
    gate, marks = tmp_path / "gate", tmp_path / "marks"
    marks.mkdir()
    count = 100
    with dayfly.connect(config=manager.state) as client:
        function = client.register(leave_a_mark_behind, name="mark")
        same = ([str(gate)] * count, [str(marks)] * count, [7] * count)
        batch = client.map(function, *same, tag="same", memoize=True, repeatable=True)
        manager.again()
        gate.touch()
        assert list(batch.results(timeout=60)) == [7] * count
        # One that waited for its gate when all died may have had time to see it.
        executed = executions(marks)[7]
        assert executed <= 2
        manager.again()
        assert list(client.map(function, *same, tag="again", memoize=True).results(timeout=60)) == [7] * count
        assert executions(marks)[7] == executed
        forgotten = {"forgotten": count, "left": 0}
        assert manager.daemon.cli("task", "forget", "--tag", "same") == forgotten
        assert manager.daemon.cli("task", "forget", "--tag", "same") == {"forgotten": 0, "left": 0}
        [gone] = manager.daemon.cli("function", "remove", "mark")
        assert gone["id"] == function.id
        assert manager.daemon.cli("task", "list", "--tag", "again")[0]["name"] == ""
        assert manager.daemon.cli("function", "list") == []


def test_killed_workers_lose_no_task(manager: Manager, tmp_path: Path) -> None:
    count = 2_000
    chance = random.Random(7)
    with dayfly.connect(config=manager.state) as client:
        batch = client.map(leave_a_mark, [str(tmp_path)] * count, range(count))
        # Sooner than an executor can be started, at times; so there must be an end to it.
        for pause in [0.05] * 60 + [0.3] * 10:
            if below := list(manager.daemon.processes()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(chance.choice(below), signal.SIGKILL)
            time.sleep(pause)
        ended = outcomes(batch)
    assert set(ended) <= {"well", "maybe_executed"}
    assert ended.total() == count
    assert max(executions(tmp_path).values()) == 1
