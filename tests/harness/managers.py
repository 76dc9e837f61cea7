"""A manager that can be killed and started again, and its tenants."""

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
    """A manager with a node whose workers have the tests' own Python, in a directory of its own."""
    os.environ.setdefault("DAYFLY_BIN", str(bin_dir() / "dayfly"))
    with private_directory() as directory:
        state = Path(directory) / "state"
        daemon = Daemon("up", "--listen", f"127.0.0.1:{port}", "--python", sys.executable, *options, state=state)
        yield daemon
        daemon.stop()


def most_memory(pid: int) -> int:
    """The most bytes that a process ever had in memory."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


class Manager:
    """A manager with a node, which can be killed, and started again at the same place."""

    def __init__(self, state: Path, **environment: str) -> None:
        os.environ.setdefault("DAYFLY_BIN", str(bin_dir() / "dayfly"))
        self.state = state
        own = ("--listen", f"127.0.0.1:{free_port()}", "--python", sys.executable)
        self.daemon = Daemon("up", *own, state=state, env=environment)

    def kill(self) -> None:
        """Ends it and all below it."""
        self.daemon.kill_tree()

    def start_again(self) -> None:
        """Starts it at the same place."""
        self.daemon = self.daemon.restart()

    def again(self) -> None:
        """Ends it and all below it, and starts it again."""
        self.kill()
        self.start_again()

    def stop(self) -> None:
        """Ends it; what it wrote is in the report of a test that fails."""
        print(self.daemon.output()[-20_000:])
        self.daemon.stop()


def tenant(manager: Daemon, name: str, directory: Path, *more: str) -> Path:
    """Another tenant, by the connection file of a token."""
    manager.cli("tenant", "set", name)
    connection = directory / f"{name}.json"
    manager.cli("token", "create", "laptop", "--tenant", name, "--output", str(connection), *more)
    return connection
