"""Where the MPI library is that unmodified programs use."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

#: Name by which programs of MPICH's family ask for their library.
SONAME = "libmpi.so.12"


def _directories() -> Iterator[Path]:
    """Returns where the library may be: in this package, in an installed one of the system, or in a build."""
    yield Path(__file__).parent / "native" / "mpi"
    program = shutil.which("dayfly")
    if program is not None:
        directory = Path(program).resolve().parent
        yield directory.parent / "lib" / "dayfly" / "mpi"
        yield directory / "mpi"


def mpi_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables with which programs, and mpi4py, find the library; none if it is not installed."""
    for directory in _directories():
        library = directory / SONAME
        if library.is_file():
            others = environment.get("LD_LIBRARY_PATH")
            path = f"{directory}{os.pathsep}{others}" if others else str(directory)
            return {"LD_LIBRARY_PATH": path, "MPI4PY_LIBMPI": str(library)}
    return {}
