"""Two hundred thousand durable tasks that nobody wants any more end at once, and nothing is the worse for it."""

from __future__ import annotations

import concurrent.futures as cf
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from harness.daemons import Daemon
from harness.leaks import wait_until
from harness.managers import manager_here, most_memory

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")

# Workers cannot import what pytest made of this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

MANY = 200_000
#: Tasks that a submission by hand may have at most.
PAGE = 100_000


@pytest.fixture
def manager() -> Iterator[Daemon]:
    with manager_here() as manager:
        yield manager


@pytest.fixture
def client(manager: Daemon) -> Iterator[dayfly.Client]:
    with dayfly.connect(config=manager.state) as client:
        yield client


def wait_for(path: str) -> str:
    """Holds a worker until it may end."""
    Path(f"{path}.{os.getpid()}").touch()
    while not Path(path).exists():
        time.sleep(0.01)
    return "released"


def hold_the_workers(client: dayfly.Client, gate: Path) -> dayfly.Batch:
    """Tasks in front of all others, more than there are workers."""
    held = client.map(wait_for, [str(gate)] * 50, priority=5)
    wait_until(lambda: list(gate.parent.glob(f"{gate.name}.*")), "a worker is held", 30)
    return held


def ended_cancelled(manager: Daemon, tag: str) -> int:
    """How many tasks of a tag have ended as cancelled, by the manager's own list."""
    count, before = 0, ""
    while True:
        page: list[dict[str, Any]] = json.loads(manager.ask("GET", f"/v1/tasks?tag={tag}&limit=10000{before}")[1])
        count += sum(task["state"] == "done" and task["error"]["code"] == "cancelled" for task in page)
        if len(page) < 10_000:
            return count
        before = f"&before={page[-1]['id']}"


def test_cancelling_a_batch_cancels_many_tasks(client: dayfly.Client, manager: Daemon, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    held = hold_the_workers(client, gate)
    batch = client.map(abs, range(MANY), tag="unwanted")
    begin = time.monotonic()
    cancelled = batch.kill()
    assert cancelled["ended"] + cancelled["told"] == MANY
    # At a dispatcher are a few; all others never left the queue.
    assert cancelled["ended"] > MANY // 2
    wait_until(lambda: batch.done() == MANY, "all have ended", 60 - (time.monotonic() - begin))
    assert time.monotonic() - begin < 60
    assert ended_cancelled(manager, "unwanted") == MANY
    assert all(future.cancelled() for future in batch.futures)
    with pytest.raises(cf.CancelledError):
        batch[-1].result(1)
    # The workers were held all the time, and are not harmed either.
    assert held.done() == 0
    late = client.run(abs, -7)
    gate.touch()
    assert late.result(30) == 7
    assert list(held.results(timeout=30)) == ["released"] * len(held)
    assert most_memory(manager.pid) < 1 << 30


def test_cancel_command_cancels_many_tasks_of_a_tag(client: dayfly.Client, manager: Daemon, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    held = hold_the_workers(client, gate)
    function = client.register(abs, name="abs").id
    for _ in range(MANY // PAGE):
        tasks = {"function": function, "tag": "unwanted", "tasks": [{"call": {"arguments": [-7]}}] * PAGE}
        status, accepted = manager.post("/v1/tasks", tasks)
        assert (status, len(accepted["tasks"])) == (201, PAGE)
    begin = time.monotonic()
    status, cancelled = manager.post("/v1/tasks/cancel", {"tag": "unwanted"})
    assert status == 200
    assert cancelled["ended"] + cancelled["told"] == MANY
    wait_until(lambda: json.loads(manager.ask("GET", "/v1/tasks/counts")[1])["done"] >= MANY, "all have ended", 60)
    assert time.monotonic() - begin < 60
    assert ended_cancelled(manager, "unwanted") == MANY
    # Again there is nothing left to cancel.
    assert manager.post("/v1/tasks/cancel", {"tag": "unwanted"})[1] == {"ended": 0, "told": 0, "running": 0}
    gate.touch()
    assert client.run(abs, -7).result(30) == 7
    assert list(held.results(timeout=30)) == ["released"] * len(held)
    assert most_memory(manager.pid) < 1 << 30
