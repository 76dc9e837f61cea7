"""narwhals' functions of texts."""

from __future__ import annotations

from typing import Any

from narwhals._sql.expr_str import SQLExprStringNamespace
from narwhals._utils import not_implemented

from dayfly_frames._narwhals import sql
from dayfly_frames._narwhals.sql import Sql, call, case, cast, literal, matched
from dayfly_frames._narwhals.time import UTC, chrono_format


class DayflyText(SQLExprStringNamespace[Any]):
    """Functions of texts."""

    def replace(self, value: Any, pattern: str, *, literal: bool, n: int) -> Any:
        """Replaces the first match, or all if ``n`` is negative."""
        if n < 0:
            return self.replace_all(value, pattern, literal=literal)
        if n != 1:
            raise NotImplementedError(f"n={n}: frames of Dayfly replace one match, or all by `replace_all`")
        func = _replaced if literal else matched
        return self.compliant._with_elementwise(
            lambda text, value: func(text, sql.literal(pattern), value), expression_args={"value": value}
        )

    def strip_chars_start(self, characters: str) -> Any:
        """Removes these characters from the beginning."""
        return self.compliant._with_elementwise(lambda text: call("ltrim", text, literal(characters)))

    def strip_chars_end(self, characters: str) -> Any:
        """Removes these characters from the end."""
        return self.compliant._with_elementwise(lambda text: call("rtrim", text, literal(characters)))

    def to_datetime(self, format: str | None) -> Any:
        """Reads a time."""
        if format is None:
            raise NotImplementedError("frames of Dayfly infer no format of times: say str.to_datetime(format=...)")
        written = literal(chrono_format(format))

        def func(text: Sql) -> Sql:
            time = call("to_timestamp_micros", text, written)
            return cast(time, UTC) if "%z" in format else time

        return self.compliant._with_elementwise(func)

    def to_date(self, format: str | None) -> Any:
        """Reads a date."""
        if format is None:
            return self.compliant._with_elementwise(lambda text: cast(text, "Date32"))
        written = literal(chrono_format(format))
        return self.compliant._with_elementwise(lambda text: call("to_date", text, written))

    def to_time(self, format: str | None) -> Any:
        """Reads a time of the day."""
        if format is None:
            return self.compliant._with_elementwise(lambda text: cast(text, "Time64(Nanosecond)"))
        written = literal(chrono_format(format))
        return self.compliant._with_elementwise(lambda text: call("to_time", text, written))

    to_titlecase = not_implemented(hint="`to_uppercase` and `to_lowercase` are there.")


def _replaced(text: Sql, part: Sql, value: Sql) -> Sql:
    place = call("strpos", text, part)
    before = call("left", text, place - literal(1))
    after = call("substr", text, place + call("character_length", part))
    return case(place > literal(0), Sql(f"({before.text} || {value.text} || {after.text})"), text)
