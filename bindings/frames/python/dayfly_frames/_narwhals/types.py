"""narwhals' types and Arrow's."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from narwhals._arrow.utils import native_to_narwhals_dtype

_UNITS = {"s": "Second", "ms": "Millisecond", "us": "Microsecond", "ns": "Nanosecond"}

#: Types without parameters, by narwhals' names, as ``arrow_cast`` of DataFusion calls them.
_SIMPLE = {
    "Boolean": "Boolean",
    "String": "Utf8",
    "Binary": "Binary",
    "Date": "Date32",
    "Time": "Time64(Nanosecond)",
    "Categorical": "Dictionary(Int32, Utf8)",
}
_SIMPLE |= {f"{sign}{bits}": f"{sign}{bits}" for sign in ("Int", "UInt") for bits in (8, 16, 32, 64)}
_SIMPLE |= {f"Float{bits}": f"Float{bits}" for bits in (16, 32, 64)}


def schema_of(frame: Any, version: Any) -> dict[str, Any]:
    """Returns names and narwhals' types of the columns of an object with ``__arrow_c_schema__``."""
    return {field.name: native_to_narwhals_dtype(field.type, version) for field in pa.schema(frame)}


def arrow_type(dtype: Any, version: Any) -> str:
    """Returns the name of a type for ``arrow_cast``.

    Raises:
        NotImplementedError: if frames have no such type.
    """
    name = dtype.base_type().__name__
    if name in _SIMPLE:
        return _SIMPLE[name]
    if isinstance(dtype, type) and name in ("Datetime", "Duration", "Decimal"):
        dtype = dtype()
    if name == "Datetime":
        zone = f'Some("{dtype.time_zone}")' if dtype.time_zone else "None"
        return f"Timestamp({_UNITS[dtype.time_unit]}, {zone})"
    if name == "Duration":
        return f"Duration({_UNITS[dtype.time_unit]})"
    if name == "Decimal":
        return f"Decimal128({dtype.precision}, {dtype.scale})"
    if not isinstance(dtype, type):
        if name == "List":
            return f"List({arrow_type(dtype.inner, version)})"
        if name == "Array":
            inner = arrow_type(dtype.inner, version)
            return f"FixedSizeList({dtype.size} x {inner})"
        if name == "Struct":
            fields = (f'"{field.name}": {arrow_type(field.dtype, version)}' for field in dtype.fields)
            return f"Struct({', '.join(fields)})"
    raise NotImplementedError(f"frames of Dayfly have no type {dtype}: cast to another one, such as nw.String")
