"""Paths of files and directories, and addresses of object stores."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def is_url(path: str) -> bool:
    """Whether a path is the address of an object store."""
    return "://" in path


def _is_directory(path: str) -> bool:
    """Whether a path means all files below it. The last part of a URL that has a dot or a wildcard is a file."""
    if is_url(path):
        return not any(mark in path.rsplit("/", 1)[-1] for mark in ".*?[")
    return os.path.isdir(path)


def found(paths: Paths) -> tuple[list[str], bool]:
    """Returns absolute paths, with patterns expanded, and whether there is a directory among them.

    Raises:
        FileNotFoundError: if there is no such file here. The ranks see the same ones.
    """
    several = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    files: list[str] = []
    for path in [os.fspath(each) for each in several]:
        if is_url(path):
            files.append(path.rstrip("/") + "/" * _is_directory(path))
            continue
        matched = sorted(glob.glob(path, recursive=True)) if any(mark in path for mark in "*?[") else [path]
        if not matched or not os.path.exists(matched[0]):
            raise FileNotFoundError(f"there is no file {path}")
        files.extend(os.path.abspath(each) + "/" * _is_directory(each) for each in matched)
    if not files:
        raise FileNotFoundError("there is no file to read: the list of paths is empty")
    return files, any(path.endswith("/") for path in files)


def absolute(path: str | os.PathLike[str]) -> str:
    """Returns the path or the URL that all ranks see."""
    text = os.fspath(path)
    return text if is_url(text) else os.path.abspath(text)
