"""What the README shows, works: its own text is run."""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from harness.compilers import compile_source
from harness.daemons import Daemon
from harness.programs import ROOT, run
from test_run import ranks


def blocks(language: str) -> list[str]:
    """The README's code blocks in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)


def block(language: str, index: int = 0) -> str:
    """One of the README's code blocks in a language, by default the first."""
    found = blocks(language)
    assert len(found) > index, f"README.md has {len(found)} ```{language} blocks"
    return found[index]


def test_readme_python_runs_unchanged(tmp_path: Path, leakless: Callable[..., None]) -> None:
    script = tmp_path / "readme.py"
    script.write_text(block("python"))
    done = run(sys.executable, script, timeout=100)
    assert done.stdout.split() == ["42", str(sum(i * i for i in range(1000)))]


def test_readme_frames_run_unchanged(tmp_path: Path, leakless: Callable[..., None]) -> None:
    (tmp_path / "trips").mkdir()
    for file in range(2):
        fares = [None if number == 3 else float(number) for number in range(8)]
        table = pa.table({"zone": [0, 1, 2, 3] * 2, "distance": [0.0, 1.0, 2.0, 3.0] * 2, "fare": fares})
        pyarrow.parquet.write_table(table, tmp_path / f"trips/{file}.parquet")
    (tmp_path / "zones.csv").write_text("zone,borough\n0,north\n1,north\n2,south\n3,south\n")
    script = tmp_path / "frames.py"
    script.write_text(next(text for text in blocks("python") if "client.frames" in text))
    printed = run(sys.executable, script, timeout=100, cwd=tmp_path).stdout
    cells = [re.findall(r"[\w.]+", line) for line in printed.splitlines()]
    assert [row for row in cells if row[:1] in (["north"], ["south"])] == [["south", "8", "5.0"], ["north", "4", "3.0"]]
    assert ["3", "14.0"] in cells
    written = pyarrow.parquet.read_table(tmp_path / "by_zone/zone=3", partitioning=None)
    assert written["distance"].to_pylist() == [3.0] * 4


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
