"""Groups of programs in C and C++, as ``mayfly run`` starts them and as they meet by themselves."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from harness.compilers import compile_source
from harness.daemons import Daemon
from harness.leaks import die_with_parent
from harness.programs import ROOT, clean_environment, program
from test_run import ranks

SOURCES = {"c": "bindings/c/tests/groups.c"}


@pytest.fixture(scope="session", params=SOURCES)
def groups(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that holds what one of the languages promises of groups."""
    language = request.param
    return compile_source(ROOT / SOURCES[language], tmp_path_factory.mktemp(f"groups-{language}") / "groups")


@pytest.fixture
def site(start: Callable[..., Daemon]) -> Daemon:
    return start("up", "--listen", "127.0.0.1:0", "--sandbox", "process")


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_the_promises_hold_on_every_rank(site: Daemon, groups: Path, tmp_path: Path, size: int) -> None:
    done = ranks(site, "--ranks", str(size), str(groups), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] all held on {rank} of {size}" for rank in range(size)]
