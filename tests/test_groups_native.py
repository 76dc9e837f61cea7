"""Groups of programs in C and C++, as ``dayfly run`` starts them and as they meet by themselves."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.compilers import compile_source
from harness.daemons import Daemon
from harness.leaks import die_with_parent
from harness.programs import ROOT, clean_environment, program, run
from test_run import ranks

SOURCES = {"c": "bindings/c/tests/groups.c", "cxx": "bindings/cxx/tests/groups.cpp"}


@pytest.fixture(scope="session", params=SOURCES)
def groups(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that holds what one of the languages promises of groups."""
    language = request.param
    return compile_source(ROOT / SOURCES[language], tmp_path_factory.mktemp(f"groups-{language}") / "groups")


@pytest.fixture
def site(start: Callable[..., Daemon]) -> Daemon:
    return start("up", "--listen", "127.0.0.1:0", "--sandbox", "process")


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_group_promises_hold_on_every_rank(site: Daemon, groups: Path, tmp_path: Path, size: int) -> None:
    done = ranks(site, "--ranks", str(size), str(groups), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] all held on {rank} of {size}" for rank in range(size)]


@pytest.mark.parametrize("network", [(), ("--network",)], ids=["without-network", "with-network"])
def test_isolated_ranks_of_static_program_form_group(
    start: Callable[..., Daemon], tmp_path: Path, network: tuple[str, ...]
) -> None:
    # They see the system's libraries alone.
    compile_source(
        ROOT / SOURCES["c"], tmp_path / "groups", "-Wl,--as-needed", str(program("libdayfly.a")), "-lm", "-ldl"
    )
    site = start("up", "--listen", "127.0.0.1:0", "--share-network", "--python", sys.executable)
    done = ranks(site, "--ranks", "2", "--sandbox", "isolated", *network, "./groups", cwd=tmp_path)
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] all held on {rank} of 2" for rank in range(2)], done.stderr


def test_program_outside_ranks_is_group_of_one(groups: Path) -> None:
    assert run(groups).stdout == "all held on 0 of 1\n"


def test_mismatched_collectives_are_named_to_both_ranks(site: Daemon, groups: Path, tmp_path: Path) -> None:
    done = ranks(site, "--ranks", "2", str(groups), "mismatch", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2


def test_killed_rank_is_named_and_others_continue(site: Daemon, groups: Path, tmp_path: Path) -> None:
    done = ranks(site, "--ranks", "4", str(groups), "die", cwd=tmp_path)
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] all held on {rank} of 4" for rank in range(3)], done.stderr
    assert done.returncode == 137


def test_shell_processes_form_group_by_name_and_secret(
    rendezvous: dict[str, Any], groups: Path, leakless: Callable[..., None]
) -> None:
    command = [groups, "meet", rendezvous["addresses"][0], rendezvous["key"], "3"]
    processes = [
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            text=True,
            env=clean_environment(),
            preexec_fn=die_with_parent,  # noqa: PLW1509 (one call, loaded before)
        )
        for _ in range(3)
    ]
    said = [process.communicate(timeout=60)[0] for process in processes]
    assert sorted(said) == [f"all held on {rank} of 3\n" for rank in range(3)]


JACOBI = ROOT / "examples" / "cxx" / "jacobi_group.cpp"
SWEEPS = re.compile(r"\[0\] 96 x 128 cells on 4 ranks: (\d+) sweeps, the same as one rank alone\n")


def test_laplace_solution_on_ranks_equals_serial_one(site: Daemon, tmp_path: Path) -> None:
    compile_source(JACOBI, tmp_path / "jacobi_group", "-Wshadow", "-Wconversion")
    done = ranks(site, "--ranks", "4", "./jacobi_group", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    sweeps = SWEEPS.fullmatch(done.stdout)
    assert sweeps, done.stdout
    assert int(sweeps[1]) > 100
    alone = run(tmp_path / "jacobi_group", "10", "20", "0.01")
    assert alone.stdout.startswith("10 x 20 cells on 1 ranks: ")
    done = ranks(site, "--ranks", "2", "./jacobi_group", "1", "20", cwd=tmp_path)
    assert done.returncode == 1
    assert "give each rank a row" in done.stderr


def test_wrong_solution_has_its_own_exit_status(site: Daemon, tmp_path: Path) -> None:
    right = JACOBI.read_text()
    wrong = right.replace("own.row(own.rows), below, 1", "own.row(1), below, 1")
    assert wrong != right
    source = tmp_path / "wrong.cpp"
    source.write_text(wrong)
    compile_source(source, tmp_path / "wrong")
    done = ranks(site, "--ranks", "2", "./wrong", "8", "8", "0.001", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "which differs from one rank alone" in done.stdout
