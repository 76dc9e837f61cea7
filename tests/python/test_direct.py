"""The same executor with and without durability."""

from __future__ import annotations

import os
import time

import pytest

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")


def leases(client: dayfly.Client) -> list[int]:
    """Returns the number of workers of each active lease."""
    return [lease["workers"] for lease in client.leases() if lease["state"] in ("granted", "active")]


def test_calls_without_durability_use_leased_workers(client: dayfly.Client) -> None:
    before = client.endpoints()[0]["tasks"]["done"]
    with dayfly.Executor(client=client, durable=False, workers=2) as executor:
        assert isinstance(executor, dayfly.Executor)
        assert executor.submit(pow, 2, 10).result(30) == 1024
        assert list(executor.map(abs, range(-100, 0))) == list(range(100, 0, -1))
        assert sorted(leases(client))[-1] == 2
        # The call did not become a task.
        assert client.endpoints()[0]["tasks"]["done"] == before
    assert 2 not in leases(client)
    with dayfly.Executor(client=client) as executor:
        assert executor.submit(pow, 2, 10).result(30) == 1024
    assert client.endpoints()[0]["tasks"]["done"] == before + 1


def test_walltime_ends_a_call_without_durability(client: dayfly.Client) -> None:
    with (
        dayfly.Executor(client=client, durable=False, workers=1, walltime=0.2) as executor,
        pytest.raises(dayfly.DeadlineExceeded),
    ):
        executor.submit(time.sleep, 30).result(30)


def test_decorated_function_runs_without_durability(client: dayfly.Client) -> None:
    @dayfly.durable(client=client, durable=False, workers=1)
    def process() -> int:
        return os.getpid()

    assert process.submit().result(30) != os.getpid()


def test_options_of_durable_tasks_are_refused_without_durability(client: dayfly.Client) -> None:
    before = len(client.leases())
    for options in ({"tag": "mine"}, {"retries": 1}, {"memoize": True}, {"deadline": 3}):
        with pytest.raises(ValueError, match=next(iter(options))):
            dayfly.Executor(client=client, durable=False, **options)
    with pytest.raises(ValueError, match="workers"):
        dayfly.Executor(client=client, workers=2)
    with pytest.raises(dayfly.Error, match="no endpoint `cluster`"):
        dayfly.Executor(client=client, durable=False, endpoint="cluster")
    assert len(client.leases()) == before
