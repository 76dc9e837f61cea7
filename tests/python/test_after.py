"""Durable tasks that depend on others, and receive their results."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from harness.daemons import Daemon, free_port
from harness.managers import manager_here

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")


@pytest.fixture
def manager() -> Iterator[Daemon]:
    with manager_here(port=free_port()) as manager:
        yield manager


@pytest.fixture
def client(manager: Daemon) -> Iterator[dayfly.Client]:
    with dayfly.connect(config=manager.state) as client:
        yield client


@pytest.fixture
def executor(client: dayfly.Client) -> Iterator[dayfly.Executor]:
    with dayfly.Executor(client=client) as executor:
        yield executor


def add(a: int, b: int) -> int:
    """The sum."""
    return a + b


def wait_and_add(path: str, a: int, b: int) -> int:
    """Returns the sum once a file exists."""
    import time

    while not Path(path).exists():
        time.sleep(0.01)
    return a + b


def fail() -> None:
    """Raises."""
    raise KeyError("not today")


def test_futures_in_arguments_become_their_results(executor: dayfly.Executor) -> None:
    three = executor.submit(add, 1, 2)
    seven = executor.submit(add, three, 4)
    assert executor.submit(add, seven, b=three).result(30) == 10
    numbers = [executor.submit(add, n, n) for n in range(50)]
    # Nested futures, and the same future twice.
    assert executor.submit(sum, numbers).result(30) == 2 * sum(range(50))
    assert executor.submit(sorted, {"b": seven, "a": seven}).result(30) == ["a", "b"]
    # A future that has ended, and whose result was taken.
    assert three.result(30) == 3
    assert executor.submit(add, three, three).result(30) == 6


def test_large_results_travel_from_task_to_task(executor: dayfly.Executor, client: dayfly.Client) -> None:
    image = executor.submit(np.arange, 1_000_000)
    doubled = executor.submit(np.multiply, image, 2)
    total = executor.submit(np.sum, doubled)
    assert total.result(30) == 999_999 * 1_000_000
    # Through another executor of the same manager.
    with dayfly.Executor(client=client) as other:
        assert other.submit(np.max, doubled).result(30) == 1_999_998
        small = other.submit(np.arange, 5)
        pair = other.submit(lambda a, b: (a.sum(), b.tolist(), a.flags.aligned), doubled, small)
        assert pair.result(30) == (999_999 * 1_000_000, [0, 1, 2, 3, 4], True)


def test_chain_of_a_thousand_tasks_ends(executor: dayfly.Executor) -> None:
    last = executor.submit(add, 0, 0)
    for _ in range(1_000):
        last = executor.submit(add, last, 1)
    assert last.result(60) == 1_000


def test_task_after_a_failed_one_is_not_executed(executor: dayfly.Executor, tmp_path: Path) -> None:
    failed = executor.submit(fail)
    after = executor.submit(add, failed, 1)
    last = executor.submit(add, after, 1)
    with pytest.raises(dayfly.DependencyFailed, match="depends on, failed") as raised:
        last.result(30)
    assert raised.value.code == "dependency_failed"
    with pytest.raises(dayfly.DependencyFailed, match="the function raised KeyError"):
        after.result(30)
    with pytest.raises(KeyError):
        failed.result(30)
    # Also if it is submitted after the failure.
    with pytest.raises(dayfly.DependencyFailed):
        executor.submit(add, failed, 1).result(30)
    held = executor.submit(wait_and_add, str(tmp_path / "never"), 1, 2)
    waiting = executor.submit(add, held, 1)
    held.cancel()
    held.kill()
    with pytest.raises(dayfly.DependencyFailed, match="cancelled"):
        waiting.result(30)


def test_waiting_tasks_are_cancelled_and_have_deadlines(client: dayfly.Client, tmp_path: Path) -> None:
    with dayfly.Executor(client=client) as executor, dayfly.Executor(client=client, deadline=0.3) as hasty:
        held = executor.submit(wait_and_add, str(tmp_path / "go"), 1, 2)
        cancelled = executor.submit(add, held, 1)
        late = hasty.submit(add, held, 1)
        kept = executor.submit(add, held, 1)
        executor._pool.flush(30)
        assert cancelled.cancel()
        with pytest.raises(dayfly.DeadlineExceeded):
            late.result(30)
        (tmp_path / "go").touch()
        assert kept.result(30) == 4


def test_waiting_tasks_survive_a_killed_manager(manager: Daemon, tmp_path: Path) -> None:
    with dayfly.connect(config=manager.state) as client:
        executor = dayfly.Executor(client=client, repeatable=True, tag="through it all")
        done = executor.submit(add, 1, 2)
        assert done.result(30) == 3
        failed = executor.submit(fail)
        with pytest.raises(KeyError):
            failed.result(30)
        held = executor.submit(wait_and_add, str(tmp_path / "go"), 1, 2)
        sums = [executor.submit(add, held, executor.submit(add, done, n)) for n in range(20)]
        assert executor._pool.flush(30)
        manager.kill_tree()
        again = manager.restart()
        try:
            (tmp_path / "go").touch()
            assert [one.result(60) for one in sums] == [n + 6 for n in range(20)]
        finally:
            executor.shutdown()
            again.stop()


def test_impossible_dependencies_are_refused_with_a_reason(executor: dayfly.Executor, client: dayfly.Client) -> None:
    with pytest.raises(TypeError, match="give it to a durable task"):
        pickle.dumps(executor.submit(add, 1, 2))
    with client.lease(workers=1) as lease, pytest.raises(TypeError, match="cannot be pickled"):
        executor.submit(add, lease.submit(add, 1, 2), 3).result(0)
    function = client.register(add, name="add").id

    def refused(*tasks: dict[str, object]) -> str:
        with pytest.raises(dayfly.Error) as raised:
            client._native.post("/v1/tasks", json.dumps({"function": function, "tasks": list(tasks)}))
        return str(raised.value)

    nobody, first, second = "0" * 32, "1" * 32, "2" * 32
    assert "no task 0000" in refused({"after": [nobody]})
    assert "does not precede it" in refused({"id": first, "after": [second]}, {"id": second, "after": [first]})
    assert "results of other tasks" in refused({"call": {"arguments": [1, 2]}, "after": [], "with_answers": True})


def test_programs_without_python_name_dependencies(executor: dayfly.Executor, client: dayfly.Client) -> None:
    function = client.register(add, name="add").id
    before = executor.submit(add, 1, 2)
    executor._pool.flush(30)
    task = {"call": {"arguments": [1, 2]}, "after": [before.id]}
    accepted = json.loads(client._native.post("/v1/tasks", json.dumps({"function": function, "tasks": [task]})))
    (task_id,) = accepted["tasks"]
    outcome = json.loads(client._native.get(f"/v1/tasks/{task_id}/outcome?wait_ms=20000"))
    assert outcome["result"] == 3
