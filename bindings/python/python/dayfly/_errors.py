# ruff: noqa: N818 - one name ends in Error, the others describe the failure
"""Exceptions. Every `Error` has a ``code``, which docs/errors.md documents."""

from __future__ import annotations


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
