"""Sites of several nodes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from harness.daemons import Daemon, free_port
from harness.leaks import wait_until


def several_nodes(
    start: Callable[..., Daemon], nodes: int, workers: int, sandbox: str = "process", *options: str
) -> tuple[Daemon, list[Daemon]]:
    """Starts a manager and ``nodes`` nodes, each with ``workers`` warm workers, named n0, n1 and so on."""
    manager = start("manager", "--listen", f"127.0.0.1:{free_port()}", "--sandbox", sandbox)
    size = ("--cores", "0", "--workers", str(workers), "--sandbox", sandbox, *options)
    started = []
    for number in range(nodes):
        join = manager.state / f"join-{number}.json"
        join.write_text(json.dumps(manager.cli("manager", "join-token", "--for", "10m")))
        started.append(start("node", "--join", str(join), "--name", f"n{number}", *size))
    wait_until(lambda: len(up(manager)) == nodes, f"{nodes} nodes")
    return manager, started


def up(manager: Daemon) -> list[Any]:
    """Returns the manager's nodes that accept leases."""
    return [node for node in manager.cli("status")["nodes"] if node["state"] == "up"]
