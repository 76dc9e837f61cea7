"""A manager that lost what it kept says so, and does not start as a new one."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import postgres
from harness.daemons import Daemon
from harness.postgres import Postgres
from harness.programs import program, run

Start = Callable[..., Daemon]
MANAGER = ("manager", "--listen", "127.0.0.1:0")


def refused(state: Path, *more: str) -> str:
    """What a manager that does not start complains about."""
    done = run(program(), *MANAGER, *more, "--state-dir", state, check=False, timeout=20)
    assert done.returncode == 1
    assert "store_lost" in done.stderr
    assert "--accept-loss" in done.stderr
    return done.stderr


@pytest.fixture
def stopped(start: Start, state: Path) -> Path:
    """The state directory of a manager with a tenant, which was ended properly."""
    manager = start(*MANAGER, state=state / "kept")
    manager.cli("tenant", "set", "alice")
    manager.stop()
    return manager.state


def tenants(manager: Daemon) -> set[str]:
    """Names of a manager's tenants."""
    return {tenant["name"] for tenant in manager.cli("tenant", "list")}


@pytest.mark.parametrize("name", ["manager.db", "tasks.db"])
@pytest.mark.parametrize("loss", ["emptied", "removed"])
def test_emptied_store_starts_only_with_accepted_loss(start: Start, stopped: Path, name: str, loss: str) -> None:
    for path in stopped.glob(f"{name}*"):
        path.unlink()
    if loss == "emptied":
        (stopped / name).touch()
    said = refused(stopped)
    assert name in said
    assert "is empty" in said
    start(*MANAGER, "--accept-loss", state=stopped).stop()
    start(*MANAGER, state=stopped)


def test_older_backup_starts_only_with_accepted_loss(start: Start, stopped: Path) -> None:
    shutil.copy(stopped / "manager.db", stopped / "backup")
    later = start(*MANAGER, state=stopped)
    later.cli("tenant", "set", "bob")
    later.stop()
    shutil.copy(stopped / "backup", stopped / "manager.db")
    assert "lacks what was written between" in refused(stopped)
    accepted = start(*MANAGER, "--accept-loss", state=stopped)
    assert "bob" not in tenants(accepted)
    assert "alice" in tenants(accepted)
    assert "lacks what was written between" in accepted.output()


def test_store_of_another_manager_is_refused(start: Start, stopped: Path, state: Path) -> None:
    other = start(*MANAGER, state=state / "other")
    other.stop()
    shutil.copy(state / "other" / "tasks.db", stopped / "tasks.db")
    assert "another one" in refused(stopped)


def test_killed_manager_starts_again_and_checks_its_store(start: Start, stopped: Path) -> None:
    manager = start(*MANAGER, state=stopped)
    assert "was not closed" not in manager.output()
    manager.cli("tenant", "set", "bob")
    manager.kill()
    again = start(*MANAGER, state=stopped)
    assert {"alice", "bob"} <= tenants(again)
    assert "it was checked, and is whole" in again.output()


def test_damaged_store_of_killed_manager_is_refused(start: Start, stopped: Path) -> None:
    manager = start(*MANAGER, state=stopped)
    manager.kill()
    path = stopped / "manager.db"
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (page,) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 'bearers'").fetchone()
    database.close()
    with path.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xff" * 4096)
    assert "is damaged" in refused(stopped)


def test_store_of_earlier_release_starts_silently(start: Start, stopped: Path) -> None:
    for path in stopped.glob("*.mark"):
        path.unlink()
    for name in ("manager.db", "tasks.db"):
        with sqlite3.connect(stopped / name) as database:
            database.execute("DROP TABLE mark")
        database.close()
    assert "alice" in tenants(start(*MANAGER, state=stopped))


@pytest.mark.skipif(postgres.unavailable() is not None, reason=str(postgres.unavailable()))
def test_emptied_database_starts_only_with_accepted_loss(start: Start, state: Path, server: Postgres) -> None:
    kept = state / "kept"
    start(*MANAGER, "--store", server.database(), state=kept).stop()
    other = ("--store", server.database())
    assert "another one" in refused(kept, *other)
    start(*MANAGER, *other, "--accept-loss", state=kept).stop()
    start(*MANAGER, *other, state=kept)
