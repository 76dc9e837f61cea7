"""The temporary files of a test run: all below one directory, which goes when the run ends, also when it is killed.

A plugin for pytest: a run in which anything is left there at its end fails, and says which test made it.
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

#: Removes a directory when its standard input ends: when the process that started it closes it, or is no more.
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


#: What may be there: modules that travelled, which workers of the same user share and remove by age; programs of ranks
#: that were killed; and what multiprocessing removes when the process of the tests ends.
KEPT = ("dayfly-code-", "dayfly-run-", "pymp-")


class Temporary:
    """Where a run's temporary files are, and what of them is there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        #: What appeared, and in which test.
        self.appeared: dict[str, str] = {}
        os.environ["TMPDIR"] = str(root)
        tempfile.tempdir = None

    def look(self, test: str) -> None:
        """Notes what is there after a test and was not before."""
        for name in os.listdir(self.root):
            self.appeared.setdefault(name, test)

    def left(self) -> list[str]:
        """What is there now and should not be, with the test in which it appeared."""
        names = sorted(name for name in os.listdir(self.root) if not name.startswith(KEPT))
        return [f"{name} ({self.appeared.get(name, 'of no test')})" for name in names]


class Run(Temporary):
    """All of a run: the process that the tests run in, or that starts those."""

    def __init__(self) -> None:
        # Short, as Unix sockets below it end at 107 bytes. Servers of tests run as other accounts.
        self.directory = Path(tempfile.mkdtemp(prefix="df-"))
        self.directory.chmod(0o711)
        # A process of its own, which nothing ends that ends this one.
        self._remover = subprocess.Popen(
            [sys.executable, "-I", "-c", REMOVER, self.directory], stdin=subprocess.PIPE, start_new_session=True
        )
        super().__init__(below(self.directory, "t"))

    @property
    def basetemp(self) -> Path:
        """Where pytest keeps the directories that it gives to tests."""
        return self.directory / "p"

    def end(self) -> None:
        """Removes everything."""
        assert self._remover.stdin is not None
        self._remover.stdin.close()
        self._remover.wait(70)


def below(directory: Path, name: str) -> Path:
    """A part of a run's directory."""
    part = directory / name
    part.mkdir(mode=0o711)
    return part


TEMPORARY = pytest.StashKey[Temporary]()
LEFT = pytest.StashKey[list[str]]()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.stash[LEFT] = []
    if worker := getattr(config, "workerinput", None):
        # It inherits the directory of the process that started it, and has a part of its own.
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
    """A process of the run ended: what it left is for the report."""
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
