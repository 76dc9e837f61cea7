"""Checks of the options of tasks and executors, and their forms in the API."""

from __future__ import annotations

import json
from typing import Any

from dayfly._native import TaskOptions


def task_options(
    *,
    priority: int,
    deadline: float | None,
    walltime: float | None,
    retries: int,
    retry_wait: float = 0.0,
    repeatable: bool,
    memoize: bool,
) -> TaskOptions:
    """Checks the options of tasks and returns them in native form."""
    return TaskOptions(
        json.dumps(
            {
                "priority": checked_priority(priority),
                "deadline_ms": milliseconds("deadline", deadline),
                "walltime_ms": milliseconds("walltime", walltime),
                **retry_options(retries, retry_wait),
                # None leaves it to the registered function.
                "repeatable": True if repeatable else None,
                "memoize": memoize,
            }
        )
    )


def retry_options(retries: int, retry_wait: float) -> dict[str, int]:
    """Checks the options of retries and returns them in the form of the API."""
    if not 0 <= retries <= 1000:
        raise ValueError(f"retries={retries}: ask for 0 to 1000")
    if not 0 <= retry_wait <= 3600:
        raise ValueError(f"retry_wait={retry_wait}: ask for 0 to 3600 seconds")
    return {"retries": retries, "retry_wait_ms": round(retry_wait * 1000)}


def checked_priority(priority: int) -> int:
    """Returns a priority. Raises `ValueError` if it is out of range."""
    if not -128 <= priority <= 127:
        raise ValueError(f"priority={priority}: ask for -128 to 127")
    return priority


def milliseconds(name: str, seconds: float | None) -> int:
    """Returns a duration in milliseconds; 0 for None.

    Raises:
        ValueError: if it is not positive. The message has the option's name.
    """
    if seconds is None:
        return 0
    if seconds <= 0:
        raise ValueError(f"{name}={seconds}: ask for a positive number of seconds")
    return max(1, min(round(seconds * 1000), 0xFFFF_FFFF))


def workers_of(workers: int | None, max_workers: int | None, max_tasks_per_child: int | None) -> int | None:
    """Returns the requested number of workers, by either name; None if none is given.

    Raises:
        ValueError: if the values conflict, or ask for something unsupported.
    """
    if max_tasks_per_child is not None:
        raise ValueError(
            f"max_tasks_per_child={max_tasks_per_child}: workers are not replaced after so many tasks; leave it out"
        )
    if max_workers is not None and max_workers <= 0:
        raise ValueError("max_workers must be greater than 0")
    if workers is not None and max_workers is not None:
        raise ValueError("workers= and max_workers= are the same: give one of them")
    return workers if max_workers is None else max_workers


def check_endpoint(endpoint: Any) -> None:
    """Checks that ``endpoint`` is not a number of workers, as in other executors.

    Raises:
        TypeError: if it is not a name.
    """
    if endpoint is not None and not isinstance(endpoint, str):
        raise TypeError(f"endpoint={endpoint!r} must be a name; for a number of workers, use max_workers=")
