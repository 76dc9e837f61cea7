"""Tables of the command line: files whose names state their format."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable
from pathlib import Path

import dayfly

from dayfly_frames._frame import Frame
from dayfly_frames._paths import is_url
from dayfly_frames._session import Session

_KINDS = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".json": "ndjson",
    ".arrow": "ipc",
    ".ipc": "ipc",
    ".feather": "ipc",
}
_ENDINGS = ", ".join(_KINDS)
_WILDCARD = re.compile(r"[*?\[]")


def root(path: str) -> str:
    """Returns the file or directory that has all files of a path: of a pattern, the directory before its wildcards."""
    wildcard = _WILDCARD.search(path)
    return path if wildcard is None else os.path.dirname(path[: wildcard.start()]) or "."


def scan(session: Session, path: str) -> Frame:
    """Returns a frame of a file, of a directory's files, or of those of a pattern. Below ``s3://``, a directory has
    Parquet files.

    Raises:
        dayfly.Error: if there is no such file, or the files have another format or several.
    """
    if is_url(path):
        return _scanner(session, _KINDS.get(Path(path).suffix.lower(), "parquet"))([path])
    files = sorted(glob.glob(path, recursive=True)) if _WILDCARD.search(path) else [path]
    if not files or not os.path.exists(files[0]):
        raise dayfly.RequestError(f"there is no file {path}", "not_found")
    listed = [file for each in files for file in _files(each)]
    kinds = {kind for file in listed if (kind := _KINDS.get(Path(file).suffix.lower()))}
    if len(kinds) > 1:
        raise dayfly.RequestError(f"{path} has files of several formats: {', '.join(sorted(kinds))}", "invalid_request")
    if not kinds:
        raise dayfly.RequestError(
            f"{path} has no file of a known format, which ends with {_ENDINGS}", "invalid_request"
        )
    kind = kinds.pop()
    if kind == "parquet":
        # Directories have their own rules: partitions, and what one write left.
        return session.scan_parquet(files)
    return _scanner(session, kind)([file for file in listed if Path(file).suffix.lower() in _KINDS])


def _scanner(session: Session, kind: str) -> Callable[[list[str]], Frame]:
    scanners: dict[str, Callable[[list[str]], Frame]] = {
        "parquet": session.scan_parquet,
        "csv": session.scan_csv,
        "ndjson": session.scan_ndjson,
        "ipc": session.scan_ipc,
    }
    return scanners[kind]


def _files(path: str) -> list[str]:
    """The files below a directory, without hidden ones; or the file itself."""
    if not os.path.isdir(path):
        return [path]
    found = []
    for place, inside, names in os.walk(path):
        inside[:] = sorted(name for name in inside if not name.startswith((".", "_")))
        found += [os.path.join(place, name) for name in sorted(names) if not name.startswith((".", "_"))]
    return found
