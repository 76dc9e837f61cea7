"""How ranks of an MPI program without a lease find partners."""

from __future__ import annotations

import pytest

pytest.importorskip("dayfly", reason="the package is not installed: make build")

from dayfly.accelerator import _paired, _Status


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
