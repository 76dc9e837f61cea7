"""Clients on the manager's machine: by a local socket where it is their own user's or root's, and by TLS elsewhere."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from harness.daemons import Daemon, free_port
from harness.leaks import die_with_parent
from harness.network import Cable, unavailable

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")

Start = Callable[..., Daemon]

#: Listens under a name, and says of each who connects how many bytes came from there.
SQUATTER = """
import os, socket, sys
os.setuid(int(sys.argv[2]))
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind("\\0" + sys.argv[1])
    listener.listen()
    print("listens", flush=True)
    while True:
        with listener.accept()[0] as who:
            print(len(who.recv(1 << 16)), flush=True)
"""


def name_of(manager: Daemon) -> str:
    about = manager.connection
    port = urlsplit(about["manager"]).port or 0
    digest = hashlib.sha256(about["ca_pem"].strip().encode() + port.to_bytes(2, "big")).digest()
    return f"dayfly-manager-{digest[:16].hex()}"


def connections(name: str) -> int:
    """How many there are now."""
    sockets = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    return sum(fields[-1] == f"@{name}" and fields[5] == "03" for fields in sockets)


@pytest.fixture
def squatter() -> Iterator[Callable[[str, int], subprocess.Popen[str]]]:
    """``squatter(name, uid)`` has a process of that user listen there."""
    processes = []

    def squat(name: str, user: int) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", SQUATTER, name, str(user)],
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 (one call, loaded before)
        )
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "listens\n"
        return process

    yield squat
    for process in processes:
        process.kill()
        process.communicate()


def test_local_client_connects_without_encryption(start: Start) -> None:
    manager = start("manager", "--listen", "127.0.0.1:0")
    name = name_of(manager)
    assert connections(name) == 0
    with dayfly.connect(config=manager.state) as client:
        assert client.nodes() == []
        assert connections(name) > 0
    # A manager that comes back has the name again.
    assert manager.stop() == 0
    again = start(
        "manager", "--listen", f"127.0.0.1:{urlsplit(manager.connection['manager']).port}", state=manager.state
    )
    assert name_of(again) == name
    with dayfly.connect(config=again.state) as client:
        assert client.nodes() == []
        assert connections(name) > 0


def test_early_response_is_read_by_the_client(start: Start) -> None:
    site = start("up", "--listen", "127.0.0.1:0")
    with dayfly.connect(config=site.state) as client:
        flow = client.flow([dayfly.Step("done", list)], [])
        assert flow.result(30) == []
        # The manager reads no body of these, and closes the connection where it came too late.
        for _ in range(3000):
            flow.cancel()
        assert connections(name_of(site)) > 0


@pytest.mark.skipif(os.geteuid() != 0, reason="being another user needs root")
def test_socket_of_another_user_receives_no_data(
    start: Start, squatter: Callable[[str, int], subprocess.Popen[str]]
) -> None:
    listen = ("--listen", f"127.0.0.1:{free_port()}")
    manager = start("manager", *listen)
    manager.stop()
    other = squatter(name_of(manager), 65534)
    again = start("manager", *listen, state=manager.state)
    assert "connect with TLS" in again.output()
    with dayfly.connect(config=again.state) as client:
        assert client.nodes() == []
    assert other.stdout is not None
    assert other.stdout.readline() == "0\n"


@pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))
def test_client_of_another_network_uses_tls(start: Start) -> None:
    with Cable() as cable:
        here, there = cable.hosts
        manager = start("manager", "--listen", f"{here.address}:7070", host=here)
        assert '"nodes":[]' in manager.cli_on(there, "status", "--json").replace(" ", "")
