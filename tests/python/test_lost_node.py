"""A node on another host that loses its network. The hosts are network namespaces."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from harness import network
from harness.daemons import Daemon
from harness.network import Cable

pytestmark = pytest.mark.skipif(network.unavailable() is not None, reason=str(network.unavailable()))


@pytest.fixture
def cable() -> Iterator[Cable]:
    with Cable() as cable:
        yield cable


class Site(NamedTuple):
    """A manager on the first host, and its node on the second."""

    manager: Daemon
    node: Daemon


@pytest.fixture
def site(start: Any, cable: Cable, state: Path) -> Site:
    near, far = cable.hosts
    manager = start(
        *("manager", "--listen", f"{near.address}:0", "--host-name", near.address),
        host=near,
        state=state / "manager",
    )
    token = state / "token"
    manager.cli_on(near, "manager", "join-token", "--output", str(token))
    node = start(
        *("node", "--join", str(token), "--listen-tcp", f"{far.address}:7071", "--host-name", far.address),
        *("--python", sys.executable),
        host=far,
        state=state / "node",
    )
    return Site(manager, node)


class Client:
    """A program on the first host that cannot see the node's files, and so treats the node as remote."""

    def __init__(self, cable: Cable, site: Site, text: str) -> None:
        self.process = subprocess.Popen(
            [
                *cable.hosts[0].without(site.node.state),
                *(sys.executable, "-c", textwrap.dedent(text)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=site.manager.client_environment(),
        )

    def hear(self) -> Any:
        """Returns its next line of output."""
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def tell(self) -> None:
        """Lets it continue."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """Kills it if it does not end."""
        try:
            self.process.wait(10)
        finally:
            self.process.kill()
            self.process.communicate()


@pytest.fixture
def client(cable: Cable, site: Site) -> Iterator[Any]:
    clients = []

    def begin(text: str) -> Client:
        clients.append(Client(cable, site, text))
        return clients[-1]

    yield begin
    for client in clients:
        client.end()


def test_lost_node_is_noticed_and_used_when_back(cable, client):
    program = client(
        """
        import json, sys, time
        import dayfly

        def say(**what):
            print(json.dumps(what), flush=True)

        with dayfly.connect() as client, client.lease(workers=1, mode="warm") as lease:
            lease.call(abs, -1)
            say(transport=lease.transport)
            for _ in range(3):
                future = lease.submit(time.sleep, 2)
                while not future.running():
                    time.sleep(0.001)
                # The network is cut at a random time between two calls.
                time.sleep(0.15)
                say(ready=True)
                sys.stdin.readline()
                begin = time.monotonic()
                try:
                    future.result(timeout=20)
                except dayfly.WorkerDied as error:
                    say(code=error.code, text=str(error), after=time.monotonic() - begin)
                sys.stdin.readline()
                say(answer=lease.options(idempotent=True).call(abs, -5))
        """
    )
    assert program.hear() == {"transport": "tls"}
    for _ in range(3):
        assert program.hear() == {"ready": True}
        program.tell()
        cable.pull()
        heard = program.hear()
        assert heard["code"] == "maybe_executed", heard
        assert "lost" in heard["text"]
        # The wait begins before the network is cut, which takes `ip` some milliseconds. The bound is 0.3.
        assert heard["after"] < 0.6, heard
        cable.plug()
        program.tell()
        assert program.hear() == {"answer": 5}


def test_slow_node_is_not_lost(site, client):
    program = client(
        """
        import json, sys, time
        import dayfly

        with dayfly.connect() as client, client.lease(workers=1, mode="warm") as lease:
            future = lease.submit(lambda: time.sleep(1.5) or "done")
            while not future.running():
                time.sleep(0.001)
            print(json.dumps("running"), flush=True)
            print(json.dumps(future.result(timeout=20)), flush=True)
            # The lease is returned through a node that responds again.
            sys.stdin.readline()
        """
    )
    assert program.hear() == "running"
    site.node.process.send_signal(signal.SIGSTOP)
    try:
        assert program.hear() == "done"
    finally:
        site.node.process.send_signal(signal.SIGCONT)
    program.tell()
