"""One rank of a group: what its worker runs."""

from __future__ import annotations

from typing import Any

import cloudpickle

from dayfly._groups.storage import environment_variables


def run_rank(group: str, work: bytes, environment: dict[str, str]) -> Any:
    """Runs on each worker: joins the group and calls the function."""
    from dayfly import MPI

    with environment_variables(environment):
        MPI._join(group)
        try:
            fn, args, kwargs = cloudpickle.loads(work)
            return fn(*args, **kwargs)
        finally:
            MPI._leave()
