"""Functions of users over batches of rows."""

from __future__ import annotations

import functools
import pickle
import traceback
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import cloudpickle

from dayfly_frames import _frames
from dayfly_frames._table import Table

if TYPE_CHECKING:
    import pyarrow as pa

Batch = Literal["arrow", "polars", "pandas"]
#: Functions that a rank keeps, so that each is loaded once.
MAX_LOADED = 64


def _check_callable(function: object) -> None:
    if not callable(function):
        raise TypeError(f"a function is needed, not {type(function).__name__}")


def columns_of(schema: Mapping[str, str]) -> list[tuple[str, str]]:
    """Returns the columns of a schema, as the native module takes them."""
    if not isinstance(schema, Mapping) or not schema:
        raise ValueError('schema= maps names of columns to types, such as {"zone": "int64"}, and has at least one')
    return list(schema.items())


def dumped(function: Callable[[Any], Any], batch: Batch) -> bytes:
    """Returns a function for `call`."""
    _check_callable(function)
    pickled: bytes = cloudpickle.dumps((function, batch))
    return pickled


def name_of(function: Callable[[Any], Any]) -> str:
    """Returns the name of a function, for plans."""
    return getattr(function, "__name__", type(function).__name__)


def dumped_item(item: object) -> bytes:
    """Returns an item for `OfItem`."""
    pickled: bytes = cloudpickle.dumps(item)
    return pickled


class OfItem:
    """A function of an item, called with a batch that has it."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        _check_callable(function)
        self._function = function

    def __call__(self, batch: pa.Table) -> Any:
        [[item]] = batch.columns
        return self._function(pickle.loads(item.as_py()))


@functools.lru_cache(maxsize=MAX_LOADED)
def _loaded(function: bytes) -> tuple[Callable[[Any], Any], Batch]:
    loaded: tuple[Callable[[Any], Any], Batch] = pickle.loads(function)
    return loaded


def _given(table: Table, batch: Batch) -> Any:
    if batch == "polars":
        return table.to_polars()
    return table.to_pandas() if batch == "pandas" else table.to_pyarrow()


def _returned(found: Any, batch: Batch) -> Any:
    """Returns what has an Arrow stream of a function's result: a table, a frame, or columns by name."""
    if batch != "pandas" and hasattr(found, "__arrow_c_stream__"):
        return found
    import pyarrow as pa

    if isinstance(found, Mapping):
        return pa.table(dict(found))
    if hasattr(found, "iloc"):
        # The index is no column.
        return pa.Table.from_pandas(found, preserve_index=False)
    if hasattr(found, "__arrow_c_stream__"):
        return found
    raise TypeError(f"it returned {type(found).__name__}, not a table, a frame, or a mapping of names to columns")


def call(function: bytes, table: _frames.Table) -> Any:
    """Calls a function with a batch. Returns what has an Arrow stream.

    Raises:
        RuntimeError: with the text of what the function raised.
    """
    try:
        act, batch = _loaded(function)
        return _returned(act(_given(Table(table), batch)), batch)
    except Exception as error:
        # This module's own lines say nothing to who wrote the function.
        shown = traceback.TracebackException.from_exception(error)
        shown.stack = traceback.StackSummary.from_list(line for line in shown.stack if line.filename != __file__)
        raise RuntimeError(f"the function of a frame failed:\n{''.join(shown.format()).rstrip()}") from None
