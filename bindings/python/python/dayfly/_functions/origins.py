"""The locations of modules, which of them are the client's own, and what they import."""

from __future__ import annotations

import ast
import dis
import importlib.util
import os
import re
import site
import sys
import sysconfig
import types
from functools import cache, lru_cache
from importlib.machinery import EXTENSION_SUFFIXES
from typing import NamedTuple

_IMPORT = re.compile(rb"^[ \t]*(?:from[ \t]+(\w+)|import[ \t]+([^\n#;]+))", re.MULTILINE)
_SHARED_LIBRARY = re.compile(r"\.so(\.\d+)*$")


class Root(NamedTuple):
    """The location of a top-level module."""

    #: Name of the package; empty for a single-file module.
    package: str
    #: Directory of the package or of the file.
    base: str
    file: str


def is_shared_library(name: str) -> bool:
    return _SHARED_LIBRARY.search(name) is not None


def is_code_file(name: str) -> bool:
    return name.endswith((".py", *EXTENSION_SUFFIXES)) or is_shared_library(name)


def entries(directory: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return sorted((one for one in entries if not one.name.startswith(".")), key=lambda one: one.name)
    except OSError:
        return []


def imports(content: bytes, path: str) -> frozenset[str]:
    """Returns the top-level modules that a file may import. May contain false positives; see `does_import`."""
    if not path.endswith(".py"):
        return frozenset()
    found = set()
    for origin, plain in _IMPORT.findall(content):
        for one in (origin,) if origin else plain.split(b","):
            words = one.split()
            if words:
                found.add(words[0].split(b".")[0].decode(errors="replace"))
    return frozenset(found)


@lru_cache(maxsize=256)
def does_import(content: bytes, top: str) -> bool:
    """Returns whether a file really imports a module. Without this, any directory next to it could count as one."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):
        return False
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [one.name for one in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [node.module]
        else:
            continue
        if any(name.partition(".")[0] == top for name in names):
            return True
    return False


def imported(code: types.CodeType) -> set[str]:
    """Returns the top-level modules that a function imports in its body."""
    found = {
        one.argval.partition(".")[0]
        for one in dis.get_instructions(code)
        if one.opname == "IMPORT_NAME" and isinstance(one.argval, str)
    }
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= imported(constant)
    return found - {""}


def roots(top: str) -> list[Root]:
    """Returns the locations of a top-level module, as far as it is the client's own."""
    if top in sys.builtin_module_names:
        return []
    module = sys.modules.get(top)
    if module is None:
        if top in sys.stdlib_module_names:
            return []
        try:
            spec = importlib.util.find_spec(top)
        except (ImportError, ValueError, AttributeError):
            return []
        if spec is None:
            return []
        file, below = spec.origin if spec.has_location else None, spec.submodule_search_locations
    else:
        file, below = getattr(module, "__file__", None), getattr(module, "__path__", None)
    if below is None:
        if not isinstance(file, str) or not os.path.isfile(file) or not _is_own(file):
            return []
        path = os.path.abspath(file)
        return [Root("", os.path.dirname(path), path)] if is_code_file(path) else []
    try:
        directories = [os.path.abspath(one) for one in below if isinstance(one, str) and os.path.isdir(one)]
    except Exception:
        # The package has replaced its path by something else.
        return []
    return [Root(top, one, "") for one in directories if _is_own(one)]


@cache
def _is_own(path: str) -> bool:
    """Returns whether a path belongs neither to an installed package nor to Python."""
    for form in (os.path.abspath(path), os.path.realpath(path)):
        if any(form == one or form.startswith(one + os.sep) for one in _installed()):
            return False
        if not {"site-packages", "dist-packages"}.isdisjoint(form.split(os.sep)):
            return False
    return not _is_target(os.path.dirname(os.path.abspath(path)))


@cache
def _installed() -> frozenset[str]:
    paths = sysconfig.get_paths()
    found = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    found |= {*site.getsitepackages(), site.getusersitepackages()}
    return frozenset(form for path in found for form in (os.path.abspath(path), os.path.realpath(path)))


@cache
def _is_target(directory: str) -> bool:
    """Returns whether a package manager installed into a directory, as ``pip install --target`` does."""
    return any(entry.name.endswith(".dist-info") for entry in entries(directory))
