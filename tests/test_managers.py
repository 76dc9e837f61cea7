"""Several managers over one PostgreSQL: one may die, and so may the database; nothing is lost."""

from __future__ import annotations

import collections
import json
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import postgres
from harness.collector import Collector
from harness.daemons import Daemon, free_port
from harness.leaks import die_with_parent, wait_until
from harness.postgres import Postgres
from harness.programs import program, run

pytestmark = pytest.mark.skipif(postgres.unavailable() is not None, reason=str(postgres.unavailable()))


class Site:
    """Two managers and some nodes."""

    def __init__(
        self,
        start: Any,
        state: Path,
        database: str,
        nodes: int = 3,
        *,
        env: dict[str, str] | None = None,
        heartbeat: str = "300ms",
    ) -> None:
        self.start = start
        self.state = state
        self.managers: list[Daemon] = [
            start(
                *("manager", "--listen", f"127.0.0.1:{free_port()}", "--store", database),
                *("--sandbox", "process", "--heartbeat", heartbeat),
                state=state / f"m{n}",
                env=env,
            )
            for n in range(2)
        ]
        self.nodes = [self._node(n, self.managers[n % 2]) for n in range(nodes)]

    def _node(self, number: int, manager: Daemon) -> Daemon:
        token = self.state / f"token{number}"
        manager.cli("manager", "join-token", "--output", str(token))
        node: Daemon = self.start(
            *("node", "--join", str(token), "--sandbox", "process", "--python", sys.executable),
            *("--cores", "1", "--workers", "4", "--name", f"n{number}"),
            state=self.state / f"n{number}",
        )
        return node

    def up(self, manager: Daemon) -> int:
        """How many nodes are up, for this manager."""
        return sum(node["state"] == "up" for node in manager.cli("status")["nodes"])

    def all_up(self, manager: Daemon, timeout: float = 10) -> None:
        """Waits until all are."""
        wait_until(lambda: self.up(manager) == len(self.nodes), f"all nodes up for {manager!r}", timeout)

    def all_named(self) -> None:
        """Waits until clients of either manager know of the other."""

        def names_another(manager: Daemon) -> bool:
            return bool(json.loads((manager.state / "connection.json").read_text()).get("others"))

        wait_until(lambda: all(map(names_another, self.managers)), "connection files that name both managers", 20)


CLIENT = textwrap.dedent(
    """
    import json, os, sys, time
    import dayfly

    state, outcomes, stop = sys.argv[1:]
    log = open(outcomes, "a", buffering=1)

    def double(n):
        return 2 * n

    number = 0
    while not os.path.exists(stop):
        try:
            with dayfly.connect(state) as client, client.lease(workers=1, mode="warm", wait=20) as lease:
                for _ in range(20):
                    number += 1
                    assert lease.submit(double, number).result(timeout=30) == 2 * number
                    log.write(json.dumps(["ok", str(lease.id) if hasattr(lease, "id") else ""]) + "\\n")
                lease.renew(60)
        except dayfly.Error as error:
            log.write(json.dumps([error.code, str(error)]) + "\\n")
            time.sleep(0.02)
    """
)


class Clients:
    """Programs that lease, call and release, and write down how each call ended."""

    def __init__(self, site: Site, count: int) -> None:
        self.stop = site.state / "stop"
        self.outcomes = [site.state / f"outcomes{n}" for n in range(count)]
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-c", CLIENT, site.managers[n % 2].state, path, self.stop],
                env=site.managers[n % 2].client_environment(),
                preexec_fn=die_with_parent,  # noqa: PLW1509 (one call, loaded before)
            )
            for n, path in enumerate(self.outcomes)
        ]

    def counts(self) -> collections.Counter[str]:
        lines = [line for path in self.outcomes if path.exists() for line in path.read_text().splitlines()]
        return collections.Counter(json.loads(line)[0] for line in lines)

    def others(self) -> list[str]:
        lines = [line for path in self.outcomes for line in path.read_text().splitlines()]
        return [line for line in lines if json.loads(line)[0] != "ok"]

    def go_on(self, calls: int, timeout: float = 30) -> None:
        """Waits until each has had so many more calls answered."""

        def answered(path: Path) -> int:
            return path.read_text().count('"ok"') if path.exists() else 0

        before = [answered(path) for path in self.outcomes]
        wait_until(
            lambda: all(answered(path) >= had + calls for path, had in zip(self.outcomes, before, strict=True)),
            "more answers for every client",
            timeout,
        )

    def end(self) -> None:
        self.stop.touch()
        for process in self.processes:
            assert process.wait(60) == 0

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def check_books(manager: Daemon, nodes: list[Daemon]) -> None:
    """No lease is left, and what was spent is the sum of the bill."""
    live = ("granted", "active")
    wait_until(
        lambda: not [one for one in manager.cli("status", "--all")["leases"] if one["state"] in live],
        "the end of every lease",
        40,
    )
    for node in nodes:
        assert node.stop(20) == 0
    wait_until(lambda: all(node["state"] == "left" for node in manager.cli("status")["nodes"]), "their leaving", 20)
    lines = manager.cli("bill")
    billed = sum(line["total"] for line in lines)
    assert billed > 0

    def tenant() -> Any:
        (only,) = manager.cli("tenant", "list")
        return only

    # What another manager booked, this one hears of; one whose connection to the database broke, when it has a new one.
    wait_until(lambda: tenant()["spent"] == billed, f"{billed} as what was spent", 20)
    assert (tenant()["leases"], tenant()["workers"]) == (0, 0)
    assert len({line["lease"] for line in lines}) == len(lines)


def lease(manager: Daemon, workers: int = 4, length: str = "5m") -> Any:
    """Leases warm workers, and gives the grant."""
    arguments = ("--workers", str(workers), "--mode", "warm", "--for", length)
    return manager.cli("lease", "create", *arguments)["grant"]


def prices(manager: Daemon) -> None:
    manager.cli("prices", "--price-allocation", "0.001", "--price-computing", "0.01", "--price-polling", "0.002")


def test_every_manager_shows_the_same_system(start: Any, state: Path, server: Postgres) -> None:
    site = Site(start, state, server.database(), heartbeat="3s")
    a, b = site.managers
    for manager in (a, b):
        site.all_up(manager)
        assert [n["address"]["name"] for n in manager.cli("status")["nodes"]] == ["n0", "n1", "n2"]
    # More than one manager's nodes have room for: the others' are found as well.
    leases = [lease(a) for _ in range(3)]
    assert len({one["node"]["id"] for one in leases}) == 3
    for manager in (a, b):
        assert {one["lease"] for one in manager.cli("status")["leases"]} == {one["lease"] for one in leases}
    # Each may be renewed, looked at and released at either.
    for manager in (a, b):
        for one in leases:
            manager.cli("lease", "renew", one["lease"], "--for", "6m")
    for manager, one in zip((b, a, b), leases, strict=True):
        manager.cli("lease", "release", one["lease"])
    for manager in (a, b):
        assert {one["state"] for one in manager.cli("status", "--all")["leases"]} == {"released"}
    # A node of either is taken and given at the other.
    for node in site.nodes:
        for manager in (a, b):
            manager.cli("node", "reclaim", node.ready["node"])
            manager.cli("node", "resume", node.ready["node"])


def test_forwarded_requests_share_one_trace(start: Any, state: Path, server: Postgres) -> None:
    with Collector() as collector:
        site = Site(start, state, server.database(), nodes=2, heartbeat="3s", env=collector.environment)
        site.all_up(site.managers[0])
        mine, parent = "5" * 32, "7" * 16
        environment = site.managers[0].client_environment() | {"TRACEPARENT": f"00-{mine}-{parent}-01"}
        arguments = ("--node", site.nodes[1].ready["node"], "--workers", "1", "--for", "1m")
        run(program(), "lease", "create", *arguments, env=environment)
        asked = collector.find(name="ask a manager", trace=mine)
        first = collector.find(name="POST /v1/leases", trace=mine, parent=parent)
        second = collector.find(name="POST /v1/leases", trace=mine, parent=asked.span)
        assert asked.parent == first.span
        assert collector.find(name="ask a node", trace=mine).parent == second.span


def test_tenants_tokens_and_quotas_hold_at_every_manager(start: Any, state: Path, server: Postgres) -> None:
    # A node that is slow for a moment is not to change its manager.
    site = Site(start, state, server.database(), nodes=2, heartbeat="3s")
    a, b = site.managers
    site.all_up(a)
    a.cli("tenant", "set", "astro", "--workers", "5")
    token = state / "astro.json"
    b.cli("token", "create", "laptop", "--tenant", "astro", "--output", str(token))
    environment = a.client_environment() | {"DAYFLY_MANAGER": str(token)}

    def create(workers: int) -> str:
        """The lease, or the error's code."""
        arguments = ("lease", "create", "--workers", str(workers), "--mode", "warm", "--for", "5m", "--json")
        done = run(program(), *arguments, env=environment, check=False)
        if done.returncode == 0:
            return str(json.loads(done.stdout)["grant"]["lease"])
        return str(json.loads(done.stderr.splitlines()[-1])["error"]["code"])

    # No node has room for both: each manager knows of one of them.
    first, second = create(3), create(2)
    assert (len(first), len(second)) == (32, 32), (first, second)
    assert len({one["node"] for one in b.cli("status")["leases"] if one["lease"] in (first, second)}) == 2
    assert create(1) == "quota_exceeded"
    b.cli("lease", "revoke", first)
    assert create(4) == "quota_exceeded"
    assert len(create(3)) == 32
    a.cli("tenant", "set", "astro", "--suspend")
    wait_until(
        lambda: not [one for one in b.cli("status")["leases"] if one["state"] in ("granted", "active")],
        "the end of a suspended tenant's leases at both managers",
    )


def test_nodes_and_clients_outlive_a_killed_manager(start: Any, state: Path, server: Postgres) -> None:
    site = Site(start, state, server.database())
    a, b = site.managers
    prices(a)
    site.all_up(b)
    clients = Clients(site, 3)
    try:
        for dead, alive in ((0, 1), (1, 0)):
            site.all_named()
            # Clients that connected before know one manager alone.
            clients.go_on(40)
            site.managers[dead].kill()
            begun = time.monotonic()
            site.all_up(site.managers[alive])
            print(f"all nodes at the other manager after {time.monotonic() - begun:.2f} s")
            clients.go_on(40)
            site.managers[dead] = site.managers[dead].restart()
            # It is one of them again, and answers for all.
            site.all_up(site.managers[dead])
            clients.go_on(40)
        clients.end()
        assert not clients.others(), clients.others()
        print(clients.counts())
        check_books(site.managers[0], site.nodes)
    finally:
        clients.kill()
        for manager in site.managers:
            manager.stop()


@pytest.fixture
def own_server() -> Iterator[Postgres]:
    server = Postgres()
    yield server
    server.end()


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_database_restart_under_load_loses_no_lease(own_server: Postgres, start: Any, state: Path, how: str) -> None:
    site = Site(start, state, own_server.database())
    a, b = site.managers
    prices(a)
    clients = Clients(site, 2)
    try:
        for _ in range(3):
            clients.go_on(40)
            own_server.tell(how)
            time.sleep(1)
            own_server.tell("start")
        clients.go_on(40)
        clients.end()
        assert not clients.others(), clients.others()
        print(clients.counts())
        check_books(b, site.nodes)
    finally:
        clients.kill()


def test_resumed_manager_writes_nothing_for_lost_nodes(start: Any, state: Path, server: Postgres) -> None:
    site = Site(start, state, server.database(), nodes=2)
    a, b = site.managers
    site.all_up(b)
    a.process.send_signal(signal.SIGSTOP)
    try:
        # Its node does not notice, but the other manager does, and adopts it.
        wait_until(lambda: b.output().count("adopted the nodes of a silent manager") == 1, "the node's adoption", 20)
    finally:
        a.process.send_signal(signal.SIGCONT)
    # Woken up, it hears of that, and its node goes to a manager again.
    for manager in (a, b):
        site.all_up(manager, 20)
    leases = [lease(b) for _ in range(2)]
    assert len({one["node"]["id"] for one in leases}) == 2
