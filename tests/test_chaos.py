"""Everything is killed, again and again, at no particular time. Afterwards the books must be right, and nobody left.

``make test`` runs each kind for some seconds, ``make soak`` for ten minutes, or as long as ``DAYFLY_CHAOS_S`` says.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from harness import network
from harness.daemons import Daemon, free_port
from harness.leaks import descendants, die_with_parent, parent, wait_until
from harness.network import Cable

# A call that ended so did not run, one that may have run ran at most once, and one that answered ran exactly once.
NOT_RUN = {
    "not_executed",
    "lease_ended",
    "lease_expired",
    "unreachable",
    "worker_busy",
    "no_capacity",
    "executor_failed",
}
MAYBE_RUN = {"maybe_executed"}

CLIENT = """
import concurrent.futures, faulthandler, json, os, random, sys, time
import dayfly

state, runs, outcomes, name, seed, stop, sandbox = sys.argv[1:]
faulthandler.enable()
chance = random.Random(int(seed))
log = open(outcomes, "a", buffering=1)


def step(runs, call):
    # Some calls last long enough to be hit.
    if random.random() < 0.1:
        time.sleep(random.random() * 0.02)
    # One write to the end of a file: either all of it is there or nothing.
    with open(runs, "ab", buffering=0) as file:
        file.write(f"{call}\\n".encode())
    return call


def end(call, outcome, text=""):
    log.write(json.dumps([call, outcome, text]) + "\\n")


made = 0
while not os.path.exists(stop):
    try:
        client = dayfly.connect(state)
        writable = [os.path.dirname(runs)] if sandbox == "isolated" else []
        lease = client.lease(
            workers=chance.randint(1, 3),
            mode=chance.choice(["warm", "auto"]),
            wait=2,
            sandbox=sandbox,
            writable=writable,
        )
    except dayfly.Error as error:
        time.sleep(0.02)
        continue
    with client, lease:
        for _ in range(chance.randint(1, 20)):
            if os.path.exists(stop):
                break
            futures = {}
            for _ in range(chance.randint(1, 30)):
                made += 1
                call = f"{name}-{made}"
                try:
                    futures[call] = lease.submit(step, runs, call)
                except (dayfly.Error, RuntimeError) as error:
                    end(call, getattr(error, "code", "not_executed"), str(error))
            patience = 30
            for call, future in futures.items():
                try:
                    end(call, "ok" if future.result(timeout=patience) == call else "wrong answer")
                except concurrent.futures.TimeoutError:
                    end(call, "hangs", f"{future} {lease} {lease.incarnations()}")
                    patience = 0
                except dayfly.Error as error:
                    end(call, error.code, str(error))
                except BaseException as error:
                    end(call, type(error).__name__, str(error))
            if not all(future.done() for future in futures.values()):
                break
    client = lease = None
end("", "finished", str(made))
"""


class Site:
    """A manager and a node that come back whenever they are killed."""

    def __init__(self, start: Any, state: Path, cable: Cable | None, sandbox: str) -> None:
        near, far = cable.hosts if cable else (None, None)
        # On hosts of their own nobody else has these ports.
        address = f"{near.address}:7070" if near else f"127.0.0.1:{free_port()}"
        named = ("--host-name", near.address) if near else ()
        self.manager: Daemon = start(
            *("manager", "--listen", address, *named, "--sandbox", sandbox, "--heartbeat", "300ms"),
            state=state / "manager",
            host=near,
        )
        self.cable = cable
        token = state / "token"
        self.cli("manager", "join-token", "--output", str(token))
        self.cli("prices", "--price-allocation", "0.001", "--price-computing", "0.01", "--price-polling", "0.002")
        listen = ("--listen-tcp", f"{far.address}:7071", "--host-name", far.address) if far else ()
        self.node: Daemon = start(
            *("node", "--join", str(token), *listen, "--sandbox", sandbox, "--python", sys.executable),
            *("--writable", str(state / "shared")),
            state=state / "node",
            host=far,
        )

    def cli(self, *args: str) -> Any:
        """What ``dayfly ARGS --json`` prints beside the manager."""
        if self.cable is None:
            return self.manager.cli(*args)
        return json.loads(self.manager.cli_on(self.cable.hosts[0], *args, "--json"))

    def client(self) -> tuple[str, ...]:
        """What to put before a client's command: over a cable it shall use the network, not the node's files."""
        if self.cable is None:
            return ()
        return self.cable.hosts[0].without(self.node.state)

    def hit(self, chance: random.Random, kills: collections.Counter[str]) -> None:
        """Kills somebody; a daemon comes back a moment later."""
        weights = [6, 3, 1, 1, 6 if self.cable else 0]
        what = chance.choices(["worker", "executor", "node", "manager", "cable"], weights)[0]
        if what == "cable" and self.cable:
            kills[what] += 1
            slow = chance.random() < 0.3
            (self.cable.slow if slow else self.cable.pull)()
            time.sleep(chance.choice([0.02, 0.2, 0.5, 1.5]))
            (self.cable.hasten if slow else self.cable.plug)()
            return
        if what in ("worker", "executor"):
            below = descendants(self.node.pid)
            parents = {pid: parent(pid) for pid in below}
            executors = [pid for pid, above in parents.items() if above == self.node.pid]
            workers = [pid for pid, above in parents.items() if above in executors]
            victims = workers if what == "worker" else executors
            if victims:
                kills[what] += 1
                # It may have died by itself, with its executor.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(chance.choice(victims), signal.SIGKILL)
            return
        kills[what] += 1
        daemon: Daemon = getattr(self, what)
        daemon.kill()
        time.sleep(chance.uniform(0, 0.3))
        setattr(self, what, self._again(daemon))

    def _again(self, daemon: Daemon) -> Daemon:
        # Its join token is used up; its credential is in its state directory.
        arguments = [a for a in daemon.args if a != "--join" and not a.endswith("/token")]
        return Daemon(*arguments, state=daemon.state, env=daemon.environment, expect_ready=False, host=daemon.host)


def chaos(start: Any, state: Path, seconds: float, cable: Cable | None = None, sandbox: str = "process") -> None:
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)
    print(f"seed {seed}")
    shared = state / "shared"
    shared.mkdir()
    # Isolated workers are nobody's.
    shared.chmod(0o777)
    site = Site(start, state, cable, sandbox)
    runs, outcomes, stop = shared / "runs", state / "outcomes", state / "stop"
    runs.touch()
    runs.chmod(0o666)

    def client(name: str) -> subprocess.Popen[bytes]:
        number = str(seed + len(name))
        return subprocess.Popen(
            [
                *(*site.client(), sys.executable, "-c", CLIENT),
                *(site.manager.state, runs, f"{outcomes}-{name}", name, number, stop, sandbox),
            ],
            env=site.manager.client_environment(),
            preexec_fn=die_with_parent,  # noqa: PLW1509 (one call, loaded before)
        )

    clients = [client(str(n)) for n in range(2)]
    # Another that is killed as the rest is, whose calls nobody hears the end of.
    victim = client("victim0")
    kills: collections.Counter[str] = collections.Counter()
    try:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(chance.expovariate(1 / 0.2))
            if chance.random() < 0.15:
                kills["client"] += 1
                victim.kill()
                victim.wait()
                victim = client(f"victim{kills['client']}")
            else:
                site.hit(chance, kills)
        stop.touch()
        victim.kill()
        for process in clients:
            try:
                status = process.wait(60)
            except subprocess.TimeoutExpired:
                # Says where it stands.
                for client_outcomes in (Path(f"{outcomes}-{n}") for n in range(len(clients))):
                    print(*(line for line in client_outcomes.read_text().splitlines() if "hangs" in line), sep="\n")
                process.send_signal(signal.SIGABRT)
                status = process.wait(10)
            assert status == 0, f"a client failed, seed {seed}"
        check_calls(runs, [Path(f"{outcomes}-{n}") for n in range(len(clients))], kills)
        wait_until(lambda: _status(site), "the manager's answer", 20)
        check_books(site)
    finally:
        for process in [*clients, victim]:
            process.kill()
            process.wait()
        for daemon in (site.node, site.manager):
            if daemon.alive:
                daemon.stop(20)


def _status(site: Site) -> Any:
    try:
        return site.cli("status", "--all")
    except AssertionError:
        return None


def check_calls(runs: Path, outcomes: list[Path], kills: collections.Counter[str]) -> None:
    """Every call has exactly one outcome, and ran as often as that says."""
    ran = collections.Counter(runs.read_text().split())
    twice = [call for call, times in ran.items() if times > 1]
    assert not twice, f"ran more than once: {twice}"
    ended: dict[str, tuple[str, str]] = {}
    kinds: collections.Counter[str] = collections.Counter()
    made = 0
    for path in outcomes:
        for line in path.read_text().splitlines():
            call, outcome, text = json.loads(line)
            if outcome == "finished":
                made += int(text)
                continue
            assert call not in ended, f"{call} ended twice: {ended[call]} and {outcome}"
            ended[call] = outcome, text
            kinds[outcome] += 1
    print(f"killed {dict(kills)}; {made} calls: {dict(kinds)}")
    assert len(ended) == made, f"{made - len(ended)} calls have no outcome"
    heard = {call for call in ran if not call.startswith("victim")}
    assert heard <= set(ended), "something ran that nobody called"
    for call, (outcome, text) in ended.items():
        allowed = [1] if outcome == "ok" else [0] if outcome in NOT_RUN else [0, 1] if outcome in MAYBE_RUN else []
        assert ran[call] in allowed, f"{call} ended as {outcome} ({text}) and ran {ran[call]} times"
    assert kinds["ok"] > 0


def check_books(site: Site) -> None:
    """What tenants spent is the sum of their bills, and no lease is left."""
    # Leases of clients that are gone end by themselves once nothing uses them, or with the node.
    assert site.node.alive, f"the node that came back ended:\n{site.node.output()}"
    wait_until(lambda: any(node["state"] == "up" for node in site.cli("status")["nodes"]), "the node's return", 20)
    assert site.node.stop(20) == 0
    assert not descendants(site.node.pid)
    wait_until(lambda: all(node["state"] == "left" for node in site.cli("status")["nodes"]), "the node's leaving", 10)
    status = site.cli("status", "--all")
    live = [lease for lease in status["leases"] if lease["state"] in ("granted", "active")]
    assert not live, live
    lines = site.cli("bill")
    (tenant,) = site.cli("tenant", "list")
    assert sum(line["total"] for line in lines) == tenant["spent"]
    assert sum(line["usage"]["calls"] for line in lines) > 0
    assert len({line["lease"] for line in lines}) == len(lines)


def test_no_call_of_isolated_workers_is_lost(start: Any, state: Path) -> None:
    chaos(start, state, 10, sandbox="isolated")


@pytest.mark.skipif(network.unavailable() is not None, reason=str(network.unavailable()))
def test_no_call_is_lost_when_the_network_fails(start: Any, state: Path) -> None:
    with Cable() as cable:
        chaos(start, state, 15, cable)


def test_no_call_is_lost_when_processes_are_killed(start: Any, state: Path) -> None:
    chaos(start, state, 15)


LONG_S = float(os.environ.get("DAYFLY_CHAOS_S", "600"))


@pytest.mark.soak
def test_no_call_is_lost_in_hours_of_kills(start: Any, state: Path) -> None:
    chaos(start, state, LONG_S)


@pytest.mark.soak
@pytest.mark.skipif(network.unavailable() is not None, reason=str(network.unavailable()))
def test_no_call_is_lost_in_long_network_failures(start: Any, state: Path) -> None:
    with Cable() as cable:
        chaos(start, state, LONG_S, cable)
