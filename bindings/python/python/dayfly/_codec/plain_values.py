"""The constructors of plain values for `reader`: dates, numbers, collections, paths and Python's own exceptions."""

from __future__ import annotations

import collections
import datetime
import decimal
import fractions
import pathlib
import re
import uuid
from collections.abc import Callable
from typing import Any, NoReturn

from dayfly._codec.parts import Name, Part, Refused, Type, expect, text_of
from dayfly._text import shown
from dayfly._worker import FailedItem

#: Maximum bits of a fraction's numbers. Computing their common divisor takes quadratic time.
MAX_FRACTION_BITS = 100_000


class UuidPart(Part):
    """A `uuid.UUID` whose state is still missing."""

    __slots__ = ()

    def new(self, args: tuple[Any, ...]) -> Any:
        expect(not args)
        return UuidPart()

    def build(self, state: Any) -> Any:
        expect(type(state) is dict and type(state.get("int")) is int)
        return uuid.UUID(int=state["int"])

    def __repr__(self) -> str:
        return "`uuid.UUID`"


class BuiltinException(Part):
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
    raise Refused("it calls a function that data does not need")


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


def _failed(packed: Any) -> FailedItem:
    expect(type(packed) is bytes)
    failed = FailedItem(packed)
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
    "dayfly._worker.FailedItem": _failed,
    "zoneinfo.ZoneInfo": _never,
    **{
        f"{module}.{kind.__name__}": _path(kind)
        for module in ("pathlib", "pathlib._local")
        for kind in (pathlib.PurePosixPath, pathlib.PureWindowsPath, type(pathlib.Path()))
    },
}
