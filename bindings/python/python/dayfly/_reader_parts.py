"""The names that untrusted pickles may use, for `_reader`, and the constructors that build values from their parts."""

from __future__ import annotations

import builtins
import collections
import datetime
import decimal
import fractions
import pathlib
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from dayfly._text import shown
from dayfly._worker import Failed

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


#: Maximum bits of a fraction's numbers. Computing their common divisor takes quadratic time.
MAX_FRACTION_BITS = 100_000


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


class Identifier(Part):
    """A `uuid.UUID` whose state is still missing."""

    __slots__ = ()

    def new(self, args: tuple[Any, ...]) -> Any:
        expect(not args)
        return Identifier()

    def build(self, state: Any) -> Any:
        expect(type(state) is dict and type(state.get("int")) is int)
        return uuid.UUID(int=state["int"])

    def __repr__(self) -> str:
        return "`uuid.UUID`"


class Raised(Part):
    """A class of Python's own exceptions."""

    __slots__ = ("kind",)

    def __init__(self, kind: type[Exception]) -> None:
        super().__init__()
        self.kind = kind

    def call(self, args: tuple[Any, ...]) -> Any:
        expect(all(_is_plain(one) or (type(one) is tuple and all(map(_is_plain, one))) for one in args))
        # Escape control sequences for terminals.
        return self.kind(*[shown(one) if type(one) is str else one for one in args])

    def __repr__(self) -> str:
        return f"`{self.kind.__name__}`"


def _is_plain(value: Any) -> bool:
    return value is None or type(value) in (str, int, float, bool, bytes)


def expect(holds: bool) -> None:
    if not holds:
        raise Refused("it makes a value of arguments that this value never has")


def text_of(value: Any) -> str:
    expect(type(value) is str)
    text: str = value
    return text


def _call(made: Callable[..., Any], *args: Any) -> Any:
    # A helper, because type checkers reject such calls.
    return made(*args)


def _datetime(packed: Any, zone: Any = None) -> datetime.datetime:
    expect(type(packed) is bytes and len(packed) == 10 and (zone is None or isinstance(zone, datetime.tzinfo)))
    made: datetime.datetime = _call(datetime.datetime, packed, *(() if zone is None else (zone,)))
    return made


def _time(packed: Any, zone: Any = None) -> datetime.time:
    expect(type(packed) is bytes and len(packed) == 6 and (zone is None or isinstance(zone, datetime.tzinfo)))
    made: datetime.time = _call(datetime.time, packed, *(() if zone is None else (zone,)))
    return made


def _date(packed: Any) -> datetime.date:
    expect(type(packed) is bytes and len(packed) == 4)
    made: datetime.date = _call(datetime.date, packed)
    return made


def _timedelta(*parts: Any) -> datetime.timedelta:
    expect(len(parts) == 3 and all(type(part) is int for part in parts))
    return datetime.timedelta(*parts)


def _timezone(offset: Any, *name: Any) -> datetime.timezone:
    expect(type(offset) is datetime.timedelta and len(name) <= 1)
    return datetime.timezone(offset, *map(text_of, name))


def _getattr(of: Any, name: Any) -> Any:
    # Pickles of time zones use it. Nothing else may.
    expect(type(of) is Name and of.name == "zoneinfo.ZoneInfo" and name == "_unpickle")
    return Name("zoneinfo.ZoneInfo", _zone)


def _zone(key: Any, _: Any = True) -> datetime.tzinfo:
    from zoneinfo import ZoneInfo

    return ZoneInfo(text_of(key)[:100])


def _never(*_: Any) -> NoReturn:
    raise Refused("it calls what is no function of data")


def _decimal(text: Any) -> decimal.Decimal:
    return decimal.Decimal(text_of(text))


def _fraction(*parts: Any) -> fractions.Fraction:
    if len(parts) == 1:
        # With an exponent, a short string could give a number with unlimited digits.
        expect(re.fullmatch(r"-?[0-9]+(/[0-9]+)?", text_of(parts[0])) is not None)
        parts = tuple(map(int, parts[0].split("/")))
    expect(len(parts) <= 2 and all(type(part) is int and part.bit_length() < MAX_FRACTION_BITS for part in parts))
    return fractions.Fraction(*parts)


def _complex(real: Any, imaginary: Any) -> complex:
    expect(type(real) is float and type(imaginary) is float)
    return complex(real, imaginary)


def _whole(args: tuple[Any, ...]) -> tuple[Any, ...]:
    # Other values in a slice would be hashed with it.
    expect(len(args) == 3 and all(one is None or type(one) is int for one in args))
    return args


def _ordered(*args: Any) -> collections.OrderedDict[Any, Any]:
    expect(not args)
    return collections.OrderedDict()


def _default(factory: Any = None) -> collections.defaultdict[Any, Any]:
    expect(factory is None or type(factory) is Type)
    return collections.defaultdict(None if factory is None else factory.made)


def _counter(counts: Any) -> collections.Counter[Any]:
    expect(type(counts) is dict)
    return collections.Counter(counts)


def _deque(items: Any = (), longest: Any = None) -> collections.deque[Any]:
    expect(type(items) in (list, tuple) and (longest is None or (type(longest) is int and longest >= 0)))
    return collections.deque(items, longest)


def _path(kind: type[pathlib.PurePath]) -> Callable[..., pathlib.PurePath]:
    return lambda *parts: kind(*map(text_of, parts))


def _failed(packed: Any) -> Failed:
    expect(type(packed) is bytes)
    failed = Failed(packed)
    failed.is_foreign = True
    return failed


#: Allowed callables, by their names in a pickle.
NAMES: dict[str, Callable[..., Any]] = {
    "builtins.complex": _complex,
    "builtins.getattr": _getattr,
    "builtins.range": lambda *args: range(*_whole(args)),
    "builtins.slice": lambda *args: slice(*_whole(args)),
    "collections.Counter": _counter,
    "collections.OrderedDict": _ordered,
    "collections.defaultdict": _default,
    "collections.deque": _deque,
    "datetime.date": _date,
    "datetime.datetime": _datetime,
    "datetime.time": _time,
    "datetime.timedelta": _timedelta,
    "datetime.timezone": _timezone,
    "decimal.Decimal": _decimal,
    "fractions.Fraction": _fraction,
    "dayfly._worker.Failed": _failed,
    "zoneinfo.ZoneInfo": _never,
    **{
        f"{module}.{kind.__name__}": _path(kind)
        for module in ("pathlib", "pathlib._local")
        for kind in (pathlib.PurePosixPath, pathlib.PureWindowsPath, type(pathlib.Path()))
    },
}
#: Classes that make empty values, and may be the factory of a `collections.defaultdict`.
_FACTORIES = (bool, bytes, complex, dict, float, frozenset, int, list, set, str, tuple)
#: Exceptions that read files when they are printed, or contain other exceptions.
_NOT_RAISED = (SyntaxError, BaseExceptionGroup)


def named(module: str, name: str) -> Any:
    """Returns the object that a pickle refers to by this name."""
    full = f"{module}.{name}"
    if full == "builtins.Ellipsis":
        return ...
    if full == "uuid.UUID":
        return Identifier()
    if (made := NAMES.get(full)) is not None:
        return Name(full, made)
    if module == "builtins":
        kind = vars(builtins).get(name)
        if kind in _FACTORIES:
            return Type(full, kind)
        if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, _NOT_RAISED):
            return Raised(kind)
    family = module.partition(".")[0]
    if family == "numpy":
        from dayfly import _reader_numpy

        return _reader_numpy.named(full)
    if family == "pyarrow":
        from dayfly import _reader_arrow

        return _reader_arrow.named(full)
    raise Refused(f"it holds a `{full[:200]}`")
