"""Queries over frames that need more memory than their ranks have."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from harness.daemons import Daemon
from harness.programs import run_python

Start = Callable[..., Daemon]

ROWS = 1_500_000
#: Of two ranks together. Their queries use 60 % of it, and the rows have about 120 MB.
MEMORY = 128 << 20


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files of numbers in disorder, with texts."""
    place = tmp_path_factory.mktemp("numbers")
    place.chmod(0o755)
    for file in range(2):
        number = [row * 7_919 % ROWS for row in range(file, ROWS, 2)]
        table = pa.table({"number": number, "text": [f"a text that takes room, of number {n}" for n in number]})
        pa.parquet.write_table(table, place / f"{file}.parquet")
    return place


#: Sorts all rows on two ranks, and prints how many have their place, or the failure.
PROGRAM = """
import sys
import dayfly
from dayfly.frames import col, count

state, memory, sandbox, numbers = sys.argv[1:]
shown = {"readable": [numbers]} if sandbox == "isolated" else {}
query = "SELECT number, text, row_number() OVER (ORDER BY number, text) - 1 AS place FROM rows"
with dayfly.connect(state) as client:
    with client.frames(ranks=2, memory=int(memory), sandbox=sandbox, **shown) as session:
        placed = session.sql(query, rows=session.scan_parquet(numbers)).filter(col("number") == col("place"))
        try:
            print(placed.select(count().alias("rows"), col("text").n_unique()).collect().to_pyarrow().to_pylist())
        except dayfly.CapacityError as error:
            print(error)
"""


def sorted_rows(daemon: Daemon, sandbox: str, numbers: Path) -> str:
    return run_python(PROGRAM, str(daemon.state), str(MEMORY), sandbox, str(numbers)).stdout


@pytest.mark.parametrize("sandbox", ["process", "isolated"])
def test_sort_beyond_memory_spills_and_leaves_nothing(
    start: Start, tmp_path: Path, numbers: Path, sandbox: str
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    daemon = start(
        "up", "--listen", "127.0.0.1:0", "--python", sys.executable, "--spill", str(disk), "--readable", str(numbers)
    )
    assert sorted_rows(daemon, sandbox, numbers).strip() == str([{"rows": ROWS, "text": ROWS}])
    assert [path for path in disk.rglob("*") if path.is_file()] == []
    daemon.stop()
    assert list(disk.iterdir()) == []


def test_sort_beyond_memory_names_the_remedy(start: Start, numbers: Path) -> None:
    daemon = start("up", "--listen", "127.0.0.1:0", "--python", sys.executable, "--readable", str(numbers))
    failure = sorted_rows(daemon, "isolated", numbers)
    assert "--spill DIR" in failure
    assert "[spill_refused]" in failure
