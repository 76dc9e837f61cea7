"""Queries over the rows of ranks, under mpi4py and in a group of Dayfly.

``frames_of_ranks.py FOLDER`` writes the results of each rank into the folder, as a pickle.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dayfly
import pandas as pd
import pyarrow as pa
from dayfly.frames import Session, col, count

ROWS = 3_000


def left_table() -> pd.DataFrame:
    numbers = range(ROWS)
    fares = [None if number % 17 == 0 else number % 101 / 4 for number in numbers]
    return pd.DataFrame({"key": [number // 3 * 7 % 500 for number in numbers], "number": numbers, "fare": fares})


def right_table() -> pd.DataFrame:
    return pd.DataFrame({"key": range(0, 600, 2), "name": [f"name {key % 13}" for key in range(0, 600, 2)]})


def part_of(table: pd.DataFrame, rank: int, size: int) -> pa.Table:
    """Every rank has some rows, from all over the table."""
    return pa.Table.from_pandas(table.iloc[rank::size], preserve_index=False)


def rows(table: Any) -> list[dict[str, Any]]:
    return pa.table(table).to_pylist()


@contextlib.contextmanager
def code_into(found: dict[str, Any], name: str) -> Iterator[None]:
    """Notes the code of an expected error, and its message."""
    try:
        yield
    except dayfly.Error as error:
        found[name] = error.code
        found[f"{name}: message"] = str(error)


def fail(batch: pa.Table) -> pa.Table:
    raise KeyError("only a test")


def double(batch: pa.Table) -> dict[str, Any]:
    return {"twice": [2 * number for number in batch["number"].to_pylist()]}


def queries(session: Any, left: Any, right: Any, folder: Path) -> dict[str, Any]:
    """Returns results of queries, by their names."""
    found: dict[str, Any] = {}
    joined = left.merge(right, on="key")
    grouped = joined.groupby("name").agg(count().alias("rows"), col("fare").sum().alias("fare"))
    found["join here"] = rows(joined.here())
    found["join"] = rows(joined.collect())
    found["filter here"] = rows(left.filter(col("number") % 5 == 0).here())
    found["local here"] = rows(left.here())
    found["group here"] = rows(grouped.here())
    found["group"] = rows(grouped.sort("name").collect())
    found["sort"] = rows(left.sort("fare", "number", descending=True).head(50).collect())
    found["sort here"] = rows(left.sort("number").here())
    kept = joined.filter(col("number") < 900).persist()
    found["kept"] = rows(kept.select("number").sort("number").collect())
    found["kept again"] = rows(kept.select(count().alias("rows")).collect())
    query = "SELECT name, max(number) AS most FROM a JOIN b USING (key) GROUP BY name ORDER BY name"
    found["sql"] = rows(session.sql(query, a=left, b=right).collect())
    found["map here"] = rows(left.map_batches(double, {"twice": "int64"}).here())
    found["written"] = [file.rows for file in left.write_parquet(folder / "written")]
    found["read"] = rows(session.scan_parquet(folder / "written").select(col("number").sum()).collect())
    found["empty"] = rows(left.filter(col("number") < 0).collect()), rows(left.filter(col("number") < 0).here())
    found["describe"] = left.describe().columns
    found["measured"] = left.explain(analyze=True)
    return found


def errors(session: Any, left: Any, comm: Any, folder: Path) -> dict[str, Any]:
    """Returns the codes of operations that fail."""
    found: dict[str, Any] = {}
    is_last = comm.rank == comm.size - 1
    with code_into(found, "other type"):
        session.local(pa.table({"key": ["text"] if is_last else [1]}))
    with code_into(found, "other name"):
        session.local(pa.table({"other" if is_last else "key": [1]}))
    with code_into(found, "fewer columns"):
        session.local(pa.table({"key": [1]} if is_last else {"key": [1], "number": [1]}))
    try:
        session.local(7 if is_last else pa.table({"key": [1]}))
    except (dayfly.RequestError, TypeError) as error:
        found["no table"] = type(error).__name__
        found["no table: message"] = str(error)
    with code_into(found, "no column"):
        left.select("nowhere")
    with code_into(found, "function"):
        left.map_batches(fail, {"number": "int64"}).here()
    with code_into(found, "function in collect"):
        left.map_batches(fail, {"number": "int64"}).collect()
    with code_into(found, "query"):
        left.select((col("number") % (col("key") - col("key"))).alias("rest")).collect()
    with code_into(found, "other operations"):
        left.filter(col("number") > comm.rank).here()
    own = folder / f"{comm.rank}.csv"
    own.write_text("number\n1\n")
    with code_into(found, "other files"):
        session.scan_csv(own).collect()
    with code_into(found, "other calls"):
        left.persist() if is_last else left.here()
    with code_into(found, "batches"):
        next(left.batches())
    # The session goes on.
    found["rows"] = rows(left.select(count().alias("rows")).collect())
    return found


def run_all(comm: Any, folder: str) -> dict[str, Any]:
    """Runs all queries, and those that fail."""
    # An empty part has the schema of the others.
    few = pa.table({"key": pa.array([2, 4] if comm.rank == 0 else [], pa.int64())})
    with Session.of(comm, cores=2, timeout=100) as session:
        left = session.local(part_of(left_table(), comm.rank, comm.size))
        right = session.local(part_of(right_table(), comm.rank, comm.size))
        found = queries(session, left, right, Path(folder))
        found["few"] = rows(left.join(session.local(few), on="key", how="semi").sort("number").collect())
        found["from_arrow"] = rows(left.join(session.from_arrow(few), on="key", how="semi").sort("number").collect())
        found["errors"] = errors(session, left, comm, Path(folder))
        with Session.of(comm) as second:
            found["second"] = rows(second.local(few).sort("key").collect())
        unread = session.from_arrow(few).here()
        batch = left.here()
        left.filter(col("number") < 5).here()
    session.close()
    found["read later"] = len(rows(batch)), pa.table(unread).num_columns
    with code_into(found, "closed frame"):
        left.here()
    with code_into(found, "options"):
        Session.of(comm, cores=0 if comm.rank == comm.size - 1 else None)
    with Session.of(comm, memory_bytes=16 << 20) as session, code_into(found, "memory"):
        session.local(pa.table({"number": range(2_000_000 if comm.rank == 0 else 10)}))
    with code_into(found, "closed"):
        session.local(few)
    return found


if __name__ == "__main__":
    from mpi4py import MPI

    result = run_all(MPI.COMM_WORLD, sys.argv[1])
    Path(sys.argv[1], f"{MPI.COMM_WORLD.rank}.pickle").write_bytes(pickle.dumps(result))
