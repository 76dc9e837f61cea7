"""The rows that SQL makes of other rows, in plain Python."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any, Protocol

import pyarrow as pa

Row = dict[str, Any]


class Table(Protocol):
    """Rows, and the names of their columns."""

    @property
    def kinds(self) -> dict[str, str]: ...

    @property
    def rows(self) -> list[Row]: ...


def identity(value: Any) -> Any:
    """Returns a key that is equal for equal values: NaN is equal to itself, and -0.0 to 0.0."""
    if isinstance(value, float):
        return "float", "nan" if math.isnan(value) else value
    if isinstance(value, bool):
        return "bool", value
    return value


def identities(row: Row, names: Iterable[str]) -> tuple[Any, ...]:
    """Returns the key of a row in these columns."""
    return tuple(identity(row[name]) for name in names)


def assert_rows(table: Any, expected: Sequence[Row], columns: Sequence[str]) -> None:
    """Asserts that a table has these columns and rows, in any order."""
    found = pa.table(table)
    assert found.column_names == list(columns)
    have = Counter(identities(row, columns) for row in found.to_pylist())
    want = Counter(identities(row, columns) for row in expected)
    extra, lacking = have - want, want - have
    assert have == want, f"extra: {extra.most_common(5)}; lacking: {lacking.most_common(5)}"


def order(value: Any) -> tuple[Any, ...]:
    """Returns a key that orders values of one type. NaN is larger than all numbers."""
    if isinstance(value, float):
        return math.isnan(value), 0.0 if math.isnan(value) else value
    return (value,)


def signed(value: Any) -> Any:
    """Returns a key like `identity` or `order`, with -0.0 before 0.0: as in `sort` and `over`."""
    return order(value), math.copysign(1, value) if value == 0 and isinstance(value, float) else 0


def compared(operator: str, one: Any, other: Any) -> bool | None:
    """Returns what a comparison of two values is; None if one of them is None."""
    if one is None or other is None:
        return None
    left, right = order(float(one) if isinstance(other, float) else one), order(other)
    return {
        "==": left == right,
        "!=": left != right,
        "<": left < right,
        "<=": left <= right,
        ">": left > right,
        ">=": left >= right,
    }[operator]


def holds(condition: tuple[Any, ...], row: Row) -> bool | None:
    """Returns whether a condition of `harness.random_tables.conditions` holds for a row; None if that is unknown."""
    kind, *parts = condition
    if kind == "not":
        inner = holds(parts[0], row)
        return None if inner is None else not inner
    if kind in ("and", "or"):
        sides = {holds(part, row) for part in parts}
        decided = kind == "or"
        return decided if decided in sides else None if None in sides else not decided
    if kind == "is_null":
        return row[parts[0]] is None
    if kind == "is_in":
        name, values = parts
        found = {compared("==", row[name], value) for value in values}
        return True if True in found else None if None in found else False
    if kind == "column":
        operator, name, other = parts
        return compared(operator, row[name], row[other])
    operator, name, value = parts
    return compared(operator, row[name], value)


def grouped(rows: Iterable[Row], keys: Sequence[str]) -> dict[tuple[Any, ...], list[Row]]:
    """Returns the rows of each group. Rows without a value are one group."""
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[identities(row, keys)].append(row)
    return groups


def _sum(values: list[Any]) -> Any:
    if isinstance(values[0], float):
        if any(map(math.isnan, values)) or {math.inf, -math.inf} <= set(values):
            return math.nan
        return math.fsum(values)
    return sum(values)


def _variance(values: list[Any]) -> float | None:
    numbers = [float(value) for value in values]
    if len(numbers) < 2:
        return None
    return statistics.variance(numbers) if all(map(math.isfinite, numbers)) else math.nan


def _median(values: list[Any]) -> float:
    numbers = sorted((float(value) for value in values), key=order)
    low, high = numbers[(len(numbers) - 1) // 2], numbers[len(numbers) // 2]
    return low if low == high else (low + high) / 2


#: Aggregates of values that are not null, of which there is at least one.
AGGREGATES: dict[str, Callable[[list[Any]], Any]] = {
    "min": lambda values: min(values, key=order),
    "max": lambda values: max(values, key=order),
    "sum": _sum,
    "mean": lambda values: float(_sum(values)) / len(values),
    "median": _median,
    "var": _variance,
    "std": lambda values: None if (found := _variance(values)) is None else math.sqrt(found),
}


def aggregated(name: str, values: list[Any]) -> Any:
    """Returns an aggregate of values."""
    present = [value for value in values if value is not None]
    if name == "count":
        return len(present)
    if name == "n_unique":
        return len(set(map(identity, present)))
    if not present:
        return None
    found = AGGREGATES[name](present)
    # Sums of unsigned integers wrap. Those of signed ones stay small here.
    return found % 2**64 if name == "sum" and isinstance(found, int) and found >= 2**63 else found


def is_close(found: Any, expected: Any, scale: float) -> bool:
    """Whether a number is as expected, up to rounding. The scale is that of the numbers which made it."""
    if found is None or expected is None:
        return found is expected
    if isinstance(expected, float):
        one, other = float(found), float(expected)
        if isinstance(found, Decimal):
            return abs(one - other) <= max(1e-6, 1e-9 * abs(other))
        same = (math.isnan(one) and math.isnan(other)) or one == other
        return same or abs(one - other) <= 1e-9 * max(scale, abs(other))
    return bool(found == expected)


def joined(left: Table, right: Table, on: Sequence[str], how: str, coalesce: bool) -> tuple[list[Row], list[str]]:
    """Returns the rows of a join, and its columns. Columns of the right side that the left one has get ``_right``."""
    partners: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in right.rows:
        partners[identities(row, on)].append(row)

    def of(row: Row) -> list[Row]:
        return [] if any(row[name] is None for name in on) else partners.get(identities(row, on), [])

    if how in ("semi", "anti"):
        return [row for row in left.rows if bool(of(row)) == (how == "semi")], list(left.kinds)
    own = [name for name in left.kinds if how != "right" or name not in on]
    once = how in ("inner", "left") or (how == "full" and coalesce)
    theirs = {name: f"{name}_right" if name in own else name for name in right.kinds if not (once and name in on)}

    def row_of(one: Row | None, other: Row | None) -> Row:
        made = {name: one[name] if one else None for name in own}
        if one is None and other is not None and coalesce:
            made |= {name: other[name] for name in on}
        return made | {renamed: other[name] if other else None for name, renamed in theirs.items()}

    pairs: list[tuple[Row | None, Row | None]]
    pairs = [(row, partner) for row in left.rows for partner in (right.rows if how == "cross" else of(row))]
    if how in ("left", "full"):
        pairs += [(row, None) for row in left.rows if not of(row)]
    if how in ("right", "full"):
        met = {id(partner) for _, partner in pairs}
        pairs += [(None, row) for row in right.rows if id(row) not in met]
    return [row_of(*pair) for pair in pairs], [*own, *theirs.values()]
