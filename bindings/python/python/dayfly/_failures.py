"""Exceptions made from what the manager, a node or a worker reported: from codes, and from pickled exceptions."""

from __future__ import annotations

import builtins
import pickle
import sys

from dayfly._errors import (
    AccessError,
    CallError,
    Cancelled,
    CapacityError,
    ConnectionFailed,
    DeadlineExceeded,
    DependencyFailed,
    Error,
    Forked,
    FunctionError,
    GroupError,
    LeaseError,
    LoadError,
    RemoteError,
    RemoteTraceback,
    RequestError,
    ResultUnreadable,
    StateLost,
    Untrusted,
)

#: Codes of `WorkerDied`.
_DIED = ("maybe_executed", "memory_returned", "not_executed")
_FAMILIES: dict[str, type[Error]] = {
    "invalid_request": RequestError,
    "not_found": RequestError,
    "ambiguous": RequestError,
    "too_large": RequestError,
    "payload_too_large": RequestError,
    "hash_mismatch": RequestError,
    "transport_refused": RequestError,
    "address_in_use": RequestError,
    "state_exposed": RequestError,
    "unauthorized": AccessError,
    "forbidden": AccessError,
    "replayed": AccessError,
    "version_mismatch": AccessError,
    "stale_epoch": AccessError,
    "lease_expired": LeaseError,
    "lease_ended": LeaseError,
    "no_capacity": CapacityError,
    "environment_building": CapacityError,
    "quota_exceeded": CapacityError,
    "worker_busy": CapacityError,
    "out_of_memory": CapacityError,
    "spill_refused": CapacityError,
    "spill_full": CapacityError,
    "input_changed": RequestError,
    "rejected": CapacityError,
    "executor_failed": LoadError,
    "load_failed": LoadError,
    "python_mismatch": LoadError,
    "environment_failed": LoadError,
    "isolation_unavailable": LoadError,
    "unknown_function": LoadError,
    "function_error": FunctionError,
    "output_overflow": CallError,
    "deadline_exceeded": DeadlineExceeded,
    "state_lost": StateLost,
    "cancelled": Cancelled,
    "result_unreadable": ResultUnreadable,
    "untrusted": Untrusted,
    "dependency_failed": DependencyFailed,
    "unreachable": ConnectionFailed,
    "protocol_violation": ConnectionFailed,
    "store_failed": ConnectionFailed,
    "store_lost": ConnectionFailed,
    "rank_lost": GroupError,
    "mismatch": GroupError,
    "truncated": GroupError,
    "forked": Forked,
}


def error_for(code: str, message: str) -> Error:
    """Returns the exception for a code."""
    if code in _DIED:
        from dayfly._pool_errors import WorkerDied

        return WorkerDied(message, code)
    return _FAMILIES.get(code, Error)(message, code)


def unpack_exception(packed: bytes) -> BaseException:
    """Returns the exception that a function raised, with the worker's traceback as its cause."""
    pickled, (module, name, message), text = pickle.loads(packed)
    told = f"{module}.{name}: {message}" if module != builtins.__name__ else f"{name}: {message}"
    made: BaseException
    try:
        made = RemoteError(told) if pickled is None else pickle.loads(pickled)
    except Exception as failure:
        made = RemoteError(f"{told} (raised there as an exception of its own, which {_why_not(failure)})")
    made.__cause__ = RemoteTraceback(text)
    return made


def unreadable_error(failure: BaseException) -> BaseException:
    """Returns the exception to raise in place of one that unpickling a result raised."""
    if not isinstance(failure, Exception) or isinstance(failure, (Error, MemoryError)):
        return failure
    made = error_for(
        "result_unreadable",
        f"the call ended well, and its result {_why_not(failure)}, or have the function return plain values",
    )
    made.__cause__ = failure
    return made


def _why_not(failure: Exception) -> str:
    """Returns why a value cannot be unpickled here, and what to do."""
    if isinstance(failure, ModuleNotFoundError) and failure.name:
        return f"needs the module {failure.name!r} here: install it for {sys.executable}"
    text = f"cannot be made here: {type(failure).__name__}: {failure}"
    return f"{text}; use the same versions of its modules here and there"
