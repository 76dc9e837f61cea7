"""Options of ``dayfly-frames sql``, as ``dayfly sql`` passes them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import dayfly

FORMATS = ("table", "csv", "json", "ndjson", "parquet")
#: Formats of files, by their suffix.
SUFFIXES = {".csv": "csv", ".json": "json", ".ndjson": "ndjson", ".jsonl": "ndjson", ".parquet": "parquet"}


class Options(NamedTuple):
    """What the command line asks for."""

    #: Text of the statements, unless they are in a file or come from standard input.
    query: str | None
    file: str | None
    #: Paths of tables, by name.
    tables: dict[str, str]
    format: str
    output: str | None
    rows: int
    timing: bool
    #: Whether failures are JSON.
    json: bool
    ranks: int
    placement: Any
    #: What happens to statements whose ranks are lost.
    recover: Any
    #: Further arguments of the lease.
    lease: dict[str, Any]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dayfly-frames", description="What `dayfly sql` executes.")
    commands = parser.add_subparsers(required=True, metavar="sql")
    sql = commands.add_parser("sql", help="run SQL over files; `dayfly sql --help` describes the options")
    sql.add_argument("--ranks", "-n", type=int, default=2)
    sql.add_argument("--cores", type=float, help="cores of each rank")
    sql.add_argument("--memory", type=int, help="bytes of memory of all ranks together")
    sql.add_argument("--sandbox", choices=("process", "isolated", "container"))
    sql.add_argument("--placement", default="packed", choices=("packed", "spread", "together", "fabric"))
    sql.add_argument("--recover", default="auto", choices=("auto", "query", "tasks"))
    sql.add_argument("--duration", type=float, help="maximum seconds of the lease")
    sql.add_argument("--table", action="append", default=[], metavar="NAME=PATH")
    sql.add_argument("--file")
    sql.add_argument("--format", choices=FORMATS)
    sql.add_argument("--output")
    sql.add_argument("--rows", type=int, default=40)
    sql.add_argument("--timing", action="store_true")
    sql.add_argument("--json", action="store_true", help="results as JSON by default, and failures too")
    sql.add_argument("query", nargs="?")
    return parser


def parsed(arguments: Sequence[str]) -> Options:
    """Returns the options of a command line.

    Raises:
        SystemExit: if it has others.
        dayfly.Error: if a table has no name or no path.
    """
    given = _parser().parse_args(arguments)
    named = {name: getattr(given, name) for name in ("cores", "memory", "sandbox", "duration")}
    return Options(
        query=given.query,
        file=given.file,
        tables=_tables(given.table),
        format=given.format or _format_of(given.output, given.json),
        output=given.output,
        rows=max(given.rows, 0),
        timing=given.timing,
        json=given.json,
        ranks=given.ranks,
        placement=given.placement,
        recover=given.recover,
        lease={name: value for name, value in named.items() if value is not None},
    )


def _format_of(output: str | None, is_json: bool) -> str:
    if output is not None and (known := SUFFIXES.get(Path(output).suffix.lower())):
        return known
    return "json" if is_json else "table"


def _tables(given: Sequence[str]) -> dict[str, str]:
    tables: dict[str, str] = {}
    for each in given:
        name, equals, path = each.partition("=")
        # As SQL takes names without quotes.
        name = name.strip().lower()
        if not (name and equals and path):
            raise dayfly.RequestError(f"--table {each}: write NAME=PATH, such as trips=trips/", "invalid_request")
        if name in tables:
            raise dayfly.RequestError(f"two tables are named {name}: give one another name", "invalid_request")
        tables[name] = path
    return tables
