"""An idle warm worker costs nothing: its processor time does not grow while it waits."""

from __future__ import annotations

import time
from pathlib import Path

import dayfly


def nothing() -> None:
    """Does nothing."""


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def own_pid() -> int:
    import os

    return os.getpid()


def test_idle_warm_worker_uses_no_processor_time() -> None:
    with dayfly.connect() as client, client.lease(workers=1, mode="warm") as lease:
        pid = lease.call(own_pid)
        lease.call(nothing)
        before = processor_seconds(pid)
        # Two seconds of waiting are what is measured here: one tick of the kernel's clock would be 0.5 %.
        time.sleep(2)
        assert processor_seconds(pid) - before <= 0.01
        assert lease.call(own_pid) == pid
