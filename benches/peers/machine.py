"""The machine: its cores, its description, and whether it is idle enough for a measurement."""

import os
import platform
import time
from pathlib import Path
from typing import Any

CORES = 2
BUSY = 0.15  # largest share of the cores' time that other processes may use


def take_cores() -> list[int]:
    """Pins this process and its children to the same cores."""
    cores = sorted(os.sched_getaffinity(0))[:CORES]
    os.sched_setaffinity(0, cores)
    return cores


def _ticks(cores: list[int]) -> tuple[int, int]:
    total = idle = 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *fields = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores:
            numbers = [int(field) for field in fields[:8]]
            total += sum(numbers)
            idle += numbers[3] + numbers[4]
    return total, idle


def busy_share(cores: list[int], seconds: float = 0.5) -> float:
    total, idle = _ticks(cores)
    time.sleep(seconds)
    total_after, idle_after = _ticks(cores)
    return 1 - (idle_after - idle) / max(total_after - total, 1)


def quiet(cores: list[int], patience: float = 4.0) -> float:
    """Waits briefly until the machine is idle. Returns the smallest measured share of busy time."""
    deadline = time.monotonic() + patience
    least = busy_share(cores)
    while least > BUSY and time.monotonic() < deadline:
        least = min(least, busy_share(cores))
    return least


def describe(cores: list[int]) -> dict[str, Any]:
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    return {
        "cpu": model,
        "cores_of_machine": os.cpu_count(),
        "cores": cores,
        "kernel": platform.release(),
        "python": platform.python_version(),
    }
