"""The registry of a lease's functions: each is pickled once, by value, and again when its surroundings change."""

from __future__ import annotations

import builtins
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import cloudpickle

from dayfly._functions.own_code import Code, tracker

#: A function that was captured this many times travels with its arguments from then on.
CAPTURES = 8
#: Maximum number of functions of one lease. Workers number functions in 16 bits.
MAX_FUNCTIONS = 60_000
_MISSING = object()


def _by_reference(function: types.FunctionType) -> bool:
    """Returns whether a function is pickled by name, because the worker can import its module."""
    module = sys.modules.get(function.__module__ or "")
    if (
        module is None
        or function.__module__ == "__main__"
        or function.__module__ in cloudpickle.list_registry_pickle_by_value()
    ):
        return False
    found: Any = module
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is function


def _names(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
    return names


def referenced_globals(function: types.FunctionType) -> list[tuple[dict[str, Any], str, Any]]:
    """Returns the globals that the function and the functions that travel with it refer to, with their values."""
    found: list[tuple[dict[str, Any], str, Any]] = []
    seen: set[int] = set()
    todo = [function]
    while todo:
        current = todo.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        space = current.__globals__
        for name in _names(current.__code__):
            value = space.get(name, _MISSING)
            if value is _MISSING and hasattr(builtins, name):
                continue
            found.append((space, name, value))
            if isinstance(value, types.FunctionType) and not _by_reference(value):
                todo.append(value)
        for cell in current.__closure__ or ():
            try:
                inner = cell.cell_contents
            except ValueError:
                continue
            if isinstance(inner, types.FunctionType) and not _by_reference(inner):
                todo.append(inner)
    return found


class CapturedFunction:
    """A function together with the values it referred to when it was pickled."""

    __slots__ = ("cells", "defaults", "function", "number", "space")

    def __init__(self, function: Any, number: int) -> None:
        self.function = function
        self.number = number
        self.space: list[tuple[dict[str, Any], str, Any]] = []
        self.cells: list[tuple[types.CellType, Any]] = []
        self.defaults: Any = None
        if isinstance(function, types.FunctionType) and not _by_reference(function):
            self.space = referenced_globals(function)
            self.defaults = (function.__defaults__, function.__kwdefaults__, function.__code__)
            for cell in function.__closure__ or ():
                try:
                    self.cells.append((cell, cell.cell_contents))
                except ValueError:
                    self.cells.append((cell, _MISSING))

    def is_current(self) -> bool:
        """Returns whether all names are still bound to the same objects. Does not detect changes inside an object."""
        for space, name, value in self.space:
            if space.get(name, _MISSING) is not value:
                return False
        for cell, value in self.cells:
            if cell.cell_contents is not value:
                return False
        if self.defaults is not None:
            function = self.function
            defaults, keywords, code = self.defaults
            return (
                function.__defaults__ is defaults and function.__kwdefaults__ is keywords and function.__code__ is code
            )
        return True


class Functions:
    """The functions that are registered on one lease."""

    def __init__(self, register: Callable[[Any], int]) -> None:
        self._register = register
        self._known: weakref.WeakKeyDictionary[Any, CapturedFunction] = weakref.WeakKeyDictionary()
        self._captures: dict[types.CodeType, int] = {}
        self._count = 0
        #: The client's own code at the time of the captures.
        self._code: Code | None = None
        self._fixed: dict[Any, tuple[Code, int]] = {}
        # A shortcut: most programs call one function many times.
        self._last: Any = None
        self._last_captured: CapturedFunction | None = None

    def number(self, function: Any) -> int | None:
        """Returns the number of a registered function, or None if the function must travel with its arguments."""
        code = tracker.check()
        if code is not self._code:
            self._forget(code)
        if function is self._last:
            last = self._last_captured
            if last is not None and last.is_current():
                return last.number
        kind = type(function)
        if kind is not types.FunctionType and kind is not types.BuiltinFunctionType and kind is not type:
            # A bound method, a partial or an object with state travels with every call, in its current state.
            return None
        try:
            known = self._known.get(function)
        except TypeError:
            return None
        if known is not None and known.is_current():
            self._last, self._last_captured = function, known
            return known.number
        return self._capture(function)

    def fixed(self, function: Any) -> int:
        """Returns the number of one of Dayfly's own functions, which calls other functions."""
        code = tracker.check()
        known = self._fixed.get(function)
        if known is None or known[0] is not code:
            known = self._fixed[function] = (code, self._register(function))
        return known[1]

    def _forget(self, code: Code) -> None:
        """Discards all captures, which belong to other code."""
        self._code = code
        self._known.clear()
        self._captures.clear()
        self._last = self._last_captured = None

    def _capture(self, function: Any) -> int | None:
        if self._count >= MAX_FUNCTIONS:
            return None
        code = getattr(function, "__code__", None)
        if code is not None:
            captures = self._captures.get(code, 0)
            if captures >= CAPTURES:
                return None
            self._captures[code] = captures + 1
        elif getattr(function, "__self__", None) is not None and not isinstance(function.__self__, types.ModuleType):
            # A method of a built-in object contains the state of that object.
            return None
        captured = CapturedFunction(function, self._register(function))
        self._count += 1
        # A strong reference here would keep the function alive, and with it the entry in the weak dictionary.
        captured.function = None if captured.defaults is None else weakref.proxy(function)
        self._known[function] = captured
        return captured.number
