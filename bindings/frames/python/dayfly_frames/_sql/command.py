"""Runs the statements of the command line, of a file or of standard input; or a prompt."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import dayfly

from dayfly_frames._sql import arguments, failures, results
from dayfly_frames._sql.arguments import Options
from dayfly_frames._sql.database import Database
from dayfly_frames._sql.statements import Statement, split


def run(given: Sequence[str]) -> int:
    """Runs a command line. Returns the exit status."""
    as_json = "--json" in given
    try:
        options = arguments.parsed(given)
        is_interactive = options.query is None and options.file is None and sys.stdin.isatty() and sys.stdout.isatty()
        _check(options, is_interactive)
        if is_interactive:
            from dayfly_frames._sql.prompt import Prompt

            with Database(options) as database:
                return Prompt(database).run()
        return _batch(options)
    except KeyboardInterrupt:
        return failures.INTERRUPTED
    except BrokenPipeError:
        # What is left in the buffer has no reader.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (dayfly.Error, ValueError, OSError) as error:
        return failures.report(error, as_json=as_json)


def _check(options: Options, is_interactive: bool) -> None:
    problem = None
    if options.query is not None and options.file is not None:
        problem = "there is a query, and --file names another: leave one out"
    elif is_interactive and options.output is not None:
        problem = "--output holds the result of one statement: name it, or a file with it by --file"
    elif options.format == "parquet" and options.output is None:
        problem = "Parquet is no text for a terminal or a pipe: name a file by --output"
    if problem:
        raise dayfly.RequestError(problem, "invalid_request")


def _text(options: Options) -> str:
    if options.query is not None:
        return options.query
    if options.file is not None and options.file != "-":
        try:
            return Path(options.file).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise dayfly.RequestError(f"{options.file} cannot be read: {error}", "invalid_request") from error
    return sys.stdin.read()


def _statements(text: str, options: Options) -> list[Statement]:
    ended, last = split(text)
    statements = ended if last is None else [*ended, last]
    if not statements:
        raise dayfly.RequestError("there is no statement to execute", "invalid_request")
    if options.output is not None and len(statements) > 1:
        raise dayfly.RequestError(
            f"--output holds the result of one statement, and there are {len(statements)}", "invalid_request"
        )
    return statements


def _batch(options: Options) -> int:
    text = _text(options)
    statements = _statements(text, options)
    try:
        with Database(options) as database, results.destination(options.output) as write:
            for statement in statements:
                database.execute(statement, write)
    except dayfly.Error as error:
        file = None if options.file == "-" else options.file
        return failures.report(error, as_json=options.json, text=text, file=file)
    return 0
