"""Ibis' types and Arrow's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import ibis.expr.datatypes as dt
import ibis.expr.schema as sch
import pyarrow as pa

from dayfly_frames._table import Table


def _nullable(kind: dt.DataType) -> dt.DataType:
    """Returns the type with nulls allowed at all levels, as in results of DataFusion."""
    if kind.is_struct():
        return kind.copy(fields={name: _nullable(field) for name, field in kind.items()}, nullable=True)
    if kind.is_array():
        return kind.copy(value_type=_nullable(kind.value_type), nullable=True)
    if kind.is_map():
        value = _nullable(kind.value_type)
        return kind.copy(key_type=_nullable(kind.key_type), value_type=value, nullable=True)
    return kind.copy(nullable=True)


def arrow_schema(schema: sch.Schema) -> pa.Schema:
    """Returns Arrow's schema of a result."""
    return sch.Schema({name: _nullable(kind) for name, kind in schema.items()}).to_pyarrow()


def schema_of(source: Any) -> sch.Schema:
    """Returns Ibis' schema of an object with ``__arrow_c_schema__``."""
    return sch.Schema.from_pyarrow(pa.schema(source))


def record_batches(tables: Iterable[Table], schema: pa.Schema, max_rows: int) -> Iterator[pa.RecordBatch]:
    """Yields the rows with the names and types of a schema, in batches of at most so many rows."""
    for table in tables:
        for batch in table.to_pyarrow().to_batches(max_chunksize=max_rows):
            # Ibis decides the types, which may be narrower than those of DataFusion's functions.
            columns = [
                column if column.type == field.type else column.cast(field.type, safe=False)
                for column, field in zip(batch.columns, schema, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def arrow_table(source: Any, schema: sch.Schema | None) -> Any:
    """Returns rows in memory as an object with ``__arrow_c_stream__``.

    Raises:
        TypeError: if these are no rows.
    """
    import ibis

    if isinstance(source, pa.RecordBatchReader):
        source = source.read_all()
    elif isinstance(source, pa.RecordBatch):
        source = pa.Table.from_batches([source])
    elif type(source).__name__ == "LazyFrame":
        source = source.collect()
    elif hasattr(source, "to_table") and not hasattr(source, "__arrow_c_stream__"):
        # A dataset of PyArrow.
        source = source.to_table()
    if schema is None and isinstance(source, pa.Table):
        return source
    in_memory = ibis.memtable(source, schema=schema).op()
    return in_memory.data.to_pyarrow(in_memory.schema)
