"""What the README shows, works: its own text is run."""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Callable
from pathlib import Path

from harness.compilers import compile_source
from harness.programs import ROOT, run


def block(language: str) -> str:
    """The README's first code block in a language."""
    found = re.search(rf"^```{language}\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert found, f"README.md has no ```{language} block"
    return found[1]


def test_the_python_lines_run_as_they_stand(tmp_path: Path, leakless: Callable[..., None]) -> None:
    script = tmp_path / "readme.py"
    script.write_text(block("python"))
    done = run(sys.executable, script, timeout=100)
    assert done.stdout.split() == ["42", str(sum(i * i for i in range(1000)))]


def test_the_c_function_compiles_without_a_warning_and_computes(tmp_path: Path) -> None:
    source = tmp_path / "area.c"
    source.write_text(block("c"))
    library = ctypes.CDLL(str(compile_source(source, tmp_path / "area.so")))
    sides, area = (ctypes.c_uint32 * 2)(6, 7), ctypes.c_uint32()
    assert library.area(sides, 8, ctypes.byref(area)) == 4
    assert area.value == 42
    assert library.area(sides, 7, ctypes.byref(area)) == 0
