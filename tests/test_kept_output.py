"""What tasks printed is kept with their outcomes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.leaks import wait_until
from harness.managers import Manager
from harness.programs import program, run

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")


@pytest.fixture
def manager(state: Path) -> Iterator[Manager]:
    """A manager that can be killed."""
    manager = Manager(state / "manager")
    yield manager
    manager.stop()


def say(lines: int) -> int:
    """Prints more than is kept."""
    import sys

    for line in range(lines):
        print(f"line {line:06}")
    print("and this", file=sys.stderr)
    return lines


def test_printed_output_survives_killed_manager(manager: Manager) -> None:
    with dayfly.connect(config=manager.state) as client:
        future = client.run(say, 6_000)
        assert future.result(60) == 6_000
        task = future.id

        def has_all() -> bool:
            # Each stream by itself: together, one may come in the middle of a line of the other.
            return client.output(task, "out").endswith("line 005999\n") and client.output(task, "err") == "and this\n"

        wait_until(has_all, "all of it comes", 30)
        # It is over once it is in the store.
        for _ in client.follow(future):
            pass
        before = client.output(task)
    manager.again()
    with dayfly.connect(config=manager.state) as client:
        assert client.output(task) == before
        assert client.output(task, "out").endswith("line 005999\n")
        assert 50_000 < len(before) <= 64 << 10
        assert client.output(task, "err") == "and this\n"
        done = run(program(), "task", "output", task[-12:], env=manager.daemon.client_environment())
        assert "line 005999\n" in done.stdout
        assert client.forget([task]) == {"forgotten": 1, "left": 0}
        with pytest.raises(dayfly.RequestError):
            client.output(task)
