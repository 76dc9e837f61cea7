"""Rows as tensors of PyTorch, for training beside the query that made them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import dayfly
import pyarrow as pa
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

if TYPE_CHECKING:
    from dayfly_frames._table import Table

#: Types that both libraries have.
_KINDS = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.float16(), pa.float32(), pa.float64())


def _refused(name: str, why: str) -> dayfly.RequestError:
    return dayfly.RequestError(f"column {name!r} {why}", "invalid_request")


def _tensor(name: str, column: pa.Array) -> torch.Tensor:
    """Returns a column as a tensor, in the memory of the column where its type is PyTorch's."""
    if column.null_count:
        raise _refused(name, "has nulls, which tensors cannot hold: use fill_null() or drop these rows first")
    kind = column.type
    if pa.types.is_fixed_size_list(kind):
        return _tensor(name, column.flatten()).reshape(len(column), kind.list_size)
    if pa.types.is_boolean(kind):
        return _tensor(name, column.cast(pa.uint8())).to(torch.bool)
    if kind not in _KINDS:
        raise _refused(name, f"has the type {kind}, which tensors cannot hold: cast it to a number, or leave it out")
    return torch.from_dlpack(column)


def tensors(table: Table, columns: Iterable[str] | None) -> dict[str, torch.Tensor]:
    """Returns columns as tensors: `Table.to_torch`."""
    whole = pa.table(table)
    if columns is not None:
        whole = whole.select(list(columns))
    found = {}
    for name, column in zip(whole.column_names, whole.columns, strict=True):
        # Combining copies, even a single chunk.
        found[name] = _tensor(name, column.chunk(0) if column.num_chunks == 1 else column.combine_chunks())
    return found


class _Rows:
    """Rows that a loader takes by their numbers, a batch at a time."""

    def __init__(self, columns: dict[str, torch.Tensor], rows: int) -> None:
        self._columns = columns
        self._rows = rows

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, rows: int | list[int]) -> dict[str, torch.Tensor]:
        return {name: column[rows] for name, column in self._columns.items()}


def loader(
    table: Table, columns: Iterable[str] | None, *, batch_size: int, shuffle: bool, drop_last: bool, **options: Any
) -> DataLoader[dict[str, torch.Tensor]]:
    """Returns a loader of batches: `Table.to_dataloader`."""
    rows = _Rows(tensors(table, columns), len(table))
    order = RandomSampler(rows, generator=options.get("generator")) if shuffle else SequentialSampler(rows)
    # The sampler makes batches of numbers, so that a batch is one selection from each column.
    return DataLoader(rows, sampler=BatchSampler(order, batch_size, drop_last), batch_size=None, **options)
