"""Hosts on one machine: network namespaces, connected by a cable that can be unplugged."""

from __future__ import annotations

import itertools
import os
import shutil
from pathlib import Path
from types import TracebackType

from harness.programs import run

_numbers = itertools.count(1)


def unavailable() -> str | None:
    """Returns why hosts cannot be created, or None."""
    if os.geteuid() != 0:
        return "making network namespaces needs root"
    if shutil.which("ip") is None:
        return "ip not found; install iproute2"
    return None


class Host:
    """One end of a cable: a name, an address, and a command prefix."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address
        # Prefix for commands that run on this host.
        self.prefix = ("nsenter", f"--net=/run/netns/{name}")

    def without(self, directory: Path) -> tuple[str, ...]:
        """Returns the prefix for a command that does not see a directory, as on another machine."""
        command = f'mount -t tmpfs none {directory} && exec "$0" "$@"'
        return (*self.prefix, "unshare", "--mount", "sh", "-c", command)


class Cable:
    """Two hosts that can reach only each other."""

    def __init__(self) -> None:
        number = next(_numbers)
        # Test processes run in parallel and share the names of network namespaces.
        key = f"df-{os.getpid()}-{number}"
        self.hosts = (Host(f"{key}a", "10.77.0.1"), Host(f"{key}b", "10.77.0.2"))
        self._interfaces = ("df-a", "df-b")

    def __enter__(self) -> Cable:
        first, second = self.hosts
        for host in self.hosts:
            run("ip", "netns", "add", host.name)
            run("ip", "-n", host.name, "link", "set", "lo", "up")
        run(
            *("ip", "link", "add", self._interfaces[0], "netns", first.name, "type", "veth"),
            *("peer", "name", self._interfaces[1], "netns", second.name),
        )
        for host, interface in zip(self.hosts, self._interfaces, strict=True):
            run("ip", "-n", host.name, "address", "add", f"{host.address}/24", "dev", interface)
            run("ip", "-n", host.name, "link", "set", interface, "up")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for host in self.hosts:
            run("ip", "netns", "delete", host.name, check=False)

    def pull(self) -> None:
        """Disconnects the hosts, without notifying either."""
        run("ip", "-n", self.hosts[1].name, "link", "set", self._interfaces[1], "down")

    def slow(self) -> None:
        """Limits bandwidth and adds latency in both directions, until ``hasten``."""
        for host, interface in zip(self.hosts, self._interfaces, strict=True):
            limit = ("tbf", "rate", "1mbit", "burst", "16kbit", "latency", "300ms")
            run("tc", "-n", host.name, "qdisc", "replace", "dev", interface, "root", *limit)

    def hasten(self) -> None:
        """Removes the limits."""
        for host, interface in zip(self.hosts, self._interfaces, strict=True):
            run("tc", "-n", host.name, "qdisc", "delete", "dev", interface, "root")

    def plug(self) -> None:
        """Connects the hosts again."""
        run("ip", "-n", self.hosts[1].name, "link", "set", self._interfaces[1], "up")
