# ruff: noqa: N818 - they say what happened
"""Errors that ``concurrent.futures`` has as well. They need ``multiprocessing``, which takes long to import."""

from __future__ import annotations

from concurrent.futures.process import BrokenProcessPool

from dayfly._errors import CallError, InitializerError


class InitializerFailed(InitializerError, BrokenProcessPool):
    """The initializer of an executor raised in a worker. The executor takes no more calls."""


class WorkerDied(CallError, BrokenProcessPool):
    """The worker ended. ``maybe_executed`` says that the call may have run, and was not run twice.

    A ``BrokenProcessPool``, for programs that look for that; the lease goes on with another worker.
    """
