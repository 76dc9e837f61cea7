"""What the C library and the C++ header promise, by programs that check it against real workers."""

from __future__ import annotations

import pytest
from harness.compilers import compile_source, linked
from harness.programs import ROOT, run

PROGRAMS = {"c": "bindings/c/tests/calls.c", "cxx": "bindings/cxx/tests/calls.cpp"}


@pytest.mark.parametrize("language", PROGRAMS)
def test_the_promises_hold(language, library, tmp_path, leakless):
    program = compile_source(ROOT / PROGRAMS[language], tmp_path / "calls")
    assert run(program, library("bindings/c/tests/functions.c"), timeout=100).stdout == "all held\n"


def test_a_c_function_calls_c_functions_on_workers_that_were_delegated_to_it(library, tmp_path, leakless):
    source = ROOT / "bindings/c/tests/delegates.c"
    parent = compile_source(source, tmp_path / "libparent.so", *linked())
    program = compile_source(source, tmp_path / "delegates")
    children = library("bindings/c/tests/functions.c")
    assert run(program, parent, children, timeout=100).stdout == "from a child\n"


@pytest.mark.parametrize("flags", [["-std=c99", "-Wpedantic"], ["-std=c11", "-Wpedantic"], ["-std=gnu2x"]])
def test_the_headers_are_plain_c(flags, tmp_path):
    source = tmp_path / "both.c"
    source.write_text('#include "mayfly.h"\n#include "mayfly_function.h"\nint main(void) { return mf_last_error(); }\n')
    compile_source(source, tmp_path / "both", *flags)
