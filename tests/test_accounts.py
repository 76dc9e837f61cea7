"""Endpoints for many: each tenant's tasks run as an account of this machine, in a daemon of that account's own."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from harness.daemons import Daemon, free_port
from harness.endpoints import manager_alone
from harness.leaks import die_with_parent, wait_until
from harness.managers import tenant
from harness.programs import clean_environment, program, run

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")
pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("useradd") is None, reason="accounts are made by root, with useradd"
)


# Accounts do not see where this module is.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Account:
    """An account of this machine, for as long as a test takes."""

    def __init__(self, homes: Path) -> None:
        self.name = f"df{secrets.token_hex(4)}"
        self.home = homes / self.name
        run("useradd", "--create-home", "--home-dir", str(self.home), "--shell", "/bin/sh", self.name)
        self.uid = self.home.stat().st_uid

    def processes(self) -> list[int]:
        """What runs as this account, and has not ended."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                if entry.stat().st_uid == self.uid and "State:\tZ" not in (entry / "status").read_text():
                    found.append(int(entry.name))
        return found

    def remove(self) -> None:
        """Ends all that runs as this account, and forgets it."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        run("userdel", "--force", self.name, check=False)


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that every account may read."""
    with tempfile.TemporaryDirectory(prefix="dayfly-accounts-") as directory:
        path = Path(directory)
        path.chmod(0o755)
        yield path


@pytest.fixture
def accounts(public: Path) -> Iterator[list[Account]]:
    made = [Account(public) for _ in range(2)]
    yield made
    for account in made:
        account.remove()


@pytest.fixture
def manager(state: Path) -> Iterator[Daemon]:
    with manager_alone(state / "manager", free_port()) as manager:
        yield manager


#: Shows a Python of root's to everybody, where an endpoint starts: its package at $2, and, where that is in root's
#: home, what it was made from at its own place, with nothing else of root's.
SHOW = """
mount --bind "$1" "$2"
case "$4" in
"$HOME"/*)
    mkdir -p "$2-base"
    mount --bind "$4" "$2-base"
    mount -t tmpfs -o mode=755 none "$HOME"
    mkdir -p "$4"
    mount --bind "$2-base" "$4"
    ;;
esac
exec "$3" endpoint run site --json --log info
"""


class Site:
    """An endpoint for many, as root runs it: the package is where every account may read it."""

    def __init__(self, manager: Daemon, public: Path, home: Path, *setup: str) -> None:
        self.package = public / "package"
        self.package.mkdir()
        self.environment = clean_environment(DAYFLY_MANAGER=str(manager.state), XDG_STATE_HOME=str(home))
        python = self.package / "bin" / "python"
        options = ("--workers-per-node", "1", "--idle", "2s", "--python", str(python))
        run(program(), "endpoint", "setup", "site", *setup, *options, env=self.environment)
        config = home / "dayfly" / "endpoints" / "site" / "endpoint.toml"
        config.write_text(config.read_text().replace('idle = "10m"', 'idle = "1s"'))
        self.process: subprocess.Popen[str] | None = None
        self.log = public / "log"

    def start(self) -> None:
        """Starts it; returns when it runs."""
        dayfly_there = next(Path(sys.prefix).glob("lib/python*/site-packages/dayfly/bin/dayfly"))
        there = self.package / dayfly_there.relative_to(sys.prefix)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                ["unshare", "--mount", "sh", "-euc", SHOW, "sh", sys.prefix, self.package, there, sys.base_prefix],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509 (one call, loaded before)
            )
        assert self.process.stdout is not None
        assert json.loads(self.process.stdout.readline())["ready"]

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Ends it."""
        assert self.process is not None
        assert self.process.stdout is not None
        self.process.send_signal(how)
        status = self.process.wait(60)
        self.process.stdout.close()
        self.process = None
        return status


@pytest.fixture
def site(manager: Daemon, accounts: list[Account], public: Path, state: Path) -> Iterator[Site]:
    """Alice is the first account, and whoever is of example.org is called as there."""
    site = Site(
        manager, public, state / "home", "--account", f"alice={accounts[0].name}", "--account", "*@example.org=*"
    )
    site.start()
    yield site
    if site.process is not None:
        site.end()
    print(site.log.read_text(errors="replace")[-20_000:])
    for account in accounts:
        for log in account.home.glob(".local/state/dayfly/endpoints/**/*log"):
            print(account.name, log.read_text(errors="replace")[-10_000:])
    wait_until(lambda: not any(account.processes() for account in accounts), "nothing runs as an account", 20)


def who(path: str | None = None) -> dict[str, Any]:
    """As whom it runs, and what it has of a path."""
    found: dict[str, Any] = {"uid": os.getuid(), "home": os.environ.get("HOME"), "groups": os.getgroups()}
    if path is not None:
        with contextlib.suppress(OSError):
            found["names"] = os.listdir(path)
    return found


def as_tenant(connection: Path) -> contextlib.AbstractContextManager[dayfly.Client]:
    return dayfly.connect(config=connection)


def test_tasks_run_as_their_tenants_account(
    manager: Daemon, site: Site, accounts: list[Account], tmp_path: Path
) -> None:
    alice = tenant(manager, "alice", tmp_path)
    bob = tenant(manager, f"{accounts[1].name}@example.org", tmp_path)
    secret = accounts[0].home / "secret"
    secret.mkdir(mode=0o700)
    (secret / "of alice").touch()
    os.chown(secret, accounts[0].uid, -1)
    for connection, account, names in ((alice, accounts[0], ["of alice"]), (bob, accounts[1], None)):
        with as_tenant(connection) as client, dayfly.Executor(endpoint="site", client=client) as executor:
            found = executor.submit(who, str(secret)).result(60)
            assert found["uid"] == account.uid
            assert 0 not in found["groups"]
            assert found.get("names") == names
            # All of it lies in the account's home, and is its own.
            [own] = account.home.glob(".local/state/dayfly/endpoints/*")
            assert own.stat().st_uid == account.uid
            assert "of" not in own.name
    listed = {one["name"]: one for one in manager.cli("endpoint", "list")}
    assert listed["site"]["workers"] == 0
    assert listed["site.alice"]["owner"] == "alice"
    assert listed["site.alice"]["tasks"]["done"] == 1
    assert len(listed) == 3
    # Who has nothing to do keeps no daemon, and has one again.
    wait_until(lambda: not any(account.processes() for account in accounts), "nothing runs as an account", 30)
    with as_tenant(alice) as client, dayfly.Executor(endpoint="site", client=client) as executor:
        assert executor.submit(who).result(60)["uid"] == accounts[0].uid


def test_tenant_without_account_is_refused(
    manager: Daemon, site: Site, accounts: list[Account], tmp_path: Path
) -> None:
    eve = tenant(manager, "eve", tmp_path)
    root = tenant(manager, "root@example.org", tmp_path)
    nobody = tenant(manager, "no-such-account@example.org", tmp_path)
    for connection, words in ((eve, "has no account"), (root, "has no account"), (nobody, "no such account")):
        with as_tenant(connection) as client, dayfly.Executor(endpoint="site", client=client) as executor:
            with pytest.raises(dayfly.Error, match=words) as refused:
                executor.submit(who).result(60)
            assert refused.value.code == "forbidden"
    assert not any(account.processes() for account in accounts)
    # A token of one endpoint's is worth nothing for an account that nobody wants to be.
    credential = json.loads(
        (Path(site.environment["XDG_STATE_HOME"]) / "dayfly/endpoints/site/credential.json").read_text()
    )
    body = json.dumps({"tenant": "0" * 32}).encode()
    status, said = manager.ask(
        "POST", "/v1/endpoints/accounts", body, token=credential["token"], Content_Type="application/json"
    )
    assert (status, json.loads(said)["error"]["code"]) == (404, "not_found")
    status, _ = manager.ask("POST", "/v1/endpoints/accounts", body, Content_Type="application/json")
    assert status == 401


def test_forbidden_account_is_refused_at_setup(manager: Daemon, state: Path) -> None:
    environment = clean_environment(DAYFLY_MANAGER=str(manager.state), XDG_STATE_HOME=str(state / "home"))
    for wrong in ("alice=root", "a*b*=c", "alice=*", "alice"):
        done = run(program(), "endpoint", "setup", "site", "--account", wrong, env=environment, check=False)
        assert done.returncode != 0, wrong
    assert manager.cli("endpoint", "list") == []


def test_account_daemons_end_and_restart_with_the_endpoint(
    manager: Daemon, site: Site, accounts: list[Account], tmp_path: Path
) -> None:
    alice = tenant(manager, "alice", tmp_path)
    with as_tenant(alice) as client, dayfly.Executor(endpoint="site", client=client) as executor:
        assert executor.submit(who).result(60)["uid"] == accounts[0].uid
        site.end(signal.SIGKILL)

        def daemons() -> list[int]:
            found = []
            for pid in accounts[0].processes():
                # It may have ended meanwhile.
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    if b"\0account\0" in Path(f"/proc/{pid}/cmdline").read_bytes():
                        found.append(pid)
            return found

        wait_until(lambda: not daemons(), "the daemon is gone with its parent", 20)
        waiting = executor.submit(who)
        with pytest.raises(concurrent.futures.TimeoutError):
            waiting.result(1)
        site.start()
        assert waiting.result(60)["uid"] == accounts[0].uid
    assert site.end() == 0
    wait_until(lambda: not accounts[0].processes(), "its nodes are given back", 20)
    shutil.rmtree(accounts[0].home / ".local")
    site.start()
    with as_tenant(alice) as client, dayfly.Executor(endpoint="site", client=client) as executor:
        assert executor.submit(who).result(60)["uid"] == accounts[0].uid
