"""Engines in one process, with which ranks are compared. Each is used if it is installed."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from dayfly import Client

from dayfly_frames._bench.rows import Run, note
from dayfly_frames._frame import Frame
from dayfly_frames._session import Session

#: The join of the paper, of which each side has two columns. Its sums show whether a row is wrong.
JOIN = "SELECT count(*) AS n, sum(v) AS v, sum(w) AS w FROM l JOIN r ON l.k = r.k"


#: Rows of a batch in memory, as DataFusion makes them.
BATCH_ROWS = 8192


def has(module: str) -> bool:
    """Returns whether a module is installed."""
    return importlib.util.find_spec(module) is not None


def numbers(table: Any) -> tuple[int, ...]:
    """Returns the values of a table of one row."""
    import pyarrow as pa

    [only] = pa.table(table).to_pylist()
    return tuple(int(value) for value in only.values())


class Engine(Protocol):
    """Queries in this process."""

    @property
    def name(self) -> str:
        """What it is, for the report."""
        ...

    def read(self, **tables: Path) -> None:
        """Gives directories with Parquet files names."""

    def query(self, text: str) -> Any:
        """Returns the rows of a query, as an object that exports an Arrow stream."""


class DataFusion:
    """DataFusion from its own package: the engine of the ranks, without ranks."""

    def __init__(self, threads: int) -> None:
        import datafusion

        self.name = f"DataFusion {version('datafusion')}, 1 process, {threads} thread{'s'[: threads - 1]}"
        config = datafusion.SessionConfig().with_target_partitions(threads)
        self._context = datafusion.SessionContext(config)

    def read(self, **tables: Path) -> None:
        """Gives directories with Parquet files names."""
        for name, place in tables.items():
            self._context.register_parquet(name, str(place))

    def query(self, text: str) -> Any:
        """Returns the rows of a query as a PyArrow table."""
        return self._context.sql(text).to_arrow_table()


class Local:
    """DataFusion from this package. A session computes in this process what reads no files."""

    def __init__(self, session: Session, threads: int) -> None:
        self.name = f"DataFusion of dayfly-frames, 1 process, {threads} thread{'s'[: threads - 1]}"
        self._session = session
        self._tables: dict[str, Frame] = {}

    def read(self, **tables: Path) -> None:
        """Reads directories with Parquet files into memory, and gives them names."""
        import pyarrow.parquet as pq

        self.hold(**{name: pq.read_table(place) for name, place in tables.items()})

    def hold(self, **tables: Any) -> None:
        """Gives PyArrow tables names."""
        import pyarrow as pa

        for name, table in tables.items():
            batches = pa.Table.from_batches(table.to_batches(max_chunksize=BATCH_ROWS), table.schema)
            self._tables[name] = self._session.from_arrow(batches)

    def query(self, text: str) -> Any:
        """Returns the rows of a query."""
        return self.frame(text).collect()

    def frame(self, text: str) -> Frame:
        """Returns a query that is not computed yet."""
        return self._session.sql(text, **self._tables)


@contextmanager
def local(client: Client, threads: int) -> Iterator[Local]:
    """Opens a session that computes in this process. Its rank is idle."""
    with client.frames(ranks=1, cores=threads) as session:
        yield Local(session, threads)


@contextmanager
def baseline(client: Client, threads: int) -> Iterator[Engine]:
    """Opens the baseline of queries over files: DataFusion from its own package, else that of this one."""
    if has("datafusion"):
        yield DataFusion(threads)
        return
    note("the package datafusion is not installed: the baseline has its input in memory, and reads no files")
    with local(client, threads) as engine:
        yield engine


def joins_in_memory(held: Local, left: Any, right: Any, threads: int) -> dict[str, Run]:
    """Returns the paper's join of two PyArrow tables by all engines that are installed, whose input is in memory."""
    held.hold(l=left, r=right)
    found: dict[str, Run] = {held.name: lambda: numbers(held.query(JOIN))}
    if has("polars"):
        found[f"Polars {version('polars')}, input in memory"] = _polars(left, right, threads)
    if has("duckdb"):
        found[f"DuckDB {version('duckdb')}, input in memory"] = _duckdb(left, right, threads)
    if has("pandas"):
        found[f"pandas {version('pandas')}, input in memory"] = _pandas(left, right)
    return found


def _polars(left: Any, right: Any, threads: int) -> Run:
    # Read when Polars is first imported.
    os.environ.setdefault("POLARS_MAX_THREADS", str(threads))
    import polars as pl

    a, b = pl.DataFrame(left), pl.DataFrame(right)

    def run() -> tuple[int, ...]:
        # Joined rows exist before their sums: the join is what is measured.
        joined = a.join(b, on="k")
        return joined.height, int(joined["v"].sum()), int(joined["w"].sum())

    return run


def _duckdb(left: Any, right: Any, threads: int) -> Run:
    import duckdb

    connection = duckdb.connect(config={"threads": threads})
    for name, table in (("l", left), ("r", right)):
        connection.register("arrow", table)
        connection.execute(f"CREATE TABLE {name} AS FROM arrow")

    def run() -> tuple[int, ...]:
        [row] = connection.execute(JOIN).fetchall()
        return tuple(int(value) for value in row)

    return run


def _pandas(left: Any, right: Any) -> Run:
    a, b = left.to_pandas(), right.to_pandas()

    def run() -> tuple[int, ...]:
        joined = a.merge(b, on="k")
        return len(joined), int(joined["v"].sum()), int(joined["w"].sum())

    return run
