"""What each worker of a session runs."""

from __future__ import annotations

import os

from dayfly_frames import _frames


def serve(invitation: str, memory_bytes: int | None) -> None:
    """Executes tasks of a session until it closes."""
    _frames.serve(invitation, len(os.sched_getaffinity(0)), memory_bytes)
