"""Fixtures of the black-box tests.

``up`` is a running ``dayfly up``; ``start`` starts any daemon; ``state`` is a private directory. At the end of a test,
all that it started is stopped, and the test fails if it leaked a process, a memory file or a descriptor.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import daemons, index
from harness.daemons import Daemon, private_directory
from harness.leaks import Snapshot, become_subreaper, descendants, kill, processes
from harness.postgres import Postgres
from harness.programs import bin_dir

pytest_plugins = ["harness.console", "harness.temporary", "harness.tenants"]
Start = Callable[..., Daemon]


def pytest_configure(config: pytest.Config) -> None:
    become_subreaper()
    # A shell that starts pytest in the background makes it, and its children, ignore interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Clients must find the programs under test, and no manager of the user.
    kept = ("DAYFLY_BIN_DIR", "DAYFLY_CACHE", "DAYFLY_CHAOS_S", "DAYFLY_CONSOLE")
    for name in [n for n in os.environ if n.startswith("DAYFLY_") and n not in kept]:
        del os.environ[name]
    # Do not use a public index, or this machine's settings for one.
    for name in [n for n in os.environ if n.startswith(("UV_", "PIP_"))]:
        del os.environ[name]
    os.environ.update(index.settings())
    os.environ["DAYFLY_BIN_DIR"] = str(bin_dir())
    # The location of a user's own manager.
    os.environ["XDG_STATE_HOME"] = str(Path(__file__).parent.parent / "build" / "no-state")
    os.environ["PATH"] = f"{bin_dir()}{os.pathsep}{os.environ.get('PATH', '')}"


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Adds the logs of a failed test's daemons to its report."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    if report.failed:
        for daemon in item.stash.get(DAEMONS, []):
            report.sections.append((f"log of {daemon!r}", daemon.output()[-20000:]))


@pytest.hookimpl(hookwrapper=True)
def pytest_timeout_set_timer(item: pytest.Item) -> Iterator[None]:
    """Lists the processes below a test that exceeds its time limit, before its own cleanup ends them."""
    yield
    expire = signal.getsignal(signal.SIGALRM)

    def report(number: int, frame: object) -> None:
        item.add_report_section("call", "processes at the time limit", processes())
        if callable(expire):
            expire(number, frame)

    if callable(expire):
        signal.signal(signal.SIGALRM, report)


DAEMONS = pytest.StashKey[list[Daemon]]()


@pytest.fixture
def state() -> Iterator[Path]:
    """A private directory for state, with a short path."""
    with private_directory() as directory:
        yield Path(directory)


@pytest.fixture
def start(state: Path, request: pytest.FixtureRequest) -> Iterator[Start]:
    """``start("up", ...)`` starts ``dayfly up ...`` and waits until it is ready. ``state=`` sets its state
    directory."""
    before = Snapshot()
    daemons = request.node.stash.setdefault(DAEMONS, [])

    def start_daemon(*args: str, **options: object) -> Daemon:
        options.setdefault("state", state / f"d{len(daemons)}")
        daemon = Daemon(*args, **options)  # type: ignore[arg-type]
        daemons.append(daemon)
        return daemon

    yield start_daemon
    failures = []
    # In reverse order, because later daemons depend on earlier ones.
    for daemon in reversed(daemons):
        if daemon.alive:
            try:
                daemon.stop()
            except AssertionError as failure:
                failures.append(str(failure))
    try:
        before.assert_no_leaks()
    except AssertionError as failure:
        failures.append(str(failure))
        kill([pid for pid in descendants() if pid not in before.processes])
    assert not failures, "\n".join(failures)


@pytest.fixture
def up(start: Start) -> Daemon:
    """A running ``dayfly up``: manager and node on this machine, in a private directory."""
    return start("up", "--listen", "127.0.0.1:0")


@pytest.fixture
def leakless() -> Iterator[Callable[..., None]]:
    """Fails the test if it leaks resources in or below the test's process."""
    before = Snapshot()
    yield before.assert_no_leaks
    before.assert_no_leaks()


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """A PostgreSQL server for the module."""
    server = Postgres()
    yield server
    server.end()


@pytest.fixture
def rendezvous() -> Iterator[dict[str, Any]]:
    """The line of JSON of a running rendezvous without a manager."""
    with daemons.rendezvous() as said:
        yield said
