"""Libraries of functions, compiled once for all tests here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from harness.compilers import compile_source
from harness.programs import ROOT

Library = Callable[[str], Path]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    """``library("square")`` is the shared library of ``examples/functions/square.c``; a path names any other source."""
    directory = tmp_path_factory.mktemp("functions")
    built: dict[str, Path] = {}

    def build(name: str) -> Path:
        if name not in built:
            source = ROOT / name if "/" in name else ROOT / "examples" / "functions" / f"{name}.c"
            built[name] = compile_source(source, directory / f"lib{source.stem}.so", "-lm")
        return built[name]

    return build
