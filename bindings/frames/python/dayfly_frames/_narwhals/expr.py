"""narwhals' expressions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from narwhals._sql.expr import SQLExpr
from narwhals._utils import NO_DEFAULT, Implementation, check_columns_exist, extend_bool, not_implemented

from dayfly_frames._narwhals.lists import DayflyLists, DayflyStructs
from dayfly_frames._narwhals.sql import (
    Sql,
    call,
    case,
    cast,
    column,
    literal,
    order_clause,
    ordered,
    over,
    rows_between,
)
from dayfly_frames._narwhals.text import DayflyText
from dayfly_frames._narwhals.time import DayflyTime
from dayfly_frames._narwhals.types import arrow_type


class DayflyExpr(SQLExpr[Any, Any]):
    """An expression: it makes SQL when a frame evaluates it."""

    _implementation = Implementation.UNKNOWN

    def __init__(
        self,
        call: Any,
        window_function: Any = None,
        *,
        evaluate_output_names: Any,
        alias_output_names: Any,
        version: Any,
        implementation: Any = Implementation.UNKNOWN,
    ) -> None:
        self._call = call
        self._evaluate_output_names = evaluate_output_names
        self._alias_output_names = alias_output_names
        self._version = version
        self._window_function = window_function

    def __narwhals_namespace__(self) -> Any:
        from dayfly_frames._narwhals.namespace import DayflyNamespace

        return DayflyNamespace(version=self._version)

    @classmethod
    def _of_names(cls, names: Callable[[Any], Sequence[str]], version: Any) -> DayflyExpr:
        def func(frame: Any) -> list[Sql]:
            found = names(frame)
            if error := check_columns_exist(found, available=frame.columns):
                raise error
            return [column(name) for name in found]

        return cls(func, evaluate_output_names=names, alias_output_names=None, version=version)

    @classmethod
    def from_column_names(cls, evaluate_column_names: Any, /, *, context: Any) -> DayflyExpr:
        """Returns columns by their names."""
        return cls._of_names(evaluate_column_names, context._version)

    @classmethod
    def from_column_indices(cls, *column_indices: int, context: Any) -> DayflyExpr:
        """Returns columns by their places."""
        return cls._of_names(cls._eval_names_indices(column_indices), context._version)

    @classmethod
    def _alias_native(cls, expr: Sql, name: str, /) -> str:
        return expr.alias(name)

    def broadcast(self) -> Any:
        """Returns an aggregate of all rows for each row."""
        return self.over([], [])

    def _count_star(self) -> Sql:
        return Sql("count(*)")

    def _window_expression(
        self,
        expr: Sql,
        partition_by: Sequence[str | Sql] = (),
        order_by: Sequence[str | Sql] = (),
        rows_start: int | None = None,
        rows_end: int | None = None,
        *,
        descending: Sequence[bool] | None = None,
        nulls_last: Sequence[bool] | None = None,
    ) -> Sql:
        flags = extend_bool(False, len(order_by))
        order = order_clause(order_by, descending or flags, nulls_last or flags)
        return over(expr, partition_by, order, rows_between(rows_start, rows_end))

    def _of_ordered(self, function: str, expr: Sql, keys: Sequence[str]) -> Sql:
        order = ordered(keys)
        return Sql(f"{function}({expr.text} {order})", ordered=(f"{function}({expr.text})", order))

    def _first(self, expr: Sql, *keys: str) -> Sql:
        return self._of_ordered("first_value", expr, keys)

    def _last(self, expr: Sql, *keys: str) -> Sql:
        return self._of_ordered("last_value", expr, keys)

    def _any_value(self, expr: Sql, *, ignore_nulls: bool) -> Sql:
        return Sql(f"first_value({expr.text}){' IGNORE NULLS' if ignore_nulls else ''}")

    def __mod__(self, other: Any) -> Any:
        return self._with_binary(lambda expr, other: expr % other, other)

    def __rmod__(self, other: Any) -> Any:
        return self._with_binary(lambda expr, other: other % expr, other).alias("literal")

    def __floordiv__(self, other: Any) -> Any:
        return self._with_binary(_floor_divided, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return self._with_binary(lambda expr, other: _floor_divided(other, expr), other).alias("literal")

    def __invert__(self) -> Any:
        return self._with_elementwise(lambda value: ~value)

    def __neg__(self) -> Any:
        return self._with_elementwise(lambda value: -value)

    def len(self) -> Any:
        """Number of rows."""
        return self._with_callable(lambda _: Sql("count(*)"))

    def null_count(self) -> Any:
        """Number of nulls."""
        return self._with_callable(lambda value: call("count", case(value.is_null(), literal(1))))

    def quantile(self, quantile: float, interpolation: str) -> Any:
        """Returns an exact quantile."""
        if interpolation != "linear":
            raise NotImplementedError(
                f'interpolation="{interpolation}": frames of Dayfly have quantiles with interpolation="linear"'
            )
        return self._with_callable(
            # DataFusion's is of the type of the values.
            lambda value: call("percentile_cont", cast(value, "Float64"), literal(quantile))
        )

    def is_nan(self) -> Any:
        """Whether the value is NaN."""
        return self._with_elementwise(lambda value: call("isnan", value))

    def is_finite(self) -> Any:
        """Whether the value is neither NaN nor infinite. NaN is above all numbers."""
        return self._with_elementwise(lambda value: call("abs", value) < literal(float("inf")))

    def is_in(self, other: Sequence[Any]) -> Any:
        """Whether the value is one of these."""
        values = [value for value in other if value is not None]

        def func(value: Sql) -> Sql:
            if not values:
                return case(value.is_not_null(), literal(False))
            found = Sql(f"({value.text} IN ({', '.join(literal(each).text for each in values)}))")
            zeros = [each for each in values if isinstance(each, float) and each == 0]
            # A long list is looked up by its bits, in which -0.0 and 0.0 differ.
            return case(value == literal(0.0), literal(True), found) if zeros else found

        return self._with_elementwise(func)

    def fill_null(self, value: Any, strategy: str | None, limit: int | None) -> Any:
        """Returns the value, or another one where it is null."""
        if strategy is None:
            return self._with_elementwise(
                lambda expr, value: call("coalesce", expr, value), expression_args={"value": value}
            )
        is_forward = strategy == "forward"
        function = "last_value" if is_forward else "first_value"
        rows = rows_between(None if limit is None else -limit, 0) if is_forward else rows_between(0, limit)

        def window(frame: Any, inputs: Any) -> list[Sql]:
            order = ordered(inputs.order_by)
            return [
                over(Sql(f"{function}({expr.text}) IGNORE NULLS"), inputs.partition_by, order, rows)
                for expr in self(frame)
            ]

        return self._with_window_function(window)

    def cast(self, dtype: Any) -> Any:
        """Returns the value as another type."""
        kind = arrow_type(dtype, self._version)
        return self._with_elementwise(lambda value: cast(value, kind))

    def replace_strict(self, default: Any, old: Sequence[Any], new: Sequence[Any], *, return_dtype: Any) -> Any:
        """Returns the value that belongs to an old one."""
        if default is NO_DEFAULT:
            raise ValueError("`replace_strict` requires an explicit value for `default` for frames of Dayfly")
        pairs = list(zip(map(literal, old), map(literal, new), strict=True))

        def func(value: Sql, default: Sql) -> Sql:
            found = default
            for before, after in reversed(pairs):
                is_it = value.is_null() if before.text == "NULL" else value == before
                found = case(is_it, after, found)
            return found if return_dtype is None else cast(found, arrow_type(return_dtype, self._version))

        return self._with_elementwise(func, expression_args={"default": default})

    @property
    def str(self) -> DayflyText:
        """Functions of texts."""
        return DayflyText(self)

    @property
    def dt(self) -> DayflyTime:
        """Functions of dates and times."""
        return DayflyTime(self)

    @property
    def list(self) -> DayflyLists:
        """Functions of lists."""
        return DayflyLists(self)

    @property
    def struct(self) -> DayflyStructs:
        """Functions of structs."""
        return DayflyStructs(self)

    mode = not_implemented(hint="Group by the column, and take the group with the largest `nw.len()`.")
    cum_prod = not_implemented(hint="Use the exponential of `cum_sum` of logarithms.")
    skew = not_implemented(hint="Compute it of the means of the column's powers.")
    kurtosis = not_implemented(hint="Compute it of the means of the column's powers.")


def _floor_divided(expr: Sql, other: Sql) -> Sql:
    """Divides as Polars does, and gives integers for integers; null for a division by zero."""
    quotient = expr // other
    zero, one = literal(0), cast(literal(1), "UInt8")
    truncated = quotient - Sql(f"({quotient.text} % {one.text})")
    is_float = Sql(f"(arrow_typeof({quotient.text}) LIKE 'Float%')")
    is_inexact = (Sql(f"({expr.text} % {other.text})") != zero) & ((expr < zero) != (other < zero))
    floor = case(case(is_float, quotient < truncated, is_inexact), truncated - one, truncated)
    return case(other != zero, floor)
