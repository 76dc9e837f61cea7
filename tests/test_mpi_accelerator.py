"""Ranks of an MPI program that lease workers, with Open MPI's ``mpirun``."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from harness.compilers import compile_source
from harness.leaks import wait_until
from harness.open_mpi import OPEN_MPI
from harness.programs import ROOT, bin_dir, clean_environment, run

pytestmark = pytest.mark.skipif(
    not (shutil.which("mpirun") and shutil.which("mpicxx")),
    reason="no Open MPI here. Install with: sudo apt-get install openmpi-bin libopenmpi-dev",
)


def mpi_flags() -> list[str]:
    """What ``mpicxx`` adds to compile and link, with its headers as system headers."""
    words = run("mpicxx", "--showme").stdout.split()[1:]
    return [word.replace("-I", "-isystem", 1) if word.startswith("-I") else word for word in words]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("ranks")
    return compile_source(ROOT / "bindings/cxx/tests/mpi.cpp", directory / "ranks", *mpi_flags())


@pytest.fixture(scope="module")
def square(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("square")
    return compile_source(ROOT / "examples/functions/square.c", directory / "libsquare.so")


def command(ranks: Path, square: Path, what: str) -> list[str | Path]:
    return [*OPEN_MPI, "-n", "2", ranks, square, what]


def environment(site=None, **more: str) -> dict[str, str]:
    here = dict(site.client_environment()) if site else clean_environment()
    return here | {"DAYFLY_BIN": str(bin_dir() / "dayfly")} | more


def test_rank_without_lease_gets_private_workers(leakless, start, ranks, square, tmp_path):
    # One hot worker is all that this site has.
    site = start("up", "--listen", "127.0.0.1:0", "--sandbox", "process", "--cores", "1")
    done = run(*command(ranks, square, "pair"), env=environment(site, TMPDIR=str(tmp_path)), timeout=100)
    assert done.stdout == "1 with a lease, 1 with private workers: all held\n"
    assert not list(tmp_path.glob("dayfly-*"))


def test_program_without_manager_computes_alone(leakless, ranks, square):
    done = run(*command(ranks, square, "alone"), env=environment(), timeout=100)
    assert done.stdout == "0 with a lease, 0 with private workers: all held\n"


def test_killed_job_leaves_nothing(leakless, start, ranks, square, tmp_path):
    site = start("up", "--listen", "127.0.0.1:0", "--sandbox", "process", "--cores", "1")
    job = subprocess.Popen(
        [str(word) for word in command(ranks, square, "hang")],
        env=environment(site, TMPDIR=str(tmp_path)),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert job.stdout is not None
    pids = [int(job.stdout.readline().split()[1]) for _ in range(2)]
    assert list(tmp_path.glob("dayfly-job-*")), "a private node serves"
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert job.wait(30) != 0
    job.stdout.close()
    wait_until(lambda: not list(tmp_path.glob("dayfly-*")), "the private node has removed its directory", 20)
