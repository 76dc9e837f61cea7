"""Constants of expressions."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

from dayfly_frames import _frames

_EPOCH = dt.date(1970, 1, 1)


_MICROSECOND = dt.timedelta(microseconds=1)


def constant(value: Any) -> _frames.Expr:
    """Returns the native expression of a constant."""
    if isinstance(value, dt.datetime):
        zone = None
        if value.tzinfo is not None:
            value, zone = value.astimezone(dt.UTC).replace(tzinfo=None), "UTC"
        return _frames.Expr.timestamp((value - dt.datetime(1970, 1, 1)) // _MICROSECOND, zone)
    if isinstance(value, dt.date):
        return _frames.Expr.date((value - _EPOCH).days)
    if isinstance(value, dt.timedelta):
        return _frames.Expr.duration(value // _MICROSECOND)
    if isinstance(value, Decimal):
        sign, digits, exponent = value.as_tuple()
        if not isinstance(exponent, int):
            raise ValueError(f"{value} is no value of a column")
        number = int("".join(map(str, digits))) * 10 ** max(exponent, 0)
        scale = max(-exponent, 0)
        return _frames.Expr.decimal(-number if sign else number, max(len(str(number)), scale, 1), scale)
    return _frames.Expr.literal(value)
