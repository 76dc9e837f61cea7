"""A session with the tables of the command line."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from types import TracebackType

import dayfly

from dayfly_frames._frame import Frame
from dayfly_frames._paths import is_url
from dayfly_frames._session import Session
from dayfly_frames._sql import results
from dayfly_frames._sql.arguments import Options
from dayfly_frames._sql.sources import root, scan
from dayfly_frames._sql.statements import Statement

#: Levels at which ranks see only the files that their lease names.
_ISOLATED = ("isolated", "container")
_CALL = re.compile(r"pass its frame, as in sql\(.*\)")


def _scanned(session: Session, name: str, path: str) -> Frame:
    try:
        return scan(session, path)
    except dayfly.Error as error:
        error.message = f"table {name}: {error.message}"
        raise


class Database:
    """Tables and a session, which is opened when it is first needed."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._open = contextlib.ExitStack()
        self._session: Session | None = None
        self.timing = options.timing
        self.tables: dict[str, Frame] = {}

    def __enter__(self) -> Database:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Ends the lease."""
        self._open.close()

    def session(self) -> Session:
        """Returns the session, which leases the ranks unless it is open.

        Raises:
            dayfly.Error: if the ranks cannot be leased, or a table cannot be read.
        """
        if self._session is None:
            options = self._options
            with contextlib.ExitStack() as opened:
                client = opened.enter_context(dayfly.connect())
                lease = dict(options.lease)
                if lease.get("sandbox") in _ISOLATED:
                    lease["readable"] = [root(path) for path in options.tables.values() if not is_url(path)]
                if any(is_url(path) for path in options.tables.values()):
                    lease["storage_options"] = "env"
                session = opened.enter_context(
                    client.frames(options.ranks, placement=options.placement, recover=options.recover, **lease)
                )
                self.tables = {name: _scanned(session, name, path) for name, path in options.tables.items()}
                self._open = opened.pop_all()
            self._session = session
        return self._session

    def execute(self, statement: Statement, write: results.Write) -> None:
        """Executes a statement, and writes its rows.

        Raises:
            dayfly.Error: if it fails. Of a wrong statement, the attribute ``position`` has line and column if known.
        """
        session = self.session()
        begin = time.monotonic()
        options = self._options
        try:
            frame = session.sql(statement.placed, **self.tables)
            query = statement.explained
            explained = session.sql(query, **self.tables) if query is not None else None
            is_plan = statement.is_explain
            results.emit(frame, options.format, options.rows, write, is_plan=is_plan, explained=explained)
        except dayfly.Error as error:
            # The library's remedy is a call of Python.
            error.message = _CALL.sub("name its files by --table NAME=PATH", error.message)
            raise
        finally:
            if self.timing:
                print(f"Time: {(time.monotonic() - begin) * 1000:.1f} ms", file=sys.stderr)
