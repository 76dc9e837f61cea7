# ruff: noqa: N818 - one name ends in Error, the others describe the failure
"""Exceptions. Every `Error` has a ``code``, which docs/errors.md documents."""

from __future__ import annotations

import builtins
import pickle
import sys
from typing import Any

#: Created on first use. Pickles of earlier releases look for them in this module.
_BROKEN = ("InitializerFailed", "WorkerDied")


def __getattr__(name: str) -> Any:
    if name not in _BROKEN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dayfly import _broken

    return getattr(_broken, name)


class Error(Exception):
    """Base class of the errors that Dayfly itself reports. The message states what happened and what to do.

    Exceptions raised by your functions are not among them: they keep their own types.

    >>> str(Error("the manager does not respond", "unreachable"))
    'the manager does not respond [unreachable]'
    """

    #: Stable name of the error.
    code: str

    def __init__(self, message: str, code: str = "internal") -> None:
        super().__init__(message, code)
        self.message = message
        self.code = code

    def __str__(self) -> str:
        return f"{self.message} [{self.code}]"


class RequestError(Error):
    """The request is invalid and must change."""


class TagInUse(RequestError):
    """The tag already has tasks, and ``extend`` is False."""


class AccessError(Error):
    """Access is denied: by the token, its role, a signature or a version."""


class LeaseError(Error):
    """The lease has ended. Lease again."""


class CapacityError(Error):
    """Not enough free cores, workers or memory at present, or the tenant's quota or budget is exhausted."""


class LoadError(Error):
    """The worker could not load the function."""


class InitializerError(LoadError):
    """Base class of `InitializerFailed`, for code that must not import ``multiprocessing``."""


class CallError(Error):
    """The call failed."""


class FunctionError(CallError):
    """A C function reported an error of its own, or a function called through JSON raised one."""


class DeadlineExceeded(CallError):
    """The call exceeded its deadline and was ended, together with its worker."""


class StateLost(CallError):
    """The state that the call depends on was lost with its worker."""


class DependencyFailed(CallError):
    """The task was not executed, because a task whose result it needs failed."""


class ResultUnreadable(CallError):
    """The call succeeded, but its result cannot be unpickled here, for example because a module is not installed.

    The ``__cause__`` is the exception that unpickling raised.
    """


class Untrusted(CallError):
    """The result may come from another tenant and contains more than data. Unpickling it would run that tenant's code.

    The message names the tenant to trust, and how.
    """


class Cancelled(CallError):
    """The caller cancelled or killed the call."""


class ConnectionFailed(Error):
    """The manager or the node cannot be reached, or does not speak this protocol."""


class GroupError(Error):
    """An operation of a group failed: a rank is lost, or the ranks called operations that do not match."""


class Forked(Error):
    """The client was inherited through a fork. Connect again in the child process."""


class RemoteError(Exception):
    """Replaces a function's exception that cannot be unpickled here. The message has the exception's name and text."""


class RemoteTraceback(Exception):
    """The worker's traceback of an exception, as the ``__cause__`` of that exception."""

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
    """Returns the exception for a code."""
    if code in _DIED:
        from dayfly._broken import WorkerDied

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


def unreadable(failure: BaseException) -> BaseException:
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


def failed_item(failed: Any) -> BaseException:
    """Returns the exception of one item of a map."""
    packed: bytes = failed.packed
    if failed.is_foreign:
        from dayfly import _trust

        return _trust.unpack_exception(packed)
    return unpack_exception(packed)
