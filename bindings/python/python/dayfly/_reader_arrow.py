"""Tables and arrays of Arrow, for `_reader`: made of their buffers by functions that check, and validated in full."""

from __future__ import annotations

from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]

from dayfly._reader_parts import Name, Refused, expect, limits

#: More values than any array has; Arrow's own sums of such numbers do not overflow.
MAX_LENGTH = 1 << 40


def _array(about: Any) -> Any:
    # Children that are shared are as many as the powers of two, in few bytes.
    limits.look()
    expect(type(about) is tuple and len(about) == 7)
    kind, length, nulls, offset, buffers, children, dictionary = about
    expect(isinstance(kind, pa.DataType) and type(buffers) is list and type(children) is list)
    expect(all(type(number) is int and -1 <= number < MAX_LENGTH for number in (length, nulls, offset)))
    expect(length >= 0 and offset >= 0)
    expect(all(buffer is None or isinstance(buffer, pa.Buffer) for buffer in buffers))
    if pa.types.is_dictionary(kind):
        expect(dictionary is not None and not children)
        indices = _array((kind.index_type, length, nulls, offset, buffers, [], None))
        # It checks that each index has its value.
        return pa.DictionaryArray.from_arrays(indices, _array(dictionary), ordered=kind.ordered)
    expect(dictionary is None)
    parts = [_array(child) for child in children]
    # Arrow ends the process where a child is shorter than its parent says.
    if pa.types.is_struct(kind):
        expect(all(len(part) >= offset + length for part in parts))
    if pa.types.is_fixed_size_list(kind):
        expect(all(len(part) >= (offset + length) * kind.list_size for part in parts))
    # It checks how many buffers and children there are.
    array = pa.Array.from_buffers(kind, length, buffers, nulls, offset, parts)
    # Of what is inside, too: offsets within bounds, texts in UTF-8.
    array.validate(full=True)
    return array


def _buffer(data: Any) -> Any:
    expect(type(data) in (bytes, bytearray, memoryview))
    return pa.py_buffer(data)


def _table(columns: Any, schema: Any) -> Any:
    expect(type(columns) is list and isinstance(schema, pa.Schema))
    table = pa.Table.from_arrays(columns, schema=schema)
    table.validate(full=True)
    return table


def _batch(columns: Any, schema: Any) -> Any:
    expect(type(columns) is list and isinstance(schema, pa.Schema))
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    batch.validate(full=True)
    return batch


def _scalar(value: Any, kind: Any) -> Any:
    expect(isinstance(kind, pa.DataType))
    return pa.scalar(value, kind)


#: Those that make types and schemas of texts, numbers, and each other.
_PLAIN = (
    *("binary", "decimal128", "decimal256", "dictionary", "duration", "field", "large_list", "list_", "map_", "schema"),
    *("struct", "time32", "time64", "timestamp", "type_for_alias"),
)

_NAMES: dict[str, Any] = {
    "_reconstruct_record_batch": _batch,
    "_reconstruct_table": _table,
    "_restore_array": _array,
    "chunked_array": lambda chunks, kind=None: pa.chunked_array(chunks, kind),
    "py_buffer": _buffer,
    "scalar": _scalar,
    **{name: getattr(pa, name) for name in _PLAIN},
}


def named(full: str) -> Name:
    """What a pickle means by this name."""
    made = _NAMES.get(full.removeprefix("pyarrow.lib."))
    if made is None or not full.startswith("pyarrow.lib."):
        raise Refused(f"it holds a `{full[:200]}`")
    return Name(full, made)
