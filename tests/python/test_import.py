"""The modules that an import of the package loads."""

from __future__ import annotations

import pickle
from concurrent.futures.process import BrokenProcessPool

import pytest
from harness.programs import run_python

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")

#: Modules that take long to import, and that no client needs before it fails.
SLOW = ("concurrent.futures.process", "multiprocessing")


@pytest.mark.parametrize("names", ["connect, Executor, Future", "Lease, Batch, Environment"])
def test_client_imports_no_slow_modules(names: str) -> None:
    program = f"""
    import sys
    from dayfly import {names}
    print(*[name for name in {SLOW!r} if name in sys.modules])
    """
    assert run_python(program).stdout.split() == []


def test_worker_that_died_is_a_broken_process_pool() -> None:
    from dayfly._failures import error_for

    for code in ("maybe_executed", "memory_returned", "not_executed"):
        died = error_for(code, "told")
        assert type(died) is dayfly.WorkerDied
        assert isinstance(died, BrokenProcessPool)
        assert isinstance(died, dayfly.CallError)
        again = pickle.loads(pickle.dumps(died))
        assert (type(again), again.code) == (dayfly.WorkerDied, code)
    assert issubclass(dayfly.InitializerFailed, BrokenProcessPool)
    assert issubclass(dayfly.InitializerFailed, dayfly.LoadError)


def test_unknown_error_name_is_an_attribute_error() -> None:
    from dayfly import _errors

    with pytest.raises(AttributeError, match="no attribute 'Unknown'"):
        _ = _errors.Unknown
