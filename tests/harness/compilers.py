"""Compiles C and C++ for tests, with every warning an error."""

from __future__ import annotations

import os
from pathlib import Path

from harness.programs import ROOT, bin_dir, run

INCLUDES = [ROOT / "bindings" / "c" / "include", ROOT / "bindings" / "cxx" / "include"]


def linked() -> list[str]:
    """Returns the flags that link with libdayfly."""
    return [f"-L{bin_dir()}", "-ldayfly", f"-Wl,-rpath,{bin_dir()}", "-lm"]


def compile_source(source: Path, output: Path, *flags: str, warnings: bool = True) -> Path:
    """Compiles ``source`` (C, or C++ by its suffix) to ``output``: a shared library if that ends in ``.so``, else a
    program linked with libdayfly.
    """
    cxx = source.suffix in (".cpp", ".cc", ".cxx")
    command = [os.environ.get("CXX", "c++") if cxx else os.environ.get("CC", "cc")]
    command += ["-std=c++17" if cxx else "-std=c11", "-D_GNU_SOURCE", "-O2", "-g", "-pthread"]
    command += ["-Wall", "-Wextra", "-Werror"] if warnings else []
    command += [f"-I{include}" for include in INCLUDES if include.is_dir()]
    command += [str(source), "-o", str(output), *flags]
    if output.suffix == ".so":
        command += ["-shared", "-fPIC"]
    else:
        command += linked()
    run(*command, timeout=120)
    return output
