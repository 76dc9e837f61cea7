"""Tasks that leave a mark for each execution, to detect repeated and missing executions."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from harness.leaks import wait_until

if TYPE_CHECKING:
    import dayfly


def leave_a_mark(path: str, task: int, seconds: float = 0.001) -> int:
    """Appends one byte to the task's file for each execution."""
    with open(f"{path}/{task}", "ab") as mark:
        mark.write(b"x")
    time.sleep(seconds)
    return task


def leave_a_mark_behind(gate: str, path: str, task: int) -> int:
    """As :func:`leave_a_mark`, once the file ``gate`` exists."""
    while not os.path.exists(gate):
        time.sleep(0.01)
    return leave_a_mark(path, task)


def executions(directory: Path) -> Counter[int]:
    """Returns the number of executions of each task."""
    return Counter({int(mark.name): mark.stat().st_size for mark in directory.iterdir()})


def go_on(batch: dayfly.Batch, more: int) -> None:
    """Waits until ``more`` further tasks have ended, or all but the last."""
    wanted = min(batch.done() + more, len(batch) - 1)
    wait_until(lambda: batch.done() > wanted, "tasks go on", 60)


def outcomes(batch: dayfly.Batch, limit: float = 120) -> Counter[str]:
    """Counts tasks by outcome: success with the task's own number as result, or an error code."""
    import dayfly

    ended = Counter[str]()
    for task, future in enumerate(batch.futures):
        try:
            result = future.result(limit)
        except dayfly.Error as error:
            ended[error.code] += 1
        else:
            assert result == task
            ended["well"] += 1
    return ended
