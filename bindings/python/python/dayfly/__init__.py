"""Dayfly: lease workers for a limited time, and call functions on them in microseconds.

>>> import dayfly
>>> def area(width, height):
...     return width * height
>>> with dayfly.connect() as client, client.lease(workers=2) as lease:  # doctest: +SKIP
...     lease.submit(area, 6, 7).result()
42
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dayfly._batch import Batch
    from dayfly._broken import InitializerFailed, WorkerDied
    from dayfly._checkpoint import Checkpoint
    from dayfly._client import Client, connect
    from dayfly._command import Command, CommandError
    from dayfly._delegation import Delegation
    from dayfly._durable import Durable, durable
    from dayfly._entry_point import EntryPoint
    from dayfly._environment import Environment
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
        TagInUse,
        Untrusted,
    )
    from dayfly._flow import Flow, Step
    from dayfly._future import Future
    from dayfly._gang import Gang
    from dayfly._lease import Calls, Function, Lease
    from dayfly._library import Library, NativeFunction
    from dayfly._mpirun import MPICommand
    from dayfly._run import run
    from dayfly._symbol import Symbol
    from dayfly._tasks import Executor, Registered
    from dayfly._trigger import Trigger

__version__ = "0.1.0"

__all__ = [
    "AccessError",
    "Batch",
    "CallError",
    "Calls",
    "Cancelled",
    "CapacityError",
    "Checkpoint",
    "Client",
    "Command",
    "CommandError",
    "ConnectionFailed",
    "DeadlineExceeded",
    "Delegation",
    "DependencyFailed",
    "Durable",
    "EntryPoint",
    "Environment",
    "Error",
    "Executor",
    "Flow",
    "Forked",
    "Function",
    "FunctionError",
    "Future",
    "Gang",
    "GroupError",
    "InitializerFailed",
    "Lease",
    "LeaseError",
    "Library",
    "LoadError",
    "MPICommand",
    "NativeFunction",
    "Registered",
    "RemoteError",
    "RemoteTraceback",
    "RequestError",
    "ResultUnreadable",
    "StateLost",
    "Step",
    "Symbol",
    "TagInUse",
    "Trigger",
    "Untrusted",
    "WorkerDied",
    "__version__",
    "connect",
    "durable",
    "run",
]

# Imported on first use: workers also import this package, and need none of these modules.
_WHERE = {
    "_batch": ("Batch",),
    "_broken": ("InitializerFailed", "WorkerDied"),
    "_checkpoint": ("Checkpoint",),
    "_client": ("Client", "connect"),
    "_command": ("Command", "CommandError"),
    "_entry_point": ("EntryPoint",),
    "_delegation": ("Delegation",),
    "_durable": ("Durable", "durable"),
    "_environment": ("Environment",),
    "_flow": ("Flow", "Step"),
    "_future": ("Future",),
    "_gang": ("Gang",),
    "_lease": ("Calls", "Function", "Lease"),
    "_library": ("Library", "NativeFunction"),
    "_mpirun": ("MPICommand",),
    "_run": ("run",),
    "_symbol": ("Symbol",),
    "_tasks": ("Executor", "Registered"),
    "_trigger": ("Trigger",),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'dayfly' has no attribute {name!r}")
    from importlib import import_module

    module = next((module for module, names in _WHERE.items() if name in names), "_errors")
    value = getattr(import_module(f"dayfly.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__]
