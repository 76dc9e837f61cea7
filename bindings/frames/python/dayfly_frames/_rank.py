"""What each worker of a session runs."""

from __future__ import annotations

import os

from dayfly_frames import _frames


def serve(invitation: str, memory_bytes: int, stores: dict[str, str]) -> None:
    """Executes tasks of a session until it closes."""
    # Nodes with a directory for spills name it.
    spill_bytes = os.environ.get("DAYFLY_SPILL_BYTES")
    _frames.serve(
        invitation,
        len(os.sched_getaffinity(0)),
        memory_bytes or None,
        os.environ.get("DAYFLY_SPILL"),
        int(spill_bytes) if spill_bytes else None,
        stores,
    )
