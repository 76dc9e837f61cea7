"""Results of queries."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from dayfly_frames import _frames
from dayfly_frames._progress import Work, by_rank

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa
    import torch

#: Rows that a table shows when it is printed.
SHOWN_ROWS = 10


class Usage(NamedTuple):
    """What a query took."""

    #: Time to its last row.
    seconds: float
    #: Tasks that the ranks have executed.
    tasks: int
    #: Seconds that cores have computed, of all ranks and of the session together.
    core_seconds: float
    #: Bytes that crossed between tasks, those of the result included.
    exchanged_bytes: int
    #: Bytes that did not fit into the ranks' memory, and went to disk.
    spilled_bytes: int
    #: ``tasks`` if lost tasks would have run again, ``query`` if the whole query would have, and ``none`` otherwise.
    recovery: str
    #: Runs of tasks that were lost with their ranks, or had read such a run, so that these tasks ran again.
    lost_runs: int
    #: What the tasks of each rank have done. Ranks that have done much more than others have more of the rows.
    ranks: dict[int, Work]
    #: What the leases of all ranks cost in this time, in the unit that the site's prices count in; None where the
    #: manager does not tell, and inside ranks.
    cost: float | None


class Table:
    """Rows in Arrow's memory format. Polars, pandas, DuckDB and PyArrow take it as it is, without a copy.

    ``polars.DataFrame(table)``, ``pyarrow.table(table)`` and ``duckdb.sql("SELECT * FROM table")`` read it.
    """

    def __init__(self, native: _frames.Table, price: float | None = None) -> None:
        self._native = native
        #: What the ranks cost in a second.
        self._price = price

    @property
    def native(self) -> _frames.Table:
        """The native table."""
        return self._native

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._native.__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        return self._native.__arrow_c_schema__()

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self._native.num_rows()

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return self._native.columns()

    @property
    def schema(self) -> dict[str, str]:
        """Name and type of each column, as in `Expr.cast`."""
        return dict(zip(self._native.columns(), self._native.types(), strict=True))

    @property
    def usage(self) -> Usage | None:
        """What the query took that `Frame.collect` ran, as far as its ranks have reported it."""
        found = self._native.usage()
        if found is None:
            return None
        seconds, tasks, core_seconds, exchanged_bytes, spilled_bytes, recovery, lost_runs = found
        cost = None if self._price is None else self._price * seconds
        work = by_rank(tasks)
        return Usage(seconds, len(tasks), core_seconds, exchanged_bytes, spilled_bytes, recovery, lost_runs, work, cost)

    def to_pyarrow(self) -> pa.Table:
        """Returns a PyArrow table. Needs ``pyarrow``."""
        import pyarrow as pa

        return pa.table(self)

    def to_polars(self) -> pl.DataFrame:
        """Returns a Polars frame. Needs ``polars``."""
        import polars as pl

        return pl.DataFrame(self)

    def to_pandas(self) -> pd.DataFrame:
        """Returns a pandas frame. Needs ``pandas`` and ``pyarrow``."""
        frame: Any = self.to_pyarrow().to_pandas()
        return frame

    def to_torch(self, columns: Iterable[str] | None = None) -> dict[str, torch.Tensor]:
        """Returns columns as tensors, by their names. Needs ``torch`` and ``pyarrow``.

        Numbers are not copied. A column of lists of one fixed size becomes a matrix.

        Args:
            columns: names of the columns; by default, all.

        Raises:
            dayfly.RequestError: if a column has nulls, or a type that tensors do not have.
        """
        from dayfly_frames._tensors import tensors

        return tensors(self, columns)

    def to_dataloader(
        self,
        batch_size: int = 256,
        *,
        columns: Iterable[str] | None = None,
        shuffle: bool = False,
        drop_last: bool = False,
        **options: Any,
    ) -> torch.utils.data.DataLoader[dict[str, torch.Tensor]]:
        """Returns PyTorch's loader of batches of these rows. A batch has a tensor for each column, by its name.

        Args:
            batch_size: rows of a batch.
            columns: names of the columns; by default, all.
            shuffle: whether rows come by chance, in another order each time.
            drop_last: whether to leave out the last rows, if they fill no batch.
            options: further arguments of ``torch.utils.data.DataLoader``, such as ``num_workers`` and ``generator``.

        Raises:
            dayfly.RequestError: as `to_torch`.
        """
        from dayfly_frames._tensors import loader

        return loader(self, columns, batch_size=batch_size, shuffle=shuffle, drop_last=drop_last, **options)

    def __len__(self) -> int:
        return self.num_rows

    def __repr__(self) -> str:
        more = "…\n" if self.num_rows > SHOWN_ROWS else ""
        return f"{self._native.text(SHOWN_ROWS)}{more}{self._shape()}"

    def _shape(self) -> str:
        return f"{self.num_rows} rows, {len(self.columns)} columns"

    def _repr_html_(self) -> str:
        header = "".join(
            f"<th>{html.escape(name)}<br><small>{html.escape(kind)}</small></th>" for name, kind in self.schema.items()
        )
        rows = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
            for row in self._native.cells(SHOWN_ROWS)
        )
        return f"<table><caption>{self._shape()}</caption><tr>{header}</tr>{rows}</table>"
