"""Failures on standard error, and the exit statuses of the command line."""

from __future__ import annotations

import json
import sys

import dayfly
from dayfly._text import shown

#: Exit statuses of codes, as in docs/reference/cli.md. All others are 1.
STATUSES = {"invalid_request": 2, "unreachable": 3, "timed_out": 3} | dict.fromkeys(
    (
        "not_found",
        "ambiguous",
        "unauthorized",
        "lease_expired",
        "lease_ended",
        "no_capacity",
        "too_large",
        "version_mismatch",
        "python_mismatch",
        "environment_building",
        "environment_failed",
        "isolation_unavailable",
        "worker_busy",
        "replayed",
        "transport_refused",
        "payload_too_large",
        "rejected",
        "stale_epoch",
        "quota_exceeded",
        "forbidden",
    ),
    4,
)
#: Exit status after Ctrl-C, as of a shell.
INTERRUPTED = 130


def failure_of(error: Exception) -> dayfly.Error:
    """Returns the error with its code."""
    if isinstance(error, dayfly.Error):
        return error
    if isinstance(error, FileNotFoundError):
        return dayfly.RequestError(str(error), "not_found")
    if isinstance(error, TimeoutError):
        return dayfly.Error(str(error), "timed_out")
    return dayfly.RequestError(str(error) or type(error).__name__, "invalid_request")


def report(error: Exception, *, as_json: bool, text: str = "", file: str | None = None) -> int:
    """Prints a failure on standard error, with its place in the text. Returns the exit status."""
    failure = failure_of(error)
    position: tuple[int, int] | None = getattr(failure, "position", None)
    message = f"{file}, {failure.message}" if file and position else failure.message
    if as_json:
        line = json.dumps({"error": {"code": failure.code, "message": message}})
    else:
        line = shown(f"error [{failure.code}]: {message}")
        if position:
            line += _marked(text, *position)
    print(line, file=sys.stderr, flush=True)
    return STATUSES.get(failure.code, 1)


def _marked(text: str, line: int, column: int) -> str:
    """Returns a line of the text, and a mark below the column. Both count from 1."""
    lines = text.split("\n")
    if not 1 <= line <= len(lines):
        return ""
    before = "".join(letter if letter == "\t" else " " for letter in lines[line - 1][: column - 1])
    return f"\n  {shown(lines[line - 1])}\n  {before}^"
