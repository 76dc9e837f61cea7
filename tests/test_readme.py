"""What the README shows, works: its own text is run."""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.compilers import compile_source
from harness.daemons import Daemon
from harness.programs import ROOT, run
from test_run import ranks


def block(language: str, index: int = 0) -> str:
    """One of the README's code blocks in a language, by default the first."""
    found = re.findall(rf"^```{language}\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert len(found) > index, f"README.md has {len(found)} ```{language} blocks"
    return str(found[index])


def test_readme_python_runs_unchanged(tmp_path: Path, leakless: Callable[..., None]) -> None:
    script = tmp_path / "readme.py"
    script.write_text(block("python"))
    done = run(sys.executable, script, timeout=100)
    assert done.stdout.split() == ["42", str(sum(i * i for i in range(1000)))]


def test_c_function_compiles_without_warnings(tmp_path: Path) -> None:
    source = tmp_path / "area.c"
    source.write_text(block("c"))
    library = ctypes.CDLL(str(compile_source(source, tmp_path / "area.so")))
    sides, area = (ctypes.c_uint32 * 2)(6, 7), ctypes.c_uint32()
    assert library.area(sides, 8, ctypes.byref(area)) == 4
    assert area.value == 42
    assert library.area(sides, 7, ctypes.byref(area)) == 0


@pytest.mark.parametrize(("language", "index", "suffix"), [("c", 1, "c"), ("cpp", 0, "cpp")])
def test_c_and_cxx_programs_call_the_function(
    tmp_path: Path, leakless: Callable[..., None], language: str, index: int, suffix: str
) -> None:
    function, program = tmp_path / "area.c", tmp_path / f"program.{suffix}"
    function.write_text(block("c"))
    program.write_text(block(language, index))
    compile_source(function, tmp_path / "area.so")
    compile_source(program, tmp_path / "program")
    assert run(tmp_path / "program", timeout=100, cwd=tmp_path).stdout == "4 bytes: 42\n"


@pytest.mark.parametrize(("language", "index", "suffix"), [("c", 2, "c"), ("cpp", 1, "cpp")])
def test_c_and_cxx_ranks_compute_the_sum(
    tmp_path: Path, start: Callable[..., Daemon], language: str, index: int, suffix: str
) -> None:
    source = tmp_path / f"ranks.{suffix}"
    source.write_text(block(language, index))
    compile_source(source, tmp_path / "ranks")
    site = start("up", "--listen", "127.0.0.1:0", "--sandbox", "process")
    done = ranks(site, "--ranks", "4", "./ranks", cwd=tmp_path)
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] 10" for rank in range(4)], done.stderr
