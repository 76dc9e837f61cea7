"""Code of another tenant than the node owner's: it is isolated, however it comes, and reads nothing of the owner's.

The attack: the connection file of the administrator lies in the home directory of whoever started the node. A function
that runs as that user reads it, and is an administrator.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from harness.daemons import Daemon
from harness.people import Person
from harness.programs import clean_environment, program, run

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")

# Workers cannot import what pytest made of this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

REFUSED = "FileNotFoundError"


def steal(path: str) -> str:
    """The attack: the file's text, or the error's name."""
    from pathlib import Path

    try:
        return Path(path).read_text()
    except OSError as error:
        return type(error).__name__


@contextlib.contextmanager
def running(*arguments: str, **options: Any) -> Iterator[Daemon]:
    """A daemon beside the one of the module, whose executors come and go meanwhile."""
    daemon = Daemon(*arguments, **options)
    try:
        yield daemon
    finally:
        daemon.stop()


@pytest.fixture
def secret(manager: Daemon) -> str:
    return str(manager.state / "connection.json")


@pytest.fixture
def owner(manager: Daemon) -> Iterator[dayfly.Client]:
    with dayfly.connect(config=manager.state) as client:
        yield client


def test_owner_runs_code_as_itself(owner: dayfly.Client, secret: str) -> None:
    with owner.lease() as lease:
        assert lease.grant["sandbox"] == "process"
        assert "token" in json.loads(lease.call(steal, secret))


def test_direct_lease_of_stranger_is_isolated(bob: Person, secret: str) -> None:
    with bob.client.lease() as lease:
        assert lease.grant["sandbox"] == "isolated"
        assert lease.call(steal, secret) == REFUSED
        (shown,) = [one for one in bob.client.leases() if one["lease"] == lease.id]
        assert shown["sandbox"] == "isolated"


def test_stranger_who_asks_for_process_is_refused(bob: Person) -> None:
    with pytest.raises(dayfly.Error, match="owner's tenant alone") as refused:
        bob.client.lease(sandbox="process")
    assert refused.value.code == "forbidden"


def refuses_the_host(client: dayfly.Client, directory: Path) -> None:
    for wanted in ({"readable": [directory]}, {"writable": [directory]}, {"network": True}, {"image": str(directory)}):
        with pytest.raises(dayfly.Error, match=r"does not show it|shares with no|allows no image"):
            client.lease(**wanted)


def test_stranger_gets_nothing_of_the_host(bob: Person, tmp_path: Path) -> None:
    refuses_the_host(bob.client, tmp_path)


def test_interpreter_of_stranger_is_not_started(bob: Person, tmp_path: Path) -> None:
    mark = tmp_path / "was here"
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\ntouch '{mark}'\n")
    script.chmod(0o755)
    request = {
        "workers": 1,
        "duration_ms": 10_000,
        "mode": "warm",
        "runtime": {
            "kind": "python",
            "version": "3.99.1",
            "cloudpickle": "3.1.0",
            "executable": str(script),
            "path": [],
            "environment": {"python": "", "requirements": ["six"]},
        },
        "holder": "00" * 32,
    }
    status, answer = bob.ask("POST", "/v1/leases", request)
    assert status >= 400, answer
    assert not mark.exists()


def test_durable_task_of_stranger_is_isolated(bob: Person, secret: str) -> None:
    assert bob.client.run(steal, secret).result(60) == REFUSED


def test_function_shared_by_owner_runs_isolated_for_stranger(owner: dayfly.Client, bob: Person, secret: str) -> None:
    shared = owner.register(steal, share=["bob"])
    assert "token" in json.loads(owner.run(shared, secret).result(60))
    assert bob.client.run(bob.client.function(shared.id), secret).result(60) == REFUSED


def test_ranks_of_stranger_are_isolated(bob: Person, secret: str) -> None:
    assert dayfly.run(steal, ranks=2, args=(secret,), client=bob.client, timeout=60) == [REFUSED] * 2


def test_lease_under_allowance_of_stranger_is_isolated(bob: Person, secret: str) -> None:
    for sandbox in (None, "process"):
        with bob.client.allowance(workers=1, sandbox=sandbox) as direct, direct.lease(mode="warm") as lease:
            assert lease.grant["sandbox"] == "isolated"
            assert lease.call(steal, secret) == REFUSED


def test_delegated_workers_of_stranger_are_isolated(bob: Person, secret: str) -> None:
    with bob.client.lease(workers=2, mode="warm") as lease, lease.delegate() as part, part.open() as workers:
        assert workers.call(steal, secret) == REFUSED


EMBEDDED = """
import json, os, sys
import dayfly

client = dayfly.connect()
with client.lease() as lease:
    assert lease.grant["sandbox"] == "process"
with client.lease(sandbox="isolated", readable=[sys.argv[1]]) as lease:
    assert lease.call(os.path.exists, sys.argv[1])
print(json.dumps(client.nodes()), flush=True)
sys.stdin.readline()
"""


def test_stranger_at_embedded_manager_is_isolated(tmp_path: Path) -> None:
    """Its own node shows its program's user everything, and strangers nothing."""
    own = {"DAYFLY_BIN": str(program()), "DAYFLY_PYTHON": sys.executable}
    process = subprocess.Popen(
        [sys.executable, "-c", EMBEDDED, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **own},
    )
    assert process.stdout is not None
    try:
        (node,) = json.loads(process.stdout.readline())
        state = Path(node["address"]["unix"]).parent.parent
        environment = clean_environment(DAYFLY_MANAGER=str(state))
        bob = tmp_path / "bob.json"
        run(program(), "tenant", "set", "bob", env=environment)
        run(program(), "token", "create", "laptop", "--tenant", "bob", "--output", bob, env=environment)
        with dayfly.connect(config=bob) as client:
            with client.lease() as lease:
                assert lease.grant["sandbox"] == "isolated"
                assert lease.call(steal, str(state / "connection.json")) == REFUSED
            refuses_the_host(client, tmp_path)
    finally:
        process.communicate("\n", timeout=30)


def test_joined_node_trusts_only_its_owner(state: Path) -> None:
    """Also where its manager grants everybody ``process``."""
    levels = ("--sandbox", "process", "--sandbox", "isolated")
    join = state / "join.json"
    with running("manager", "--listen", "127.0.0.1:0", *levels, state=state / "manager") as site:
        join.write_text(json.dumps(site.cli("manager", "join-token")))
        own = ("--sandbox", "process", "--python", sys.executable)
        with running("node", "--join", str(join), *own, state=state / "node"):
            with dayfly.connect(config=site.state) as owner, owner.lease() as lease:
                assert lease.grant["sandbox"] == "process"
            with Person(site, "bob", state).client as bob:
                with bob.lease() as lease:
                    assert lease.grant["sandbox"] == "isolated"
                    assert lease.call(steal, str(site.state / "connection.json")) == REFUSED
                with pytest.raises(dayfly.Error, match="owner's tenant alone"):
                    bob.lease(sandbox="process")


def test_explicit_flag_runs_tenants_as_nodes_user(state: Path) -> None:
    own = ("--python", sys.executable, "--run-tenants-as-me")
    with (
        running("up", "--listen", "127.0.0.1:0", *own, state=state / "up") as site,
        Person(site, "bob", state).client as bob,
        bob.lease() as lease,
    ):
        assert lease.grant["sandbox"] == "process"


def test_node_that_cannot_isolate_refuses_strangers(state: Path) -> None:
    """As on a machine where user namespaces are switched off."""
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed (util-linux)")
    without = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    with running(
        *("up", "--listen", "127.0.0.1:0", "--python", sys.executable),
        state=state / "up",
        prefix=("unshare", "--user", "--map-root-user", "sh", "-c", without, "sh"),
    ) as site:
        with Person(site, "bob", state).client as bob:
            with pytest.raises(dayfly.Error, match="max_user_namespaces") as refused:
                bob.lease()
            assert refused.value.code == "isolation_unavailable"
            with pytest.raises(dayfly.Error, match="max_user_namespaces"):
                bob.run(steal, "/etc/hostname").result(60)
        with dayfly.connect(config=site.state) as owner, owner.lease() as lease:
            assert lease.call(abs, -1) == 1
        # A stranger's leases do not suspend a node.
        assert [node["state"] for node in site.cli("status")["nodes"]] == ["up"]


def test_commands_say_what_a_tenant_opens(manager: Daemon, tmp_path: Path) -> None:
    environment = manager.client_environment()

    def said(*words: str) -> str:
        return run(program(), *words, env=environment).stderr

    name = manager.ready["name"]
    made = said("tenant", "set", "carol")
    assert f"Code of carol runs on {name} at sandbox `isolated`" in made
    assert f"Code of carol runs on {name} at sandbox `isolated`" in said(
        "token", "create", "laptop", "--tenant", "carol", "--output", str(tmp_path / "carol.json")
    )
    own = said("token", "create", "spare", "--output", str(tmp_path / "own.json"))
    assert f"Code of default runs on {name} at sandbox `process`" in own
    assert "as the user of the node" in own
