"""Ranks of an MPI program that lease workers, in C++ and in Python, with Open MPI's ``mpirun`` and with our MPI."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from harness.compilers import compile_source
from harness.daemons import Daemon
from harness.leaks import wait_until
from harness.mpi_ranks import run_ranks
from harness.open_mpi import OPEN_MPI
from harness.programs import ROOT, bin_dir, clean_environment, run

pytestmark = pytest.mark.skipif(
    not (shutil.which("mpirun") and shutil.which("mpicxx")),
    reason="no Open MPI here. Install with: sudo apt-get install openmpi-bin libopenmpi-dev",
)

PYTHON_PROGRAM = [sys.executable, ROOT / "tests/mpi/accelerated_program.py"]
has_python = all(importlib.util.find_spec(module) for module in ("dayfly", "mpi4py"))
needs_python = pytest.mark.skipif(not has_python, reason="the package or mpi4py is not installed: make build")


def mpi_flags() -> list[str]:
    """What ``mpicxx`` adds to compile and link, with its headers as system headers."""
    words = run("mpicxx", "--showme").stdout.split()[1:]
    return [word.replace("-I", "-isystem", 1) if word.startswith("-I") else word for word in words]


@pytest.fixture(scope="module")
def cxx_program(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    directory = tmp_path_factory.mktemp("ranks")
    ranks = compile_source(ROOT / "bindings/cxx/tests/mpi.cpp", directory / "ranks", *mpi_flags())
    return [ranks, compile_source(ROOT / "tests/mpi/square.c", directory / "libsquare.so")]


@pytest.fixture(params=["c++", pytest.param("python", marks=needs_python)])
def ranks(request: pytest.FixtureRequest) -> Sequence[str | Path]:
    """The program of the ranks. What to do follows."""
    return request.getfixturevalue("cxx_program") if request.param == "c++" else PYTHON_PROGRAM


@pytest.fixture
def site(start: Callable[..., Daemon]) -> Daemon:
    """A site that has one hot worker and no more."""
    return start("up", "--listen", "127.0.0.1:0", "--sandbox", "process", "--cores", "1")


def command(ranks: Sequence[str | Path], what: str, size: int = 2) -> list[str]:
    return [str(word) for word in (*OPEN_MPI, "-n", size, *ranks, what)]


def environment(site: Daemon | None = None, **more: str) -> dict[str, str]:
    here = dict(site.client_environment()) if site else clean_environment()
    return here | {"DAYFLY_BIN": str(bin_dir() / "dayfly")} | more


@pytest.mark.parametrize("size", [2, 3])
def test_rank_without_lease_gets_private_workers(leakless, site, ranks, tmp_path, size):
    done = run(*command(ranks, "pair", size), env=environment(site, TMPDIR=str(tmp_path)), timeout=100)
    assert done.stdout == f"1 with a lease, {size - 1} with private workers: all held\n"
    assert not list(tmp_path.glob("dayfly-*"))


def test_program_without_manager_computes_alone(leakless, ranks):
    done = run(*command(ranks, "alone"), env=environment(), timeout=100)
    assert done.stdout == "0 with a lease, 0 with private workers: all held\n"


def test_private_node_killed_in_superstep_is_replaced(leakless, site, ranks, tmp_path):
    done = run(*command(ranks, "lose"), env=environment(site, TMPDIR=str(tmp_path)), timeout=100)
    assert done.stdout == "1 with a lease, 1 with private workers: all held\n"


def test_superstep_ends_after_leased_node_is_killed(leakless, site, ranks, tmp_path):
    done = run(*command(ranks, "end"), env=environment(site, TMPDIR=str(tmp_path)), timeout=100)
    assert done.stdout.startswith("0 with a lease, ")
    assert site.process.wait(10) == -signal.SIGKILL
    site.kill()  # closes its pipe


def test_killed_job_leaves_nothing(leakless, site, ranks, tmp_path):
    job = subprocess.Popen(
        command(ranks, "hang"),
        env=environment(site, TMPDIR=str(tmp_path)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert job.stdout is not None
    pids = [int(pid) for pid in job.stdout.readline().split()]
    assert len(pids) == 2
    assert list(tmp_path.glob("dayfly-job-*")), "a private node serves"
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert job.wait(30) != 0
    job.stdout.close()
    wait_until(lambda: not list(tmp_path.glob("dayfly-*")), "the private node has removed its directory", 20)


@needs_python
def test_ranks_of_own_mpi_get_private_workers(
    leakless: Any, site: Daemon, rendezvous: dict[str, Any], tmp_path: Path
) -> None:
    variables = {"DAYFLY_MANAGER": str(site.state), "DAYFLY_BIN": str(bin_dir() / "dayfly"), "TMPDIR": str(tmp_path)}
    done = run_ranks(rendezvous, [*PYTHON_PROGRAM, "pair"], 2, timeout=100, **variables)
    assert sorted(done) == [(0, ""), (0, "1 with a lease, 1 with private workers: all held\n")]
    assert not list(tmp_path.glob("dayfly-*"))
