"""Expressions over the columns of a frame."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any, NoReturn

from dayfly_frames import _frames
from dayfly_frames._constant import constant


def lit(value: Any) -> Expr:
    """Returns a constant: None, a bool, int, float, str, bytes, Decimal, date, datetime or timedelta."""
    return Expr(constant(value))


def col(name: str) -> Expr:
    """Returns the column of this name."""
    return Expr(_frames.Expr.column(name))


def as_expr(value: Any) -> Expr:
    """Returns an expression as it is, and anything else as a constant."""
    return value if isinstance(value, Expr) else lit(value)


def as_column(value: Any) -> Expr:
    """Returns an expression as it is, a name as its column, and anything else as a constant."""
    return col(value) if isinstance(value, str) else as_expr(value)


class Expr:
    """An expression over the columns of a frame. Operators and methods make further ones; nothing is computed."""

    def __init__(self, native: _frames.Expr) -> None:
        self._native = native

    @property
    def name(self) -> str:
        """Name of the resulting column: that of its first column, unless `alias` gave another."""
        return self._native.name()

    @property
    def native(self) -> _frames.Expr:
        """The native expression."""
        return self._native

    def __repr__(self) -> str:
        return f"<Expr {self._native!r}>"

    def __bool__(self) -> NoReturn:
        raise TypeError("an expression has no truth: write & for and, | for or, ~ for not, in parentheses")

    def __hash__(self) -> int:
        return id(self)

    def _binary(self, operator: str, other: Any) -> Expr:
        return Expr(self._native.binary(operator, as_expr(other)._native))

    def _reversed(self, operator: str, other: Any) -> Expr:
        return Expr(lit(other)._native.binary(operator, self._native)).alias(self.name)

    def _call(self, function: str, *arguments: Any) -> Expr:
        return Expr(_frames.Expr.call(function, [self._native, *(as_expr(value)._native for value in arguments)]))

    def _aggregate(self, function: str, distinct: bool = False) -> Expr:
        return Expr(_frames.Expr.aggregate(function, [self._native], distinct))

    def __add__(self, other: Any) -> Expr:
        return self._binary("+", other)

    def __radd__(self, other: Any) -> Expr:
        return self._reversed("+", other)

    def __sub__(self, other: Any) -> Expr:
        return self._binary("-", other)

    def __rsub__(self, other: Any) -> Expr:
        return self._reversed("-", other)

    def __mul__(self, other: Any) -> Expr:
        return self._binary("*", other)

    def __rmul__(self, other: Any) -> Expr:
        return self._reversed("*", other)

    def __truediv__(self, other: Any) -> Expr:
        """Divides as Python does: integers give a float64."""
        return self.cast("float64")._binary("/", other)

    def __rtruediv__(self, other: Any) -> Expr:
        return self.cast("float64")._reversed("/", float(other))

    def __mod__(self, other: Any) -> Expr:
        """Remainder as in SQL: it has the sign of the dividend."""
        return self._binary("%", other)

    def __neg__(self) -> Expr:
        return Expr(self._native.negate())

    def __eq__(self, other: object) -> Expr:  # type: ignore[override]
        return self._binary("==", other)

    def __ne__(self, other: object) -> Expr:  # type: ignore[override]
        return self._binary("!=", other)

    def __lt__(self, other: Any) -> Expr:
        return self._binary("<", other)

    def __le__(self, other: Any) -> Expr:
        return self._binary("<=", other)

    def __gt__(self, other: Any) -> Expr:
        return self._binary(">", other)

    def __ge__(self, other: Any) -> Expr:
        return self._binary(">=", other)

    def __and__(self, other: Any) -> Expr:
        return self._binary("&", other)

    def __or__(self, other: Any) -> Expr:
        return self._binary("|", other)

    def __invert__(self) -> Expr:
        return Expr(self._native.invert())

    def alias(self, name: str) -> Expr:
        """Returns the expression under another name."""
        return Expr(self._native.alias(name))

    def cast(self, kind: str) -> Expr:
        """Returns the value as another type.

        Args:
            kind: ``bool``, ``int8`` to ``int64``, ``uint8`` to ``uint64``, ``float32``, ``float64``, ``decimal(DIGITS,
                SCALE)``, ``string``, ``binary``, ``date``, ``timestamp[UNIT]``, ``timestamp[UNIT, ZONE]`` or
                ``duration[UNIT]``; a unit is ``s``, ``ms``, ``us`` or ``ns``.

        Raises:
            dayfly.RequestError: if there is no such type.
        """
        return Expr(self._native.cast(kind))

    def is_null(self) -> Expr:
        """Whether the value is null."""
        return Expr(self._native.is_null())

    def is_not_null(self) -> Expr:
        """Whether the value is not null."""
        return Expr(self._native.is_not_null())

    def is_in(self, values: Iterable[Any]) -> Expr:
        """Whether the value is one of these; null if it is null."""
        several = list(values)
        found = Expr(self._native.is_in([as_expr(value)._native for value in several]))
        numbers = [value for value in several if isinstance(value, int | float | Decimal)]
        zeros = [value for value in numbers if value == 0 and not isinstance(value, bool)]
        if not zeros:
            return found
        # A long list is looked up by its bits, in which -0.0 and 0.0 differ. An "or" would be merged into the list.
        return Expr(_frames.Expr.case([((self == zeros[0])._native, lit(True)._native)], found._native))

    def is_between(self, low: Any, high: Any) -> Expr:
        """Whether the value lies between these, both included."""
        return Expr((self >= low)._native.binary("&", (self <= high)._native))

    def fill_null(self, value: Any) -> Expr:
        """Returns the value, or another one where it is null."""
        return self._call("coalesce", value)

    def abs(self) -> Expr:
        """Its distance from zero."""
        return self._call("abs")

    def round(self, decimals: int = 0) -> Expr:
        """Rounded to this many decimals; halves away from zero."""
        return self._call("round", decimals)

    def sum(self) -> Expr:
        """Sum of a group, without nulls; null if it has no value, as in SQL."""
        return self._aggregate("sum")

    def mean(self) -> Expr:
        """Mean of a group, without nulls."""
        return self._aggregate("avg")

    def min(self) -> Expr:
        """Smallest value of a group."""
        return self._aggregate("min")

    def max(self) -> Expr:
        """Largest value of a group."""
        return self._aggregate("max")

    def count(self) -> Expr:
        """Number of values of a group that are not null."""
        return self._aggregate("count")

    def n_unique(self) -> Expr:
        """Number of different values of a group that are not null."""
        return self._aggregate("count", distinct=True)

    def median(self) -> Expr:
        """Median of a group."""
        return self.cast("float64")._aggregate("median")

    def std(self) -> Expr:
        """Standard deviation of a sample."""
        return self._aggregate("stddev")

    def var(self) -> Expr:
        """Variance of a sample."""
        return self._aggregate("var")

    def over(
        self,
        *partition_by: Expr | str,
        order_by: Expr | str | Sequence[Expr | str] = (),
        descending: bool = False,
    ) -> Expr:
        """Computes an aggregate for each row, over the rows with the same values in ``partition_by``.

        With ``order_by``, over the rows up to this one, as in SQL.
        """
        keys = [order_by] if isinstance(order_by, Expr | str) else order_by
        native = self._native.over(
            [as_column(key)._native for key in partition_by],
            [(as_column(key)._native, descending) for key in keys],
        )
        return Expr(native)

    @property
    def str(self) -> Text:
        """Functions of texts."""
        return Text(self)

    @property
    def dt(self) -> Time:
        """Functions of dates and times."""
        return Time(self)


class Text:
    """Functions of texts: ``col("name").str``."""

    def __init__(self, of: Expr) -> None:
        self._of = of

    def contains(self, part: str) -> Expr:
        """Whether the text has this part, taken literally."""
        return self._of._call("contains", part)

    def starts_with(self, prefix: str) -> Expr:
        """Whether the text begins so."""
        return self._of._call("starts_with", prefix)

    def ends_with(self, suffix: str) -> Expr:
        """Whether the text ends so."""
        return self._of._call("ends_with", suffix)

    def to_lowercase(self) -> Expr:
        """In small letters."""
        return self._of._call("lower")

    def to_uppercase(self) -> Expr:
        """In capital letters."""
        return self._of._call("upper")

    def len_chars(self) -> Expr:
        """Number of characters."""
        return self._of._call("character_length")


class Time:
    """Functions of dates and times: ``col("when").dt``."""

    def __init__(self, of: Expr) -> None:
        self._of = of

    def _part(self, part: str) -> Expr:
        return Expr(_frames.Expr.call("date_part", [lit(part).native, self._of.native])).alias(self._of.name)

    def year(self) -> Expr:
        """The year."""
        return self._part("year")

    def month(self) -> Expr:
        """The month: 1 to 12."""
        return self._part("month")

    def day(self) -> Expr:
        """The day of the month: 1 to 31."""
        return self._part("day")

    def hour(self) -> Expr:
        """The hour: 0 to 23."""
        return self._part("hour")


def count(column: str | None = None) -> Expr:
    """Returns the number of rows of a group, or of its values in a column that are not null."""
    if column is not None:
        return col(column).count()
    return Expr(_frames.Expr.count_rows())


def sum(column: str) -> Expr:
    """Returns the sum of a column."""
    return col(column).sum()


def mean(column: str) -> Expr:
    """Returns the mean of a column."""
    return col(column).mean()


def min(column: str) -> Expr:
    """Returns the smallest value of a column."""
    return col(column).min()


def max(column: str) -> Expr:
    """Returns the largest value of a column."""
    return col(column).max()


def median(column: str) -> Expr:
    """Returns the median of a column."""
    return col(column).median()


def std(column: str) -> Expr:
    """Returns the standard deviation of a column."""
    return col(column).std()


def var(column: str) -> Expr:
    """Returns the variance of a column."""
    return col(column).var()


def n_unique(column: str) -> Expr:
    """Returns the number of different values of a column."""
    return col(column).n_unique()


def row_number() -> Expr:
    """Returns the number of a row, from 1 on; use it with `Expr.over`."""
    return Expr(_frames.Expr.window("row_number", []))


def coalesce(*values: Any) -> Expr:
    """Returns the first value that is not null. Texts are names of columns."""
    columns = [as_column(value) for value in values]
    if not columns:
        raise ValueError("coalesce() needs at least one value")
    return Expr(_frames.Expr.call("coalesce", [column.native for column in columns]))


class When:
    """A condition without its value: ``when(condition).then(value)``."""

    def __init__(self, branches: list[tuple[_frames.Expr, _frames.Expr]], condition: Any) -> None:
        self._branches = branches
        self._condition = as_expr(condition)

    def then(self, value: Any) -> Then:
        """Returns the value where the condition holds, and null elsewhere. A text is the name of a column."""
        return Then([*self._branches, (self._condition.native, as_column(value).native)])


class Then(Expr):
    """The values of conditions: add `when` or `otherwise`, or use it as it is, with null elsewhere."""

    def __init__(self, branches: list[tuple[_frames.Expr, _frames.Expr]]) -> None:
        super().__init__(_frames.Expr.case(branches, None))
        self._branches = branches

    def when(self, condition: Any) -> When:
        """Begins a further branch, for rows that no branch before it has."""
        return When(self._branches, condition)

    def otherwise(self, value: Any) -> Expr:
        """Returns the value of all other rows. A text is the name of a column."""
        return Expr(_frames.Expr.case(self._branches, as_column(value).native))


def when(condition: Any) -> When:
    """Begins a choice between values: ``when(col("x") > 0).then(1).otherwise(0)``."""
    return When([], condition)
