"""One rank of a group: what its worker runs."""

from __future__ import annotations

from typing import Any

import cloudpickle

from dayfly._groups.storage import environment_variables
from dayfly._worker import enter_group, leave_group, rank_exception


def run_rank(group: str, work: bytes, environment: dict[str, str]) -> Any:
    """Runs on each worker: calls the function, which joins the group when it first uses it."""
    with environment_variables(environment):
        enter_group(group)
        succeeded = False
        try:
            fn, args, kwargs = cloudpickle.loads(work)
            result = fn(*args, **kwargs)
            succeeded = True
            return result
        except BaseException as error:
            raised = rank_exception(error)
            try:
                if raised is error:
                    raise
                raise raised from error
            finally:
                # The exception would keep itself, by this frame, and with it the function's variables.
                del raised
        finally:
            leave_group(succeeded)
