"""CPython's own tests of executors, with ours in place of ``ProcessPoolExecutor``, where the ``test`` package has them.

What is expected to differ stands in `DIFFERENT`, with the reason, and in docs/guides/python.md.
"""

from __future__ import annotations

import multiprocessing
import sys
import unittest
from typing import Any

import pytest
import test

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")
# An interpreter may lack most of its tests. Debian packages its own, perhaps of the same minor version.
test.__path__.append(f"/usr/lib/python{sys.version_info.major}.{sys.version_info.minor}/test")
theirs = pytest.importorskip("test.test_concurrent_futures", reason="this Python is installed without its own tests")
if not hasattr(theirs, "ExecutorMixin"):
    pytest.skip("since Python 3.12 these tests are others", allow_module_level=True)

#: Modules with the tests of all executors, or of executors whose workers are processes.
MIXINS = [
    theirs.InitializerMixin,
    theirs.FailingInitializerMixin,
    theirs.ProcessPoolShutdownTest,
    theirs.WaitTests,
    theirs.AsCompletedTests,
    theirs.ProcessPoolExecutorTest,
    theirs.ExecutorDeadlockTest,
]
PRIVATE = "it looks at private attributes"
BY_NAME = "it starts CPython's executor by its name; test_drop_in_executor.py has the same of ours"
UNREADABLE = "what cannot be unpickled fails its call alone, with its own exception"
CHILDREN = "it passes what multiprocessing makes for child processes"
WORKERS = "workers are not replaced after so many tasks"
DIFFERENT = {
    "FailingInitializerMixin.test_initializer": CHILDREN,
    "ProcessPoolShutdownTest.test_hang_gh83386": BY_NAME,
    "ProcessPoolShutdownTest.test_interpreter_shutdown": BY_NAME,
    "ProcessPoolShutdownTest.test_processes_terminate": PRIVATE,
    "ProcessPoolShutdownTest.test_submit_after_interpreter_shutdown": BY_NAME,
    "ProcessPoolExecutorTest.test_idle_process_reuse_multiple": PRIVATE,
    "ProcessPoolExecutorTest.test_idle_process_reuse_one": PRIVATE,
    "ProcessPoolExecutorTest.test_killed_child": PRIVATE,
    "ProcessPoolExecutorTest.test_max_tasks_early_shutdown": WORKERS,
    "ProcessPoolExecutorTest.test_max_tasks_per_child": WORKERS,
    "ProcessPoolExecutorTest.test_max_tasks_per_child_defaults_to_spawn_context": WORKERS,
    "ProcessPoolExecutorTest.test_saturation": PRIVATE,
    "ProcessPoolExecutorTest.test_traceback": PRIVATE,
    "ExecutorDeadlockTest.test_error_at_task_unpickle": UNREADABLE,
    "ExecutorDeadlockTest.test_error_during_result_unpickle_in_result_handler": UNREADABLE,
    "ExecutorDeadlockTest.test_exit_at_task_unpickle": UNREADABLE,
    "ExecutorDeadlockTest.test_exit_during_result_unpickle_in_result_handler": UNREADABLE,
    "ExecutorDeadlockTest.test_shutdown_deadlock_pickle": PRIVATE,
}
#: Tests that cannot begin, or that depend on how soon the first call begins.
LEFT_OUT = {
    "ProcessPoolExecutorTest.test_ressources_gced_in_workers": CHILDREN,
    "ProcessPoolShutdownTest.test_cancel_futures": "it wants a call to have begun as soon as it was submitted",
}


def case(mixin: type, test: str, client: Any, durable: bool) -> unittest.TestCase:
    """Runs one of CPython's tests with a Dayfly executor."""

    def make(max_workers: int | None = None, mp_context: object = None, **options: Any) -> Any:
        workers = 2 if max_workers is None else max_workers
        # The endpoint decides its number of workers, not the executor.
        if not durable or workers <= 0:
            options |= {"durable": durable, "max_workers": workers}
        return dayfly.Executor(client=client, **options)

    class Ours(theirs.ExecutorMixin):  # type: ignore[misc,name-defined]
        executor_type = staticmethod(make)
        ctx = "spawn"

        def get_context(self) -> Any:
            return multiprocessing.get_context(self.ctx)

    made: unittest.TestCase = type(mixin.__name__, (mixin, Ours, unittest.TestCase), {})(test)
    return made


CASES = [(mixin, test) for mixin in MIXINS for test in sorted(dir(mixin)) if test.startswith("test_")]


@pytest.mark.parametrize("durable", [False, True], ids=["direct", "durable"])
@pytest.mark.parametrize(("mixin", "test"), CASES, ids=[f"{mixin.__name__}.{test}" for mixin, test in CASES])
def test_executor_passes_test_of_cpython(client: dayfly.Client, mixin: type, test: str, durable: bool) -> None:
    name = f"{mixin.__name__}.{test}"
    if name in LEFT_OUT:
        pytest.skip(LEFT_OUT[name])
    result = unittest.TestResult()
    case(mixin, test, client, durable).run(result)
    for _, why in result.skipped:
        pytest.skip(why)
    troubles = [text for _, text in (*result.errors, *result.failures)]
    if name in DIFFERENT:
        assert troubles, f"it passes now, though {DIFFERENT[name]}"
        pytest.xfail(DIFFERENT[name])
    assert not troubles, troubles[0]
