"""Results of other tasks as arguments. A worker imports this module for its first call with such arguments."""

from __future__ import annotations

from typing import Any

from dayfly._native import Foreign

#: Results of the tasks that a call depends on, while its arguments are unpickled. The native module sets them.
results: list[Any] = []


def result_of(index: int, trust: Any = None) -> Any:
    """Returns the result of another task. It stands for the task's future in pickled arguments.

    Args:
        index: index of the task among those whose results travel with the call.
        trust: tenants whose results may be unpickled, in addition to the task's own tenant; see `trust_of`.
    """
    found = results[index]
    if type(found) is Foreign:
        from dayfly._codec.trust import open_foreign, trust_of

        return open_foreign(found, trust_of(trust))
    return found
