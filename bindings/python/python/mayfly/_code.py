"""The client's own code: modules that no package manager installed. They travel by content with every function.

What is on disk when a function is submitted is what runs. A check costs one `stat` for each file of code, and a file is
read again only where that shows a change.
"""

from __future__ import annotations

import ast
import dis
import hashlib
import importlib.util
import json
import logging
import os
import re
import site
import sys
import sysconfig
import threading
import time
import types
import zlib
from collections.abc import Iterator
from functools import cache, lru_cache
from importlib.machinery import EXTENSION_SUFFIXES
from typing import Any, NamedTuple

import cloudpickle

from mayfly import _modules
from mayfly._errors import error_for

_log = logging.getLogger("mayfly")

#: Most bytes of code that travel, before they are compressed and after.
MAX_CODE_BYTES = 64 << 20
MAX_PACKED_BYTES = 48 << 20
#: Most bytes of other files beside them; those that do not fit stay behind.
MAX_DATA_BYTES = 8 << 20
#: Most files and directories of one package that are looked at.
MAX_ENTRIES = 20_000
#: A file may change within the time that its file system counts in, and show nothing of it.
_UNSURE_NS = 2_000_000_000
#: Checks are apart by so many times what one takes, within these bounds.
_PAUSE_FACTOR = 20
_MIN_PAUSE_NS = 1_000_000
_MAX_PAUSE_NS = 20_000_000
#: Modules that are part of the interpreter's surroundings, wherever they lie.
_NEVER = re.compile(r"(mayfly|cloudpickle|sitecustomize|usercustomize|debugpy|_?pydev.*|__main__|__mp_main__)$")
_IMPORT = re.compile(rb"^[ \t]*(?:from[ \t]+(\w+)|import[ \t]+([^\n#;]+))", re.MULTILINE)
_SHARED_LIBRARY = re.compile(r"\.so(\.\d+)*$")


#: By what a file is known to be as it was.
Stat = tuple[int, int, int, int, int]


class Seen(NamedTuple):
    """A file's content as it was read."""

    stat: Stat | None
    content: bytes
    sha256: bytes
    #: Top-level modules that it may import.
    imports: frozenset[str]


class Root(NamedTuple):
    """Where a top-level module lies."""

    #: The package's name; empty for a module of one file.
    package: str
    #: The package's directory, or that of the file.
    base: str
    file: str


class Code:
    """One state of the client's own code.

    Attributes:
        digest: SHA-256 of all of it; None where there is none.
        packed: all of it, as `_modules.Bundle` reads it.
    """

    def __init__(self, digest: str | None, packed: bytes) -> None:
        self.digest = digest
        self.packed = packed

    def carry(self, pickled: bytes) -> bytes:
        """A pickle that brings this code along."""
        if self.digest is None:
            return pickled
        carried: bytes = cloudpickle.dumps(_Carried(self.digest, self.packed, pickled), protocol=5)
        return carried


class _Carried:
    def __init__(self, *arguments: Any) -> None:
        self._arguments = arguments

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return _modules.load, self._arguments


_NONE = Code(None, b"")


class OwnCode:
    """Watches the client's own code.

    Attributes:
        code: as the last check found it.
        due_ns: when the next check is due, by the monotonic clock.
    """

    def __init__(self) -> None:
        self.code = _NONE
        self.due_ns = 0
        self._lock = threading.Lock()
        self._modules: tuple[int, str] | None = None
        #: Top-level modules that functions import themselves, from nowhere else.
        self._named: set[str] = set()
        self._files: dict[str, Seen] = {}
        self._directories: dict[str, int] = {}
        #: Of the code alone.
        self._last: bytes | None = None
        self._main: tuple[str, Seen] | None = None

    def check(self) -> Code:
        """What is on disk now, or was 20 ms ago."""
        if time.monotonic_ns() >= self.due_ns:
            with self._lock:
                if (now := time.monotonic_ns()) >= self.due_ns:
                    self._look()
                    after = time.monotonic_ns()
                    self.due_ns = after + min(max(_MIN_PAUSE_NS, _PAUSE_FACTOR * (after - now)), _MAX_PAUSE_NS)
        return self.code

    def note(self, function: Any) -> None:
        """Looks for modules that a function which travels by value imports in its body."""
        if not isinstance(function, types.FunctionType):
            return
        named = {name for name in _imported(function.__code__) if name not in self._named}
        with self._lock:
            if named - self._named:
                self._named |= named
                self._modules = None
                self.due_ns = 0

    def _look(self) -> None:
        modules = _imported_so_far()
        if modules == self._modules and not self._has_changed():
            return
        self._gather()
        # Looking for modules may import some, of finders.
        self._modules = _imported_so_far()

    def _has_changed(self) -> bool:
        for path, seen in self._files.items():
            if seen.stat is None or seen.stat != _stat(path):
                if seen.stat is None and (again := _read(path)) is not None and again.sha256 == seen.sha256:
                    self._files[path] = again
                    continue
                return True
        return any(_changed_ns(path) != when for path, when in self._directories.items())

    def _gather(self) -> None:
        """Finds all that belongs to the client's own code, and reads what is new of it."""
        known, self._files, self._directories = self._files, {}, {}
        # Each with what may import it, where that is not certain.
        todo: list[tuple[str, Seen | None]] = [(name.partition(".")[0], None) for name in list(sys.modules)]
        todo += [(name, None) for name in sorted(self._named)]
        if (main := self._of_main()) is not None:
            todo += [(name, main) for name in sorted(main.imports)]
        done: set[str] = set()
        listed: list[tuple[Root, str, str]] = []
        data: list[tuple[Root, str, str]] = []
        while todo:
            top, importer = todo.pop()
            if top in done or _NEVER.match(top):
                continue
            roots = _roots(top)
            if roots and importer is not None and top not in sys.modules and not _does_import(importer.content, top):
                continue
            done.add(top)
            for root in roots:
                for relative, path, is_code in self._list(root):
                    if not is_code:
                        data.append((root, relative, path))
                        continue
                    if path not in self._files:
                        seen = known.get(path)
                        if seen is None or seen.stat is None or seen.stat != _stat(path):
                            seen = _read(path)
                        if seen is None:
                            continue
                        self._files[path] = seen
                        todo += [(name, seen) for name in seen.imports]
                    listed.append((root, relative, path))
        self.code = self._packed(listed, data)

    def _of_main(self) -> Seen | None:
        """The program itself, which may import modules later."""
        path = getattr(sys.modules.get("__main__"), "__file__", None)
        if not isinstance(path, str) or not path.endswith(".py"):
            return None
        if self._main is None or self._main[0] != path:
            seen = _read(path)
            if seen is None:
                return None
            self._main = (path, seen)
        return self._main[1]

    def _list(self, root: Root) -> Iterator[tuple[str, str, bool]]:
        """The files of a root: their names from its base on, their paths, and whether they are code."""
        if not root.package:
            yield os.path.basename(root.file), root.file, True
            # Libraries that a module loads from where it lies.
            self._directories[root.base] = _changed_ns(root.base)
            for entry in _entries(root.base):
                if _SHARED_LIBRARY.search(entry.name) and entry.path != root.file and entry.is_file():
                    yield entry.name, entry.path, True
            return
        looked_at, visited = 0, set(_above(os.path.dirname(root.base)))
        directories = [("", root.base)]
        while directories:
            relative, directory = directories.pop()
            try:
                about = os.stat(directory)
            except OSError:
                continue
            # A link may lead back to where it is.
            if (about.st_dev, about.st_ino) in visited:
                continue
            visited.add((about.st_dev, about.st_ino))
            self._directories[directory] = about.st_mtime_ns
            for entry in _entries(directory):
                name, path = entry.name, entry.path
                looked_at += 1
                if looked_at > MAX_ENTRIES:
                    _log.warning("%s has more than %d files, of which the rest stays here", root.base, MAX_ENTRIES)
                    return
                if entry.is_dir():
                    if name not in ("__pycache__", "node_modules") and not os.path.exists(f"{path}/pyvenv.cfg"):
                        directories.append((f"{relative}{name}/", path))
                elif entry.is_file() and not name.endswith((".pyc", ".pyo")):
                    yield f"{relative}{name}", path, _is_code(name)

    def _packed(self, listed: list[tuple[Root, str, str]], data: list[tuple[Root, str, str]]) -> Code:
        if not listed:
            self._last = None
            return _NONE
        listed.sort(key=lambda one: (one[0].base, one[1]))
        digest = hashlib.sha256()
        for root, relative, path in listed:
            digest.update(json.dumps([root.package, root.base, relative]).encode() + self._files[path].sha256)
        # Other files count when the code changes, and when the program starts again: it may write them itself.
        if digest.digest() == self._last:
            return self.code
        total = sum(len(self._files[path].content) for _, _, path in listed)
        largest = max(listed, key=lambda one: len(self._files[one[2]].content))[2]
        if total > MAX_CODE_BYTES:
            self._refuse(total, MAX_CODE_BYTES, largest)
        contents = {(root, relative): self._files[path].content for root, relative, path in listed}
        contents |= _data(data)
        header, whole = [], bytearray()
        for (root, relative), content in sorted(contents.items()):
            header.append([root.package, root.base, relative, len(content)])
            whole += content
        # ASCII, whatever names have.
        head = json.dumps(header).encode()
        raw = len(head).to_bytes(8, "little") + head + whole
        packed = zlib.compress(raw, 1)
        if len(packed) > MAX_PACKED_BYTES:
            self._refuse(len(packed), MAX_PACKED_BYTES, largest)
        self._last = digest.digest()
        return Code(hashlib.sha256(raw).hexdigest(), packed)

    def _refuse(self, size: int, limit: int, largest: str) -> None:
        # It is looked at again, after something was moved.
        self._modules = None
        raise error_for(
            "too_large",
            f"your own modules take {size / 2**20:.1f} MiB, and {limit >> 20} MiB may travel with a function; the "
            f"largest file is {largest!r}: install what it belongs to as a package where functions run, or name an "
            "environment",
        )


def _imported_so_far() -> tuple[int, str]:
    """What is different once another module was imported."""
    try:
        return len(sys.modules), next(reversed(sys.modules), "")
    except RuntimeError:
        # Another thread imports one just now.
        return 0, ""


def current(function: Any) -> Any:
    """Returns a function as its module has it now, where the module was reloaded since the caller took it."""
    if not isinstance(function, types.FunctionType) or function.__module__ == "__main__":
        return function
    found: Any = sys.modules.get(function.__module__ or "")
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    if not isinstance(found, types.FunctionType) or found.__globals__ is not function.__globals__:
        return function
    # Not what a decorator has put there.
    before, after = function.__code__, found.__code__
    is_same = (before.co_filename, before.co_qualname) == (after.co_filename, after.co_qualname)
    return found if is_same and not hasattr(found, "__wrapped__") and not function.__closure__ else function


def _data(listed: list[tuple[Root, str, str]]) -> dict[tuple[Root, str], bytes]:
    """Files beside the code, as far as they fit."""
    taken: dict[tuple[Root, str], bytes] = {}
    left, behind = MAX_DATA_BYTES, []
    for root, relative, path in sorted(listed, key=lambda one: one[2]):
        try:
            size = os.path.getsize(path)
            if size > left:
                behind.append(path)
                continue
            with open(path, "rb") as file:
                content = file.read(left + 1)
        except OSError:
            continue
        if len(content) <= left:
            taken[root, relative] = content
            left -= len(content)
    if behind:
        _log.info("files beside your own modules that are too large to travel: %s", ", ".join(behind))
    return taken


def _entries(directory: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return sorted((one for one in entries if not one.name.startswith(".")), key=lambda one: one.name)
    except OSError:
        return []


def _above(directory: str) -> Iterator[tuple[int, int]]:
    """A directory and those above it, which a link in it may lead back to."""
    while True:
        if about := _stat(directory):
            yield about[4], about[3]
        above = os.path.dirname(directory)
        if above == directory:
            return
        directory = above


def _is_code(name: str) -> bool:
    return name.endswith((".py", *EXTENSION_SUFFIXES)) or _SHARED_LIBRARY.search(name) is not None


def _stat(path: str) -> Stat | None:
    try:
        about = os.stat(path)
    except OSError:
        return None
    return about.st_mtime_ns, about.st_ctime_ns, about.st_size, about.st_ino, about.st_dev


def _changed_ns(directory: str) -> int:
    try:
        return os.stat(directory).st_mtime_ns
    except OSError:
        return 0


def _read(path: str) -> Seen | None:
    """A file's content; None where it is none any more."""
    about = _stat(path)
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_CODE_BYTES + 1)
    except OSError:
        return None
    if about is None or about != _stat(path) or time.time_ns() - max(about[:2]) < _UNSURE_NS:
        about = None
    return Seen(about, content, hashlib.sha256(content).digest(), _imports(content, path))


def _imports(content: bytes, path: str) -> frozenset[str]:
    """Top-level modules that a file may import, or speaks of as if it did: see `_does_import`."""
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
def _does_import(content: bytes, top: str) -> bool:
    """Whether a file imports a module indeed: any directory beside it could be one."""
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


def _imported(code: types.CodeType) -> set[str]:
    """Top-level modules that a function imports in its body."""
    found = {
        one.argval.partition(".")[0]
        for one in dis.get_instructions(code)
        if one.opname == "IMPORT_NAME" and isinstance(one.argval, str)
    }
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= _imported(constant)
    return found - {""}


def _roots(top: str) -> list[Root]:
    """Where a top-level module lies, as far as it is the client's own."""
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
        return [Root("", os.path.dirname(path), path)] if _is_code(path) else []
    try:
        directories = [os.path.abspath(one) for one in below if isinstance(one, str) and os.path.isdir(one)]
    except Exception:
        # Whatever a package has put there.
        return []
    return [Root(top, one, "") for one in directories if _is_own(one)]


@cache
def _is_own(path: str) -> bool:
    """Whether a file or directory belongs to no installed package, and not to Python."""
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
    """Whether a package manager has installed into a directory, as ``pip install --target`` does."""
    return any(entry.name.endswith(".dist-info") for entry in _entries(directory))


own = OwnCode()
