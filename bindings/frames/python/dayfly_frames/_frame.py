"""Lazy frames."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from dayfly_frames import _frames
from dayfly_frames._expr import Expr, as_column, as_expr, col, lit
from dayfly_frames._table import Table

Columns = Expr | str | Iterable[Expr | str]
How = Literal["inner", "left", "right", "full", "semi", "anti", "cross"]


def _all(columns: tuple[Columns, ...]) -> list[Expr]:
    found: list[Expr] = []
    for column in columns:
        if isinstance(column, Expr | str):
            found.append(as_column(column))
        else:
            found.extend(as_column(each) for each in column)
    return found


def _keys(on: str | Sequence[str]) -> list[str]:
    return [on] if isinstance(on, str) else list(on)


class Frame:
    """A table that the ranks compute when it is collected. Every method returns a new frame."""

    def __init__(self, native: _frames.Frame) -> None:
        self._native = native

    @property
    def native(self) -> _frames.Frame:
        """The native frame."""
        return self._native

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return [name for name, _ in self._native.fields]

    @property
    def schema(self) -> dict[str, str]:
        """Name and Arrow type of each column."""
        return dict(self._native.fields)

    def __repr__(self) -> str:
        columns = ", ".join(f"{name}: {kind}" for name, kind in self._native.fields)
        return f"<Frame {columns}; collect() computes it>"

    def select(self, *columns: Columns, **named: Any) -> Frame:
        """Returns these columns only."""
        chosen = [*_all(columns), *(as_expr(value).alias(name) for name, value in named.items())]
        return Frame(self._native.select([column.named for column in chosen]))

    def with_columns(self, *columns: Columns, **named: Any) -> Frame:
        """Returns the frame with further columns, or others under the same names. All see the columns as they were."""
        chosen = [*_all(columns), *(as_expr(value).alias(name) for name, value in named.items())]
        return Frame(self._native.with_columns([(column.name, column.native) for column in chosen]))

    def drop(self, *columns: str) -> Frame:
        """Returns the frame without these columns."""
        unknown = [name for name in columns if name not in self.columns]
        if unknown:
            raise ValueError(f"there is no column {unknown[0]!r}; columns are: {', '.join(self.columns)}")
        return self.select(*(name for name in self.columns if name not in columns))

    def rename(self, names: Mapping[str, str]) -> Frame:
        """Returns the frame with other names for some columns."""
        return self.select(*(col(name).alias(names.get(name, name)) for name in self.columns))

    def cast(self, types: Mapping[str, str]) -> Frame:
        """Returns the frame with other types for some columns, as `Expr.cast`."""
        return self.with_columns(*(col(name).cast(kind) for name, kind in types.items()))

    def fill_null(self, value: Any) -> Frame:
        """Returns the frame with this value instead of nulls, in all columns."""
        return self.select(*(col(name).fill_null(value) for name in self.columns))

    def filter(self, *conditions: Expr) -> Frame:
        """Returns the rows for which all conditions hold. A null does not hold."""
        frame = self._native
        for condition in conditions:
            frame = frame.filter(condition.native)
        return Frame(frame)

    def join(
        self,
        other: Frame,
        on: str | Sequence[str] | None = None,
        how: How = "inner",
        *,
        left_on: str | Sequence[str] | None = None,
        right_on: str | Sequence[str] | None = None,
    ) -> Frame:
        """Returns the rows of both frames that have the same keys.

        Columns of the right side whose names the left side has get the suffix ``_right``. Nulls are equal to nothing.

        Args:
            other: the right side.
            on: names of the keys, on both sides.
            how: ``inner``; ``left``, ``right`` or ``full`` to keep rows without a partner; ``semi`` or ``anti`` for
                rows of the left side that have one, or none; ``cross`` for all pairs.
            left_on: names of the keys on the left side, if they differ.
            right_on: names of the keys on the right side.

        Raises:
            ValueError: if the keys of the sides do not match in number.
        """
        left = _keys(on if on is not None else left_on or [])
        right = _keys(on if on is not None else right_on or [])
        if len(left) != len(right) or (how == "cross") != (not left):
            raise ValueError(
                "a join needs on=, or left_on= and right_on= with equally many keys; only a cross join has none"
            )
        return Frame(self._native.join(other._native, left, right, how))

    def group_by(self, *keys: Columns) -> GroupBy:
        """Groups the rows by these keys: ``frame.group_by("zone").agg(count())``."""
        return GroupBy(self, _all(keys))

    def sort(self, *by: Columns, descending: bool | Sequence[bool] = False) -> Frame:
        """Returns the rows in order. Nulls come last.

        Args:
            by: the keys, the first one first.
            descending: whether the largest comes first: for all keys, or for each.
        """
        keys = _all(by)
        flags = [descending] * len(keys) if isinstance(descending, bool) else list(descending)
        if len(flags) != len(keys):
            raise ValueError(f"descending= has {len(flags)} values for {len(keys)} keys")
        return Frame(self._native.sort([(key.native, flag) for key, flag in zip(keys, flags, strict=True)]))

    def unique(self) -> Frame:
        """Returns each different row once, in any order."""
        return Frame(self._native.distinct())

    def head(self, n: int = 5) -> Frame:
        """Returns the first rows: of a sorted frame its first ones, of another any."""
        return self.slice(0, n)

    limit = head

    def slice(self, offset: int, length: int | None = None) -> Frame:
        """Returns rows from an offset on."""
        if offset < 0 or (length is not None and length < 0):
            raise ValueError("offset and length count rows from the first one: they are not negative")
        return Frame(self._native.limit(offset, length))

    def concat(self, other: Frame) -> Frame:
        """Returns the rows of both frames, which have the same columns."""
        return Frame(self._native.combine("union", other._native))

    def union(self, other: Frame) -> Frame:
        """Returns the different rows of both frames."""
        return Frame(self._native.combine("union_distinct", other._native))

    def intersect(self, other: Frame) -> Frame:
        """Returns the different rows that both frames have."""
        return Frame(self._native.combine("intersect_distinct", other._native))

    def except_(self, other: Frame) -> Frame:
        """Returns the different rows that the other frame lacks."""
        return Frame(self._native.combine("except_distinct", other._native))

    def explain(self) -> str:
        """Returns the plan: stages, their tasks, and what each exchanges."""
        return self._native.explain()

    def collect(self) -> Table:
        """Computes the frame on the ranks, and returns its rows.

        Raises:
            dayfly.RequestError: if the query or its input is invalid.
            dayfly.GroupError: if a rank was lost.
        """
        return Table(self._native.collect())

    def describe(self) -> Table:
        """Computes number of values, nulls, mean, standard deviation, minimum and maximum of all numeric columns."""
        numeric = [name for name, kind in self._native.fields if kind.startswith(("Int", "UInt", "Float", "Decimal"))]
        rows: Frame | None = None
        for name in numeric:
            column = col(name)
            one = self.select(
                lit(name).alias("column"),
                column.alias("value").cast("float64"),
            ).group_by("column").agg(
                col("value").count().alias("count"),
                (Expr.count(lit(1)) - col("value").count()).alias("null_count"),
                col("value").mean().alias("mean"),
                col("value").std().alias("std"),
                col("value").min().alias("min"),
                col("value").max().alias("max"),
            )
            rows = one if rows is None else rows.concat(one)
        if rows is None:
            raise ValueError("this frame has no column of numbers to describe")
        return rows.sort("column").collect()

    def merge(self, right: Frame, how: Literal["inner", "left", "right", "outer", "cross"] = "inner", on: Any = None) -> Frame:
        """Joins as `join` does, by pandas' name."""
        return self.join(right, on, "full" if how == "outer" else how)

    def groupby(self, *keys: Columns) -> GroupBy:
        """Groups as `group_by` does, by pandas' name."""
        return self.group_by(*keys)

    def drop_duplicates(self) -> Frame:
        """Returns each different row once, by pandas' name for `unique`."""
        return self.unique()

    def sort_values(self, by: str | Sequence[str], ascending: bool | Sequence[bool] = True) -> Frame:
        """Sorts as `sort` does, by pandas' name."""
        flags = not ascending if isinstance(ascending, bool) else [not flag for flag in ascending]
        return self.sort(*_keys(by), descending=flags)


class GroupBy:
    """Rows in groups: `Frame.group_by`."""

    def __init__(self, frame: Frame, keys: list[Expr]) -> None:
        self._frame = frame
        self._keys = keys

    def agg(self, *values: Expr, **named: Expr) -> Frame:
        """Returns one row for each group, with the keys and these values."""
        chosen = [*values, *(value.alias(name) for name, value in named.items())]
        keys = [key.named for key in self._keys]
        return Frame(self._frame.native.aggregate(keys, [value.named for value in chosen]))
