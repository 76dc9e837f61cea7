"""Cuts a text into statements of SQL."""

from __future__ import annotations

import re
from typing import NamedTuple

#: Parts of SQL in which a semicolon ends nothing, and the semicolon that does. A quote without an end takes the rest.
_PART = re.compile(
    r"""
    (?P<comment>--[^\n]* | /\*.*?(?:\*/|\Z))
    | (?<!\w)[eE]'(?:[^'\\]|''|\\.)*(?:'|\Z)
    | '(?:[^']|'')*(?:'|\Z)
    | "(?:[^"]|"")*(?:"|\Z)
    | `[^`]*(?:`|\Z)
    | (?<!\w)\$(?P<tag>\w*)\$.*?(?:\$(?P=tag)\$|\Z)
    | (?P<end>;)
    | (?P<space>\s+)
    | .
    """,
    re.DOTALL | re.VERBOSE,
)


class Statement(NamedTuple):
    """A statement, and where it begins in its text: line and column, from 0."""

    text: str
    line: int = 0
    column: int = 0

    @property
    def placed(self) -> str:
        """The statement at its place, so that errors have the lines and columns of the whole text."""
        return "\n" * self.line + " " * self.column + self.text

    @property
    def is_explain(self) -> bool:
        """Whether it asks for a plan."""
        parts = _PART.finditer(self.text)
        begin = next((part.start() for part in parts if not (part["comment"] or part["space"])), 0)
        return re.match(r"explain\b", self.text[begin:], re.IGNORECASE) is not None


def split(text: str) -> tuple[list[Statement], Statement | None]:
    """Returns the statements that end with a semicolon, without it, and the one that has no end yet."""
    found: list[Statement] = []
    begin: int | None = None
    for part in _PART.finditer(text):
        if part["end"]:
            if begin is not None:
                found.append(_at(text, begin, part.start()))
            begin = None
        elif begin is None and not (part["space"] or part["comment"]):
            begin = part.start()
    return found, None if begin is None else _at(text, begin, len(text))


def _at(text: str, begin: int, end: int) -> Statement:
    line_begin = text.rfind("\n", 0, begin) + 1
    return Statement(text[begin:end], text.count("\n", 0, begin), begin - line_begin)
