"""Temporary files of a test run: all below one directory, which is removed when the run ends or is killed.

A pytest plugin: a run fails if files are left there at its end, and reports the test that created each.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

#: Removes a directory when its standard input closes, because the process that started it closed it or died.
REMOVER = """
import os, shutil, subprocess, sys, time
root = sys.argv[1]
sys.stdin.read()
until = time.monotonic() + 60
while os.path.lexists(root) and time.monotonic() < until:
    # What a test that was killed had mounted.
    with open("/proc/self/mounts") as mounts:
        mounted = [line.split()[1] for line in mounts]
    for place in reversed(mounted):
        if place.startswith(root + "/"):
            subprocess.run(["umount", "--lazy", place], check=False, capture_output=True)
    shutil.rmtree(root, ignore_errors=True)
    if os.path.lexists(root):
        # Daemons of a killed run are still ending.
        time.sleep(0.1)
"""


#: Files that may stay: traveled modules, which workers of one user share and remove by age; programs of killed ranks;
#: and files that multiprocessing removes at the end of the process.
KEPT = ("dayfly-code-", "dayfly-run-", "pymp-")


class Temporary:
    """The directory of a run's temporary files, and its content."""

    def __init__(self, root: Path) -> None:
        self.root = root
        #: The files, and the tests in which they appeared.
        self.appeared: dict[str, str] = {}
        os.environ["TMPDIR"] = str(root)
        tempfile.tempdir = None

    def look(self, test: str) -> None:
        """Records the files that appeared during a test."""
        for name in os.listdir(self.root):
            self.appeared.setdefault(name, test)

    def left(self) -> list[str]:
        """Returns the files that should not be left, with the tests in which they appeared."""
        names = sorted(name for name in os.listdir(self.root) if not name.startswith(KEPT))
        return [f"{name} ({self.appeared.get(name, 'of no test')})" for name in names]


class Run(Temporary):
    """The temporary files of the whole run, in its main process."""

    def __init__(self) -> None:
        # A short path, because paths of Unix sockets have at most 107 bytes. Accessible for servers with other
        # accounts.
        self.directory = Path(tempfile.mkdtemp(prefix="df-"))
        self.directory.chmod(0o711)
        # In a session of its own, so that signals to the test run do not end it.
        self._remover = subprocess.Popen(
            [sys.executable, "-I", "-c", REMOVER, self.directory], stdin=subprocess.PIPE, start_new_session=True
        )
        super().__init__(below(self.directory, "t"))

    @property
    def basetemp(self) -> Path:
        """Returns the base directory of pytest's temporary directories."""
        return self.directory / "p"

    def end(self) -> None:
        """Removes the directory."""
        assert self._remover.stdin is not None
        self._remover.stdin.close()
        # It tries again for a minute. One removal of all files can take as long on a busy machine.
        self._remover.wait(300)


def below(directory: Path, name: str) -> Path:
    """Creates a subdirectory of a run's directory."""
    part = directory / name
    part.mkdir(mode=0o711)
    return part


TEMPORARY = pytest.StashKey[Temporary]()
LEFT = pytest.StashKey[list[str]]()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.stash[LEFT] = []
    if worker := getattr(config, "workerinput", None):
        # A worker inherits the directory of the main process and uses a subdirectory.
        config.stash[TEMPORARY] = Temporary(below(Path(os.environ["TMPDIR"]).parent, worker["workerid"]))
        return
    run = Run()
    config.stash[TEMPORARY] = run
    config.option.basetemp = config.option.basetemp or str(run.basetemp)
    config.add_cleanup(run.end)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    found = yield
    item.config.stash[TEMPORARY].look(item.nodeid)
    return found


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Collects the files that a worker process left."""
    node.config.stash[LEFT] += getattr(node, "workeroutput", {}).get("left", [])


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    config.stash[LEFT] += config.stash[TEMPORARY].left()
    left = config.stash[LEFT]
    if hasattr(config, "workeroutput"):
        config.workeroutput["left"] = left
    elif left and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if left := config.stash[LEFT]:
        terminalreporter.section("left in the temporary directory")
        terminalreporter.line("\n".join(left))
