"""Unmodified MPI programs with Dayfly's MPI library: C, and the real mpi4py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.daemons import Daemon
from harness.mpi_ranks import SONAME, environment, library_directory, run_ranks
from harness.open_mpi import OPEN_MPI, needs_open_mpi
from harness.programs import ROOT, program, run

PROGRAMS = ROOT / "tests" / "mpi"


def symbols(library: Path, *, defined: bool) -> set[str]:
    """Returns the names that a library defines, or that it needs and does not get elsewhere."""
    lines = run("nm", "-D", library).stdout.splitlines()
    kinds = "TDBR" if defined else "U"
    return {line.split()[-1] for line in lines if line.split()[-2] in kinds}


def compiled(name: str, directory: Path) -> Path:
    """Returns a C program of this folder, linked with the library."""
    output = directory / name
    library = library_directory() / SONAME
    run(
        os.environ.get("CC", "cc"),
        "-std=c11",
        "-D_GNU_SOURCE",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-O1",
        "-pthread",
        PROGRAMS / f"{name}.c",
        "-o",
        output,
        library,
    )
    return output


@pytest.fixture(scope="module")
def c_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled("program", tmp_path_factory.mktemp("mpi"))


def test_library_has_the_name_of_mpich() -> None:
    assert f"[{SONAME}]" in run("readelf", "-d", library_directory() / SONAME).stdout


def test_library_exports_interface_symbols_only() -> None:
    names = symbols(library_directory() / SONAME, defined=True)
    functions = {name for name in names if name.startswith(("MPI_", "MPIX_"))}
    of_fortran = {f"MPI_{form}_{which}_IGNORE" for form in ("F", "F08") for which in ("STATUS", "STATUSES")}
    data = {"MPI_UNWEIGHTED", "MPI_WEIGHTS_EMPTY", "MPI_T_PVAR_ALL_HANDLES"} | of_fortran
    assert names - functions - {f"P{name}" for name in functions} == {"MPIR_Dup_fn"}
    assert {f"P{name}" for name in functions - data} <= names


def test_every_name_of_mpich_is_exported() -> None:
    needed = set((PROGRAMS / "names.txt").read_text().split())
    assert len(needed) > 650
    assert needed <= symbols(library_directory() / SONAME, defined=True)


def test_mpi4py_finds_every_symbol() -> None:
    import mpi4py

    extension = next(Path(mpi4py.__file__).parent.glob("MPI.mpich*.so"))
    needed = {name for name in symbols(extension, defined=False) if name.startswith("MPI")}
    assert len(needed) > 300
    assert needed <= symbols(library_directory() / SONAME, defined=True)


@pytest.mark.parametrize("ranks", [2, 3])
def test_c_program_runs_on_ranks(rendezvous: dict[str, Any], c_program: Path, ranks: int) -> None:
    done = run_ranks(rendezvous, [c_program], ranks)
    assert [status for status, _ in done] == [0] * ranks, done
    assert done[1][1] == f"rank 1 of {ranks} is done\n"


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_newer_functions_run_on_ranks(rendezvous: dict[str, Any], tmp_path: Path, ranks: int) -> None:
    done = run_ranks(rendezvous, [compiled("newer", tmp_path)], ranks)
    assert [status for status, _ in done] == [0] * ranks, done
    assert done[ranks - 1][1] == f"rank {ranks - 1} of {ranks} is done\n"


@pytest.mark.parametrize("ranks", [2, 3])
def test_mpi4py_program_runs_on_ranks(rendezvous: dict[str, Any], ranks: int) -> None:
    done = run_ranks(rendezvous, [sys.executable, PROGRAMS / "mpi4py_program.py"], ranks)
    assert [status for status, _ in done] == [0] * ranks, done


@pytest.mark.parametrize("ranks", [2, 3])
def test_threads_make_communicators_at_once(rendezvous: dict[str, Any], ranks: int) -> None:
    done = run_ranks(rendezvous, [sys.executable, PROGRAMS / "threads_program.py"], ranks)
    assert [status for status, _ in done] == [0] * ranks, done


def test_dayfly_run_starts_unmodified_programs(start: Callable[..., Daemon], c_program: Path, tmp_path: Path) -> None:
    site = start("up", "--listen", "127.0.0.1:0", "--sandbox", "process")
    variables = site.client_environment() | {"DAYFLY_PYTHON": sys.executable}
    for target in (c_program, PROGRAMS / "mpi4py_program.py"):
        done = run(program(), "run", "-n", "2", target, env=variables, cwd=tmp_path, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert sorted(done.stdout.splitlines()) == [f"[{rank}] rank {rank} of 2 is done" for rank in range(2)]


def test_program_without_invitation_is_alone() -> None:
    alone = environment({}) | {"DAYFLY_GROUP": ""}
    code = "from mpi4py import MPI; print(MPI.COMM_WORLD.size, MPI.Get_library_version().split()[0])"
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, env=alone, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "1 Dayfly\n", done.stderr


def test_clock_resolves_its_tick() -> None:
    code = "import math; from mpi4py import MPI; print(math.ulp(MPI.Wtime()) <= MPI.Wtick())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        env=environment({}) | {"DAYFLY_GROUP": ""},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "True\n", done.stdout + done.stderr


def test_killed_rank_is_named_to_all_ranks(rendezvous: dict[str, Any]) -> None:
    code = (
        "import os; from mpi4py import MPI; comm = MPI.COMM_WORLD; comm.Barrier()\n"
        "if comm.rank == 1: os.kill(os.getpid(), 9)\n"
        "try: comm.recv(source=1)\n"
        "except MPI.Exception as error: print(error)"
    )
    done = run_ranks(rendezvous, [sys.executable, "-c", code], 3)
    assert [status for status, _ in done] == [0, -9, 0], done
    assert all("MPIX_ERR_PROC_FAILED: a process has failed: rank 1 is lost" in done[rank][1] for rank in (0, 2)), done


@pytest.mark.parametrize("case", ["test", "iprobe", "window", "lock", "exposure"])
def test_killed_rank_is_named_to_polling_ranks(rendezvous: dict[str, Any], case: str) -> None:
    done = run_ranks(rendezvous, [sys.executable, PROGRAMS / "killed_program.py", case], 3)
    assert [status for status, _ in done] == [0, -9, 0], done


def test_mistaken_accesses_leave_windows_usable(rendezvous: dict[str, Any]) -> None:
    done = run_ranks(rendezvous, [sys.executable, PROGRAMS / "window_program.py"], 2)
    assert [status for status, _ in done] == [0, 0], done


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_access_shared_windows_themselves(rendezvous: dict[str, Any], ranks: int) -> None:
    done = run_ranks(rendezvous, [sys.executable, PROGRAMS / "shared_window_program.py"], ranks)
    assert [status for status, _ in done] == [0] * ranks, done
    assert not list(Path("/dev/shm").glob("dayfly-mpi-*"))


def test_requests_end_in_every_way(rendezvous: dict[str, Any]) -> None:
    done = run_ranks(rendezvous, [sys.executable, PROGRAMS / "request_program.py"], 1)
    assert done == [(0, "done\n")]


def test_impossible_accesses_leave_windows_usable(rendezvous: dict[str, Any]) -> None:
    done = run_ranks(rendezvous, [sys.executable, PROGRAMS / "window_bounds_program.py"], 2)
    assert [status for status, _ in done] == [0, 0], done


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_failed_file_collective_fails_all_ranks(rendezvous: dict[str, Any], tmp_path: Path, ranks: int) -> None:
    done = run_ranks(rendezvous, [sys.executable, PROGRAMS / "file_failures_program.py", tmp_path], ranks)
    assert [status for status, _ in done] == [0] * ranks, done


def results_of(folder: Path, ranks: int) -> list[Any]:
    """Returns what each rank wrote to a folder."""
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_wrapped_neighbours_exchange_opposite_pieces(rendezvous: dict[str, Any], tmp_path: Path, ranks: int) -> None:
    done = run_ranks(rendezvous, [sys.executable, PROGRAMS / "neighbours_program.py", tmp_path], ranks)
    assert [status for status, _ in done] == [0] * ranks, done
    found = results_of(tmp_path, ranks)
    assert len(found[0]) == (54 if ranks == 1 else 90)
    for form in ("alltoall", "ialltoallv", "alltoallw_init"):
        for rank in range(ranks):
            before, after = (rank - 1) % ranks, (rank + 1) % ranks
            # What the rank before sent in the positive direction arrives in the slot of the negative one.
            assert found[rank][f"[{ranks}] (True,) {form}"] == [10 * before + 1, 10 * after], form


@needs_open_mpi
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_neighbours_exchange_as_in_open_mpi(rendezvous: dict[str, Any], tmp_path: Path, ranks: int) -> None:
    folders = [tmp_path / "own", tmp_path / "theirs"]
    for folder in folders:
        folder.mkdir()
    command = [sys.executable, PROGRAMS / "neighbours_program.py"]
    done = run_ranks(rendezvous, [*command, folders[0]], ranks)
    assert [status for status, _ in done] == [0] * ranks, done
    run(*OPEN_MPI, "-n", str(ranks), *command, folders[1], timeout=100)
    for own, theirs in zip(*(results_of(folder, ranks) for folder in folders), strict=True):
        # Older versions lack persistent forms, and their forms in the background exchange the pieces of such grids.
        blocking = [name for name in theirs if " alltoall" in name and not name.endswith("_init")]
        assert len(blocking) >= 18
        assert {name: own[name] for name in blocking} == {name: theirs[name] for name in blocking}


@pytest.mark.parametrize("ranks", [2, 5])
def test_intercommunicators_ignore_arguments_without_meaning(rendezvous: dict[str, Any], ranks: int) -> None:
    done = run_ranks(rendezvous, [sys.executable, PROGRAMS / "intercommunicator_program.py"], ranks)
    assert [status for status, _ in done] == [0] * ranks, done


def test_cancelled_sends_have_no_receive(rendezvous: dict[str, Any]) -> None:
    done = run_ranks(rendezvous, [sys.executable, PROGRAMS / "cancel_program.py"], 2)
    assert [status for status, _ in done] == [0, 0], done


def test_forked_children_leave_ranks_alone(rendezvous: dict[str, Any]) -> None:
    done = run_ranks(rendezvous, [sys.executable, PROGRAMS / "forked_program.py"], 2)
    assert [status for status, _ in done] == [0, 0], done


def test_atomic_transfers_exclude_each_other(rendezvous: dict[str, Any], tmp_path: Path) -> None:
    done = run_ranks(rendezvous, [sys.executable, PROGRAMS / "atomic_file_program.py", tmp_path], 2)
    assert [status for status, _ in done] == [0, 0], done


def test_portable_data_has_the_standards_sizes(rendezvous: dict[str, Any]) -> None:
    done = run_ranks(rendezvous, [sys.executable, PROGRAMS / "external_program.py"], 1)
    assert done == [(0, "rank 0 of 1 is done\n")]


def test_fatal_error_names_call_and_rank(rendezvous: dict[str, Any]) -> None:
    code = "import mpi4py.rc; mpi4py.rc.errors = 'fatal'; from mpi4py import MPI; MPI.COMM_WORLD.Send(b'', 9)"
    (status, output), *_ = run_ranks(rendezvous, [sys.executable, "-c", code], 1)
    assert status == 6
    assert "MPI_Send failed on rank 0: MPI_ERR_RANK" in output or "MPI_Send_c failed on rank 0: MPI_ERR_RANK" in output
