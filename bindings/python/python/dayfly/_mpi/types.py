"""Datatypes, operations and the numbers that mean something else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dayfly._native import Op as _NativeOp

ANY_SOURCE = -1
ANY_TAG = -1
PROC_NULL = -2
UNDEFINED = -32766
ROOT = -3


class _InPlace:
    def __repr__(self) -> str:
        return "IN_PLACE"


#: The buffer of the other side is also this one's.
IN_PLACE = _InPlace()


class Datatype:
    """Type of the elements of a buffer."""

    def __init__(self, name: str, number: int, size: int) -> None:
        self.name = name
        self.number = number
        self.size = size

    def Get_size(self) -> int:
        """Bytes of one element."""
        return self.size

    def Get_extent(self) -> tuple[int, int]:
        """Where an element begins, and how many bytes further the next does."""
        return 0, self.size

    @property
    def extent(self) -> int:
        """Bytes from one element to the next."""
        return self.size

    def __repr__(self) -> str:
        return f"dayfly.MPI.{self.name}"


BYTE = Datatype("BYTE", 0, 1)
SIGNED_CHAR = INT8_T = Datatype("INT8_T", 1, 1)
SHORT = INT16_T = Datatype("INT16_T", 2, 2)
INT = INT32_T = Datatype("INT32_T", 3, 4)
LONG = LONG_LONG = INT64_T = Datatype("INT64_T", 4, 8)
CHAR = UNSIGNED_CHAR = UINT8_T = Datatype("UINT8_T", 5, 1)
UNSIGNED_SHORT = UINT16_T = Datatype("UINT16_T", 6, 2)
UNSIGNED = UINT32_T = Datatype("UINT32_T", 7, 4)
UNSIGNED_LONG = UINT64_T = Datatype("UINT64_T", 8, 8)
FLOAT = Datatype("FLOAT", 9, 4)
DOUBLE = Datatype("DOUBLE", 10, 8)
BOOL = C_BOOL = Datatype("BOOL", 11, 1)
COMPLEX = C_FLOAT_COMPLEX = Datatype("C_FLOAT_COMPLEX", 12, 8)
DOUBLE_COMPLEX = C_DOUBLE_COMPLEX = Datatype("C_DOUBLE_COMPLEX", 13, 16)
#: Pairs of a value and its place, an `int`, as C lays them out: ``dtype([("v", "d"), ("i", "i")], align=True)``.
DOUBLE_INT = Datatype("DOUBLE_INT", 16, 16)
LONG_INT = Datatype("LONG_INT", 17, 16)
FLOAT_INT = Datatype("FLOAT_INT", 18, 8)
TWOINT = INT_INT = Datatype("TWOINT", 19, 8)
SHORT_INT = Datatype("SHORT_INT", 20, 8)

#: How types are called in letters, by `struct` and by NumPy.
_LETTERS = {
    INT8_T: "b i1",
    INT16_T: "h i2",
    INT32_T: "i i4",
    INT64_T: "l q n p i8",
    UINT8_T: "B c S1 u1",
    UINT16_T: "H u2",
    UINT32_T: "I u4",
    UINT64_T: "L Q N P u8",
    FLOAT: "f f4",
    DOUBLE: "d f8",
    BOOL: "? b1",
    C_FLOAT_COMPLEX: "Zf F c8",
    C_DOUBLE_COMPLEX: "Zd D c16",
}
_BY_LETTERS = {letters: datatype for datatype, all_of in _LETTERS.items() for letters in all_of.split()}


class Op:
    """An operation that combines elements."""

    def __init__(
        self,
        native: _NativeOp,
        name: str,
        combine: Callable[..., Any] | None,
        commute: bool = True,
    ) -> None:
        self._native = native
        self._name = name
        #: Of two objects, for the methods in lower case.
        self._combine = combine
        self._commute = commute

    @classmethod
    def Create(cls, function: Callable[[Any, Any, Any], Any], commute: bool = False) -> Op:
        """An operation of one's own: ``function(left, right, datatype)`` combines two buffers into the second.

        It must be associative, and must not keep the buffers. For objects, it is called as
        ``function(left, right, None)`` by the methods in lower case and answers the combination.
        """

        def call(left: memoryview, right: memoryview, number: int) -> None:
            function(left, right, _BY_NUMBER[number])

        def combine(left: Any, right: Any) -> Any:
            return function(left, right, None)

        return cls(_NativeOp.user(call, commute), getattr(function, "__name__", "op"), combine, commute)

    def Is_commutative(self) -> bool:
        """Whether the order of the ranks may be changed."""
        return self._commute

    def Free(self) -> None:
        """Does nothing: it goes when nobody has it any more."""

    def __call__(self, left: Any, right: Any) -> Any:
        if self._combine is None:
            raise TypeError(f"{self!r} does not combine objects")
        return self._combine(left, right)

    def __repr__(self) -> str:
        return f"dayfly.MPI.{self._name}"


_BY_NUMBER = {t.number: t for t in list(globals().values()) if isinstance(t, Datatype)}


def _lesser(left: Any, right: Any) -> Any:
    # Of equal values the lower place, as in MPI.
    return left if (left[0], left[1]) <= (right[0], right[1]) else right


def _greater(left: Any, right: Any) -> Any:
    if left[0] == right[0]:
        return left if left[1] <= right[1] else right
    return left if left[0] > right[0] else right


SUM = Op(_NativeOp.named("sum"), "SUM", lambda a, b: a + b)
PROD = Op(_NativeOp.named("prod"), "PROD", lambda a, b: a * b)
MIN = Op(_NativeOp.named("min"), "MIN", lambda a, b: b if b < a else a)
MAX = Op(_NativeOp.named("max"), "MAX", lambda a, b: b if b > a else a)
LAND = Op(_NativeOp.named("land"), "LAND", lambda a, b: bool(a) and bool(b))
LOR = Op(_NativeOp.named("lor"), "LOR", lambda a, b: bool(a) or bool(b))
LXOR = Op(_NativeOp.named("lxor"), "LXOR", lambda a, b: bool(a) != bool(b))
BAND = Op(_NativeOp.named("band"), "BAND", lambda a, b: a & b)
BOR = Op(_NativeOp.named("bor"), "BOR", lambda a, b: a | b)
BXOR = Op(_NativeOp.named("bxor"), "BXOR", lambda a, b: a ^ b)
MINLOC = Op(_NativeOp.named("minloc"), "MINLOC", _lesser)
MAXLOC = Op(_NativeOp.named("maxloc"), "MAXLOC", _greater)
