"""The MPI library that unmodified programs and mpi4py use: where it is, and how mpi4py finds it."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from dayfly._errors import Error
from dayfly._failures import error_for

#: Name by which programs of MPICH's family ask for their library.
SONAME = "libmpi.so.12"
#: The module of mpi4py that needs the library.
MODULE = "mpi4py.MPI"
#: Variables by which mpi4py chooses a library: by its path, and by its binary interface.
LIBRARY_VARIABLE, INTERFACE_VARIABLE = "MPI4PY_LIBMPI", "MPI4PY_MPIABI"
#: Longest text that the library returns, with its end.
MAX_TEXT = 512


def _directories() -> Iterator[Path]:
    """Returns where the library may be: in this package, in an installed one of the system, or in a build."""
    yield Path(__file__).parent / "native" / "mpi"
    program = os.environ.get("DAYFLY_BIN") or shutil.which("dayfly")
    if program is not None:
        directory = Path(program).resolve().parent
        yield directory.parent / "lib" / "dayfly" / "mpi"
        yield directory / "mpi"


def library_path() -> Path | None:
    """Returns the path of the library; None if it is not installed."""
    return next((path for directory in _directories() if (path := directory / SONAME).is_file()), None)


def mpi_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables with which programs, and mpi4py, find the library; none if it is not installed."""
    library = library_path()
    if library is None:
        return {}
    others = environment.get("LD_LIBRARY_PATH")
    path = f"{library.parent}{os.pathsep}{others}" if others else str(library.parent)
    return {"LD_LIBRARY_PATH": path, LIBRARY_VARIABLE: str(library)}


class MPIFinder:
    """Finds ``mpi4py.MPI`` so that it loads Dayfly's library, and joins the group before mpi4py initializes MPI.

    In mpi4py, a group that cannot be joined would end the process. Here, the import raises the error.

    Args:
        is_forced: whether to use Dayfly's library even if the environment names another one.
    """

    #: Tells this finder, and the one that workers have, from those that it asks.
    finds_mpi = True

    def __init__(self, is_forced: bool = False) -> None:
        self.is_forced = is_forced

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns the specification of ``mpi4py.MPI``, and None for all other modules."""
        if name != MODULE:
            return None
        library = library_path()
        if library is None or not (self.is_forced or self._is_free(library)):
            return None
        with _chosen(library):
            spec = _found_by_others(name, path, target)
        # Another MPI is compiled into some mpi4py.
        if spec is not None and spec.origin and f"{SONAME}\0".encode() in Path(spec.origin).read_bytes():
            _join(library)
        return spec

    @staticmethod
    def _is_free(library: Path) -> bool:
        """Returns whether the environment leaves the choice of the library open."""
        return INTERFACE_VARIABLE not in os.environ and os.environ.get(LIBRARY_VARIABLE, str(library)) == str(library)


@contextmanager
def _chosen(library: Path) -> Iterator[None]:
    """Has mpi4py choose a library. It reads the environment when its module is looked for, and never again."""
    before = {name: os.environ.pop(name, None) for name in (LIBRARY_VARIABLE, INTERFACE_VARIABLE)}
    os.environ[LIBRARY_VARIABLE] = str(library)
    try:
        yield
    finally:
        del os.environ[LIBRARY_VARIABLE]
        os.environ.update({name: value for name, value in before.items() if value is not None})


def _found_by_others(name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
    for finder in sys.meta_path:
        if not getattr(finder, "finds_mpi", False):
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                return spec
    return None


def _join(library: Path) -> None:
    """Joins the group of this process, if mpi4py is going to initialize MPI.

    Raises:
        dayfly.Error: if the group cannot be joined.
    """
    import ctypes

    import mpi4py

    if not mpi4py.rc.initialize:
        return
    error = _told_by((loaded_library() or ctypes.CDLL(str(library))).MPIX_Dayfly_join)
    if error is not None:
        raise error


def loaded_library() -> Any:
    """Returns Dayfly's library if this process has loaded it; else None, also if it has loaded another MPI."""
    import ctypes

    try:
        library = ctypes.CDLL(SONAME, mode=os.RTLD_NOLOAD)
        _ = library.MPIX_Dayfly_join
    except (OSError, AttributeError):
        return None
    return library


def failure_of(code: int) -> Error | None:
    """Returns Dayfly's error for the code of an MPI error; None for an error of the program, such as a wrong rank."""
    library = loaded_library()
    return None if library is None else _told_by(library.MPIX_Dayfly_failure, code)


def _told_by(function: Any, *arguments: Any) -> Error | None:
    """Calls a function of the library that writes the name and the message of an error; two empty texts if none."""
    import ctypes

    texts = [ctypes.create_string_buffer(MAX_TEXT) for _ in range(2)]
    function(*arguments, *texts)
    name, message = (text.value.decode(errors="replace") for text in texts)
    return error_for(name, message) if name else None


def is_over_dayfly(module: Any) -> bool:
    """Returns whether a module ``mpi4py.MPI`` uses Dayfly's library."""
    return bool(module.Get_library_version().startswith("Dayfly"))


def rank_of_mpi() -> int | None:
    """Returns this process's rank in MPI; None if the process has not joined a group by MPI."""
    module: Any = sys.modules.get(MODULE)
    if module is None or not is_over_dayfly(module) or not module.Is_initialized() or module.Is_finalized():
        return None
    world = module.COMM_WORLD
    return int(world.Get_rank()) if world.Get_size() > 1 else None


def import_mpi() -> ModuleType:
    """Imports ``mpi4py.MPI`` over Dayfly's library.

    Raises:
        ImportError: if mpi4py or the library is not installed, or mpi4py uses another MPI library.
        dayfly.Error: if the group of this process cannot be joined.
    """
    module = sys.modules.get(MODULE) or _imported()
    if not is_over_dayfly(module):
        version = module.Get_library_version().split(",")[0].strip()
        raise ImportError(
            f"mpi4py uses {version} in this process: import dayfly.MPI before mpi4py.MPI, and install mpi4py's wheel, "
            "which chooses its MPI library at run time: pip install --force-reinstall mpi4py",
            name=MODULE,
        )
    return module


def _imported() -> ModuleType:
    if library_path() is None:
        raise ImportError(
            f"Dayfly's MPI library, {SONAME}, is not installed: install a package of Dayfly, or run `make build`",
            name="dayfly.MPI",
        )
    finder: Any = MPIFinder(is_forced=True)
    sys.meta_path.insert(0, finder)
    try:
        return importlib.import_module(MODULE)
    except ModuleNotFoundError as error:
        if error.name not in ("mpi4py", MODULE):
            raise
        raise ModuleNotFoundError(
            "MPI in Python is mpi4py, which is not installed: install the extra dayfly[mpi], or `pip install mpi4py`",
            name="mpi4py",
        ) from None
    except RuntimeError as error:
        raise ImportError(f"mpi4py cannot use Dayfly's MPI library: {error}", name=MODULE) from error
    finally:
        sys.meta_path.remove(finder)
