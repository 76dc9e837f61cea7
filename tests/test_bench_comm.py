"""``dayfly bench comm`` measures the same pattern on ranks of a group and of Open MPI; how fast is not asked here."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import dayfly
import pytest
from harness.daemons import Daemon
from harness.leaks import descendants, wait_until
from harness.programs import clean_environment, program, run, run_json

pytestmark = pytest.mark.skipif(
    not shutil.which("mpirun") or importlib.util.find_spec("mpi4py") is None,
    reason="no Open MPI with mpi4py here. Install with: sudo apt-get install openmpi-bin, and scripts/bootstrap",
)


def measured(*asked: str) -> list[dict[str, Any]]:
    environment = clean_environment(DAYFLY_PYTHON=sys.executable)
    sizes = ("--least", "8", "--most", "4K", "--step", "8", "--rounds", "1")
    rows: list[dict[str, Any]] = run_json("bench", "comm", *sizes, *asked, timeout=100, env=environment)["rows"]
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


def test_algorithm_thresholds_are_measured_saved_and_used(up: Daemon, tmp_path: Path) -> None:
    tables = tmp_path / "tables.json"
    for ranks in (2, 3):
        sizes = ("--least", "64", "--most", "4K", "--step", "8", "--rounds", "1")
        asked = ("--tune", "--ranks", str(ranks), *sizes, "--output", str(tables))
        report = run_json("bench", "comm", *asked, timeout=100)
        names = {2: ["allreduce_halving"], 3: ["bcast_scatter", "allgather_ring", "allreduce_halving"]}[ranks]
        assert [found["name"] for found in report["found"]] == names
        for found in report["found"]:
            assert report["table"][found["name"]] == found["bytes"]
            # By definition none is better than what was chosen.
            assert found["ratio"] <= 1
    assert list(json.loads(tables.read_text())) == ["2", "3"]

    def total(size: int) -> float:
        import numpy as np
        from dayfly import MPI

        everything = np.empty(size)
        MPI.COMM_WORLD.Allreduce(np.ones(size), everything)
        return float(everything.sum())

    with dayfly.connect(up.state) as client:
        assert dayfly.run(total, ranks=2, args=(1000,), client=client, tables=tables) == [2000.0] * 2
        tables.write_text('{"2": {"no_such_place": 1}}')
        with pytest.raises(dayfly.Error, match="no_such_place"):
            dayfly.run(total, ranks=2, args=(1000,), client=client, tables=tables)
    script = tmp_path / "script.py"
    script.write_text("from dayfly import MPI; MPI.COMM_WORLD.Barrier()")
    environment = up.client_environment() | {"DAYFLY_PYTHON": sys.executable}
    for target in ("dayfly.groups:world", str(script)):
        asked = ("run", "--ranks", "2", "--tables", str(tables), target)
        done = run(program(), *asked, env=environment, check=False)
        assert done.returncode
        assert "no_such_place" in done.stdout + done.stderr, done


@pytest.mark.parametrize("language", ["c", "python"])
def test_killed_measurement_leaves_no_ranks(language: str) -> None:
    before = set(descendants())
    asked = ("bench", "comm", "--op", "allreduce", "--ranks", "3", "--rounds", "1000", "--language", language)
    measurement = subprocess.Popen(
        [program(), *asked],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=clean_environment(DAYFLY_PYTHON=sys.executable),
    )
    wait_until(lambda: len(descendants(measurement.pid)) >= 3, "three ranks run", timeout=60)
    measurement.kill()
    measurement.wait()
    wait_until(lambda: set(descendants()) <= before, "the ranks end")


def test_barrier_has_one_row() -> None:
    (row,) = measured("--op", "barrier", "--ranks", "3", "--transport", "shm")
    assert row["us"] > 0 < row["openmpi_us"]
