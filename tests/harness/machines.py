"""Processes that replace the machines of a cloud or the pods of a cluster.

They do not see hidden files, have a loopback address, and find the programs of an image in their PATH. Turning one off
sends SIGTERM to its processes, as an operating system does.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from harness.leaks import die_with_parent
from harness.programs import clean_environment, program

#: Seconds between SIGTERM and SIGKILL when a machine is turned off.
GRACE = 10


class Machines:
    """Machines by name. ``hidden`` is a directory that none of them sees."""

    def __init__(self, directory: Path, hidden: Path) -> None:
        self.directory = directory
        self._hidden = hidden
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        # Machines die with the thread that started them, so one thread starts all.
        self._starter = ThreadPoolExecutor(1)

    def boot(self, name: str, command: Sequence[str], **programs: str) -> None:
        """Boots a machine, which runs a command and ends with it. ``programs`` are added to its PATH."""
        root = self.directory / name
        (root / "bin").mkdir(parents=True)
        for called, does in {
            "shutdown": f'echo "shutdown $*" >> {root}/output',
            "hostname": "echo 127.0.0.1",
            "dayfly": f'exec {program()} "$@"',
            **programs,
        }.items():
            (root / "bin" / called).write_text(f"#!/bin/sh\n{does}\n")
            (root / "bin" / called).chmod(0o755)
        self._running[name] = self._starter.submit(self._start, root, command).result()

    def _start(self, root: Path, command: Sequence[str]) -> subprocess.Popen[bytes]:
        path = f"{root}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"
        hide = f'mount -t tmpfs none {shlex.quote(str(self._hidden))} && exec "$0" "$@"'
        with open(root / "output", "ab") as output:
            return subprocess.Popen(
                ["unshare", "--mount", "sh", "-c", hide, *command],
                cwd=root,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=clean_environment(PATH=path, HOME=str(root), TMPDIR=str(root)),
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509 (the one thread loaded it before)
            )

    def __contains__(self, name: object) -> bool:
        return name in self._running

    def ended(self, name: str) -> int | None:
        """Returns the exit status of a machine's command, or None while it runs."""
        return self._running[name].poll()

    def output(self, name: str) -> list[str]:
        """Returns the lines that a machine has printed so far."""
        log = self.directory / name / "output"
        return log.read_text().splitlines() if log.exists() else []

    def turn_off(self, name: str) -> None:
        """Turns a machine off, if it is on."""
        machine = self._running[name]
        for number in (signal.SIGTERM, signal.SIGKILL):
            if machine.poll() is None:
                _tell(machine.pid, number)
                try:
                    machine.wait(GRACE)
                except subprocess.TimeoutExpired:
                    continue

    def close(self) -> None:
        """Turns all machines off."""
        for name in list(self._running):
            self.turn_off(name)
        self._starter.shutdown()


def _tell(session: int, number: int) -> None:
    """Signals all processes of a session. Process groups are not enough, because ``timeout`` creates its own."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(process.name)) == session:
                os.kill(int(process.name), number)
        except ProcessLookupError:
            continue
