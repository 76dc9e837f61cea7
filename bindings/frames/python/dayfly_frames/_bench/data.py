"""Input of the measurements, with fixed seeds."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dayfly_frames._bench.rows import note

#: Where files are in memory, on Linux.
MEMORY = Path("/dev/shm")
#: Share of the rows below which the keys of the paper's join are.
KEYS = 0.9
#: Files of a table. Ranks read files as a whole or in parts.
FILES = 4


@contextmanager
def directory() -> Iterator[Path]:
    """Makes a directory for files, in memory where there is such a place, and removes it."""
    parent = MEMORY if MEMORY.is_dir() else None
    # Without the name of the project, by which tests beside this one look for what leases left in memory.
    with tempfile.TemporaryDirectory(prefix="bench-frames-", dir=parent) as name:
        yield Path(name)


def integers(count: int, below: int, seed: int) -> Any:
    """Returns a PyArrow array of uniform integers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    uniform = pc.random(count, initializer=seed)
    return pc.cast(pc.floor(pc.multiply(uniform, pa.scalar(float(below)))), pa.int64())


def join_side(rows: int, value: str, seed: int) -> Any:
    """Returns a side of the paper's join: keys uniform below 0.9 of all rows, and a column of values."""
    import pyarrow as pa

    return pa.table({"k": integers(rows, max(1, int(rows * KEYS)), seed), value: integers(rows, 1 << 30, seed + 1)})


def write_parquet(table: Any, place: Path, files: int = FILES) -> Path:
    """Writes a table as several plain files, which are cheap to read. Returns their directory."""
    import pyarrow.parquet as pq

    place.mkdir(parents=True, exist_ok=True)
    rows = -(-table.num_rows // files)
    for number in range(files):
        part = table.slice(number * rows, rows)
        pq.write_table(part, place / f"{number}.parquet", use_dictionary=False, compression="none")
    return place


def tpch(place: Path, scale: float) -> Path | None:
    """Generates the tables of TPC-H. Returns None, and says so, if ``tpchgen-cli`` is not installed."""
    program = tpch_program()
    if program is None:
        note("TPC-H is left out: its data need tpchgen-cli, which `pip install tpchgen-cli` installs")
        return None
    out = place / f"tpch-{scale:g}"
    command = [program, "parquet", "-s", f"{scale:g}", "--parts", str(FILES), "--output-dir", str(out)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    return out


def tpch_program() -> str | None:
    """Returns the program that generates tables of TPC-H: that of this interpreter, or the one on the PATH."""
    return shutil.which("tpchgen-cli", path=sysconfig.get_path("scripts")) or shutil.which("tpchgen-cli")
