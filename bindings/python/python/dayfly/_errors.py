# ruff: noqa: N818 - one name ends in Error, the others say what happened
"""Exceptions. Every one has a ``code`` with a section of its own in the documentation of errors."""

from __future__ import annotations

import builtins
import pickle
import sys
from typing import Any

#: Made where they are first needed. Pickles of earlier releases look for them here.
_BROKEN = ("InitializerFailed", "WorkerDied")


def __getattr__(name: str) -> Any:
    if name not in _BROKEN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dayfly import _broken

    return getattr(_broken, name)


class Error(Exception):
    """Anything that Dayfly itself reports. The message says what happened and what to do.

    Exceptions of the functions that you call are not among these: they are raised by their own types.

    >>> str(Error("the manager does not answer", "unreachable"))
    'the manager does not answer [unreachable]'
    """

    #: Name of what went wrong, stable.
    code: str

    def __init__(self, message: str, code: str = "internal") -> None:
        super().__init__(message, code)
        self.message = message
        self.code = code

    def __str__(self) -> str:
        return f"{self.message} [{self.code}]"


class RequestError(Error):
    """The request itself must change."""


class TagInUse(RequestError):
    """There are tasks with this tag already, and more would be mixed with them."""


class AccessError(Error):
    """Not accepted: token, its role, signature or version."""


class LeaseError(Error):
    """The lease is over; lease again."""


class CapacityError(Error):
    """Not enough free cores, workers or memory just now, or the tenant has no quota or budget left."""


class LoadError(Error):
    """The function could not be loaded by the worker."""


class InitializerError(LoadError):
    """An `InitializerFailed`, for those who look for it where there may be none."""


class CallError(Error):
    """The call failed."""


class FunctionError(CallError):
    """A C function reported an error of its own."""


class DeadlineExceeded(CallError):
    """The call ran past its deadline and was ended, with its worker."""


class StateLost(CallError):
    """The state that the call depends on died with its worker."""


class DependencyFailed(CallError):
    """A task was not executed, as one whose result it was to get did not end well."""


class ResultUnreadable(CallError):
    """The call ended well, and its result cannot be made here, as where its module is not installed.

    What was raised as it was unpickled is the ``__cause__``.
    """


class Untrusted(CallError):
    """The result may be of another tenant's making, and holds more than data: to unpickle it would run their code here.

    The message says whom to trust, and how.
    """


class Cancelled(CallError):
    """Ended by its caller."""


class ConnectionFailed(Error):
    """Manager or node cannot be reached, or does not speak this protocol."""


class GroupError(Error):
    """An operation of a group failed: a rank is lost, or the ranks did not call what fits together."""


class Forked(Error):
    """A client that was inherited through a fork. Connect anew in the child."""


class RemoteError(Exception):
    """Stands for an exception of a function's that cannot be made again here; its name and text are in the message."""


class RemoteTraceback(Exception):
    """The traceback of an exception as the worker saw it, as the exception's cause."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


#: Codes of `WorkerDied`.
_DIED = ("maybe_executed", "not_executed")
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
    """The exception for a code."""
    if code in _DIED:
        from dayfly._broken import WorkerDied

        return WorkerDied(message, code)
    return _FAMILIES.get(code, Error)(message, code)


def unpack_exception(packed: bytes) -> BaseException:
    """The exception that a function raised, with the worker's traceback as its cause."""
    pickled, (module, name, message), text = pickle.loads(packed)
    told = f"{module}.{name}: {message}" if module != builtins.__name__ else f"{name}: {message}"
    made: BaseException
    try:
        made = RemoteError(told) if pickled is None else pickle.loads(pickled)
    except Exception as failure:
        made = RemoteError(f"{told} (raised there as an exception of its own, which {_why_not(failure)})")
    made.__cause__ = RemoteTraceback(text)
    return made


def unreadable(failure: BaseException) -> BaseException:
    """What to raise in place of what was raised as a result was unpickled."""
    if not isinstance(failure, Exception) or isinstance(failure, (Error, MemoryError)):
        return failure
    made = error_for(
        "result_unreadable",
        f"the call ended well, and its result {_why_not(failure)}, or have the function return plain values",
    )
    made.__cause__ = failure
    return made


def _why_not(failure: Exception) -> str:
    """Why something cannot be unpickled here, and what to do."""
    if isinstance(failure, ModuleNotFoundError) and failure.name:
        return f"needs the module {failure.name!r} here: install it for {sys.executable}"
    text = f"cannot be made here: {type(failure).__name__}: {failure}"
    return f"{text}; use the same versions of its modules here and there"


def failed_item(failed: Any) -> BaseException:
    """The exception of one item of a map."""
    packed: bytes = failed.packed
    if failed.is_foreign:
        from dayfly import _trust

        return _trust.unpack_exception(packed)
    return unpack_exception(packed)
