"""The interactive prompt."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import dayfly
from dayfly._text import shown

from dayfly_frames._sql import failures, results
from dayfly_frames._sql.database import Database
from dayfly_frames._sql.statements import Statement, split

HELP = r"""Statements end with a semicolon, and may have several lines.
  \d          list the tables
  \d NAME     list the columns of a table
  \timing     show how long statements take, or no longer
  \q          end, as Ctrl-D does
Ctrl-C cancels a statement.
"""
#: Lines that the history keeps.
MAX_HISTORY = 1000


def history_path() -> Path | None:
    """Returns the file of former lines, in the state directory of Dayfly."""
    base = os.environ.get("XDG_STATE_HOME")
    home = os.environ.get("HOME")
    if not base and not home:
        return None
    return (Path(base) if base else Path(home or "", ".local/state")) / "dayfly/sql-history"


@contextlib.contextmanager
def _history() -> Iterator[None]:
    """Has `input` edit lines, and recall those of former prompts. Does nothing where it cannot."""
    path = history_path()
    try:
        import readline
    except ImportError:
        yield
        return
    with contextlib.suppress(OSError):
        if path is not None:
            readline.read_history_file(path)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if path is not None:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                # What is asked is private: the file is there, and closed to others, before it has content.
                os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
                path.chmod(0o600)
                readline.set_history_length(MAX_HISTORY)
                readline.write_history_file(path)


class Prompt:
    """Reads statements from a terminal, and executes them in one session."""

    def __init__(self, database: Database) -> None:
        self._database = database
        #: Lines of a statement that has no end yet.
        self._pending = ""

    def run(self) -> int:
        """Executes what is typed, until it ends. Returns the exit status."""
        session = self._database.session()
        tables = ", ".join(self._database.tables) or "none"
        ranks = f"{session.ranks} rank" + "s" * (session.ranks != 1)
        print(f"{ranks}; tables: {tables}. \\? shows help.")
        with _history():
            self._read()
        return 0

    def _read(self) -> None:
        while True:
            try:
                if not self._step():
                    return
            except KeyboardInterrupt:
                self._pending = ""
                print("^C")

    def _step(self) -> bool:
        """Reads a line, and executes the statements that it ends. Returns whether more may follow."""
        try:
            text = self._pending + input("     -> " if self._pending else "dayfly> ")
        except EOFError:
            print()
            return False
        command = "" if self._pending else text.strip()
        if command in ("\\q", "quit", "exit"):
            return False
        if command.startswith("\\"):
            self._guarded(functools.partial(self._command, command), text)
            return True
        ended, rest = split(text)
        self._pending = f"{rest.text}\n" if rest else ""
        for statement in ended:
            if not self._guarded(functools.partial(self._execute, statement), text):
                break
        return True

    def _guarded(self, step: Callable[[], None], text: str) -> bool:
        """Takes a step, and shows its failure. Returns whether it was a success."""
        try:
            step()
        except KeyboardInterrupt:
            print("Cancelled.")
        except (dayfly.Error, ValueError, OSError) as error:
            failures.report(error, as_json=False, text=text)
        else:
            return True
        return False

    def _execute(self, statement: Statement) -> None:
        with results.destination(None) as write:
            self._database.execute(statement, write)

    def _command(self, command: str) -> None:
        name, _, argument = command.partition(" ")
        argument = argument.strip().rstrip(";")
        if name == "\\?":
            print(HELP, end="")
        elif name == "\\timing":
            self._database.timing = not self._database.timing
            print(f"Timing is {'on' if self._database.timing else 'off'}.")
        elif name == "\\d":
            self._describe(argument)
        else:
            raise dayfly.RequestError(f"there is no command {name}: \\? lists them", "invalid_request")

    def _describe(self, table: str) -> None:
        """Lists the columns of a table, or the tables."""
        self._database.session()
        tables = self._database.tables
        if not table:
            print("\n".join(shown(name) for name in tables) or "No tables: name some by --table.")
        elif table in tables:
            schema = tables[table].schema
            width = max(map(len, schema), default=0)
            print("\n".join(shown(f"{name:{width}}  {kind}") for name, kind in schema.items()))
        else:
            known = ", ".join(tables) or "none"
            raise dayfly.RequestError(f'there is no table "{table}"; the tables are: {known}', "not_found")
