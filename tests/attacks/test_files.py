"""Another user of the same machine reads what daemons keep: nothing of it must open."""

from __future__ import annotations

import os
import pwd
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import dayfly
import pytest
from harness.daemons import Daemon, private_directory
from harness.people import Person
from harness.programs import clean_environment, program, run

#: What isolated workers, who are other users, must be able to read; the directory above keeps the host's users out.
OPEN_TO_WORKERS = ("node/sandboxes", "node/code", "node/images", "node/environments")

needs_second_account = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become a second account")


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory that every user of the machine can enter."""
    with private_directory() as directory:
        os.chmod(directory, 0o755)
        yield Path(directory)


@pytest.fixture(params=[0o022, 0o000], ids=["umask 022", "umask 000"])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """The file creation mask that daemons are started with."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def readable_by_others(state: Path) -> list[str]:
    """Files and directories in ``state`` on which others than the owner have any right."""
    found = []
    for directory, directories, files in os.walk(state):
        for name in (*directories, *files):
            path = Path(directory) / name
            inside = str(path.relative_to(state))
            if inside.startswith(OPEN_TO_WORKERS) or path.is_symlink() or path.is_socket():
                continue
            if mode := path.stat().st_mode & 0o077:
                found.append(f"{inside} {stat.filemode(path.stat().st_mode)} ({mode:o})")
    return found


def as_nobody(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs a program as the user ``nobody``."""
    nobody = pwd.getpwnam("nobody")
    return subprocess.run(
        [os.fspath(part) for part in command],
        user=nobody.pw_uid,
        group=nobody.pw_gid,
        extra_groups=[],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def run_secret_task(manager: Daemon, directory: Path) -> None:
    """Has a task with a secret argument and a secret result in the manager's store."""
    person = Person(manager, "alice", directory)
    with person.client as client:
        assert client.run(str.upper, "secret-argument").result(60) == "SECRET-ARGUMENT"


def test_files_of_daemons_are_private_whatever_the_umask(
    start: Callable[..., Daemon], shared: Path, umask: int
) -> None:
    state = shared / "state"
    state.mkdir(mode=0o755)
    up = start("up", "--listen", "127.0.0.1:0", "--python", sys.executable, state=state)
    run_secret_task(up, shared)
    assert readable_by_others(state) == []
    assert state.stat().st_mode & 0o777 == 0o700
    assert "others could enter the state directory" in up.output()


@needs_second_account
def test_second_account_reads_nothing_of_the_state(start: Callable[..., Daemon], shared: Path) -> None:
    state = shared / "state"
    state.mkdir(mode=0o755)
    up = start("up", "--listen", "127.0.0.1:0", "--python", sys.executable, state=state)
    run_secret_task(up, shared)
    assert as_nobody("ls", shared).returncode == 0
    assert as_nobody("ls", state).returncode != 0
    for name in ("manager.db", "tasks.db", "tasks.db-wal", "connection.json"):
        assert as_nobody("cat", state / name).returncode != 0, name


def test_state_left_open_by_earlier_release_is_closed(start: Callable[..., Daemon], shared: Path) -> None:
    state = shared / "state"
    first = start("manager", "--listen", "127.0.0.1:0", state=state)
    first.stop()
    state.chmod(0o755)
    for path in state.iterdir():
        path.chmod(0o755 if path.is_dir() else 0o644)
    second = start("manager", "--listen", "127.0.0.1:0", state=state)
    assert readable_by_others(state) == []
    assert state.stat().st_mode & 0o777 == 0o700
    second.stop()


@pytest.mark.parametrize("mode", [0o1777, 0o755], ids=["shared directory", "directory with other files"])
def test_directory_not_its_own_is_refused_with_advice(shared: Path, mode: int) -> None:
    (shared / "letter.txt").write_text("dear reader")
    shared.chmod(mode)
    refused = run(program(), "manager", "--listen", "127.0.0.1:0", "--state-dir", shared, check=False)
    assert refused.returncode == 1
    assert "state_exposed" in refused.stderr
    assert "--state-dir" in refused.stderr
    assert [path.name for path in shared.iterdir()] == ["letter.txt"]
    assert shared.stat().st_mode & 0o7777 == mode


def test_home_directory_is_refused(shared: Path) -> None:
    home = clean_environment(HOME=str(shared))
    refused = run(program(), "manager", "--listen", "127.0.0.1:0", "--state-dir", shared, check=False, env=home)
    assert refused.returncode == 1
    assert "is a home directory" in refused.stderr


def test_functions_have_the_umask_of_the_user(start: Callable[..., Daemon], state: Path, umask: int) -> None:
    up = start("up", "--listen", "127.0.0.1:0", "--python", sys.executable, "--sandbox", "process")
    with dayfly.connect(config=up.state / "connection.json") as client, client.lease() as lease:
        made = lease.submit(file_made_by_a_function, str(state / "result")).result(timeout=60)
    assert made == 0o666 & ~umask


def file_made_by_a_function(path: str) -> int:
    """Makes a file, and returns its mode."""
    Path(path).touch()
    return Path(path).stat().st_mode & 0o777
