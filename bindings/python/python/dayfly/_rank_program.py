"""Runs a Python program as a rank of ``dayfly run``: ``python -m dayfly._rank_program PATH ARGUMENTS...``.

At the end of a process, mpi4py waits for all ranks. A rank that failed must not wait: it ends, so that the others see
that it is lost. Only this module knows how the program ended.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType

from dayfly._mpi_library import loaded_library


def run_as_main(path: str) -> None:
    """Runs a script, or a folder with ``__main__.py``, as ``python PATH`` does."""
    script = os.path.join(path, "__main__.py") if os.path.isdir(path) else path
    sys.path[0] = path if os.path.isdir(path) else os.path.dirname(os.path.abspath(path))
    module = ModuleType("__main__")
    module.__file__ = script
    module.__dict__["__builtins__"] = __builtins__
    # Functions of the program are pickled by this name.
    sys.modules["__main__"] = module
    with open(script, "rb") as file:
        code = compile(file.read(), script, "exec")
    exec(code, module.__dict__)


def main() -> None:
    """Runs the program of the command line. If it fails, MPI ends with the process, without waiting."""
    del sys.argv[0]
    process = os.getpid()
    try:
        run_as_main(sys.argv[0])
    except SystemExit as end:
        # A child that the program has forked is not the rank.
        if end.code not in (None, 0) and os.getpid() == process:
            abandon_mpi()
        raise
    except BaseException as error:
        # Without the frames of this module: that of this function, and that of `run_as_main`.
        frames = error.__traceback__ and error.__traceback__.tb_next
        error.__traceback__ = frames and frames.tb_next
        sys.excepthook(type(error), error, error.__traceback__)
        if os.getpid() == process:
            abandon_mpi()
        sys.exit(1)


def abandon_mpi() -> None:
    """Has mpi4py not wait for the other ranks at the end of this process."""
    library = loaded_library() if "mpi4py" in sys.modules else None
    if library is not None:
        library.MPIX_Dayfly_abandon()


if __name__ == "__main__":
    main()
