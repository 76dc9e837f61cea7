"""Data frames and SQL across the workers of a lease.

``client.frames(ranks=4)`` leases workers and returns a `Session`. Its frames are lazy: `Frame.collect` computes them on
the workers. The names are those of Polars. Where SQL and Polars differ, as with nulls, SQL holds.
"""

from dayfly_frames._expr import (
    Expr,
    When,
    coalesce,
    col,
    count,
    lit,
    max,
    mean,
    median,
    min,
    n_unique,
    row_number,
    std,
    sum,
    var,
    when,
)
from dayfly_frames._frame import Frame, GroupBy
from dayfly_frames._group import RankSession
from dayfly_frames._progress import Query, Work
from dayfly_frames._session import Session
from dayfly_frames._table import Table, Usage
from dayfly_frames._write import WrittenFile

__all__ = [
    "Expr",
    "Frame",
    "GroupBy",
    "Query",
    "RankSession",
    "Session",
    "Table",
    "Usage",
    "When",
    "Work",
    "WrittenFile",
    "coalesce",
    "col",
    "count",
    "lit",
    "max",
    "mean",
    "median",
    "min",
    "n_unique",
    "row_number",
    "std",
    "sum",
    "var",
    "when",
]
