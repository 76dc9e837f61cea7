"""What each worker of a session runs."""

from __future__ import annotations

import os

from dayfly_frames import _frames


def serve(invitation: str, memory_bytes: int, stores: dict[str, str]) -> None:
    """Executes tasks of a session until it closes."""
    directory, spill_bytes = spill_of_node()
    _frames.serve(
        invitation,
        len(os.sched_getaffinity(0)),
        memory_bytes or None,
        directory,
        spill_bytes,
        stores,
    )


def spill_of_node() -> tuple[str | None, int | None]:
    """Returns the directory of a worker's node for spills, and its bound in bytes; None for each that is not set."""
    spill_bytes = os.environ.get("DAYFLY_SPILL_BYTES")
    return os.environ.get("DAYFLY_SPILL"), int(spill_bytes) if spill_bytes else None
