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
_EXPLAIN = re.compile(r"explain\b", re.IGNORECASE)
_PLAIN_EXPLAIN = re.compile(r"explain\s+(?=select\b|with\b|values\b)", re.IGNORECASE)


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
        return _EXPLAIN.match(self.text, self._begin) is not None

    @property
    def explained(self) -> str | None:
        """The query at its place, if the statement asks for its plan and does not execute it; None otherwise."""
        found = _PLAIN_EXPLAIN.match(self.text, self._begin)
        if found is None:
            return None
        query = self.text[: found.start()] + " " * len("explain") + self.text[found.start() + len("explain") :]
        return self._replace(text=query).placed

    @property
    def _begin(self) -> int:
        parts = _PART.finditer(self.text)
        return next((part.start() for part in parts if not (part["comment"] or part["space"])), 0)


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
