"""MPI with the standard's binary interface: the library, its header, the compilers and the launcher."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.daemons import Daemon
from harness.mpi_ranks import SONAME, library_directory, run_ranks
from harness.programs import ROOT, clean_environment, run
from test_mpi import PROGRAMS, symbols

STANDARD = "libmpi_abi.so.1"
HEADER = ROOT / "crates" / "mpi-abi" / "include" / "mpi.h"
#: Symbols that only MPICH has.
MPICH_ONLY = {
    *(f"MPI_{name}" for name in ("UNWEIGHTED", "WEIGHTS_EMPTY", "T_PVAR_ALL_HANDLES")),
    *(f"MPI_{kind}_{name}_IGNORE" for kind in ("F", "F08") for name in ("STATUS", "STATUSES")),
    "MPIR_Dup_fn",
}
#: Functions that only MPICH has: those that the standard has removed or has in Fortran alone, and extensions.
MPICH_FUNCTIONS = {
    *(f"MPI_{name}" for name in ("Address", "Errhandler_create", "Errhandler_get", "Errhandler_set")),
    *(f"MPI_Type_{name}" for name in ("extent", "hindexed", "hvector", "lb", "struct", "ub")),
    *(f"MPI_Status_{name}" for name in ("c2f08", "f082c", "f082f", "f2f08")),
    *(f"MPIX_{name}" for name in ("GPU_query_support", "Query_cuda_support", "Query_hip_support", "Query_ze_support")),
}
#: Some values of the standard, of each kind.
FACTS = {
    "MPI_COMM_WORLD": 0x101,
    "MPI_COMM_SELF": 0x102,
    "MPI_COMM_NULL": 0x100,
    "MPI_GROUP_EMPTY": 0x109,
    "MPI_REQUEST_NULL": 0x180,
    "MPI_INFO_ENV": 0x131,
    "MPI_ERRORS_RETURN": 0x143,
    "MPI_FILE_NULL": 0x118,
    "MPI_SUM": 0x21,
    "MPI_MAXLOC": 0x39,
    "MPI_NO_OP": 0x3D,
    "MPI_INT": 0x209,
    "MPI_DOUBLE": 0x214,
    "MPI_BYTE": 0x247,
    "MPI_UINT64_T": 0x259,
    "MPI_2INT": 0x22B,
    "MPI_IN_PLACE": 1,
    "MPI_STATUS_IGNORE": 0,
    "MPI_WEIGHTS_EMPTY": 11,
    "MPI_ANY_SOURCE": -1,
    "MPI_ANY_TAG": -2,
    "MPI_PROC_NULL": -3,
    "MPI_ROOT": -4,
    "MPI_UNDEFINED": -32766,
    "MPI_ERR_TRUNCATE": 15,
    "MPI_ERR_IN_STATUS": 19,
    "MPI_ERR_LASTCODE": 0x3FFF,
    "MPI_THREAD_MULTIPLE": 4096,
    "MPI_MODE_RDONLY": 16,
    "MPI_SEEK_END": 402,
    "MPI_LOCK_SHARED": 302,
    "MPI_COMBINER_STRUCT": 110,
    "MPI_UNEQUAL": 204,
    "MPI_CART": 211,
    "MPI_WIN_MODEL": 605,
    "MPI_TAG_UB": 501,
    "MPI_MAX_PROCESSOR_NAME": 256,
}


def tool(name: str) -> Path:
    """Returns the path of a compiler or of the launcher."""
    return library_directory() / "bin" / name


def built(source: Path, output: Path, *options: str, compiler: str = "mpicc") -> Path:
    """Compiles a program with warnings as errors. Returns its path."""
    run(tool(compiler), "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1", "-pthread", *options, source, "-o", output)
    return output


@pytest.fixture(scope="module")
def c_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    options = ("-std=gnu11", "-DWITH_MPICH_HEADER")
    return built(PROGRAMS / "program.c", tmp_path_factory.mktemp("mpi") / "program", *options)


@pytest.fixture(scope="module")
def abi_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(PROGRAMS / "abi_program.c", tmp_path_factory.mktemp("mpi") / "abi_program", "-std=gnu11")


def test_library_has_the_name_of_the_standard() -> None:
    shown = run("readelf", "-d", library_directory() / STANDARD).stdout
    assert f"soname: [{STANDARD}]" in shown
    assert SONAME not in shown


def test_both_libraries_export_the_same_functions() -> None:
    of_standard, of_mpich = (symbols(library_directory() / name, defined=True) for name in (STANDARD, SONAME))
    assert of_mpich - of_standard == MPICH_ONLY | MPICH_FUNCTIONS | {f"P{name}" for name in MPICH_FUNCTIONS}
    assert of_standard <= of_mpich


def test_header_declares_exactly_what_is_exported() -> None:
    declared = re.findall(r"^[A-Za-z_][\w ]*[ *](P?MPI_\w+)\(", HEADER.read_text(), re.MULTILINE)
    exported = {name for name in symbols(library_directory() / STANDARD, defined=True) if "MPIX_" not in name}
    assert sorted(declared) == sorted(exported)


def test_header_has_the_values_of_the_standard(tmp_path: Path) -> None:
    lines = [f"_Static_assert((intptr_t){name} == {value}, {name!r});" for name, value in FACTS.items()]
    lines += [
        "#include <stddef.h>",
        "_Static_assert(sizeof(MPI_Status) == 32 && offsetof(MPI_Status, MPI_ERROR) == 8, ``);",
        "_Static_assert(sizeof(MPI_Aint) == 8 && sizeof(MPI_Count) == 8 && sizeof(MPI_Offset) == 8, ``);",
    ]
    source = tmp_path / "facts.c"
    source.write_text("\n".join(["#include <mpi.h>", *lines]).replace("'", '"').replace("``", '""'))
    run(tool("mpicc"), "-std=c11", "-fsyntax-only", source)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_programs_of_the_standard_run_on_ranks(
    rendezvous: dict[str, Any], c_program: Path, abi_program: Path, tmp_path: Path, ranks: int
) -> None:
    for command in ([c_program], [abi_program, tmp_path / "file"]):
        done = run_ranks(rendezvous, command, ranks)
        assert [output for _, output in done] == [f"rank {rank} of {ranks} is done\n" for rank in range(ranks)]
        assert [status for status, _ in done] == [0] * ranks, done


def test_mpiexec_runs_programs_on_ranks(start: Callable[..., Daemon], c_program: Path, tmp_path: Path) -> None:
    plus_plus = built(PROGRAMS / "program.cpp", tmp_path / "plus_plus", compiler="mpicxx")
    script = tmp_path / "script.py"
    script.write_text("from mpi4py import MPI; print(f'rank {MPI.COMM_WORLD.rank} of {MPI.COMM_WORLD.size} is done')")
    site = start("up", "--listen", "127.0.0.1:0", "--cores", "0", "--workers", "3", "--sandbox", "process")
    variables = site.client_environment() | {"DAYFLY_PYTHON": sys.executable}
    for ranks, options, command in (
        (1, (), [c_program]),
        (2, ("-n", "2"), [c_program]),
        (3, ("-np", "3", "--placement=together"), [plus_plus]),
        (2, ("--np", "2"), ["python3", script]),
    ):
        done = run(tool("mpiexec"), *options, *command, env=variables, cwd=tmp_path, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert sorted(done.stdout.splitlines()) == [f"rank {rank} of {ranks} is done" for rank in range(ranks)]
    labelled = run(tool("mpirun"), "-l", "-n", "2", plus_plus, env=variables, cwd=tmp_path)
    assert sorted(labelled.stdout.splitlines()) == [f"[{rank}] rank {rank} of 2 is done" for rank in range(2)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-n", "1", "true", ":", "-n", "1", "true"], "runs one program on all ranks"),
        (["-n", "two", "true"], "the number of ranks is two"),
        (["-genv", "NAME", "value", "true"], "does not set variables of ranks (-genv)"),
        (["-ppn", "1", "true"], "does not know the option -ppn"),
        (["-n", "2"], "the program is missing"),
        (["no-such-program"], "cannot find the program no-such-program"),
        (["python3", "-c", "pass"], "runs Python scripts"),
        (["--placement=a b", "true"], "cannot pass on --placement=a b"),
    ],
)
def test_mpiexec_refuses_what_it_cannot_do(arguments: list[str], message: str) -> None:
    done = run(tool("mpiexec"), *arguments, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"mpiexec: {message}")


def test_program_runs_alone_without_variables(abi_program: Path, tmp_path: Path) -> None:
    variables = clean_environment()
    variables.pop("LD_LIBRARY_PATH", None)
    assert run(abi_program, tmp_path / "file", env=variables).stdout == "rank 0 of 1 is done\n"


def test_tool_sees_calls_of_the_program(rendezvous: dict[str, Any], c_program: Path, tmp_path: Path) -> None:
    library = built(PROGRAMS / "pmpi_tool.c", tmp_path / "tool.so", "-std=c11", "-shared", "-fPIC")
    done = run_ranks(rendezvous, [c_program], 2, LD_PRELOAD=str(library))
    # One around the ring, one within `no_hang`, one that fails, and two hundred to threads.
    lines = [f"rank {rank} of 2 is done\nrank {rank} has sent 203 messages\n" for rank in range(2)]
    assert done == [(0, line) for line in lines]


def test_fatal_error_has_the_class_of_the_standard(rendezvous: dict[str, Any], tmp_path: Path) -> None:
    source = tmp_path / "fatal.c"
    source.write_text(
        "#include <mpi.h>\nint main(void) { int value; MPI_Init(0, 0);"
        "MPI_Isend(&value, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, &(MPI_Request){0});"
        "return MPI_Recv(&value, 0, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE); }"
    )
    ((status, output),) = run_ranks(rendezvous, [built(source, tmp_path / "fatal", "-std=c11")], 1)
    assert status == 15
    assert output.startswith("MPI_Recv failed on rank 0: MPI_ERR_TRUNCATE: message truncated")


def test_compilers_show_their_options(tmp_path: Path) -> None:
    directory = library_directory().resolve()
    include = f"-I{directory}/include"
    assert run(tool("mpicc"), "-show", "-c", "a.c").stdout == f"cc {include} -c a.c\n"
    link = run(tool("mpicc"), "--showme:link").stdout.strip()
    assert link == f"-L{directory} -Wl,-rpath,{directory} -Wl,--enable-new-dtags -l:{STANDARD}"
    chosen = clean_environment(DAYFLY_MPICXX="clang++")
    assert run(tool("mpic++"), "--showme", "a.cpp", env=chosen).stdout == f"clang++ {include} a.cpp {link}\n"
    assert run(tool("mpicxx"), "--showme:compile").stdout == f"{include}\n"
    done = run(tool("mpicc"), "--showme:fortran", check=False)
    assert done.returncode == 1
    assert "cannot show fortran" in done.stderr


def test_package_config_compiles_a_program(tmp_path: Path) -> None:
    variables = clean_environment(PKG_CONFIG_PATH=str(library_directory() / "pkgconfig"))
    options = run("pkg-config", "--cflags", "--libs", "dayfly-mpi", env=variables).stdout.split()
    output = tmp_path / "program"
    run(os.environ.get("CXX", "c++"), PROGRAMS / "program.cpp", "-o", output, *options)
    assert run(output).stdout == "rank 0 of 1 is done\n"
