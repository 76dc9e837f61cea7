"""Which cores the sides of a comparison use."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from dayfly_frames import _frames

#: The library of ranks.
LIBRARY = Path(_frames.__file__).name


def pin(pid: int, cores: Collection[int]) -> None:
    """Restricts all threads of a process to these cores. Threads that they start inherit that."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), cores)


@contextmanager
def pinned(cores: Collection[int]) -> Iterator[None]:
    """Restricts this process to these cores, and to the former ones afterwards."""
    before = os.sched_getaffinity(0)
    pin(os.getpid(), cores)
    try:
        yield
    finally:
        pin(os.getpid(), before)


def rank_processes() -> list[int]:
    """Returns the processes below this one that have the library of ranks: those of all open sessions."""
    found = []
    for process in _below(os.getpid()):
        with contextlib.suppress(OSError):
            if LIBRARY in Path(f"/proc/{process}/maps").read_text():
                found.append(process)
    return sorted(found)


def _below(pid: int) -> list[int]:
    pending, found = [pid], []
    while pending:
        for thread in Path(f"/proc/{pending.pop()}/task").glob("*"):
            with contextlib.suppress(OSError):
                children = [int(child) for child in (thread / "children").read_text().split()]
                pending += children
                found += children
    return found


def busy_ns(processes: Collection[int]) -> int:
    """Returns the processor time of all threads of these processes, in nanoseconds."""
    total = 0
    for process in processes:
        for thread in Path(f"/proc/{process}/task").glob("*"):
            with contextlib.suppress(OSError):
                total += int((thread / "schedstat").read_text().split()[0])
    return total


def peak_bytes(processes: Collection[int]) -> int:
    """Returns the most memory that one of these processes has had, in bytes. Pages of its files count."""
    found = [0]
    for process in processes:
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{process}/status").read_text()
            found += [int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM:")]
    return max(found)
