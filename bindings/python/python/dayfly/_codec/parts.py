"""The parts of values that `reader` makes before the values, and the limits for reading one pickle."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

#: Maximum processor time of a read: seconds, and seconds for each byte of the pickle. Data needs a tenth of that.
#: Keys that are chosen to collide take quadratic time. Python hashes numbers and tuples in the same way in every
#: process, so no rule for single keys distinguishes them from data. Parts that are used repeatedly take more.
MAX_TIME_S = 1.0
MAX_TIME_S_PER_BYTE = 0.5e-6
#: Maximum bytes and items to copy, and more for each byte of the pickle: its parts may be used more than once.
MAX_COPIED = 64 << 20
MAX_COPIED_PER_BYTE = 4
_SIZED = (bytes, bytearray, str, list, tuple, dict, set, frozenset)


class Refused(ValueError):  # noqa: N818 (named for the outcome)
    """The pickle contains more than data. The message names it."""


class Limits(threading.local):
    """The limits for reading one pickle, for each thread."""

    def __init__(self) -> None:
        self.length = 0
        self.until = 0.0
        self.room = 0

    def begin(self, length: int) -> None:
        """Resets the limits for a pickle of ``length`` bytes."""
        self.length = length
        self.until = time.thread_time() + MAX_TIME_S + MAX_TIME_S_PER_BYTE * length
        self.room = MAX_COPIED + MAX_COPIED_PER_BYTE * length

    def look(self) -> None:
        """Refuses the pickle if its time limit has passed."""
        if time.thread_time() > self.until:
            raise Refused(
                f"its {self.length} bytes take too long to read: many of its keys have the same hash, or many values "
                "the same parts"
            )

    def copy(self, values: Iterable[Any]) -> None:
        """Counts the bytes that a constructor may copy from its arguments, and refuses the pickle above the limit."""
        for value in values:
            if type(value) is memoryview:
                self.room -= value.nbytes
            elif type(value) in _SIZED:
                self.room -= len(value)
        if self.room < 0:
            raise Refused(f"its {self.length} bytes take too much memory: many of its values have the same parts")


#: The limits of this thread.
limits = Limits()


class Part:
    """An incomplete value: a name, or an object without its state. It may be an argument, but not part of a value."""

    __slots__ = ("at",)

    def __init__(self) -> None:
        #: Index in the memo.
        self.at = -1

    def call(self, args: tuple[Any, ...]) -> Any:
        """Returns the result of REDUCE."""
        raise Refused(f"it calls {self!r}")

    def new(self, args: tuple[Any, ...]) -> Any:
        """Returns the result of NEWOBJ."""
        raise Refused(f"it makes an object of {self!r}")

    def build(self, state: Any) -> Any:
        """Returns the value with this state, the result of BUILD."""
        raise Refused(f"it sets the state of {self!r}")


class Parts(Part):
    """A tuple that contains parts, as the arguments of a call."""

    __slots__ = ("items",)

    def __init__(self, items: tuple[Any, ...]) -> None:
        super().__init__()
        self.items = items

    def __repr__(self) -> str:
        return "a tuple of functions or classes"


class Name(Part):
    """A function or class, by its name."""

    __slots__ = ("made", "name")

    def __init__(self, name: str, made: Callable[..., Any]) -> None:
        super().__init__()
        self.name = name
        self.made = made

    def call(self, args: tuple[Any, ...]) -> Any:
        return self.made(*args)

    def __repr__(self) -> str:
        return f"`{self.name}`"


class Type(Name):
    """A class that may be the factory of a `collections.defaultdict`."""

    __slots__ = ()

    def call(self, args: tuple[Any, ...]) -> Any:
        raise Refused(f"it calls {self!r}")


def expect(holds: bool) -> None:
    if not holds:
        raise Refused("it makes a value of arguments that this value never has")


def text_of(value: Any) -> str:
    expect(type(value) is str)
    text: str = value
    return text
