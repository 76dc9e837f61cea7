"""narwhals' lazy frame: each of its verbs is a query over the frame before it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from operator import and_
from typing import Any

from narwhals._sql.dataframe import SQLLazyFrame
from narwhals._utils import (
    Implementation,
    check_column_names_are_unique,
    extend_bool,
    generate_temporary_column_name,
    not_implemented,
    parse_columns_to_drop,
)

import dayfly_frames
from dayfly_frames import _frames
from dayfly_frames._frame import Frame
from dayfly_frames._narwhals.group_by import DayflyGroupBy
from dayfly_frames._narwhals.sql import Sql, call, case, column, literal, ordered, over, quoted
from dayfly_frames._narwhals.types import schema_of

#: narwhals' kinds of joins in SQL.
_JOINS = {"inner": "JOIN", "left": "LEFT JOIN", "full": "FULL JOIN", "semi": "LEFT SEMI JOIN", "anti": "LEFT ANTI JOIN"}


class DayflyLazyFrame(SQLLazyFrame[Any, Any, Any]):
    """The frame."""

    _implementation = Implementation.UNKNOWN

    def __init__(self, native: Frame, *, version: Any) -> None:
        self._native_frame = native
        self._version = version
        self._schema: dict[str, Any] | None = None

    @staticmethod
    def _is_native(native_object: Any) -> bool:
        return isinstance(native_object, Frame)

    @classmethod
    def from_native(cls, data: Frame, /, *, context: Any) -> DayflyLazyFrame:
        """Wraps a frame."""
        return cls(data, version=context._version)

    def to_narwhals(self, *_: Any, **__: Any) -> Any:
        """Returns what users see."""
        return self._version.lazyframe(self, level="lazy")

    def __narwhals_lazyframe__(self) -> DayflyLazyFrame:
        return self

    def __native_namespace__(self) -> Any:
        return dayfly_frames

    def __narwhals_namespace__(self) -> Any:
        from dayfly_frames._narwhals.namespace import DayflyNamespace

        return DayflyNamespace(version=self._version)

    def _with_version(self, version: Any) -> DayflyLazyFrame:
        return type(self)(self.native, version=version)

    def _with_native(self, native: Frame) -> DayflyLazyFrame:
        return type(self)(native, version=self._version)

    @property
    def native(self) -> Frame:
        """The frame of Dayfly."""
        return self._native_frame

    def _iter_columns(self) -> Iterator[Sql]:
        return map(column, self.columns)

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return self.native.columns

    @property
    def schema(self) -> dict[str, Any]:
        """Names and types of the columns."""
        if self._schema is None:
            self._schema = schema_of(self.native, self._version)
        return self._schema

    def collect_schema(self) -> dict[str, Any]:
        """Names and types of the columns."""
        return self.schema

    def _query(self, columns: Iterable[str], rest: str = "", **others: Frame) -> DayflyLazyFrame:
        """Returns the rows of a query, in any order."""
        listed = ", ".join(columns)
        return self._with_native(self.native.sql(f"SELECT {listed} FROM self {rest}", **others))

    def _select(self, columns: Iterable[tuple[str, Sql]]) -> DayflyLazyFrame:
        """Returns these columns. Unlike a query, it keeps the order of rows."""
        native = self.native.native
        exprs = native.sql_exprs([value.alias(name) for name, value in columns])
        return self._with_native(Frame(native.select(exprs)))

    def _filtered(self, condition: Sql) -> DayflyLazyFrame:
        native = self.native.native
        [expr] = native.sql_exprs([condition.text])
        return self._with_native(Frame(native.filter(expr)))

    def _named(self, exprs: Iterable[Any]) -> list[tuple[str, Sql]]:
        found = [pair for expr in exprs for pair in zip(expr._evaluate_aliases(self), expr(self), strict=True)]
        check_column_names_are_unique([name for name, _ in found])
        return found

    def select(self, *exprs: Any) -> DayflyLazyFrame:
        """Returns these columns."""
        return self._select(self._named(exprs))

    #: One row of aggregates. SQL tells them by themselves.
    aggregate = select

    def simple_select(self, *names: str) -> DayflyLazyFrame:
        """Returns the columns of these names."""
        return self._with_native(self.native.select(*names))

    def with_columns(self, *exprs: Any) -> DayflyLazyFrame:
        """Returns all columns, some of them replaced, and new ones after them."""
        columns = dict(self._own()) | dict(self._named(exprs))
        return self._select(columns.items())

    def drop(self, columns: Sequence[str], *, strict: bool) -> DayflyLazyFrame:
        """Returns the other columns."""
        dropped = set(parse_columns_to_drop(self, columns, strict=strict))
        return self.simple_select(*(name for name in self.columns if name not in dropped))

    def rename(self, mapping: Mapping[str, str]) -> DayflyLazyFrame:
        """Returns the columns under other names."""
        names = {name: mapping.get(name, name) for name in self.columns}
        check_column_names_are_unique(list(names.values()))
        return self._with_native(self.native.rename(mapping))

    def _filter(self, predicate: Any) -> DayflyLazyFrame:
        return self._filtered(self._evaluate_single_output_expr(predicate))

    def drop_nulls(self, subset: Sequence[str] | None) -> DayflyLazyFrame:
        """Returns the rows that have a value in all of these columns."""
        names = self.columns if subset is None else subset
        if error := self._check_columns_exist(names):
            raise error
        return self._filtered(reduce(and_, (column(name).is_not_null() for name in names)))

    def head(self, n: int) -> DayflyLazyFrame:
        """Returns the first rows."""
        return self._with_native(self.native.head(n))

    def sort(self, *by: str, descending: bool | Sequence[bool], nulls_last: bool) -> DayflyLazyFrame:
        """Returns the rows in order."""
        if error := self._check_columns_exist(by):
            raise error
        flags = list(extend_bool(descending, len(by)))
        return self._with_native(self.native.sort(*by, descending=flags, nulls_last=nulls_last))

    def top_k(self, k: int, *, by: Iterable[str], reverse: bool | Sequence[bool]) -> DayflyLazyFrame:
        """Returns the rows with the largest values, or the smallest ones."""
        names = list(by)
        descending = [not flag for flag in extend_bool(reverse, len(names))]
        return self.sort(*names, descending=descending, nulls_last=True).head(k)

    def unique(self, subset: Sequence[str] | None, *, keep: str, order_by: Sequence[str] | None) -> DayflyLazyFrame:
        """Returns one of the rows that are equal in these columns, or those without equals."""
        keys = list(subset or self.columns)
        if error := self._check_columns_exist(keys):
            raise error
        if keep == "any":
            return self._with_native(self.native.unique(keys))
        if keep == "none":
            return self._where(over(Sql("count(*)"), keys))
        return self._where(over(Sql("row_number()"), keys, ordered(order_by or (), descending=keep == "last")))

    def _where(self, number: Sql) -> DayflyLazyFrame:
        """Returns the rows for which a window function is 1."""
        name = generate_temporary_column_name(8, self.columns)
        numbered = self._select([*self._own(), (name, number)])
        return numbered._filtered(column(name) == literal(1)).simple_select(*self.columns)

    def _own(self) -> Iterator[tuple[str, Sql]]:
        return zip(self.columns, self._iter_columns(), strict=True)

    def with_row_index(self, name: str, order_by: Sequence[str] | None) -> DayflyLazyFrame:
        """Returns the rows with their numbers, from 0 on."""
        if not order_by:
            raise TypeError("rows of a frame have no order: say with_row_index(order_by=...)")
        number = over(Sql("row_number()"), (), ordered(order_by)) - literal(1)
        return self._select([(name, number), *self._own()])

    def group_by(self, keys: Sequence[Any], *, drop_null_keys: bool) -> DayflyGroupBy:
        """Groups the rows."""
        return DayflyGroupBy(self, keys, drop_null_keys=drop_null_keys)

    def join(
        self,
        other: DayflyLazyFrame,
        *,
        how: str,
        left_on: Sequence[str] | None,
        right_on: Sequence[str] | None,
        suffix: str,
    ) -> DayflyLazyFrame:
        """Returns the rows of both frames that have the same keys."""
        if error := self._check_columns_exist(left_on or ()) or other._check_columns_exist(right_on or ()):
            raise error
        rest = "CROSS JOIN other"
        if how != "cross":
            pairs = zip(left_on or (), right_on or (), strict=True)
            equal = " AND ".join((column(a, "self") == column(b, "other")).text for a, b in pairs)
            rest = f"{_JOINS[how]} other ON {equal}"
        if how in ("semi", "anti"):
            return self._query(["self.*"], rest, other=other.native)
        chosen = {name: column(name, "self") for name in self.columns}
        names = list(self.columns)
        columns = [value.alias(name) for name, value in chosen.items()]
        for name in other.columns:
            # Both sides of a full join have keys of their own.
            if how == "full" or name not in (right_on or ()):
                names.append(f"{name}{suffix}" if name in chosen else name)
                columns.append(column(name, "other").alias(names[-1]))
        check_column_names_are_unique(names)
        return self._query(columns, rest, other=other.native)

    def explode(
        self, columns: Sequence[str], *, empty_as_null: bool = True, keep_nulls: bool = True
    ) -> DayflyLazyFrame:
        """Returns a row for each element of a list."""
        exploded = self._exploded(columns)
        value = column(exploded)
        null = call("make_array", literal(None))
        if keep_nulls:
            value = case(value.is_null(), null, value)
        if empty_as_null:
            value = case(call("cardinality", column(exploded)) == literal(0), null, value)
        return self._query(
            call("unnest", value).alias(name) if name == exploded else quoted(name) for name in self.columns
        )

    def _exploded(self, columns: Sequence[str]) -> str:
        from narwhals.exceptions import InvalidOperationError

        if error := self._check_columns_exist(columns):
            raise error
        for name in columns:
            if not isinstance(self.schema[name], self._version.dtypes.List):
                raise InvalidOperationError(
                    f"`explode` operation not supported for dtype `{self.schema[name]}`, expected List type"
                )
        if len(columns) != 1:
            raise NotImplementedError("frames of Dayfly explode one column at a time: lists may differ in length")
        return columns[0]

    def unpivot(
        self, on: Sequence[str] | None, index: Sequence[str] | None, variable_name: str, value_name: str
    ) -> DayflyLazyFrame:
        """Returns a row for each of these columns, with its name and its value."""
        kept = list(index or ())
        names = [name for name in self.columns if name not in kept] if on is None else list(on)
        if error := self._check_columns_exist([*kept, *names]):
            raise error
        variable = call("unnest", call("make_array", *map(literal, names)))
        value = call("unnest", call("make_array", *map(column, names)))
        return self._query([*map(quoted, kept), variable.alias(variable_name), value.alias(value_name)])

    def collect(self, backend: Any, **_: Any) -> Any:
        """Computes the frame on the ranks. The result is of PyArrow, Polars or pandas."""
        if backend is None or backend is Implementation.PYARROW:
            from narwhals._arrow.dataframe import ArrowDataFrame

            return ArrowDataFrame(
                self.native.collect().to_pyarrow(),
                validate_backend_version=True,
                version=self._version,
                validate_column_names=True,
            )
        if backend is Implementation.POLARS:
            from narwhals._polars.dataframe import PolarsDataFrame

            return PolarsDataFrame(
                self.native.collect().to_polars(), validate_backend_version=True, version=self._version
            )
        if backend is Implementation.PANDAS:
            from narwhals._pandas_like.dataframe import PandasLikeDataFrame

            return PandasLikeDataFrame(
                self.native.collect().to_pandas(),
                implementation=Implementation.PANDAS,
                validate_backend_version=True,
                version=self._version,
                validate_column_names=True,
            )
        raise ValueError(f'backend={backend}: frames of Dayfly are collected to "pyarrow", "polars" or "pandas"')

    def sink_parquet(self, file: Any) -> None:
        """Computes the frame, and writes its rows to one file as they arrive.

        `Frame.write_parquet` has every rank write its own rows instead.
        """
        if not hasattr(file, "write"):
            with open(file, "wb") as opened:
                self.sink_parquet(opened)
            return
        encoder = _frames.Encoder("parquet", self.native.native)
        for batch in self.native.batches():
            file.write(encoder.encode(batch.native))
        file.write(encoder.finish())

    join_asof = not_implemented(hint="SQL has no such join: `join` on equal keys, and filter the pairs.")
