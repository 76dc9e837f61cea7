"""``mayfly bench comm`` measures the same pattern on ranks of a group and of Open MPI; how fast is not asked here."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from typing import Any

import pytest
from harness.programs import clean_environment, run_json

pytestmark = pytest.mark.skipif(
    not shutil.which("mpirun") or importlib.util.find_spec("mpi4py") is None,
    reason="no Open MPI with mpi4py here. Install with: sudo apt-get install openmpi-bin, and scripts/bootstrap",
)


def measured(*asked: str) -> list[dict[str, Any]]:
    environment = clean_environment(MAYFLY_PYTHON=sys.executable)
    sizes = ("--least", "8", "--most", "4K", "--step", "8", "--rounds", "1")
    rows: list[dict[str, Any]] = run_json("bench", "comm", *sizes, *asked, timeout=120, env=environment)["rows"]
    return rows


@pytest.mark.parametrize("language", ["c", "python"])
@pytest.mark.parametrize("op", ["pingpong", "bcast", "allreduce", "alltoall", "allgather"])
def test_both_sides_are_measured_for_every_size(op: str, language: str) -> None:
    rows = measured("--op", op, "--language", language, "--transport", "tcp")
    assert [row["bytes"] for row in rows] == [8, 64, 512, 4096]
    for row in rows:
        assert row["us"] > 0
        assert row["openmpi_us"] > 0
        assert row["ratio"] == pytest.approx(row["us"] / row["openmpi_us"], rel=0.01)


def test_a_barrier_has_one_row_and_three_ranks_share_memory() -> None:
    (row,) = measured("--op", "barrier", "--ranks", "3", "--transport", "shm")
    assert row["us"] > 0 < row["openmpi_us"]
