# ruff: noqa: N818 - the names describe the failure
"""Errors with a base class of ``concurrent.futures``. They need ``multiprocessing``, which takes long to import."""

from __future__ import annotations

from concurrent.futures.process import BrokenProcessPool

from dayfly._errors import CallError, InitializerError


class InitializerFailed(InitializerError, BrokenProcessPool):
    """The initializer of an executor raised in a worker. The executor accepts no more calls."""


class WorkerDied(CallError, BrokenProcessPool):
    """The worker died. With the code ``maybe_executed``, the call may have run and was not repeated.

    So with ``memory_returned``: the call held borrowed memory that its owner needed, and was ended. Lease more memory,
    or borrow only ``cpu``.

    It is a ``BrokenProcessPool`` for programs that catch that, but the lease continues with another worker.
    """
