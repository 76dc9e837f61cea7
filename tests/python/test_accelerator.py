"""Partners of ranks without a lease, and calls of ranks that lose their workers."""

from __future__ import annotations

import concurrent.futures as cf
from typing import Any

import pytest
from harness.programs import run_python

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")

from dayfly.accelerator import Invocation, _paired, _Status  # noqa: E402 (only if it is installed)


def statuses(kinds: str) -> list[_Status]:
    """The statuses of ranks that have a lease (l), are without (w), or wait for a response (p)."""
    return [_Status(kind == "l", kind == "p", 0, None, None) for kind in kinds]


@pytest.mark.parametrize(
    ("kinds", "partners"),
    [
        ("", {}),
        ("www", {}),
        ("lll", {}),
        ("wl", {0: 1}),
        ("lwlwww", {1: 0, 3: 2, 4: 0, 5: 2}),
        # A rank whose request has no response yet may still get a lease.
        ("lpw", {2: 0}),
        ("wp", {}),
    ],
)
def test_ranks_without_lease_take_turns(kinds: str, partners: dict[int, int]) -> None:
    assert _paired(statuses(kinds)) == partners


def invocation(outcome: Any, *, may_be_computed: bool) -> Invocation[str]:
    """A call whose worker has returned a value, or failed; computed in this process it returns "here"."""
    future: cf.Future[str] = cf.Future()
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
    return Invocation(lambda: "here", future, lambda error: may_be_computed)


LOST = dayfly.WorkerDied("its worker died", "maybe_executed")


def test_lost_call_is_computed_in_rank() -> None:
    lost = invocation(LOST, may_be_computed=True)
    assert lost.done()
    assert [lost.result(), lost.result()] == ["here", "here"]
    assert invocation("there", may_be_computed=True).result() == "there"


def test_call_that_may_have_run_raises() -> None:
    with pytest.raises(dayfly.WorkerDied):
        invocation(LOST, may_be_computed=False).result()
    with pytest.raises(KeyError):
        invocation(KeyError("of the function"), may_be_computed=True).result()


def test_accelerator_without_mpi4py_names_the_extra() -> None:
    done = run_python(
        """
        import sys
        sys.modules["mpi4py"] = None
        from dayfly.accelerator import Accelerator
        try:
            Accelerator()
        except ModuleNotFoundError as error:
            print(error.name, error)
        """
    )
    assert done.stdout.startswith("mpi4py the accelerator uses MPI by mpi4py, which is not installed: ")
    assert "dayfly[mpi]" in done.stdout
