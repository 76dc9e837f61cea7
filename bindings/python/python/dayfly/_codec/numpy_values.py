"""NumPy's arrays, scalars and dtypes for `reader`: each is rebuilt from its parts, and no pickled state is trusted."""

from __future__ import annotations

import math
import re
import sys
from typing import Any

import numpy as np

from dayfly._codec.parts import Name, Part, Refused, expect

#: Units of dates and time differences.
_UNITS = frozenset(["Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as"])
_NATIVE = "<" if sys.byteorder == "little" else ">"
#: The flag of a record's dtype that no other part implies.
ALIGNED = 0x80
#: Maximum dimensions of an array.
MAX_DIMENSIONS = 64


class Dtype(Part):
    """A dtype. Its state completes it."""

    __slots__ = ("code",)

    def __init__(self, code: str) -> None:
        super().__init__()
        self.code = code

    def build(self, state: Any) -> np.dtype[Any]:
        expect(type(state) is tuple and len(state) in (8, 9))
        order, base, names, fields, size = state[1:6]
        expect(order in ("<", ">", "|", "="))
        if base is not None:
            expect(type(base) is tuple and len(base) == 2 and isinstance(base[0], np.dtype))
            made: np.dtype[Any] = np.dtype((base[0], _shape(base[1])))
        elif names is not None:
            made = _structured(names, fields, size, state[7])
        elif self.code[0] in "mM":
            made = np.dtype(f"{self.code}{_unit(state[8]) if len(state) == 9 else ''}")
        else:
            made = np.dtype(self.code)
        return made if order in ("|", "=", _NATIVE) else made.newbyteorder(order)

    def __repr__(self) -> str:
        return "a part of a `numpy.dtype`"


def _structured(names: Any, fields: Any, size: Any, flags: Any) -> np.dtype[Any]:
    expect(type(names) is tuple and type(fields) is dict and len(names) == len(fields) and type(size) is int)
    places = [fields[name] for name in names]
    # A field with a title has three parts.
    expect(all(type(place) is tuple and len(place) == 2 and isinstance(place[0], np.dtype) for place in places))
    described: Any = {
        "names": [str(name) for name in names],
        "formats": [place[0] for place in places],
        "offsets": [int(place[1]) for place in places],
        "itemsize": size,
    }
    # NumPy checks the alignment of the fields if this is set.
    made: np.dtype[Any] = np.dtype(described, align=type(flags) is int and bool(flags & ALIGNED))
    return made


def _unit(about: Any) -> str:
    """Returns the unit in the brackets of a dtype such as `datetime64[ns]`; empty if there is none."""
    expect(type(about) is tuple and len(about) == 2 and type(about[1]) is tuple and len(about[1]) == 4)
    unit, count, divisor, _ = about[1]
    unit = unit.decode() if type(unit) is bytes else unit
    if unit == "generic":
        return ""
    expect(unit in _UNITS and type(count) is int and divisor == 1)
    return f"[{count}{unit}]"


def _shape(shape: Any) -> tuple[int, ...]:
    expect(type(shape) is tuple and len(shape) <= MAX_DIMENSIONS)
    expect(all(type(length) is int and length >= 0 for length in shape))
    found: tuple[int, ...] = shape
    return found


def _dtype(code: Any, *_: Any) -> Dtype:
    expect(type(code) is str)
    if re.fullmatch(r"[biufcSUVmMO?][0-9]{0,9}", code) is None:
        raise Refused(f"it has an array of the dtype `{code[:40]}`")
    return Dtype(code)


class Array(Part):
    """An array. Its state contains everything."""

    __slots__ = ()

    def build(self, state: Any) -> Any:
        expect(type(state) is tuple and len(state) == 5)
        _, shape, dtype, is_fortran, data = state
        shape, order = _shape(shape), "F" if is_fortran else "C"
        if type(data) is not list:
            # A copy, so that the array is writable.
            return _of_bytes(bytearray(_bytes(data)), dtype, shape, order)
        expect(isinstance(dtype, np.dtype) and dtype == np.dtype("O") and len(data) == math.prod(shape))
        array = np.empty(len(data), dtype="O")
        for at, item in enumerate(data):
            array[at] = item
        return array.reshape(shape, order=order)  # type: ignore[call-overload]

    def __repr__(self) -> str:
        return "a part of a `numpy.ndarray`"


def _bytes(data: Any) -> Any:
    expect(type(data) in (bytes, bytearray, memoryview))
    return data


def _of_bytes(data: Any, dtype: Any, shape: tuple[int, ...], order: str) -> Any:
    expect(isinstance(dtype, np.dtype) and not dtype.hasobject)
    count = math.prod(shape)
    view = memoryview(data)
    expect(count * dtype.itemsize == view.nbytes)
    if view.nbytes == 0:
        # The shape alone could otherwise allocate unlimited memory.
        expect(count == 0)
        return np.empty(shape, dtype)
    return np.frombuffer(data, dtype, count).reshape(shape, order=order)  # type: ignore[call-overload]


def _reconstruct(kind: Any, shape: Any, code: Any) -> Array:
    expect(type(kind) is Name and kind.name == "numpy.ndarray")
    expect(shape == (0,) and code == b"b")
    return Array()


def _frombuffer(data: Any, dtype: Any, shape: Any, order: Any, axes: Any = None) -> Any:
    shape = _shape(shape)
    if order == "K" and axes is not None:
        expect(type(axes) is tuple and sorted(axes) == list(range(len(shape))))
        return _of_bytes(_bytes(data), dtype, shape, "C").transpose(axes)
    expect(order in ("C", "F"))
    return _of_bytes(_bytes(data), dtype, shape, order)


def _scalar(dtype: Any, data: Any = None) -> Any:
    expect(isinstance(dtype, np.dtype) and not dtype.hasobject)
    if dtype.kind in "SU" and dtype.itemsize == 0:
        return dtype.type()
    expect(type(data) is bytes and len(data) == dtype.itemsize > 0)
    return np.frombuffer(bytearray(data), dtype, 1)[0]


def _never(*_: Any) -> Any:
    raise Refused("it makes an array in a way that no pickler takes")


_NAMES: dict[str, Any] = {
    "numpy.dtype": _dtype,
    "numpy.ndarray": _never,
    **{f"numpy.{core}.multiarray._reconstruct": _reconstruct for core in ("core", "_core")},
    **{f"numpy.{core}.multiarray.scalar": _scalar for core in ("core", "_core")},
    **{f"numpy.{core}.numeric._frombuffer": _frombuffer for core in ("core", "_core")},
}


def lookup(full: str) -> Name:
    """Returns the object that a pickle refers to by this name."""
    made = _NAMES.get(full)
    if made is None:
        raise Refused(f"it holds a `{full[:200]}`")
    return Name(full, made)
