"""Random tables with the values that go wrong, in Parquet files."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet
from hypothesis import strategies as st

from harness.expected_rows import Row, identity

#: Type of a column, the values that go wrong, and a source of others.
KINDS: dict[str, tuple[pa.DataType, list[Any], Callable[[random.Random], Any]]] = {
    "bool": (pa.bool_(), [False, True], lambda rng: rng.random() < 0.5),
    "int8": (pa.int8(), [0, -128, 127], lambda rng: rng.randrange(-128, 128)),
    "int64": (pa.int64(), [0, -1, 2**31, -(2**40)], lambda rng: rng.randrange(-1000, 1000)),
    "uint64": (pa.uint64(), [0, 2**63, 2**64 - 1], lambda rng: rng.randrange(1000)),
    "float64": (
        pa.float64(),
        [0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324, 0.1],
        lambda rng: rng.randrange(-500, 500) / 8,
    ),
    "decimal": (
        pa.decimal128(12, 2),
        [Decimal("0.00"), Decimal("-0.01"), Decimal("9999999999.99")],
        lambda rng: Decimal(rng.randrange(-9999, 9999)).scaleb(-2),
    ),
    "string": (
        pa.string(),
        ["", "a", "A", " a", "é", "e\u0301", "水", "🜁", "\0"],
        lambda rng: f"s{rng.randrange(500)}",
    ),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), ["", "a", "水"], lambda rng: f"s{rng.randrange(500)}"),
    "date": (
        pa.date32(),
        [dt.date(1970, 1, 1), dt.date(1, 1, 1), dt.date(9999, 12, 31)],
        lambda rng: dt.date(2024, 1, 1) + dt.timedelta(days=rng.randrange(500)),
    ),
    "timestamp": (
        pa.timestamp("us"),
        [dt.datetime(1970, 1, 1), dt.datetime(1969, 12, 31, 23, 59, 59, 999_999)],
        lambda rng: dt.datetime(2024, 1, 1) + dt.timedelta(microseconds=rng.randrange(10**12)),
    ),
    "null": (pa.null(), [None], lambda rng: None),
}

#: Kinds whose values a join compares with those of another kind.
ALIKE = {"int8": "int64", "int64": "uint64", "string": "dictionary", "dictionary": "string"}


class Source(NamedTuple):
    """The rows of a table, in the files that have them."""

    kinds: dict[str, str]
    rows: list[Row]
    files: int

    def write(self, place: Path) -> Path:
        """Writes the files into a new directory."""
        place.mkdir()
        schema = pa.schema([(name, KINDS[kind][0]) for name, kind in self.kinds.items()])
        for file in range(self.files):
            part = self.rows[file :: self.files]
            columns = [pa.array([row[name] for row in part], KINDS[kind][0]) for name, kind in self.kinds.items()]
            pa.parquet.write_table(pa.table(columns, schema=schema), place / f"{file}.parquet", row_group_size=400)
        return place


def pool(kind: str, seed: int, distinct: int) -> list[Any]:
    """Returns different values of a kind, the ones that go wrong first: as many, or all that there are."""
    _, special, other = KINDS[kind]
    rng = random.Random(f"{kind} {seed}")
    values = rng.sample(special, len(special))
    values.extend(other(rng) for _ in range(distinct))
    return list({identity(value): value for value in values}.values())[:distinct]


@st.composite
def sources(draw: st.DrawFn, kinds: dict[str, str], *, seed: int, max_rows: int = 2_000) -> Source:
    """Draws a table with columns of these kinds. Columns of one kind and seed share their values."""
    sizes = [size for size in (0, 1, 2, 9, 60, 400, 2_000) if size <= max_rows]
    number, files = draw(st.sampled_from(sizes)), draw(st.integers(1, 4))
    distinct, skew = draw(st.sampled_from([1, 2, 7, 40])), draw(st.sampled_from([1, 6]))
    missing = draw(st.sampled_from([0, 0.1, 0.6]))
    rng = random.Random(draw(st.integers(0, 2**32)))
    columns = {}
    for name, kind in kinds.items():
        values = pool(kind, seed, distinct)

        def value(values: list[Any] = values) -> Any:
            return None if rng.random() < missing else values[int(len(values) * rng.random() ** skew)]

        columns[name] = [value() for _ in range(number)]
    rows = [dict(zip(kinds, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return Source(kinds, rows, files)


OPERATORS = ["==", "!=", "<", "<=", ">", ">="]


def conditions(kinds: dict[str, str], seed: int) -> st.SearchStrategy[tuple[Any, ...]]:
    """Draws conditions over columns of these kinds, as tuples: `harness.expected_rows.holds` reads them."""
    names = st.sampled_from(sorted(kinds))

    def values(name: str) -> st.SearchStrategy[Any]:
        kind = kinds[name]
        other = {"int8": "int64", "int64": "int8"}.get(kind, kind)
        return st.sampled_from([None, *pool(kind, seed, 9), *pool(other, seed, 9)])

    def of(name: str) -> st.SearchStrategy[tuple[Any, ...]]:
        same = [other for other in kinds if kinds[other] == kinds[name]]
        return st.one_of(
            st.tuples(st.just("is_null"), st.just(name)),
            st.tuples(st.just("value"), st.sampled_from(OPERATORS), st.just(name), values(name)),
            st.tuples(st.just("is_in"), st.just(name), st.lists(values(name), max_size=4)),
            st.tuples(st.just("column"), st.sampled_from(OPERATORS), st.just(name), st.sampled_from(same)),
        )

    drawn = st.recursive(
        names.flatmap(of),
        lambda inner: st.one_of(
            st.tuples(st.just("not"), inner), st.tuples(st.sampled_from(["and", "or"]), inner, inner)
        ),
        max_leaves=4,
    )
    return drawn.filter(lambda condition: len(set(lists := list(_listed(condition)))) == len(lists))


def _listed(condition: tuple[Any, ...]) -> Iterator[str]:
    """Yields the columns that lists are for. DataFusion takes two lists of one column without a common value for false,
    although they are unknown for null.
    """
    if condition[0] == "is_in":
        yield condition[1]
    for part in condition[1:]:
        if condition[0] in ("and", "or", "not"):
            yield from _listed(part)
