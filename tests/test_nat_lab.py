"""The examples of groups, on two nodes of which each is behind a NAT of its own: `scripts/nat-lab`."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest
from harness.compilers import compile_source
from harness.network import unavailable
from harness.programs import ROOT, bin_dir, clean_environment, run

LAB = ROOT / "scripts" / "nat-lab"
PYTHON = ROOT / "examples" / "python"

pytestmark = pytest.mark.skipif(
    bool(unavailable() or not shutil.which("nft")), reason=unavailable() or "nft not found; install nftables"
)


def lab(*command: str | Path, state: Path, symmetric: bool = False) -> str:
    """What a command prints within the laboratory, of which nothing is left."""
    variables = {"DAYFLY_PYTHON": sys.executable, "DAYFLY_BIN_DIR": str(bin_dir()), "TMPDIR": str(state)}
    options = ("--symmetric",) if symmetric else ()
    done = run(LAB, *options, *command, env=clean_environment(**variables), cwd=state, timeout=90)
    assert list(state.glob("nat-lab.*")) == []
    return done.stdout


@pytest.mark.parametrize("sandbox", ["process", "isolated"])
@pytest.mark.parametrize(("symmetric", "between"), [(False, "punched"), (True, "relay")])
def test_ranks_connect_through_two_nats(state: Path, sandbox: str, symmetric: bool, between: str) -> None:
    command = ("dayfly", "run", "--ranks", "4", "--no-label", "--sandbox", sandbox, PYTHON / "ways.py")
    lines = lab(*command, state=state, symmetric=symmetric).splitlines()
    rows = [line.partition(": ")[2].split() for line in lines]
    assert [rows[low][high] for low in range(4) for high in range(4)] == [
        "-" if low == high else "local" if low // 2 == high // 2 else between for low in range(4) for high in range(4)
    ]


def test_examples_run_through_nats(state: Path) -> None:
    compile_source(ROOT / "examples" / "cxx" / "jacobi_group.cpp", state / "jacobi_group")
    commands = [
        f"dayfly run --ranks 4 {PYTHON / 'allreduce.py'}",
        f"{sys.executable} {PYTHON / 'allreduce.py'}",
        "dayfly run --ranks 4 ./jacobi_group 24 32 0.001",
        f"dayfly run --ranks 4 {PYTHON / 'ddp_digits.py'}",
    ]
    said = lab("sh", "-ec", "\n".join(commands), state=state)
    lines = said.splitlines()
    total = "[10.0, 10.0, 10.0]"
    assert sorted(lines[:4]) == [f"[{rank}] {total}" for rank in range(4)]
    assert lines[4] == f"[{', '.join([total] * 4)}]"
    assert re.fullmatch(r"\[0\] 24 x 32 cells on 4 ranks: \d+ sweeps, the same as one rank alone", lines[5])
    assert lines[6].startswith("[0] on 4 ranks as in one process: loss")
