"""Arrow's tables and arrays for `reader`: built from their buffers by checking functions, and fully validated."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from dayfly._codec.parts import Name, Refused, expect, limits

#: Maximum length of an array. Sums of a few such numbers do not overflow in Arrow.
MAX_LENGTH = 1 << 40


def _array(about: Any) -> Any:
    # Shared children can be exponentially many in few bytes, so check the time limit.
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
        # This checks that every index has a value.
        return pa.DictionaryArray.from_arrays(indices, _array(dictionary), ordered=kind.ordered)
    expect(dictionary is None)
    parts = [_array(child) for child in children]
    # Arrow aborts the process if a child is shorter than its parent requires.
    if pa.types.is_struct(kind):
        expect(all(len(part) >= offset + length for part in parts))
    if pa.types.is_fixed_size_list(kind):
        expect(all(len(part) >= (offset + length) * kind.list_size for part in parts))
    # This checks the numbers of buffers and children.
    array = pa.Array.from_buffers(kind, length, buffers, nulls, offset, parts)
    # Also checks the contents: offsets within bounds, strings in UTF-8.
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


#: Functions that make types and schemas from strings, numbers and each other.
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


def lookup(full: str) -> Name:
    """Returns the object that a pickle refers to by this name."""
    made = _NAMES.get(full.removeprefix("pyarrow.lib."))
    if made is None or not full.startswith("pyarrow.lib."):
        raise Refused(f"it holds a `{full[:200]}`")
    return Name(full, made)
