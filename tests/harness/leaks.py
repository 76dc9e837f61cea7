"""Leak detection: processes, memory files and descriptors.

The test process is a subreaper (``conftest.py`` sets it), so processes that a killed daemon leaves behind become its
children, and are found and killed here.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
# Loaded now, because a child between fork and exec must not load anything.
LIBC = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Makes orphans below this process its children instead of init's."""
    if LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def die_with_parent() -> None:
    """Makes the kernel kill this process when its parent dies. For a child before its exec."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def wait_until(condition: Callable[[], object], what: str, timeout: float = 10) -> None:
    """Polls a condition every few milliseconds, and fails after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout} s: {what}")
        time.sleep(0.005)


def _stat(pid: int) -> tuple[int, str, int] | None:
    """Returns the parent, state and start time of a process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return int(fields[1]), fields[0], int(fields[19])


def parent(pid: int) -> int | None:
    """Returns the parent of a process, or None if there is no such process."""
    found = _stat(pid)
    return found[0] if found else None


def descendants(of: int | None = None) -> dict[int, str]:
    """Returns the living processes below one, by default this one, with their command lines. Ignores zombies."""
    root = os.getpid() if of is None else of
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (stat := _stat(int(entry))) and stat[1] not in "ZX":
            children.setdefault(stat[0], []).append(int(entry))
    found: dict[int, str] = {}
    todo = [root]
    while todo:
        for child in children.get(todo.pop(), ()):
            with contextlib.suppress(OSError):
                command = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found[child] = command.strip()
                todo.append(child)
    return found


def living(pids: Iterable[int]) -> set[int]:
    """Returns those of the processes that live. Unlike `descendants`, it misses none whose parent ends meanwhile."""
    return {pid for pid in pids if (stat := _stat(pid)) and stat[1] not in "ZX"}


def with_thread(name: str, processes: Iterable[int]) -> set[int]:
    """Returns those of the processes that have a thread of this name."""
    found = set()
    for process in processes:
        for thread in Path(f"/proc/{process}/task").glob("*/comm"):
            # It may end meanwhile.
            with contextlib.suppress(OSError):
                if thread.read_text().strip() == name:
                    found.add(process)
    return found


def processes() -> str:
    """Returns a line for each thread below this process: ids, state, the kernel function it waits in, its command."""
    lines = []
    for pid, command in descendants().items():
        above, state, _ = _stat(pid) or (0, "?", 0)
        with contextlib.suppress(OSError):
            for thread in sorted(Path(f"/proc/{pid}/task").iterdir()):
                waits, name = (thread / "wchan").read_text(), (thread / "comm").read_text().strip()
                call = (thread / "syscall").read_text().split()[0]
                lines.append(
                    f"{pid}/{thread.name} below {above} {state} {waits} syscall {call} {name}: {command[:200]!r}"
                )
    return "\n".join(lines)


def kill(pids: list[int]) -> None:
    """Kills processes and waits for their end."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for pid in pids:
        # Only orphans that this process adopted can be reaped here.
        with contextlib.suppress(ChildProcessError, ProcessLookupError):
            os.waitpid(pid, 0)
    wait_until(lambda: not living(pids), f"processes {pids} are gone")


def descriptors(pid: int | None = None) -> list[str]:
    """Returns the open descriptors of a process. Pipes and sockets lose their numbers, so lists can be compared."""
    directory = f"/proc/{pid or os.getpid()}/fd"
    found = []
    for entry in os.listdir(directory):
        with contextlib.suppress(OSError):
            target = os.readlink(f"{directory}/{entry}")
            # Exclude the directory listing itself, and the kernel's random numbers.
            if not target.startswith(f"/proc/{pid or os.getpid()}/fd"):
                found.append(target.split(":[")[0])
    return sorted(found)


def memory_files(pids: list[int] | None = None) -> list[str]:
    """Returns the memory files that processes (by default this one and all below it) have open or mapped."""
    found = []
    for pid in pids if pids is not None else [os.getpid(), *descendants()]:
        with contextlib.suppress(OSError):
            found += [f"{pid} has {d} open" for d in descriptors(pid) if d.startswith("/memfd:")]
            with open(f"/proc/{pid}/maps") as maps:
                lines = [line.split(maxsplit=5) for line in maps]
            found += [f"{pid} has {f[5].strip()} mapped" for f in lines if len(f) == 6 and f[5].startswith("/memfd:")]
    return sorted(found)


def shared_files() -> set[str]:
    """Returns Dayfly's files in /dev/shm. There must be none."""
    with contextlib.suppress(FileNotFoundError):
        return {name for name in os.listdir("/dev/shm") if "dayfly" in name.lower()}
    return set()


@dataclass
class Snapshot:
    """The resources of this process, the processes below it, and optionally one daemon, at one time."""

    daemon: int | None = None
    processes: dict[int, str] = field(init=False)
    memory: list[str] = field(init=False)
    shared: set[str] = field(init=False)
    own: list[str] = field(init=False)
    theirs: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.processes = descendants()
        self.memory = memory_files()
        self.shared = shared_files()
        self.own = descriptors()
        self.theirs = descriptors(self.daemon) if self.daemon else []

    def _is_anothers(self, pid: int) -> bool:
        """Returns whether a process belongs to one that existed before, such as a manager that refills its pool of
        executors.

        A process below the watched daemon never does.
        """
        while stat := _stat(pid):
            pid = stat[0]
            if pid == self.daemon:
                return False
            if pid in self.processes:
                return True
        return False

    def leaks(self) -> list[str]:
        """Returns the resources that exist now and did not then."""
        now = Snapshot(self.daemon)
        fresh = {pid: cmd for pid, cmd in now.processes.items() if pid not in self.processes}
        others = {pid for pid in fresh if self._is_anothers(pid)}
        leaks = [f"process {pid}: {cmd}" for pid, cmd in fresh.items() if pid not in others]
        memory = [line for line in _more(now.memory, self.memory) if int(line.split()[0]) not in others]
        leaks += [f"memory file: {line}" for line in memory]
        leaks += [f"/dev/shm/{name}" for name in sorted(now.shared - self.shared)]
        leaks += [f"descriptor of the test: {line}" for line in _more(now.own, self.own)]
        leaks += [f"descriptor of process {self.daemon}: {line}" for line in _more(now.theirs, self.theirs)]
        return leaks

    def assert_no_leaks(self, timeout: float = 10) -> None:
        """Waits for resources to be released, and fails after ``timeout`` seconds with a list of the rest."""
        deadline = time.monotonic() + timeout
        # A kept exception keeps its frames and their open files, until reference cycles are collected.
        gc.collect()
        while leaks := self.leaks():
            if time.monotonic() > deadline:
                raise AssertionError("leaked:\n  " + "\n  ".join(leaks))
            time.sleep(0.01)


def _more(now: list[str], then: list[str]) -> list[str]:
    """Returns the items that occur more often in ``now`` than in ``then``."""
    left = list(then)
    extra = []
    for item in now:
        if item in left:
            left.remove(item)
        else:
            extra.append(item)
    return extra
