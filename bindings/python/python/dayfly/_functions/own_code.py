"""The client's own code: modules that no package manager installed. Every function carries it, identified by content.

The code on disk at the time of submission is the code that runs. A check costs one `stat` for each file, and a file is
read again only if its `stat` has changed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import sys
import threading
import time
import types
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import cloudpickle

from dayfly import _modules
from dayfly._failures import error_for
from dayfly._functions.origins import (
    Root,
    does_import,
    entries,
    imported,
    imports,
    is_code_file,
    is_shared_library,
    roots,
)

_log = logging.getLogger("dayfly")

#: Maximum bytes of code that travels, before and after compression.
MAX_CODE_BYTES = 64 << 20
MAX_PACKED_BYTES = 48 << 20
#: Environment variable with names of top-level modules that do not travel.
LOCAL_VARIABLE = "DAYFLY_LOCAL_MODULES"
#: Maximum bytes of other files next to the code. Files that do not fit stay behind.
MAX_DATA_BYTES = 8 << 20
#: Maximum files and directories that are examined for one package.
MAX_ENTRIES = 20_000
#: A file may change twice within the time resolution of its file system, without a change of its timestamp.
_UNSURE_NS = 2_000_000_000
#: The pause between checks is this multiple of the duration of a check, within these bounds.
_PAUSE_FACTOR = 20
_MIN_PAUSE_NS = 1_000_000
_MAX_PAUSE_NS = 2_000_000_000
#: Modules that belong to the interpreter's environment, wherever they are.
_NEVER = re.compile(r"(dayfly|cloudpickle|sitecustomize|usercustomize|debugpy|_?pydev.*|__main__|__mp_main__)$")


#: The properties by which a file counts as unchanged.
Stat = tuple[int, int, int, int, int]


class FileContent(NamedTuple):
    """The content of a file at the time it was read."""

    stat: Stat | None
    content: bytes
    sha256: bytes
    #: Top-level modules that it may import.
    imports: frozenset[str]


@dataclass
class Size:
    """The size of the code, and its largest file: length, path and top-level module."""

    total: int = 0
    largest: tuple[int, str, str] = (0, "", "")


class Code:
    """One state of the client's own code.

    Attributes:
        digest: SHA-256 of the code; None if there is none.
        packed: the code, in the format of `_modules.Bundle`.
    """

    def __init__(self, digest: str | None, packed: bytes) -> None:
        self.digest = digest
        self.packed = packed

    def carry(self, pickled: bytes) -> bytes:
        """Returns a pickle that carries this code."""
        if self.digest is None:
            return pickled
        carried: bytes = cloudpickle.dumps(_CodeCarrier(self.digest, self.packed, pickled), protocol=5)
        return carried


class _CodeCarrier:
    def __init__(self, *arguments: Any) -> None:
        self._arguments = arguments

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return _modules.load, self._arguments


_NONE = Code(None, b"")


class CodeTracker:
    """Tracks the client's own code.

    Attributes:
        code: the code at the last check.
        due_ns: time of the next check, on the monotonic clock.
    """

    def __init__(self) -> None:
        self.code = _NONE
        self.due_ns = 0
        self._lock = threading.Lock()
        self._modules: tuple[int, str] | None = None
        #: Top-level modules that only functions import, in their bodies.
        self._named: set[str] = set()
        self._files: dict[str, FileContent] = {}
        self._directories: dict[str, int] = {}
        #: Digest of the code without other files.
        self._last: bytes | None = None
        self._main: tuple[str, FileContent] | None = None

    def check(self) -> Code:
        """Returns the code on disk, as of now or of the last check: at most 2 s ago if checks are slow."""
        if time.monotonic_ns() >= self.due_ns:
            with self._lock:
                if (now := time.monotonic_ns()) >= self.due_ns:
                    self._look()
                    after = time.monotonic_ns()
                    self.due_ns = after + min(max(_MIN_PAUSE_NS, _PAUSE_FACTOR * (after - now)), _MAX_PAUSE_NS)
        return self.code

    def note(self, function: Any) -> None:
        """Finds modules that a function pickled by value imports in its body."""
        if not isinstance(function, types.FunctionType):
            return
        named = {name for name in imported(function.__code__) if name not in self._named}
        with self._lock:
            if named - self._named:
                self._named |= named
                self._modules = None
                self.due_ns = 0

    def after_fork(self) -> None:
        """Makes this object usable in the child of a fork, where no thread can release the lock or finish the check."""
        if self._lock.locked():
            self._modules = None
            self._last = None
            self.due_ns = 0
        self._lock = threading.Lock()

    def _look(self) -> None:
        modules = _imported_so_far()
        if modules == self._modules and not self._has_changed():
            return
        self._gather()
        # The search can import modules, through finders.
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
        """Finds all files of the client's own code, and reads those that have changed."""
        known, self._files, self._directories = self._files, {}, {}
        # Each name with the file that may import it, if the import is uncertain.
        todo: list[tuple[str, FileContent | None]] = [(name.partition(".")[0], None) for name in list(sys.modules)]
        todo += [(name, None) for name in sorted(self._named)]
        if (main := self._of_main()) is not None:
            todo += [(name, main) for name in sorted(main.imports)]
        done = set(os.environ.get(LOCAL_VARIABLE, "").replace(" ", "").split(","))
        size = Size()
        listed: list[tuple[Root, str, str]] = []
        data: list[tuple[Root, str, str]] = []
        while todo:
            top, importer = todo.pop()
            if top in done or _NEVER.match(top):
                continue
            places = roots(top)
            if places and importer is not None and top not in sys.modules and not does_import(importer.content, top):
                continue
            done.add(top)
            for root in places:
                for relative, path, is_code in self._list(root):
                    if not is_code:
                        data.append((root, relative, path))
                        continue
                    if path not in self._files:
                        about, seen = _stat(path), known.get(path)
                        if about is None:
                            continue
                        # Check before reading: the file may not fit into memory.
                        self._check_size(size, top, path, about[2])
                        if seen is None or seen.stat != about:
                            seen = _read(path)
                        if seen is None:
                            continue
                        self._files[path] = seen
                        todo += [(name, seen) for name in seen.imports]
                    listed.append((root, relative, path))
        self.code = self._packed(listed, data, size)

    def _of_main(self) -> FileContent | None:
        """Returns the main program, which may import modules later."""
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
        """Yields the files of a root: their names relative to its base, their paths, and whether they are code."""
        if not root.package:
            yield os.path.basename(root.file), root.file, True
            # Libraries that a module loads from its own directory.
            self._directories[root.base] = _changed_ns(root.base)
            for entry in entries(root.base):
                if is_shared_library(entry.name) and entry.path != root.file and entry.is_file():
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
            # A link may form a cycle.
            if (about.st_dev, about.st_ino) in visited:
                continue
            visited.add((about.st_dev, about.st_ino))
            self._directories[directory] = about.st_mtime_ns
            for entry in entries(directory):
                name, path = entry.name, entry.path
                looked_at += 1
                if looked_at > MAX_ENTRIES:
                    _log.warning("%s has more than %d files, of which the rest stays here", root.base, MAX_ENTRIES)
                    return
                if entry.is_dir():
                    if name not in ("__pycache__", "node_modules") and not os.path.exists(f"{path}/pyvenv.cfg"):
                        directories.append((f"{relative}{name}/", path))
                elif entry.is_file() and not name.endswith((".pyc", ".pyo")):
                    yield f"{relative}{name}", path, is_code_file(name)

    def _packed(self, listed: list[tuple[Root, str, str]], data: list[tuple[Root, str, str]], size: Size) -> Code:
        if not listed:
            self._last = None
            return _NONE
        listed.sort(key=lambda one: (one[0].base, one[1]))
        digest = hashlib.sha256()
        for root, relative, path in listed:
            digest.update(json.dumps([root.package, root.base, relative]).encode() + self._files[path].sha256)
        # Other files count only if the code changes or the program restarts, because the program may write them itself.
        if digest.digest() == self._last:
            return self.code
        contents = {(root, relative): self._files[path].content for root, relative, path in listed}
        contents |= _data(data)
        header, whole = [], bytearray()
        for (root, relative), content in sorted(contents.items()):
            header.append([root.package, root.base, relative, len(content)])
            whole += content
        # JSON escapes all characters beyond ASCII.
        head = json.dumps(header).encode()
        raw = len(head).to_bytes(8, "little") + head + whole
        packed = zlib.compress(raw, 1)
        if len(packed) > MAX_PACKED_BYTES:
            self._refuse(MAX_PACKED_BYTES, "compressed", size)
        self._last = digest.digest()
        return Code(hashlib.sha256(raw).hexdigest(), packed)

    def _check_size(self, size: Size, top: str, path: str, length: int) -> None:
        size.total += length
        size.largest = max(size.largest, (length, path, top))
        if size.total > MAX_CODE_BYTES:
            self._refuse(MAX_CODE_BYTES, "of code", size)

    def _refuse(self, limit: int, what: str, size: Size) -> None:
        # Check again next time, after files were moved.
        self._modules = None
        length, path, top = size.largest
        raise error_for(
            "too_large",
            f"your own modules are larger than the {limit >> 20} MiB {what} that may travel with a function; the "
            f"largest file is {path!r} ({length / 2**20:.1f} MiB): install {top!r} as a package where functions run, "
            f"or set {LOCAL_VARIABLE}={top} to have workers of this host import it from where it lies",
        )


def _imported_so_far() -> tuple[int, str]:
    """Returns a value that changes when a module is imported."""
    try:
        return len(sys.modules), next(reversed(sys.modules), "")
    except RuntimeError:
        # Another thread is importing a module.
        return 0, ""


def current_version(function: Any) -> Any:
    """Returns the present version of a function, if its module was reloaded since the caller took it."""
    if not isinstance(function, types.FunctionType) or function.__module__ == "__main__":
        return function
    found: Any = sys.modules.get(function.__module__ or "")
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    if not isinstance(found, types.FunctionType) or found.__globals__ is not function.__globals__:
        return function
    # Ignore a replacement by a decorator.
    before, after = function.__code__, found.__code__
    is_same = (before.co_filename, before.co_qualname) == (after.co_filename, after.co_qualname)
    return found if is_same and not hasattr(found, "__wrapped__") and not function.__closure__ else function


def _data(listed: list[tuple[Root, str, str]]) -> dict[tuple[Root, str], bytes]:
    """Returns the files next to the code, as many as fit."""
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


def _above(directory: str) -> Iterator[tuple[int, int]]:
    """Yields a directory and its ancestors, to which a link inside it may lead."""
    while True:
        if about := _stat(directory):
            yield about[4], about[3]
        above = os.path.dirname(directory)
        if above == directory:
            return
        directory = above


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


def _read(path: str) -> FileContent | None:
    """Returns the content of a file; None if it no longer exists."""
    about = _stat(path)
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_CODE_BYTES + 1)
    except OSError:
        return None
    if about is None or about != _stat(path) or abs(time.time_ns() - max(about[:2])) < _UNSURE_NS:
        about = None
    return FileContent(about, content, hashlib.sha256(content).digest(), imports(content, path))


tracker = CodeTracker()
os.register_at_fork(after_in_child=tracker.after_fork)
