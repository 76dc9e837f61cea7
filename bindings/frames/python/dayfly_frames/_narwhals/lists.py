"""narwhals' functions of lists and structs."""

from __future__ import annotations

from typing import Any

from narwhals._compliant import LazyExprNamespace
from narwhals._compliant.any_namespace import ListNamespace, StructNamespace
from narwhals._utils import not_implemented

from dayfly_frames._narwhals.sql import call, cast, literal

_HINT = "`explode` the lists, and aggregate groups of their elements."


class DayflyLists(LazyExprNamespace[Any], ListNamespace[Any]):
    """Functions of lists."""

    def _called(self, function: str, *arguments: Any) -> Any:
        constants = [literal(argument) for argument in arguments]
        return self.compliant._with_elementwise(lambda value: call(function, value, *constants))

    def len(self) -> Any:
        """Number of elements."""
        return self.compliant._with_elementwise(lambda value: cast(call("cardinality", value), "UInt32"))

    def unique(self, *, maintain_order: bool) -> Any:
        """The different elements."""
        if maintain_order:
            raise NotImplementedError("maintain_order=True: frames of Dayfly return different elements in any order")
        return self._called("array_distinct")

    def contains(self, item: Any) -> Any:
        """Whether there is such an element."""
        if item is None:
            raise NotImplementedError("frames of Dayfly find no null in a list: `explode` it, and use `is_null`")
        return self._called("array_has", item)

    def get(self, index: int) -> Any:
        """The element at a place."""
        return self._called("array_element", index + 1 if index >= 0 else index)

    def min(self) -> Any:
        """The smallest element."""
        return self._called("array_min")

    def max(self) -> Any:
        """The largest element."""
        return self._called("array_max")

    def sort(self, *, descending: bool, nulls_last: bool) -> Any:
        """The elements in order."""
        return self._called("array_sort", "DESC" if descending else "ASC", f"NULLS {'LAST' if nulls_last else 'FIRST'}")

    mean = not_implemented(hint=_HINT)
    median = not_implemented(hint=_HINT)
    sum = not_implemented(hint=_HINT)


class DayflyStructs(LazyExprNamespace[Any], StructNamespace[Any]):
    """Functions of structs."""

    def field(self, name: str) -> Any:
        """The field of this name."""
        return self.compliant._with_elementwise(lambda value: call("get_field", value, literal(name))).alias(name)
