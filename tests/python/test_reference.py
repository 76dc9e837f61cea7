"""Results of groups and of Open MPI, from one program that runs under both."""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.daemons import Daemon
from harness.open_mpi import OPEN_MPI, needs_open_mpi
from harness.programs import program, run

OPERATIONS = Path(__file__).parent / "operations.py"
CASES = 250
#: Seeds of every run. One more is random, and is printed if a difference is found.
SEEDS = [1, 2]


@pytest.fixture
def site(start: Callable[..., Daemon]) -> Daemon:
    return start("up", "--listen", "127.0.0.1:0", "--sandbox", "process")


def lines(folder: Path, ranks: int) -> list[str]:
    return list(itertools.chain.from_iterable((folder / f"rank-{r}").read_text().splitlines() for r in range(ranks)))


@needs_open_mpi
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
def test_operations_match_open_mpi(site: Daemon, tmp_path: Path, ranks: int) -> None:
    seeds = [str(seed) for seed in [*SEEDS, random.SystemRandom().randrange(1 << 30)]]
    theirs, ours = tmp_path / "mpi4py", tmp_path / "dayfly"
    theirs.mkdir()
    ours.mkdir()
    arguments = [str(CASES), *seeds]
    run(*OPEN_MPI, "-n", str(ranks), sys.executable, OPERATIONS, "mpi4py", theirs, *arguments, timeout=150)
    environment = site.client_environment() | {"DAYFLY_PYTHON": sys.executable}
    done = run(
        *(program(), "run", "--ranks", str(ranks), OPERATIONS, "dayfly", str(ours), *arguments),
        env=environment,
        timeout=150,
        check=False,
    )
    expected, found = lines(theirs, ranks), lines(ours, ranks)
    differences = [f"theirs {a}\nours   {b}" for a, b in zip(expected, found, strict=False) if a != b]
    assert not differences, f"ranks={ranks} seeds={seeds}\n" + "\n".join(differences[:20]) + done.stderr
    assert (done.returncode, len(found)) == (0, len(expected)), done.stderr
    assert len(found) == CASES * len(seeds) * ranks
