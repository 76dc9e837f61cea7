"""narwhals' functions of dates and times."""

from __future__ import annotations

from typing import Any

from narwhals._duration import Interval
from narwhals._sql.expr_dt import SQLExprDateTimeNamesSpace

from dayfly_frames._narwhals.sql import Sql, call, cast, function, literal, string

#: Units of narwhals' intervals in SQL, with how many of them.
_UNITS = {
    "y": (1, "year"),
    "q": (3, "month"),
    "mo": (1, "month"),
    "d": (1, "day"),
    "h": (1, "hour"),
    "m": (1, "minute"),
    "s": (1, "second"),
    "ms": (1, "millisecond"),
    "us": (1, "microsecond"),
    "ns": (1, "nanosecond"),
}
_ARROW_UNITS = {"ms": "Millisecond", "us": "Microsecond", "ns": "Nanosecond"}


#: Moments.
UTC = 'Timestamp(Microsecond, Some("UTC"))'


def chrono_format(python_format: str) -> str:
    """Returns a format of Python's `strftime` as DataFusion takes it."""
    # Python's has six digits.
    return python_format.replace(".%f", "%.6f").replace("%f", "%6f")


class DayflyTime(SQLExprDateTimeNamesSpace[Any]):
    """Functions of dates and times."""

    def _each(self, func: Any) -> Any:
        return self.compliant._with_elementwise(func)

    def _fraction(self, part: str, per_second: int) -> Any:
        # DataFusion counts from the beginning of the minute.
        return self._each(lambda value: Sql(f"(date_part({string(part)}, {value.text}) % {per_second})"))

    def millisecond(self) -> Any:
        """Milliseconds of the second."""
        return self._fraction("millisecond", 10**3)

    def microsecond(self) -> Any:
        """Microseconds of the second."""
        return self._fraction("microsecond", 10**6)

    def nanosecond(self) -> Any:
        """Nanoseconds of the second."""
        return self._fraction("nanosecond", 10**9)

    def weekday(self) -> Any:
        """The day of the week: Monday is 1."""
        return self._each(lambda value: function("isodow", value))

    def to_string(self, format: str) -> Any:
        """Writes a time as `strftime` does."""
        return self._each(lambda value: call("to_char", value, literal(chrono_format(format))))

    def timestamp(self, time_unit: str) -> Any:
        """Time since 1970."""
        unit = f'Timestamp({_ARROW_UNITS[time_unit]}, Some("UTC"))'
        return self._each(lambda value: cast(cast(value, unit), "Int64"))

    def _total(self, unit: str, divisor: int = 1) -> Any:
        def func(value: Sql) -> Sql:
            return cast(cast(value, f"Duration({unit})"), "Int64") // literal(divisor)

        return self._each(func)

    def total_minutes(self) -> Any:
        """Minutes of a duration."""
        return self._total("Second", 60)

    def total_seconds(self) -> Any:
        """Seconds of a duration."""
        return self._total("Second")

    def total_milliseconds(self) -> Any:
        """Milliseconds of a duration."""
        return self._total("Millisecond")

    def total_microseconds(self) -> Any:
        """Microseconds of a duration."""
        return self._total("Microsecond")

    def total_nanoseconds(self) -> Any:
        """Nanoseconds of a duration."""
        return self._total("Nanosecond")

    def truncate(self, every: str) -> Any:
        """The beginning of an interval, counted from 1970 on."""
        interval = Interval.parse(every)
        if interval.multiple == 1 and interval.unit not in ("q", "ns"):
            unit = literal(_UNITS[interval.unit][1])
            return self._each(lambda value: call("date_trunc", unit, value))
        length = _interval(interval)
        origin = cast(Sql("'1970-01-01'"), "Timestamp(Microsecond, None)")
        return self._each(lambda value: call("date_bin", length, value, origin))

    def offset_by(self, by: str) -> Any:
        """The time after an interval."""
        interval = _interval(Interval.parse_no_constraints(by))
        return self._each(lambda value: value + interval)

    def convert_time_zone(self, time_zone: str) -> Any:
        """The same moment in another time zone. Times without a zone are in UTC."""
        in_zone = f'Timestamp(Microsecond, Some("{time_zone}"))'
        return self._each(lambda value: cast(cast(value, UTC), in_zone))

    def replace_time_zone(self, time_zone: str | None) -> Any:
        """The same clock time in another time zone, or in none."""

        def func(value: Sql) -> Sql:
            local = call("to_local_time", value)
            return local if time_zone is None else cast(local, f'Timestamp(Microsecond, Some("{time_zone}"))')

        return self._each(func)


def _interval(interval: Any) -> Sql:
    times, unit = _UNITS[interval.unit]
    return Sql(f"INTERVAL '{interval.multiple * times} {unit}'")
