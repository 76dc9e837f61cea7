"""Expressions as text, in the SQL of DataFusion."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

#: The whole partition, whatever its order.
ALL_ROWS = "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING"

_EPOCH = dt.datetime(1970, 1, 1)
_MICROSECOND = dt.timedelta(microseconds=1)


class Sql:
    """An expression. Operators make further ones; each is in parentheses or a call."""

    __slots__ = ("ordered", "text")

    def __init__(self, text: str, ordered: tuple[str, str] | None = None) -> None:
        self.text = text
        #: Of an aggregate over ordered rows: its call without the order, and the order.
        self.ordered = ordered

    def __repr__(self) -> str:
        return f"<Sql {self.text}>"

    def __hash__(self) -> int:
        return hash(self.text)

    def _binary(self, operator: str, other: Sql) -> Sql:
        return Sql(f"({self.text} {operator} {other.text})")

    def __eq__(self, other: Sql) -> Sql:  # type: ignore[override]
        return self._binary("=", other)

    def __ne__(self, other: Sql) -> Sql:  # type: ignore[override]
        return self._binary("<>", other)

    def __lt__(self, other: Sql) -> Sql:
        return self._binary("<", other)

    def __le__(self, other: Sql) -> Sql:
        return self._binary("<=", other)

    def __gt__(self, other: Sql) -> Sql:
        return self._binary(">", other)

    def __ge__(self, other: Sql) -> Sql:
        return self._binary(">=", other)

    def __and__(self, other: Sql) -> Sql:
        return self._binary("AND", other)

    def __or__(self, other: Sql) -> Sql:
        return self._binary("OR", other)

    def __add__(self, other: Sql) -> Sql:
        return self._binary("+", other)

    def __sub__(self, other: Sql) -> Sql:
        return self._binary("-", other)

    def __mul__(self, other: Sql) -> Sql:
        return self._binary("*", other)

    def __truediv__(self, other: Sql) -> Sql:
        """Divides as Python does: integers give a float64."""
        return cast(self, "Float64")._binary("/", other)

    def __floordiv__(self, other: Sql) -> Sql:
        """Divides integers, and cuts the result towards zero."""
        return self._binary("/", other)

    def __mod__(self, other: Sql) -> Sql:
        """Remainder as in Python: it has the sign of the divisor."""
        rest = self._binary("%", other)
        zero = Sql("0")
        is_opposite = (rest != zero) & ((rest < zero) != (other < zero))
        return case(is_opposite, rest + other, rest)

    def __pow__(self, other: Sql) -> Sql:
        return call("power", self, other)

    def __invert__(self) -> Sql:
        return Sql(f"(NOT {self.text})")

    def __neg__(self) -> Sql:
        return Sql(f"(- {self.text})")

    def is_null(self) -> Sql:
        """Whether the value is null."""
        return Sql(f"({self.text} IS NULL)")

    def is_not_null(self) -> Sql:
        """Whether the value is not null."""
        return Sql(f"({self.text} IS NOT NULL)")

    def alias(self, name: str) -> str:
        """Returns a column of a query: the expression under a name."""
        return f"{self.text} AS {quoted(name)}"


def quoted(name: str) -> str:
    """Returns a name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def string(text: str) -> str:
    """Returns a text as SQL writes it."""
    return "'" + text.replace("'", "''") + "'"


def column(name: str, table: str | None = None) -> Sql:
    """Returns a column."""
    return Sql(quoted(name) if table is None else f"{table}.{quoted(name)}")


def call(function: str, *arguments: Sql) -> Sql:
    """Calls a function."""
    return Sql(f"{function}({', '.join(each.text for each in arguments)})")


def cast(value: Sql, arrow_type: str) -> Sql:
    """Returns a value as one of Arrow's types."""
    return Sql(f"arrow_cast({value.text}, {string(arrow_type)})")


def case(condition: Sql, value: Sql, otherwise: Sql | None = None) -> Sql:
    """Chooses between values; null if there is no other one."""
    rest = "" if otherwise is None else f" ELSE {otherwise.text}"
    return Sql(f"(CASE WHEN {condition.text} THEN {value.text}{rest} END)")


def literal(value: Any) -> Sql:
    """Returns a constant.

    Raises:
        TypeError: if SQL has no such constant.
    """
    if hasattr(value, "item") and hasattr(value, "dtype"):
        # A number of NumPy.
        value = value.item()
    for kinds, written in _LITERALS:
        if isinstance(value, kinds):
            return written(value)
    raise TypeError(
        f"{value!r} is no constant of a frame: it is None, a bool, int, float, str, bytes, Decimal, date, datetime, "
        "time, timedelta, or a list or dictionary of these"
    )


def _float(value: float) -> Sql:
    return Sql(repr(value)) if math.isfinite(value) else cast(Sql(f"'{value}'"), "Float64")


def _decimal(value: Decimal) -> Sql:
    _, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        return _float(float(value))
    scale = max(-exponent, 0)
    precision = max(len(digits) + max(exponent, 0), scale, 1)
    return cast(Sql(f"'{value:f}'"), f"Decimal128({precision}, {scale})")


def _datetime(value: dt.datetime) -> Sql:
    zone = "None"
    if value.tzinfo is not None:
        zone = f'Some("{getattr(value.tzinfo, "key", None) or "UTC"}")'
        value = value.astimezone(dt.UTC).replace(tzinfo=None)
        return cast(
            cast(Sql(str((value - _EPOCH) // _MICROSECOND)), 'Timestamp(Microsecond, Some("UTC"))'),
            f"Timestamp(Microsecond, {zone})",
        )
    return cast(Sql(str((value - _EPOCH) // _MICROSECOND)), f"Timestamp(Microsecond, {zone})")


def _list(value: Sequence[Any]) -> Sql:
    return call("make_array", *map(literal, value))


def _struct(value: dict[str, Any]) -> Sql:
    if not value:
        raise NotImplementedError("frames of Dayfly have no struct without fields: give it one")
    fields = [part for name, field in value.items() for part in (Sql(string(name)), literal(field))]
    return call("named_struct", *fields)


#: The kinds of constants. A bool is an int as well, and a datetime a date.
_LITERALS: list[tuple[Any, Callable[[Any], Sql]]] = [
    (type(None), lambda _: Sql("NULL")),
    (bool, lambda value: Sql(str(value).upper())),
    (int, lambda value: Sql(str(value))),
    (float, _float),
    (str, lambda value: Sql(string(value))),
    (bytes, lambda value: Sql(f"X'{value.hex()}'")),
    (Decimal, _decimal),
    (dt.datetime, _datetime),
    (dt.date, lambda value: cast(Sql(f"'{value.isoformat()}'"), "Date32")),
    (dt.time, lambda value: cast(Sql(f"'{value.isoformat()}'"), "Time64(Nanosecond)")),
    (dt.timedelta, lambda value: cast(Sql(str(value // _MICROSECOND)), "Duration(Microsecond)")),
    (list | tuple, _list),
    (dict, _struct),
]


def matched(text: Sql, pattern: Sql, value: Sql, *flags: Sql) -> Sql:
    """Replaces matches of a regular expression.

    Raises:
        NotImplementedError: if the replacement is a constant with a backslash.
    """
    if "\\" in value.text:
        # DataFusion takes it for the beginning of a group's number.
        raise NotImplementedError("frames of Dayfly take no backslash in a replacement: say literal=True")
    return call("regexp_replace", text, pattern, value, *flags)


def _called(function: str) -> Callable[..., Sql]:
    return lambda *arguments: call(function, *arguments)


def _part(part: str) -> Callable[..., Sql]:
    return lambda value: call("date_part", Sql(string(part)), value)


#: What narwhals' names of functions are here. All others have the same name.
FUNCTIONS: dict[str, Callable[..., Sql]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    "and": lambda a, b: a & b,
    "isnull": lambda value: value.is_null(),
    "isnotnull": lambda value: value.is_not_null(),
    "count_distinct": lambda value: Sql(f"count(DISTINCT {value.text})"),
    "mean": _called("avg"),
    # DataFusion's median is of the type of the values.
    "median": lambda value: call("median", cast(value, "Float64")),
    "log": _called("ln"),
    "length": _called("character_length"),
    "regexp_matches": _called("regexp_like"),
    "regexp_replace": lambda text, pattern, value: matched(text, pattern, value, literal("g")),
    "str_split": _called("string_to_array"),
    "trim": _called("btrim"),
    "to_date": lambda value: cast(value, "Date32"),
    "dayofyear": _part("doy"),
}
FUNCTIONS |= {part: _part(part) for part in ("year", "month", "day", "hour", "minute", "second", "isodow")}


def function(name: str, *arguments: Any) -> Sql:
    """Calls a function by narwhals' name. What is no expression becomes a constant."""
    several = [each if isinstance(each, Sql) else literal(each) for each in arguments]
    return FUNCTIONS.get(name, _called(name))(*several)


def order_clause(keys: Sequence[str | Sql], descending: Sequence[bool], nulls_last: Sequence[bool]) -> str:
    """Returns ``ORDER BY`` with these keys, or nothing without keys."""
    if not keys:
        return ""
    written = (
        f"{_key(key)} {'DESC' if down else 'ASC'} NULLS {'LAST' if last else 'FIRST'}"
        for key, down, last in zip(keys, descending, nulls_last, strict=True)
    )
    return f"ORDER BY {', '.join(written)}"


def ordered(keys: Sequence[str | Sql], *, descending: bool = False) -> str:
    """Returns an order with nulls first, or its reverse."""
    flags = [descending] * len(keys)
    return order_clause(keys, flags, flags)


def _key(key: str | Sql) -> str:
    return quoted(key) if isinstance(key, str) else key.text


#: Window functions that number rows.
_NUMBERS = ("row_number()", "rank()", "dense_rank()")


def over(value: Sql, partition_by: Sequence[str | Sql], order: str = "", rows: str = "") -> Sql:
    """Computes an aggregate or a window function for each row."""
    text = value.text
    if value.ordered is not None:
        (text, order), rows = value.ordered, ALL_ROWS
    partition = f"PARTITION BY {', '.join(map(_key, partition_by))}" if partition_by else ""
    window = Sql(f"{text} OVER ({' '.join(part for part in (partition, order, rows) if part)})")
    # Together with other integers, unsigned ones of 64 bits become decimal numbers.
    return cast(window, "Int64") if text in _NUMBERS else window


def rows_between(start: int | None, end: int | None) -> str:
    """Returns the rows of a window, counted from the current one; nothing for those that SQL has without it."""
    if start is None and end is None:
        return ""
    return f"ROWS BETWEEN {_bound(start, 'PRECEDING')} AND {_bound(end, 'FOLLOWING')}"


def _bound(offset: int | None, unbounded: str) -> str:
    if offset is None:
        return f"UNBOUNDED {unbounded}"
    return f"{abs(offset)} {'PRECEDING' if offset < 0 else 'FOLLOWING'}" if offset else "CURRENT ROW"
