"""What the C library and the C++ header promise, by programs that check it against real workers."""

from __future__ import annotations

import re

import pytest
from harness.compilers import compile_source, linked
from harness.programs import ROOT, program, run

PROGRAMS = {"c": "bindings/c/tests/calls.c", "cxx": "bindings/cxx/tests/calls.cpp"}


@pytest.mark.parametrize("language", PROGRAMS)
def test_promises_hold(language, library, tmp_path, leakless):
    program = compile_source(ROOT / PROGRAMS[language], tmp_path / "calls")
    assert run(program, library("bindings/c/tests/functions.c"), timeout=100).stdout == "all held\n"


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
