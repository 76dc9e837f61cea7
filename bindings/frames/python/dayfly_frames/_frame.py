"""Lazy frames."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

from dayfly._failures import error_for

from dayfly_frames import _frames
from dayfly_frames._expr import Expr, as_column, col
from dayfly_frames._map import Batch, columns_of, dumped, name_of
from dayfly_frames._progress import Progress
from dayfly_frames._report import Report
from dayfly_frames._table import Table
from dayfly_frames._write import Writing, names_of

Columns = Expr | str | Iterable[Expr | str]
How = Literal["inner", "left", "right", "full", "semi", "anti", "cross"]
Algorithm = Literal["auto", "hash", "sort"]


def _all(columns: tuple[Columns, ...]) -> list[Expr]:
    found: list[Expr] = []
    for column in columns:
        if isinstance(column, Expr | str):
            found.append(as_column(column))
        else:
            found.extend(as_column(each) for each in column)
    return found


def _each(flags: bool | Sequence[bool], keys: Sequence[Expr], option: str) -> list[bool]:
    if isinstance(flags, bool):
        return [flags] * len(keys)
    if len(flags) != len(keys):
        raise ValueError(f"{option}= has {len(flags)} values for {len(keys)} keys")
    return list(flags)


class Frame(Writing):
    """A table that the ranks compute when it is collected. Every method returns a new frame."""

    def __init__(self, native: _frames.Frame, text: str | None = None) -> None:
        self._native = native
        #: The SQL that it was made of.
        self._text = text

    @property
    def native(self) -> _frames.Frame:
        """The native frame."""
        return self._native

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return self._native.columns()

    @property
    def schema(self) -> dict[str, str]:
        """Name and type of each column, as in `Expr.cast`."""
        return dict(zip(self._native.columns(), self._native.types(), strict=True))

    def __repr__(self) -> str:
        columns = ", ".join(f"{name}: {kind}" for name, kind in self.schema.items())
        return f"<Frame {columns}; collect() computes it>"

    def select(self, *columns: Columns, **named: Any) -> Frame:
        """Returns these columns only."""
        chosen = [*_all(columns), *(as_column(value).alias(name) for name, value in named.items())]
        return Frame(self._native.select([column.native for column in chosen]))

    def with_columns(self, *columns: Columns, **named: Any) -> Frame:
        """Returns the frame with further columns, or others under the same names. All see the columns as they were."""
        chosen = [*_all(columns), *(as_column(value).alias(name) for name, value in named.items())]
        return Frame(self._native.with_columns([column.native for column in chosen]))

    def drop(self, *columns: str) -> Frame:
        """Returns the frame without these columns."""
        if not columns:
            return self
        # A column that does not exist is an error.
        self._native.select([col(name).native for name in columns])
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
        suffix: str = "_right",
        coalesce: bool = False,
        algorithm: Algorithm = "auto",
    ) -> Frame:
        """Returns the rows of both frames that have the same keys.

        Nulls are equal to nothing.

        Args:
            other: the right side.
            on: names of the keys, on both sides.
            how: ``inner``; ``left``, ``right`` or ``full`` to keep rows without a partner; ``semi`` or ``anti`` for
                rows of the left side that have one, or none; ``cross`` for all pairs.
            left_on: names of the keys on the left side, if they differ.
            right_on: names of the keys on the right side.
            suffix: is appended to the other columns of the right side whose names the left side has, too.
            coalesce: whether a ``full`` join has each key once. Otherwise, that of the right side gets the suffix, and
                the keys of the side without a row are null. In all other joins, each key is there once.
            algorithm: ``sort`` to sort both sides by their keys, which needs less memory and can spill. Otherwise, the
                smaller side becomes a hash table; if that fits in no rank's memory, ``auto`` and ``hash`` sort as well.

        Raises:
            ValueError: if the keys of the sides do not match in number, or there is no such algorithm.
            dayfly.RequestError: if there is no such key, or two columns would have one name.
        """
        if on is not None and (left_on is not None or right_on is not None):
            raise ValueError("on= names the keys of both sides: give left_on= and right_on= instead")
        left = names_of(on if on is not None else left_on or [])
        right = names_of(on if on is not None else right_on or [])
        if len(left) != len(right) or (how == "cross") != (not left):
            raise ValueError(
                "a join needs on=, or left_on= and right_on= with equally many keys; only a cross join has none"
            )
        if algorithm not in ("auto", "hash", "sort"):
            raise ValueError(f'algorithm={algorithm!r}: it is "auto", "hash" or "sort"')
        is_sorted = algorithm == "sort"
        if is_sorted and how == "cross":
            raise ValueError('a cross join has no keys to sort by: leave algorithm="sort" out')
        return Frame(self._native.join(other._native, how, left, right, suffix, coalesce, is_sorted))

    def group_by(self, *keys: Columns) -> GroupBy:
        """Groups the rows by these keys: ``frame.group_by("zone").agg(count())``."""
        return GroupBy(self, _all(keys))

    def sort(
        self, *by: Columns, descending: bool | Sequence[bool] = False, nulls_last: bool | Sequence[bool] = True
    ) -> Frame:
        """Returns the rows in order.

        Args:
            by: the keys, the first one first.
            descending: whether the largest comes first: for all keys, or for each.
            nulls_last: whether nulls come last: for all keys, or for each.
        """
        keys = _all(by)
        down, last = _each(descending, keys, "descending"), _each(nulls_last, keys, "nulls_last")
        chosen = [(key.native, *flags) for key, flags in zip(keys, zip(down, last, strict=True), strict=True)]
        return Frame(self._native.sort(chosen))

    def unique(self, subset: str | Sequence[str] | None = None) -> Frame:
        """Returns each different row once, in any order; with ``subset``, one row of those equal in these columns."""
        return Frame(self._native.unique(None if subset is None else names_of(subset)))

    def head(self, n: int = 5) -> Frame:
        """Returns the first rows: of a sorted frame its first ones, of another any."""
        return self.slice(0, n)

    limit = head

    def slice(self, offset: int, length: int | None = None) -> Frame:
        """Returns rows from an offset on."""
        if offset < 0 or (length is not None and length < 0):
            raise ValueError("offset and length count rows from the first one: they are not negative")
        return Frame(self._native.slice(offset, length))

    def sample(self, n: int | None = None, *, fraction: float | None = None) -> Frame:
        """Returns rows by chance, in no order: others each time that the frame is computed.

        Args:
            n: number of rows. All of them, if there are fewer.
            fraction: probability of each row instead, from 0 to 1.
        """
        if (n is None) == (fraction is None):
            raise ValueError("a sample needs either n= or fraction=")
        if n is not None and n < 0:
            raise ValueError(f"n={n}: a number of rows is not negative")
        if fraction is not None and not 0 <= fraction <= 1:
            raise ValueError(f"fraction={fraction}: it is from 0 to 1")
        return Frame(self._native.sample(n, fraction or 0.0))

    def repartition(self, *keys: str | Sequence[str]) -> Frame:
        """Returns the same rows, with those of equal keys in one partition of one rank.

        A function over batches then finds equal keys on one rank, a write puts them into one file, and a kept frame has
        them in one place.

        Raises:
            dayfly.RequestError: if there is no key, or no such column.
        """
        return Frame(self._native.repartition([name for key in keys for name in names_of(key)]))

    def concat(self, other: Frame) -> Frame:
        """Returns the rows of both frames, which have columns of the same names."""
        return Frame(self._native.combine("union", other._native, False))

    def union(self, other: Frame) -> Frame:
        """Returns the different rows of both frames."""
        return Frame(self._native.combine("union", other._native, True))

    def intersect(self, other: Frame) -> Frame:
        """Returns the different rows that both frames have."""
        return Frame(self._native.combine("intersect", other._native, True))

    def except_(self, other: Frame) -> Frame:
        """Returns the different rows that the other frame lacks."""
        return Frame(self._native.combine("except", other._native, True))

    def map_batches(
        self,
        function: Callable[[Any], Any],
        schema: Mapping[str, str],
        *,
        batch: Batch = "arrow",
        batch_rows: int = 65_536,
    ) -> Frame:
        """Calls a function with batches of rows, on every rank, and returns the rows that it returns.

        Args:
            function: takes a batch. Returns a table or frame of any kind, or a mapping of names to columns. It sees
                each row once, in no order, and runs in the interpreter of the workers.
            schema: name and type of each column that it returns, as in `Expr.cast`.
            batch: what it takes: a ``pyarrow.Table``, a ``polars.DataFrame`` or a ``pandas.DataFrame``. The workers
                have this package.
            batch_rows: least number of rows of a batch; the last ones of a rank are fewer.

        Raises:
            dayfly.RequestError: if there is no such type. When the frame is computed: if the function returns other
                columns.
            dayfly.FunctionError: when the frame is computed, if the function raises an exception.
        """
        if batch not in ("arrow", "polars", "pandas"):
            raise ValueError(f'batch={batch!r}: it is "arrow", "polars" or "pandas"')
        if batch_rows < 1:
            raise ValueError(f"batch_rows={batch_rows}: a batch has at least one row")
        call = dumped(function, batch)
        columns = columns_of(schema)
        return Frame(self._native.map_batches(name_of(function), call, columns, batch_rows))

    def sql(self, query: str, /, **frames: Frame) -> Frame:
        """Returns a frame of an SQL query, which sees this frame as the table ``self``, and others by their names.

        ``trips.sql("SELECT zone, sum(fare) FROM self GROUP BY zone")``
        """
        tables = [("self", self._native), *((name, frame._native) for name, frame in frames.items())]
        return Frame(self._native.sql(query, tables), query)

    def explain(self, analyze: bool = False) -> str:
        """Returns the plan: stages, their tasks, and what each exchanges.

        Args:
            analyze: whether to compute the frame, and to show what each node measured, summed over all tasks: rows,
                time, bytes and spills.
        """
        if not analyze:
            return self._native.explain(False)
        group = self._native.group()
        if group is None:
            with self._watched("explain"):
                return self._native.explain(True)
        text: str = group.lead("explain", self._native, lambda: self._native.explain(True))
        return text

    def collect(self) -> Table:
        """Computes the frame on the ranks, and returns its rows.

        Raises:
            dayfly.RequestError: if the query or its input is invalid.
            dayfly.CapacityError: if the query needs more memory than the ranks have, and cannot spill.
            dayfly.GroupError: if ranks were lost, again and again.
        """
        return self._table("collect", self._native.collect)

    def here(self) -> Table:
        """Computes the frame on the ranks, and returns the rows that are on this one. All ranks call this.

        Each row is on one rank. Which one depends on the plan: rows that are only filtered stay on their rank, joined
        and grouped ones are where their keys came together, and sorted ones are on one rank, in order.

        Raises:
            dayfly.RequestError: if the session is not of `Session.of`.
            dayfly.Error: as `collect`, on all ranks.
        """
        group = self._native.group()
        if group is None:
            message = "here() is for ranks that have opened their session with Session.of(): collect() returns all rows"
            raise error_for("invalid_request", message)
        return Table(group.own_rows(self._native))

    def _table(self, call: str, compute: Callable[[], _frames.Table]) -> Table:
        group = self._native.group()
        with self._watched(call):
            table = compute() if group is None else group.table(call, self._native, compute)
        return Table(table, self._native.price())

    @contextmanager
    def _watched(self, call: str) -> Iterator[None]:
        """Shows the query that runs in a block, and reports it to the manager, each if the session does so."""
        progress: Progress | None = self._native.progress()
        report = Report(self._native, call, self._text)
        with nullcontext() if progress is None else progress.shown(), report.step():
            yield
        report.end()

    def batches(self) -> Iterator[Table]:
        """Computes the frame on the ranks, and yields its rows as they arrive. At most a few batches are in memory.

        Raises:
            dayfly.Error: as `collect`.
        """
        if self._native.group() is not None:
            message = "batches() is for sessions of client.frames(): here() returns the rows of each rank"
            raise error_for("invalid_request", message)
        report = Report(self._native, "batches", self._text)
        with report.step():
            batches = self._native.batches()
        try:
            while True:
                with report.step():
                    batch = batches.next()
                if batch is None:
                    break
                yield Table(batch)
            report.end()
        finally:
            # The caller may want no more.
            report.end("cancelled")
            batches.close()

    def persist(self, *, replicas: int = 1) -> Frame:
        """Computes the frame, and keeps its rows in the ranks' memory. Returns a frame that reads them there.

        Tasks that read them run on the ranks that have them. The ranks forget the rows when nothing in this process
        refers to the returned frame, or to one made of it, and when the session closes.

        Args:
            replicas: the number of ranks that have each row. With two, the rows of a lost rank are read from their
                copies. More than one needs a session with ``recover="tasks"`` or ``recover="auto"``, which goes on with
                the ranks that are left, and as many ranks. Copies count as memory, like the rows.

        Raises:
            ValueError: if `replicas` is less than 1.
            dayfly.RequestError: if there are fewer ranks than replicas, or the session does not go on after a loss.
            dayfly.Error: as `collect`; ``out_of_memory`` if the rows do not fit beside what queries use. A query over
                rows all of whose ranks were lost raises ``state_lost``: persist the frame again.
        """
        if replicas < 1:
            raise ValueError(f"replicas={replicas}: at least one rank keeps each row")
        group = self._native.group()
        if group is not None and replicas > 1:
            message = "a session of Session.of() ends with the first lost rank: keep one replica"
            raise error_for("invalid_request", message)
        with self._watched("persist"):
            return Frame(self._native.persist(replicas) if group is None else group.persist(self._native))

    def describe(self) -> Table:
        """Computes statistics of all columns: number of values, nulls, mean, standard deviation, smallest and largest
        value, and median.
        """
        return self._table("describe", self._native.describe)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.collect().__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        return self._native.__arrow_c_schema__()

    def merge(
        self, right: Frame, how: Literal["inner", "left", "right", "outer", "cross"] = "inner", on: Any = None
    ) -> Frame:
        """Joins as `join` does, by pandas' name."""
        return self.join(right, on, "full" if how == "outer" else how, coalesce=True)

    def groupby(self, *keys: Columns) -> GroupBy:
        """Groups as `group_by` does, by pandas' name."""
        return self.group_by(*keys)

    def drop_duplicates(self, subset: str | Sequence[str] | None = None) -> Frame:
        """Returns each different row once, by pandas' name for `unique`."""
        return self.unique(subset)

    def sort_values(self, by: str | Sequence[str], ascending: bool | Sequence[bool] = True) -> Frame:
        """Sorts as `sort` does, by pandas' name."""
        flags = not ascending if isinstance(ascending, bool) else [not flag for flag in ascending]
        return self.sort(*names_of(by), descending=flags)


class GroupBy:
    """Rows in groups: `Frame.group_by`."""

    def __init__(self, frame: Frame, keys: list[Expr]) -> None:
        self._frame = frame
        self._keys = keys

    def agg(self, *values: Expr, **named: Expr) -> Frame:
        """Returns one row for each group, with the keys and these values."""
        chosen = [*values, *(as_column(value).alias(name) for name, value in named.items())]
        keys = [key.native for key in self._keys]
        return Frame(self._frame.native.aggregate(keys, [value.native for value in chosen]))
