"""Results of queries."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

from dayfly_frames import _frames

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

#: Rows that a table shows when it is printed.
SHOWN_ROWS = 10


class Table:
    """Rows in Arrow's memory format. Polars, pandas, DuckDB and PyArrow take it as it is, without a copy.

    ``polars.DataFrame(table)``, ``pyarrow.table(table)`` and ``duckdb.sql("SELECT * FROM table")`` read it.
    """

    def __init__(self, native: _frames.Table) -> None:
        self._native = native

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
