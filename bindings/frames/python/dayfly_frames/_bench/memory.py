"""Queries over more rows than their ranks have memory for, beside the same ones in memory."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dayfly
from dayfly._program import binary

from dayfly_frames._bench import data
from dayfly_frames._bench.cores import peak_bytes, pin, rank_processes
from dayfly_frames._bench.joins import Place
from dayfly_frames._bench.rows import Run, WrongAnswerError, in_turns, row
from dayfly_frames._session import Session

RANKS = 2
#: How much more memory the ranks of the baseline have.
MORE = 16
#: Columns of the table, of 8 bytes each.
COLUMNS = 4
#: Seconds within which a node starts.
START_S = 60.0
GROUP = "SELECT count(*) AS n, sum(s) AS s FROM (SELECT c0, sum(c1) AS s FROM t GROUP BY c0)"
#: Each half of the table with the other one.
JOIN = (
    "SELECT count(*) AS n, sum(a.c1 + b.c2) AS s FROM (SELECT c0, c1 FROM t WHERE c3 = 0) a "
    "JOIN (SELECT c0, c2 FROM t WHERE c3 = 1) b ON a.c0 = b.c0"
)


def table_of(rows: int) -> Any:
    """Returns a table whose first column has a value for each one or two rows, in disorder."""
    import pyarrow as pa
    import pyarrow.compute as pc

    half = pc.bit_wise_and(data.integers(rows, 1 << 30, 5), 1)
    columns = [data.integers(rows, rows, seed) for seed in range(COLUMNS - 1)]
    return pa.table({f"c{number}": column for number, column in enumerate([*columns, half])})


@contextmanager
def spilling_client(place: Place) -> Iterator[dayfly.Client]:
    """Starts a node of its own, whose ranks may spill to a directory on disk. Yields its client."""
    with tempfile.TemporaryDirectory(prefix="bench-spill-") as disk:
        state = Path(disk) / "state"
        spill = Path(disk) / "spill"
        spill.mkdir()
        command = [binary() or "dayfly", "up", "--state-dir", state, "--listen", "127.0.0.1:0", "--spill", spill]
        node = subprocess.Popen(
            [*map(str, command), "--python", sys.executable], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        try:
            with _connected(node, state) as client:
                yield client
        finally:
            node.terminate()
            node.wait()


def _connected(node: subprocess.Popen[bytes], state: Path) -> dayfly.Client:
    deadline = time.monotonic() + START_S
    while node.poll() is None and time.monotonic() < deadline:
        try:
            client = dayfly.connect(state)
            if client.nodes():
                return client
            client.close()
        except (dayfly.Error, OSError):
            pass
        time.sleep(0.05)
    raise RuntimeError(f"a node that spills did not start within {START_S:.0f} s")


@contextmanager
def _session(place: Place, client: dayfly.Client, memory: int) -> Iterator[tuple[Session, list[int]]]:
    before = set(rank_processes())
    with client.frames(ranks=RANKS, memory=memory) as session:
        ranks = [process for process in rank_processes() if process not in before]
        for process in ranks:
            pin(process, place.cores)
        yield session, ranks


def beyond_memory(place: Place) -> list[dict[str, Any]]:
    """A sort, a group by and a join of more rows than their ranks have memory for, beside ranks that have enough."""
    size, memory = place.scale.spilled_bytes, place.scale.spilled_memory
    path = data.write_parquet(table_of(size // 8 // COLUMNS), place.directory / "spilled", files=8)
    with (
        spilling_client(place) as client,
        _session(place, client, memory) as (small, ranks),
        _session(place, client, memory * MORE) as (large, _),
    ):
        found = []
        for name, run in (("sort", _sorted), ("group", _summed(GROUP)), ("join", _summed(JOIN))):
            sides: dict[str, Run] = {
                f"{memory >> 20} MiB for both ranks": _run(run, small, path),
                f"{memory * MORE >> 20} MiB": _run(run, large, path),
            }
            seconds = in_turns(f"beyond-memory-{name}", sides, place.scale.spilled_runs)
            (own, times), (other, others) = seconds.items()
            peak = peak_bytes(ranks)
            note = f"{own}; the table has {size >> 20} MiB; most memory of a rank's process so far: {peak >> 20} MiB"
            found.append(row(f"beyond-memory-{name}", "s", times, other, others, checked=True, bytes=size, note=note))
    return found


def _run(run: Callable[[Session, Path], Any], session: Session, path: Path) -> Run:
    return lambda: run(session, path)


def _summed(query: str) -> Callable[[Session, Path], Any]:
    def run(session: Session, path: Path) -> Any:
        return session.sql(query, t=session.scan_parquet(path)).collect().to_pyarrow().to_pylist()

    return run


def _sorted(session: Session, path: Path) -> int:
    """Returns the number of rows, whose order it checks."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rows, last = 0, None
    for batch in session.scan_parquet(path).sort("c0").batches():
        keys = pa.table(batch).column("c0").combine_chunks()
        in_order = pc.all(pc.less_equal(keys[:-1], keys[1:])).as_py()
        if in_order is False or (last is not None and keys[0].as_py() < last):
            raise WrongAnswerError("beyond-memory-sort: rows are out of order")
        rows, last = rows + len(keys), keys[-1].as_py()
    return rows
