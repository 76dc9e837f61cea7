"""Sessions: queries over the workers of a lease."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Sequence
from typing import Any

from dayfly_frames import _frames
from dayfly_frames._frame import Frame

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def _found(paths: Paths, ending: str) -> list[str]:
    """Returns absolute paths, with patterns expanded. Directories are those of the ranks too."""
    several = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    found: list[str] = []
    for path in map(os.fspath, several):
        if any(mark in path for mark in "*?["):
            matched = sorted(glob.glob(path, recursive=True))
            if not matched:
                raise FileNotFoundError(f"no file matches {path}")
            found.extend(os.path.abspath(each) for each in matched)
        elif os.path.exists(path):
            whole = os.path.abspath(path)
            found.append(whole + "/" if os.path.isdir(path) else whole)
        else:
            raise FileNotFoundError(f"there is no file {path}; files of a scan end in .{ending}")
    return found


class Session:
    """Queries over the ranks that ``client.frames()`` leased. Use it in ``with``: it ends the lease."""

    def __init__(self, native: _frames.Session, end: Callable[[], None]) -> None:
        self._native = native
        self._end = end

    @property
    def ranks(self) -> int:
        """Number of ranks that execute queries."""
        return self._native.ranks

    def scan_parquet(self, paths: Paths) -> Frame:
        """Returns a frame of Parquet files, which only the ranks read.

        Args:
            paths: a file, a directory, a pattern with ``*``, or several of them. All ranks see them under this path.
        """
        return Frame(self._native.scan_parquet(_found(paths, "parquet")))

    def scan_csv(self, paths: Paths, *, has_header: bool = True, separator: str = ",") -> Frame:
        """Returns a frame of CSV files. Types are those of the first 1,000 rows."""
        if len(separator.encode()) != 1:
            raise ValueError(f"separator={separator!r}: it has to be one byte")
        return Frame(self._native.scan_csv(_found(paths, "csv"), has_header, separator.encode()[0]))

    def scan_json(self, paths: Paths) -> Frame:
        """Returns a frame of files with one JSON object a line."""
        return Frame(self._native.scan_json(_found(paths, "json")))

    def from_arrow(self, table: Any) -> Frame:
        """Returns a frame of a table of PyArrow, Polars, pandas, DuckDB, or whatever else has ``__arrow_c_stream__``."""
        return Frame(self._native.from_arrow(table))

    def sql(self, query: str, **frames: Frame) -> Frame:
        """Returns a frame of an SQL query, which sees these frames as its tables.

        ``session.sql("SELECT zone, sum(fare) FROM trips GROUP BY zone", trips=trips)``
        """
        return Frame(self._native.sql(query, [(name, frame.native) for name, frame in frames.items()]))

    def close(self) -> None:
        """Ends the session, its ranks and its lease. Does nothing the second time."""
        self._native.close()
        end, self._end = self._end, lambda: None
        end()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
