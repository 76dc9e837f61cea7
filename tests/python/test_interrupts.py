"""Ctrl-C during calls and tasks, with real processes and signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.daemons import Daemon
from harness.leaks import wait_until
from harness.managers import manager_here

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")

PROGRAM = """
    import pathlib, sys, time
    import dayfly

    def wait_for(path):
        pathlib.Path(path + ".begun").touch()
        while not pathlib.Path(path).exists():
            time.sleep(0.01)

    client = dayfly.connect(config=sys.argv[1])
    gates = [f"{{sys.argv[2]}}/{{number}}" for number in range(20)]
    try:
        with {made} as executor:
            futures = [executor.submit(wait_for, gate) for gate in gates]
            pathlib.Path(sys.argv[2], "submitted").touch()
            futures[0].result()
    finally:
        print("ended:", sum(future.cancelled() for future in futures), "cancelled")
"""


@pytest.fixture(scope="module")
def manager() -> Iterator[Daemon]:
    with manager_here() as manager:
        yield manager


class Program:
    """Starts a program that submits 20 calls and waits for the first, and interrupts it once a call runs."""

    def __init__(self, manager: Daemon, made: str, directory: Path) -> None:
        self.directory = directory
        self.errors = directory / "stderr"
        program = textwrap.dedent(PROGRAM.format(made=made))
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-c", program, str(manager.state), str(directory)],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        # An earlier interrupt would hit the program while it starts or submits.
        submitted = directory / "submitted"
        wait_until(lambda: submitted.exists() and self.begun(), "a call runs, and all are submitted", timeout=30)
        self.process.send_signal(signal.SIGINT)
        wait_until(lambda: "interrupted" in self.errors.read_text(), "it says what it waits for", timeout=30)

    def begun(self) -> int:
        return len(list(self.directory.glob("*.begun")))

    def release(self) -> None:
        for number in range(20):
            (self.directory / str(number)).touch()

    def end(self) -> str:
        printed, _ = self.process.communicate(timeout=30)
        assert self.process.returncode != 0
        return printed


@pytest.fixture(params=["lease", "executor"])
def direct(request: pytest.FixtureRequest) -> str:
    return {
        "lease": "client.lease(workers=2, mode='warm')",
        "executor": "dayfly.Executor(client=client, durable=False, max_workers=2)",
    }[request.param]


def test_interrupted_program_waits_only_for_running_calls(manager: Daemon, direct: str, tmp_path: Path) -> None:
    program = Program(manager, direct, tmp_path)
    try:
        told = program.errors.read_text()
        assert "Press Ctrl-C again" in told
        assert program.process.poll() is None
        begun = program.begun()
        program.release()
        printed = program.end()
        assert "KeyboardInterrupt" in program.errors.read_text()
        # A few calls were sent ahead to the workers.
        cancelled = int(printed.split()[1])
        assert 20 - cancelled >= begun
        assert cancelled >= 10
        assert f"({cancelled} that had not begun are cancelled)" in told
        assert program.begun() == 20 - cancelled
    finally:
        program.process.kill()
        program.process.wait()


def test_second_interrupt_ends_running_calls(manager: Daemon, direct: str, tmp_path: Path) -> None:
    program = Program(manager, direct, tmp_path)
    try:
        program.process.send_signal(signal.SIGINT)
        program.end()
        assert "KeyboardInterrupt" in program.errors.read_text()
    finally:
        program.process.kill()
        program.process.wait()


def test_interrupted_program_leaves_durable_tasks_alone(manager: Daemon, tmp_path: Path) -> None:
    program = Program(manager, "dayfly.Executor(client=client, tag='kept')", tmp_path)
    try:
        assert "which run on in any case. Press Ctrl-C again" in program.errors.read_text()
        program.process.send_signal(signal.SIGINT)
        program.end()
        with dayfly.connect(config=manager.state) as client:
            batch = client.tasks("kept")
            program.release()
            assert list(batch.results(timeout=30)) == [None] * 20
    finally:
        program.process.kill()
        program.process.wait()
