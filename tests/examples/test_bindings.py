"""What the C library and the C++ header promise, by programs that check it against real workers."""

from __future__ import annotations

import re
import subprocess

import pytest
from harness.compilers import compile_source, linked
from harness.leaks import die_with_parent
from harness.programs import ROOT, clean_environment, program, run
from harness.sites import several_nodes

PROGRAMS = {"c": "bindings/c/tests/calls.c", "cxx": "bindings/cxx/tests/calls.cpp"}
FLEETS = {"c": "bindings/c/tests/fleets.c", "cxx": "bindings/cxx/tests/fleets.cpp"}


@pytest.mark.parametrize("language", PROGRAMS)
def test_promises_hold(language, library, tmp_path, leakless):
    program = compile_source(ROOT / PROGRAMS[language], tmp_path / "calls")
    assert run(program, library("bindings/c/tests/functions.c"), timeout=100).stdout == "all held\n"


def test_calls_in_place_copy_nothing(library, tmp_path, leakless):
    program = compile_source(ROOT / "bindings/c/tests/in_place.c", tmp_path / "in_place")
    assert run(program, library("bindings/c/tests/functions.c"), tmp_path, timeout=100).stdout == "all held\n"


@pytest.mark.parametrize("standard", ["c++17", "c++20"])
def test_futures_compose(standard, library, tmp_path, leakless):
    program = compile_source(ROOT / "bindings/cxx/tests/futures.cpp", tmp_path / "futures", f"-std={standard}")
    held = "coroutines held\nall held\n" if standard == "c++20" else "all held\n"
    assert run(program, library("bindings/c/tests/functions.c"), timeout=100).stdout == held


@pytest.mark.parametrize("language", FLEETS)
def test_fleet_survives_loss_of_a_node(language, library, tmp_path, start):
    source = compile_source(ROOT / FLEETS[language], tmp_path / "fleets")
    manager, nodes = several_nodes(start, 2, 2)
    child = subprocess.Popen(
        [source, library("bindings/c/tests/functions.c"), manager.state],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=clean_environment(),
        preexec_fn=die_with_parent,  # noqa: PLW1509 (one call, loaded before)
    )
    try:
        assert child.stdout.readline() == "half\n"
        nodes[0].kill()
        assert child.communicate("go on\n", timeout=60)[0] == "all held\n"
    finally:
        child.kill()
        child.wait()


def test_c_function_calls_functions_on_delegated_workers(library, tmp_path, leakless):
    source = ROOT / "bindings/c/tests/delegates.c"
    parent = compile_source(source, tmp_path / "libparent.so", *linked())
    program = compile_source(source, tmp_path / "delegates")
    children = library("bindings/c/tests/functions.c")
    assert run(program, parent, children, timeout=100).stdout == "from a child\n"


@pytest.mark.parametrize("flags", [["-std=c99", "-Wpedantic"], ["-std=c11", "-Wpedantic"], ["-std=gnu2x"]])
def test_headers_are_plain_c(flags, tmp_path):
    source = tmp_path / "both.c"
    source.write_text(
        '#include "dayfly.h"\n#include "dayfly_function.h"\nint main(void) { return dfly_last_error(); }\n'
    )
    compile_source(source, tmp_path / "both", *flags)


@pytest.mark.parametrize("standard", ["c++17", "c++20", "c++23"])
def test_headers_are_plain_cxx(standard, tmp_path):
    source = tmp_path / "plain.cpp"
    source.write_text("#include <dayfly/dayfly.hpp>\nint main() { return dfly_last_error(); }\n")
    compile_source(source, tmp_path / "plain", f"-std={standard}", "-Wpedantic", "-Wshadow", "-Wconversion")


def test_library_exports_exactly_the_header():
    header = (ROOT / "bindings/c/include/dayfly.h").read_text()
    declared = set(re.findall(r"^[^/\n]*?\b(dfly_[a-z_]+)\(", header, re.MULTILINE))
    exported = run("nm", "-D", "--defined-only", program("libdayfly.so")).stdout.split()
    assert len(declared) > 80
    assert declared == {symbol for symbol in exported if symbol.startswith("dfly_")}


def test_planner_divides_loops_in_c(tmp_path):
    program = compile_source(ROOT / "bindings/c/tests/offload.c", tmp_path / "offload")
    assert run(program).stdout == "all held\n"
