"""A connection of Ibis whose queries run on the ranks of a session."""

from __future__ import annotations

import contextlib
import importlib.metadata
from pathlib import Path
from typing import Any

import dayfly
import ibis
import ibis.common.exceptions as com
import ibis.expr.operations as ops
import ibis.expr.schema as sch
import ibis.expr.types as ir
import pyarrow as pa
from ibis.backends import DirectPyArrowExampleLoader, NoUrl, SupportsTempTables
from ibis.backends.sql import SQLBackend
from ibis.util import gen_name

from dayfly_frames._frame import Frame
from dayfly_frames._ibis.compiler import DayflyCompiler, compiler
from dayfly_frames._ibis.tables import Tables
from dayfly_frames._ibis.types import arrow_schema, arrow_table, record_batches, schema_of
from dayfly_frames._paths import Paths
from dayfly_frames._session import Session


def _check_no_database(database: object) -> None:
    if database is not None and database != (None, None):
        raise com.UnsupportedOperationError("the dayfly backend has one database: leave database= out")


class Backend(SupportsTempTables, SQLBackend, NoUrl, DirectPyArrowExampleLoader):
    """A connection. Its tables are frames of one session, and end with it."""

    name = "dayfly"
    supports_arrays = True
    compiler: DayflyCompiler = compiler

    def do_connect(self, session: Session | None = None, *, ranks: int | None = None, **lease: Any) -> None:
        """Connects to a session, or opens one that `disconnect` closes.

        Args:
            session: the session, as of ``client.frames()``. It stays open.
            ranks: number of ranks of a session of its own; two by default.
            lease: further arguments of ``client.frames()`` for a session of its own.

        Raises:
            dayfly.Error: if the ranks cannot be leased.
        """
        self._opened = contextlib.ExitStack()
        self._tables = Tables()
        if session is None:
            with contextlib.ExitStack() as opened:
                client = opened.enter_context(dayfly.connect())
                session = opened.enter_context(client.frames(2 if ranks is None else ranks, **lease))
                self._opened = opened.pop_all()
        elif lease or ranks is not None:
            raise TypeError("a session that is open has its lease: leave ranks= and the other arguments out")
        self.con = session
        # Connections with equal arguments have different tables.
        self._identity: str = gen_name("dayfly")

    @classmethod
    def from_connection(cls, session: Session, /) -> Backend:
        """Returns a connection to a session that is open."""
        connection: Backend = ibis.dayfly.connect(session=session)
        return connection

    def disconnect(self) -> None:
        """Closes the session if `do_connect` opened it. Does nothing the second time."""
        self._opened.close()

    def __enter__(self) -> Backend:
        return self

    def __exit__(self, *_: object) -> None:
        self.disconnect()

    @property
    def db_identity(self) -> str:
        """A name that no other connection has."""
        return self._identity

    @property
    def version(self) -> str:
        """The version of the package."""
        return importlib.metadata.version("dayfly-frames")

    def frame(self, expr: ir.Expr, /, *, params: Any = None, limit: int | str | None = None) -> Frame:
        """Returns the frame of an expression, for what only frames have, such as ``write_parquet`` and ``explain``."""
        self._run_pre_execute_hooks(expr)
        return self.raw_sql(self.compile(expr.as_table(), params=params, limit=limit))

    def raw_sql(self, query: Any, /) -> Frame:
        """Returns the frame of a query in SQL."""
        text = query if isinstance(query, str) else query.sql(dialect=self.dialect, pretty=True)
        return self.con.sql(text, **self._tables.all)

    def _get_schema_using_query(self, query: str) -> sch.Schema:
        return schema_of(self.raw_sql(query))

    def get_schema(self, name: str, *, catalog: str | None = None, database: str | None = None) -> sch.Schema:
        """Returns the schema of a table."""
        _check_no_database(catalog)
        _check_no_database(database)
        return schema_of(self._tables[name])

    def list_tables(self, *, like: str | None = None, database: Any = None) -> list[str]:
        """Returns the names of tables and views, of those that match a regular expression."""
        _check_no_database(database)
        names: list[str] = self._filter_with_like(self._tables, like)
        return names

    # Results.

    def to_pyarrow_batches(
        self,
        expr: ir.Expr,
        /,
        *,
        params: Any = None,
        limit: int | str | None = None,
        chunk_size: int = 1_000_000,
        **_: Any,
    ) -> pa.RecordBatchReader:
        """Computes an expression, and returns its rows as they arrive, in batches of at most ``chunk_size`` rows."""
        batches = self.frame(expr, params=params, limit=limit).batches()
        schema = arrow_schema(expr.as_table().schema())
        return pa.RecordBatchReader.from_batches(schema, record_batches(batches, schema, chunk_size))

    def _result(self, expr: ir.Expr, params: Any, limit: int | str | None) -> pa.Table:
        # Unlike a stream, a query that is collected runs again when its ranks are lost.
        rows = self.frame(expr, params=params, limit=limit).collect()
        schema = arrow_schema(expr.as_table().schema())
        return pa.Table.from_batches(record_batches([rows], schema, max(len(rows), 1)), schema)

    def to_pyarrow(self, expr: ir.Expr, /, *, params: Any = None, limit: int | str | None = None, **_: Any) -> Any:
        """Computes an expression: a table, column or scalar of PyArrow."""
        return expr.__pyarrow_result__(self._result(expr, params, limit))

    def execute(self, expr: ir.Expr, /, *, params: Any = None, limit: int | str | None = None, **_: Any) -> Any:
        """Computes an expression: a table or column of pandas, or a scalar."""
        rows = self._result(expr, params, limit)
        return expr.__pandas_result__(rows.to_pandas(timestamp_as_object=True))

    def to_parquet_dir(
        self,
        expr: ir.Table,
        /,
        directory: str | Path,
        *,
        params: Any = None,
        partition_by: str | list[str] | tuple[str, ...] = (),
        **options: Any,
    ) -> None:
        """Computes an expression, and writes it as `Frame.write_parquet` does: every rank writes its own rows.

        With options of ``pyarrow.dataset.write_dataset``, PyArrow writes all rows in this process instead.
        """
        if options:
            if partition_by:
                raise TypeError(f"leave partition_by out, or {', '.join(options)}: PyArrow has partitioning=")
            super().to_parquet_dir(expr, directory, params=params, **options)
            return
        self.frame(expr, params=params).write_parquet(directory, partition_by=partition_by)

    # Tables.

    def _register_in_memory_table(self, op: ops.InMemoryTable) -> None:
        self._tables.put_temporary(op, self.con.from_arrow(op.data.to_pyarrow(op.schema)))

    def _register_udfs(self, expr: ir.Expr) -> None:
        """Does nothing: the compiler refuses functions of Python."""

    def create_table(
        self,
        name: str,
        /,
        obj: Any = None,
        *,
        schema: Any = None,
        database: Any = None,
        temp: bool = False,
        overwrite: bool = False,
    ) -> ir.Table:
        """Creates a table in the memory of this process.

        Args:
            name: name of the table.
            obj: its rows: a table of PyArrow, pandas or Polars, or an expression, which is computed now.
            schema: names and types of its columns. Without ``obj``, the table is empty.
            database: there is one only, so this is None.
            temp: nothing else: all tables end with the connection.
            overwrite: whether a table of this name is replaced.
        """
        _check_no_database(database)
        if obj is None and schema is None:
            raise ValueError("pass obj= or schema=, or both")
        self._tables.check_free(name, overwrite=overwrite)
        schema = None if schema is None else ibis.schema(schema)
        if obj is None:
            rows = arrow_schema(schema).empty_table()
        elif isinstance(obj, ir.Expr):
            table = obj.as_table()
            rows = self.to_pyarrow(table if schema is None else table.cast(schema))
        else:
            rows = arrow_table(obj, schema)
        self._tables.put(name, self.con.from_arrow(rows))
        return self.table(name)

    def create_view(self, name: str, /, obj: ir.Table, *, database: Any = None, overwrite: bool = False) -> ir.Table:
        """Creates a view of the tables as they are now. Each query that uses it computes it."""
        _check_no_database(database)
        self._tables.check_free(name, overwrite=overwrite)
        self._tables.put(name, self.frame(obj), is_view=True)
        return self.table(name)

    def drop_table(self, name: str, /, *, database: Any = None, force: bool = False) -> None:
        """Removes a table. Views of it stay."""
        _check_no_database(database)
        self._tables.drop(name, is_view=False, force=force)

    def drop_view(self, name: str, /, *, database: Any = None, force: bool = False) -> None:
        """Removes a view."""
        _check_no_database(database)
        self._tables.drop(name, is_view=True, force=force)

    def truncate_table(self, name: str, /, *, database: Any = None) -> None:
        """Removes all rows of a table."""
        _check_no_database(database)
        self._tables.check_table(name)
        self.create_table(name, schema=self.get_schema(name), overwrite=True)

    def insert(self, name: str, /, obj: Any, *, database: Any = None, overwrite: bool = False) -> None:
        """Adds rows to a table, or replaces its rows. Columns with the names of the table's are matched by them."""
        _check_no_database(database)
        self._tables.check_table(name)
        table = self.table(name)
        added = obj if isinstance(obj, ir.Table) else ibis.memtable(obj)
        if not set(added.columns) <= set(table.columns):
            added = added.rename(dict(zip(table.columns, added.columns, strict=True)))
        missing = {column: ibis.null() for column in table.columns if column not in added.columns}
        added = added.mutate(**missing).select(*table.columns).cast(dict(table.schema()))
        self.create_table(name, added if overwrite else table.union(added), overwrite=True)

    def upsert(self, name: str, /, obj: Any, on: str, *, database: Any = None) -> None:
        """Not supported."""
        raise com.UnsupportedOperationError("the dayfly backend cannot merge rows: make a table of a join instead")

    def rename_table(self, old_name: str, new_name: str) -> None:
        """Renames a table or a view."""
        self._tables.rename(old_name, new_name)

    def _create_cached_table(self, name: str, expr: ir.Table) -> ir.Table:
        return self.create_table(name, expr, schema=expr.schema())

    # Files, which all ranks see under the same path.

    def _read(self, kind: str, frame: Frame, table_name: str | None) -> ir.Table:
        name = table_name or gen_name(f"read_{kind}")
        self._tables.put(name, frame)
        return self.table(name)

    def read_parquet(self, path: Paths, /, *, table_name: str | None = None, **options: Any) -> ir.Table:
        """Returns a table of Parquet files, which `Session.scan_parquet` reads."""
        return self._read("parquet", self.con.scan_parquet(path, **options), table_name)

    def read_csv(self, path: Paths, /, *, table_name: str | None = None, **options: Any) -> ir.Table:
        """Returns a table of CSV files. The options are those of `Session.scan_csv`."""
        return self._read("csv", self.con.scan_csv(path, **options), table_name)

    def read_json(self, path: Paths, /, *, table_name: str | None = None, **options: Any) -> ir.Table:
        """Returns a table of files with one JSON object a line. The options are those of `Session.scan_ndjson`."""
        return self._read("json", self.con.scan_ndjson(path, **options), table_name)
