"""Buffers as callers name them, and blocks of what is in them."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

from dayfly._errors import RequestError
from dayfly._mpi.types import (
    _BY_LETTERS,
    _BY_NUMBER,
    Datatype,
    _InPlace,
)
from dayfly._native import Memory


class _Buffer:
    """A buffer that a caller named: memory, type of the elements, and where the ranks' blocks are."""

    __slots__ = ("blocks", "count", "datatype", "memory")

    #: Start and length in bytes of each rank's block, if they may vary.
    blocks: list[tuple[int, int]] | None
    memory: Memory | memoryview

    def __init__(self, named: Any, *, write: bool = False, parts: int = 1, varying: bool = False) -> None:
        """Of a buffer as callers name it.

        Args:
            named: the buffer, alone or in a list with counts, displacements and type.
            write: whether it is received into.
            parts: ranks that have a part of it.
            varying: whether these parts may differ in length.
        """
        if not varying and not isinstance(named, (list, tuple)):
            # As most are, and the quickest to see through.
            memory = Memory.of(named)
            if (found := memory.elements(write)) is not None and found[1] % parts == 0:
                number, count = found
                self.datatype, self.count, self.memory, self.blocks = _BY_NUMBER[number], count // parts, memory, None
                return
        data, counts, displs, datatype = _named(named, varying)
        memory = Memory.of(b"" if data is None else data)
        if write and memory.readonly and data is not None:
            raise _refusal(f"{type(data).__name__} is read-only; receive into memory that may be written to")
        self.datatype = _datatype(datatype, memory)
        size = self.datatype.size
        view = memoryview(memory)
        if counts is None and view.nbytes % size:
            raise _refusal(f"a buffer of {view.nbytes} bytes, which are no whole number of {self.datatype.name}")
        if varying:
            self.memory, self.count = view, view.nbytes // size
            self.blocks = self._blocks(counts, displs, parts)
        else:
            self.blocks = None
            self._cut(view, counts, displs, parts)

    def _cut(self, view: memoryview, count: int | None, displacement: int | None, parts: int) -> None:
        size = self.datatype.size
        start = (displacement or 0) * size
        if count is None:
            count, rest = divmod((view.nbytes - start) // size, parts)
            if rest:
                raise _refusal(f"{view.nbytes // size} elements, which cannot be divided by {parts} ranks")
        end = start + count * parts * size
        if start < 0 or count < 0 or end > view.nbytes:
            raise _refusal(
                f"{count * parts} elements from {displacement or 0} on of a buffer of {view.nbytes // size}; "
                "give one that is long enough, or another count"
            )
        #: Elements of one part.
        self.count = count
        self.memory = view[start:end]

    def _blocks(self, counts: Any, displs: Any, parts: int) -> list[tuple[int, int]]:
        size = self.datatype.size
        if counts is None:
            least, more = divmod(self.count, parts)
            counts = [least + (rank < more) for rank in range(parts)]
        elif isinstance(counts, int):
            counts = [counts] * parts
        counts = [int(count) for count in counts]
        if displs is None:
            displs = [start for start, _ in _laid_out(counts)]
        elif isinstance(displs, int):
            displs = [displs * rank for rank in range(parts)]
        if len(counts) != parts or len(displs) != parts:
            raise _refusal(f"{len(counts)} counts and {len(displs)} displacements for {parts} ranks")
        blocks = [(int(start) * size, count * size) for start, count in zip(displs, counts, strict=True)]
        for rank, (start, length) in enumerate(blocks):
            if length and (start < 0 or length < 0 or start + length > self.memory.nbytes):
                raise _refusal(
                    f"{length // size} elements from {start // size} on for rank {rank}, of a buffer of {self.count}"
                )
        # Where nothing is does not matter.
        return [(start if length else 0, length) for start, length in blocks]


def _each(named: Any, parts: int, *, write: bool = False) -> tuple[memoryview, list[tuple[int, int]]]:
    """Memory, and start and length in bytes of each rank's block, where each has a type of its own.

    Args:
        named: ``[data, counts, displacements, types]``, or with a pair of these, or without them: ``[data, types]``;
            the displacements in bytes.
        parts: ranks that have a part of it.
        write: whether it is received into.
    """
    if not isinstance(named, (list, tuple)) or not 2 <= len(named) <= 4:
        raise _refusal("parts of several types are named as [data, counts, displacements in bytes, types]")
    data, *places, types = named
    memory = Memory.of(b"" if data is None else data)
    if write and memory.readonly and data is not None:
        raise _refusal(f"{type(data).__name__} is read-only; receive into memory that may be written to")
    counts, displs = (places[0] if len(places) == 1 else places) if places else ([1] * parts, [0] * parts)
    types = [types] * parts if isinstance(types, (Datatype, str)) else list(types)
    if not len(counts) == len(displs) == len(types) == parts:
        raise _refusal(
            f"{len(counts)} counts, {len(displs)} displacements and {len(types)} types for {parts} ranks; give one of "
            "each for each"
        )
    view, blocks = memoryview(memory), []
    for rank, (count, start, datatype) in enumerate(zip(counts, displs, types, strict=True)):
        length = int(count) * _datatype(datatype, memory).size
        if length and (start < 0 or length < 0 or start + length > view.nbytes):
            raise _refusal(f"{length} bytes from {start} on for rank {rank}, of a buffer of {view.nbytes}")
        blocks.append((int(start) if length else 0, length))
    return view, blocks


def _plain(buffer: Any) -> bool:
    """Whether it is just an array, which needs no words of Python's: that is where time goes, of short messages."""
    return not isinstance(buffer, (list, tuple, _InPlace))


def _refusal(message: str) -> RequestError:
    return RequestError(message, "invalid_request")


def _named(named: Any, varying: bool) -> tuple[Any, Any, Any, Any]:
    """Data, counts, displacements and type of what a caller named."""
    if not isinstance(named, (list, tuple)):
        return named, None, None, None
    data, *rest = named
    datatype = rest.pop() if rest and isinstance(rest[-1], (Datatype, str)) else None
    if len(rest) == 1 and isinstance(rest[0], tuple if varying else (tuple, list)):
        rest = list(rest[0])
    if len(rest) > 2:
        raise _refusal(f"a buffer of {len(named)} parts; name it as [data, count, displacement, type] or by less of it")
    counts, displs = [*rest, None, None][:2]
    return data, counts, displs, datatype


def _datatype(named: Datatype | str | None, memory: Memory) -> Datatype:
    if isinstance(named, Datatype):
        return named
    if isinstance(named, str):
        if (found := _BY_LETTERS.get(named.lstrip("@=<|"))) is None:
            raise _refusal(f"there is no type {named!r}")
        return found
    if memory.datatype is None:
        raise _refusal(f"elements of type {memory.format!r}, which ranks do not know; name one: [data, MPI.BYTE]")
    return _BY_NUMBER[memory.datatype]


def _copied(memory: Memory | memoryview) -> bytearray:
    return bytearray(memory)


def _same(into: _Buffer, out: _Buffer, count: int) -> None:
    """What is combined must be of one type, and of the length of the result."""
    if into.datatype.number != out.datatype.number or out.count != count:
        raise _refusal(
            f"{out.count} {out.datatype.name} are combined, into {count} {into.datatype.name}; both must be the same"
        )


def _laid_out(lengths: Sequence[int]) -> list[tuple[int, int]]:
    blocks, at = [], 0
    for length in lengths:
        blocks.append((at, length))
        at += length
    return blocks


def _unpack(memory: bytearray, blocks: list[tuple[int, int]]) -> list[Any]:
    view = memoryview(memory)
    return [pickle.loads(view[start : start + length]) for start, length in blocks]
