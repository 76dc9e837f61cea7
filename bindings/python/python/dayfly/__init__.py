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
    from dayfly._client import Client, connect
    from dayfly._command import Command, CommandError
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
    from dayfly._functions.entry_point import EntryPoint
    from dayfly._functions.environment import Environment
    from dayfly._functions.symbol import Symbol
    from dayfly._futures.future import Future
    from dayfly._groups.checkpoint import Checkpoint
    from dayfly._groups.mpirun import MPICommand
    from dayfly._groups.run import run
    from dayfly._leases.calls import Calls
    from dayfly._leases.fleet import Fleet
    from dayfly._leases.gang import Gang
    from dayfly._leases.lease import Delegation, Lease
    from dayfly._leases.leased_executor import Function
    from dayfly._leases.library import Library, NativeFunction
    from dayfly._leases.stream import Stream
    from dayfly._pool_errors import InitializerFailed, WorkerDied
    from dayfly._tasks.batch import Batch
    from dayfly._tasks.decorator import Durable, durable
    from dayfly._tasks.executor import Executor
    from dayfly._tasks.flow import Flow, Step
    from dayfly._tasks.registered import Registered
    from dayfly._tasks.trigger import Trigger

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
    "Fleet",
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
    "Stream",
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
    "_pool_errors": ("InitializerFailed", "WorkerDied"),
    "_client": ("Client", "connect"),
    "_command": ("Command", "CommandError"),
    "_functions.entry_point": ("EntryPoint",),
    "_functions.environment": ("Environment",),
    "_functions.symbol": ("Symbol",),
    "_futures.future": ("Future",),
    "_groups.checkpoint": ("Checkpoint",),
    "_groups.mpirun": ("MPICommand",),
    "_groups.run": ("run",),
    "_leases.calls": ("Calls",),
    "_leases.fleet": ("Fleet",),
    "_leases.gang": ("Gang",),
    "_leases.lease": ("Delegation", "Lease"),
    "_leases.leased_executor": ("Function",),
    "_leases.library": ("Library", "NativeFunction"),
    "_leases.stream": ("Stream",),
    "_tasks.batch": ("Batch",),
    "_tasks.decorator": ("Durable", "durable"),
    "_tasks.executor": ("Executor",),
    "_tasks.flow": ("Flow", "Step"),
    "_tasks.registered": ("Registered",),
    "_tasks.trigger": ("Trigger",),
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
