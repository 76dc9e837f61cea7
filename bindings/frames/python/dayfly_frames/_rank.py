"""What each worker of a session runs."""

from __future__ import annotations

import ctypes
import os

from dayfly._groups.storage import environment_variables

from dayfly_frames import _frames

#: Options of the C library's ``mallopt``: memory above which free space is returned, size of a piece that is returned
#: when it is freed, and arenas of all threads.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
#: Memory of a rank below which that matters more than the time it takes: a tenth of a join in memory.
SMALL_BYTES = 1 << 30
KEPT_BYTES, RETURNED_BYTES, ARENAS = 1 << 20, 256 << 10, 2


def serve(invitation: str, memory_bytes: int, stores: dict[str, str], variables: dict[str, str]) -> None:
    """Executes tasks of a session until it closes. The variables name the account of a store between the ranks."""
    if 0 < memory_bytes < SMALL_BYTES:
        return_memory()
    directory, spill_bytes = spill_of_node()
    with environment_variables(variables):
        _frames.serve(
            invitation,
            len(os.sched_getaffinity(0)),
            memory_bytes or None,
            directory,
            spill_bytes,
            stores,
        )


def return_memory() -> None:
    """Has the C library return to the system what a query no longer uses.

    By default it keeps that, for each thread, and after a few queries it has several times what any of them needed.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_ARENA_MAX, ARENAS)
        mallopt(M_MMAP_THRESHOLD, RETURNED_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def spill_of_node() -> tuple[str | None, int | None]:
    """Returns the directory of a worker's node for spills, and its bound in bytes; None for each that is not set."""
    spill_bytes = os.environ.get("DAYFLY_SPILL_BYTES")
    return os.environ.get("DAYFLY_SPILL"), int(spill_bytes) if spill_bytes else None
