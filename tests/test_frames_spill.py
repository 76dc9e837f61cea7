"""Queries over frames that need more memory than their ranks have."""

from __future__ import annotations

from pathlib import Path

import dayfly
import pyarrow as pa
import pyarrow.parquet
import pytest
from dayfly.frames import col, count
from harness.daemons import Daemon
from test_run import Start

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


def sorted_rows(daemon: Daemon, sandbox: str, numbers: Path) -> list[dict[str, int]]:
    """Sorts all rows on two ranks, and returns how many have their place."""
    with (
        dayfly.connect(daemon.state) as client,
        client.frames(ranks=2, memory=MEMORY, sandbox=sandbox, readable=[numbers]) as session,
    ):
        rows = session.scan_parquet(numbers)
        placed = session.sql(
            "SELECT number, text, row_number() OVER (ORDER BY number, text) - 1 AS place FROM rows", rows=rows
        )
        right = placed.filter(col("number") == col("place")).select(count().alias("rows"), col("text").n_unique())
        return pa.table(right.collect()).to_pylist()


@pytest.mark.parametrize("sandbox", ["process", "isolated"])
def test_sort_beyond_memory_spills_and_leaves_nothing(
    start: Start, tmp_path: Path, numbers: Path, sandbox: str
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    daemon = start("up", "--listen", "127.0.0.1:0", "--spill", str(disk), "--readable", str(numbers))
    assert sorted_rows(daemon, sandbox, numbers) == [{"rows": ROWS, "text": ROWS}]
    assert [path for path in disk.rglob("*") if path.is_file()] == []
    daemon.stop()
    assert list(disk.iterdir()) == []


def test_sort_beyond_memory_names_the_remedy(start: Start, numbers: Path) -> None:
    daemon = start("up", "--listen", "127.0.0.1:0", "--readable", str(numbers))
    with pytest.raises(dayfly.CapacityError, match="--spill DIR") as error:
        sorted_rows(daemon, "isolated", numbers)
    assert error.value.code == "spill_refused"
