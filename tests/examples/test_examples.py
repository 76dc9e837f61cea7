"""The examples say the same in every language, each over an embedded manager of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from harness.compilers import compile_source
from harness.programs import ROOT, bin_dir, clean_environment, program, run

EXAMPLES = ROOT / "examples"
FUNCTIONS = {"hello": "square", "parallel": "square", "blackscholes": "blackscholes"}
EXPECTED = {
    "hello": "1 squared is 1\n2 squared is 4\n3 squared is 9\n",
    "parallel": "the squares of 0 to 9999 add up to 333283335000, on 2 workers\n",
    "blackscholes": "100000 prices; at the money 10.4506\n",
}


@pytest.fixture(scope="session")
def rust_examples() -> Path:
    """Directory of the examples in Rust, which cargo builds beside the programs."""
    environment = dict(os.environ, CARGO_TARGET_DIR=str(bin_dir().parent))
    # As `make test` has built them: other choices of packages have other features, and all would be built anew.
    packages = ("dayfly-cli", "dayfly-bench", "dayfly-executor", "dayfly-c", "dayfly-examples")
    command = ["cargo", "build", "--release", "--locked", "--quiet", *(f"--package={name}" for name in packages)]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=600)
    return bin_dir()


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("language", ["c", "cxx"])
def test_compiled_example_prints_what_it_should(language, name, library, tmp_path, leakless):
    source = EXAMPLES / language / f"{name}{'.c' if language == 'c' else '.cpp'}"
    program = compile_source(source, tmp_path / name)
    assert run(program, library(FUNCTIONS[name])).stdout == EXPECTED[name]


@pytest.mark.timeout(700)  # The first of these builds the examples.
@pytest.mark.parametrize("name", EXPECTED)
def test_example_in_rust_prints_what_it_should(name, library, rust_examples, leakless):
    assert run(rust_examples / name, library(FUNCTIONS[name])).stdout == EXPECTED[name]


@pytest.mark.parametrize("name", EXPECTED)
def test_example_in_python_prints_what_it_should(name, library, leakless):
    program = EXAMPLES / "python" / f"{name}.py"
    assert run(sys.executable, program, library(FUNCTIONS[name])).stdout == EXPECTED[name]


#: What examples of groups print by themselves, and for each rank under `dayfly run`.
GROUPS = {
    "allreduce": (r"\[(\[10\.0, 10\.0, 10\.0\](, )?){4}\]\n", r"(\[\d\] \[6\.0, 6\.0, 6\.0\]\n){3}"),
    "ddp_digits": (
        r"on 3 ranks as in one process: loss \d\.\d+ after the first epoch, 0\.\d+ after the last\n",
        r"\[0\] on 3 ranks as in one process: loss \d\.\d+ after the first epoch, 0\.\d+ after the last\n",
    ),
}


@pytest.mark.parametrize("name", GROUPS)
def test_python_group_example_starts_its_ranks(name, start):
    example = EXAMPLES / "python" / f"{name}.py"
    alone, as_ranks = GROUPS[name]
    assert re.fullmatch(alone, run(sys.executable, example).stdout)
    site = start("up", "--listen", "127.0.0.1:0", "--sandbox", "process")
    environment = site.client_environment() | {"DAYFLY_PYTHON": sys.executable}
    assert re.fullmatch(as_ranks, run(program(), "run", "--ranks", "3", example, env=environment).stdout)


def test_openmp_example_shares_its_loop_with_a_worker(library, tmp_path, leakless):
    compiled = compile_source(EXAMPLES / "cxx/openmp.cpp", tmp_path / "openmp", "-fopenmp")
    environment = clean_environment(OMP_NUM_THREADS="1")
    printed = run(compiled, library("blackscholes"), "20000", "10", env=environment).stdout
    found = re.match(r"0 prices differ; workers computed (\d+) of 200000; a step took", printed)
    assert found, printed
    assert int(found[1]) > 0


def test_prefix_scan_with_a_worker_is_correct(library, tmp_path, leakless):
    compiled = compile_source(EXAMPLES / "cxx/prefix_scan.cpp", tmp_path / "prefix_scan")
    printed = run(compiled, library("scan"), "30", "3").stdout
    assert re.match(r"30 matrices, the same results: \d+\.\d\d ms alone", printed), printed


def test_every_language_has_every_short_example():
    names = {"c": ".c", "cxx": ".cpp", "rust": ".rs", "python": ".py"}
    for language, suffix in names.items():
        for name in EXPECTED:
            lines = (EXAMPLES / language / f"{name}{suffix}").read_text().splitlines()
            assert len(lines) <= 60, f"{language}/{name} has {len(lines)} lines"


def test_example_without_manager_says_what_to_do(library, tmp_path):
    program = compile_source(EXAMPLES / "c" / "hello.c", tmp_path / "hello")
    environment = clean_environment(DAYFLY_MANAGER="/nowhere")
    failed = run(program, library("square"), env=environment, check=False)
    assert failed.returncode == 1
    assert "[unreachable]" in failed.stderr
    assert "dayfly up" in failed.stderr
