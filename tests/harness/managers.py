"""A manager that tests kill and restart, and its tenants."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from harness.daemons import Daemon, free_port, private_directory
from harness.programs import bin_dir


@contextlib.contextmanager
def manager_here(*options: str, port: int = 0) -> Iterator[Daemon]:
    """Runs a manager with a node that uses the tests' own Python, in a private directory."""
    os.environ.setdefault("DAYFLY_BIN", str(bin_dir() / "dayfly"))
    with private_directory() as directory:
        state = Path(directory) / "state"
        daemon = Daemon("up", "--listen", f"127.0.0.1:{port}", "--python", sys.executable, *options, state=state)
        yield daemon
        daemon.stop()


def most_memory(pid: int) -> int:
    """Returns the peak resident memory of a process, in bytes."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


class Manager:
    """A manager with a node, which can be killed and restarted on the same address."""

    def __init__(self, state: Path, **environment: str) -> None:
        os.environ.setdefault("DAYFLY_BIN", str(bin_dir() / "dayfly"))
        self.state = state
        own = ("--listen", f"127.0.0.1:{free_port()}", "--python", sys.executable)
        self.daemon = Daemon("up", *own, state=state, env=environment)

    def kill(self) -> None:
        """Kills the manager and all processes below it."""
        self.daemon.kill_tree()

    def start_again(self) -> None:
        """Restarts the manager."""
        self.daemon = self.daemon.restart()

    def again(self) -> None:
        """Kills the manager and all processes below it, and restarts it."""
        self.kill()
        self.start_again()

    def stop(self) -> None:
        """Stops the manager, and prints its log for the report of a failed test."""
        print(self.daemon.output()[-20_000:])
        self.daemon.stop()


def tenant(manager: Daemon, name: str, directory: Path, *more: str) -> Path:
    """Creates another tenant. Returns the connection file with its token."""
    manager.cli("tenant", "set", name)
    connection = directory / f"{name}.json"
    manager.cli("token", "create", "laptop", "--tenant", name, "--output", str(connection), *more)
    return connection
