"""narwhals' functions that make expressions and join frames."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any

from narwhals._compliant.namespace import AlignDiagonal
from narwhals._expression_parsing import combine_alias_output_names, combine_evaluate_output_names
from narwhals._sql.namespace import SQLNamespace
from narwhals._utils import Implementation

from dayfly_frames._narwhals.expr import DayflyExpr
from dayfly_frames._narwhals.frame import DayflyLazyFrame
from dayfly_frames._narwhals.selectors import DayflySelectorNamespace
from dayfly_frames._narwhals.sql import Sql, call, case, cast, function, literal, over, string
from dayfly_frames._narwhals.types import arrow_type


class DayflyNamespace(AlignDiagonal[Any, Any], SQLNamespace[Any, Any, Any, Any]):
    """The functions."""

    _implementation = Implementation.UNKNOWN

    def __init__(self, *, version: Any) -> None:
        self._version = version

    @property
    def selectors(self) -> Any:
        """The selectors of columns."""
        return DayflySelectorNamespace.from_namespace(self)

    @property
    def _expr(self) -> type[DayflyExpr]:
        return DayflyExpr

    @property
    def _lazyframe(self) -> type[DayflyLazyFrame]:
        return DayflyLazyFrame

    def _function(self, name: str, *args: Any) -> Sql:
        return function(name, *args)

    def _lit(self, value: Any) -> Sql:
        return literal(value)

    def _when(self, condition: Sql, value: Sql, otherwise: Sql | None = None) -> Sql:
        return case(condition, value, otherwise)

    def _coalesce(self, *exprs: Sql) -> Sql:
        return call("coalesce", *exprs)

    def _made(self, func: Callable[..., Any], window: Any, names: Any, aliases: Any = None) -> DayflyExpr:
        return DayflyExpr(func, window, evaluate_output_names=names, alias_output_names=aliases, version=self._version)

    def lit(self, value: Any, dtype: Any) -> DayflyExpr:
        """Returns a constant."""

        def func(_: Any) -> list[Sql]:
            constant = literal(value)
            return [constant if dtype is None else cast(constant, arrow_type(dtype, self._version))]

        return self._made(func, lambda frame, _: func(frame), lambda _: ["literal"])

    def len(self) -> DayflyExpr:
        """Returns the number of rows."""
        return self._made(lambda _: [Sql("count(*)")], None, lambda _: ["len"])

    def concat(self, items: Iterable[DayflyLazyFrame], *, how: str) -> DayflyLazyFrame:
        """Returns the rows of all frames."""
        frames = list(items)
        if how.startswith("diagonal"):
            frames = list(self.align_diagonal(frames))
        elif any(frame.schema != frames[0].schema for frame in frames[1:]):
            raise TypeError("inputs should all have the same schema")
        return frames[0]._with_native(reduce(lambda a, b: a.concat(b), (frame.native for frame in frames)))

    def concat_str(self, *exprs: DayflyExpr, separator: str, ignore_nulls: bool) -> Any:
        """Joins texts."""

        def func(values: Sequence[Sql]) -> Sql:
            texts = [cast(value, "Utf8") for value in values]
            joined = call("concat_ws", literal(separator), *texts)
            if ignore_nulls:
                return joined
            return case(reduce(lambda a, b: a & b, (value.is_not_null() for value in values)), joined)

        return DayflyExpr._from_elementwise_horizontal_op(func, *exprs)

    def mean_horizontal(self, *exprs: DayflyExpr) -> Any:
        """Returns the mean of the values of a row."""

        def func(values: Sequence[Sql]) -> Sql:
            total = reduce(lambda a, b: a + b, (call("coalesce", value, literal(0)) for value in values))
            number = reduce(lambda a, b: a + b, (cast(value.is_not_null(), "Int64") for value in values))
            return total / call("nullif", number, literal(0))

        return DayflyExpr._from_elementwise_horizontal_op(func, *exprs)

    def _combined(self, func: Callable[..., Any], window: Any, exprs: Sequence[DayflyExpr]) -> DayflyExpr:
        names, aliases = combine_evaluate_output_names(*exprs), combine_alias_output_names(*exprs)
        return self._made(func, window, names, aliases)

    def _of_two(self, aggregate: Callable[..., Sql], a: DayflyExpr, b: DayflyExpr) -> DayflyExpr:
        """Returns an aggregate of two columns. It gets the columns, and what makes a window of each of its calls."""

        def both(frame: DayflyLazyFrame) -> list[Sql]:
            return [frame._evaluate_single_output_expr(expr) for expr in (a, b)]

        def func(frame: DayflyLazyFrame) -> list[Sql]:
            return [aggregate(*both(frame), lambda value: value)]

        def window(frame: DayflyLazyFrame, inputs: Any) -> list[Sql]:
            return [aggregate(*both(frame), lambda value: over(value, inputs.partition_by))]

        return self._combined(func, window, (a, b))

    def corr(self, a: DayflyExpr, b: DayflyExpr, *, method: str) -> DayflyExpr:
        """Returns the correlation of two columns."""
        if method != "pearson":
            raise NotImplementedError(f'method="{method}": frames of Dayfly have the correlation "pearson"')
        return self._of_two(lambda x, y, window: window(call("corr", x, y)), a, b)

    def cov(self, a: DayflyExpr, b: DayflyExpr, *, ddof: int) -> DayflyExpr:
        """Returns the covariance of two columns."""

        def func(x: Sql, y: Sql, window: Callable[[Sql], Sql]) -> Sql:
            if ddof == 0:
                return window(call("covar_pop", x, y))
            number = window(call("count", case(x.is_not_null() & y.is_not_null(), literal(1))))
            total = window(call("covar_pop", x, y)) * number
            return case(number > literal(ddof), total / (number - literal(ddof)))

        return self._of_two(func, a, b)

    def list(self, *exprs: DayflyExpr) -> DayflyExpr:
        """Returns the values of a row as a list."""
        return self._combined(
            lambda frame: [call("make_array", *(value for expr in exprs for value in expr(frame)))], None, exprs
        )

    def struct(self, *exprs: DayflyExpr) -> DayflyExpr:
        """Returns the values of a row under their names."""

        def func(frame: DayflyLazyFrame) -> list[Sql]:
            parts = [part for name, value in frame._named(exprs) for part in (Sql(string(name)), value)]
            return [call("named_struct", *parts)]

        return self._combined(func, None, exprs)

    def scan_csv(self, source: Any, *, separator: str = ",", **options: Any) -> Any:
        """Raises an error: a session reads files."""
        raise NotImplementedError("a session reads files: narwhals.from_native(session.scan_csv(...))")

    def scan_parquet(self, source: Any, **options: Any) -> Any:
        """Raises an error: a session reads files."""
        raise NotImplementedError("a session reads files: narwhals.from_native(session.scan_parquet(...))")
