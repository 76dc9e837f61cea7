"""The worker's side of a client's own code: imports modules from the code that traveled with the function.

See `_code` for the client's side. It has few imports, because they delay every cold start.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import sys
import tempfile
import time
import zlib
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import spec_from_file_location
from types import ModuleType
from typing import Any

#: Seconds after which unused directories of code are removed.
_KEPT_S = 7 * 86_400.0
#: Seconds after which an unfinished directory is removed. The worker that wrote it was killed.
_KEPT_PART_S = 3_600.0
_PART = "part-"


class Bundle:
    """The files of a client's own code.

    Attributes:
        files: content, by name in the bundle.
        places: paths on the client, by name in the bundle.
        modules: names in the bundle, by full names of the modules.
        portions: directories of packages, on the client and in the bundle, by full names of the packages.
    """

    def __init__(self, digest: str, packed: bytes) -> None:
        self.digest = digest
        raw = zlib.decompress(packed)
        length = int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8 : 8 + length])
        self.files: dict[str, bytes] = {}
        self.places: dict[str, str] = {}
        self.modules: dict[str, str] = {}
        self.portions: dict[str, list[tuple[str, str]]] = {}
        self._directory: str | None = None
        at = 8 + length
        for package, base, relative, size in header:
            # Several portions of a package may have a file of the same name.
            root = "/".join(filter(None, (hashlib.sha256(os.fsencode(base)).hexdigest()[:8], package)))
            name = f"{root}/{relative}"
            self.files[name], at = raw[at : at + size], at + size
            self.places[name] = os.path.join(base, relative)
            self._add_module(package, base, relative, root)

    def _add_module(self, package: str, base: str, relative: str, root: str) -> None:
        *directories, file = relative.split("/")
        module, rank = _stem(file)
        if module is None:
            return
        packages = [package, *directories] if package else []
        for depth in range(len(packages)):
            below = directories[:depth]
            portion = (os.path.join(base, *below), os.path.join(root, *below))
            portions = self.portions.setdefault(".".join(packages[: depth + 1]), [])
            if portion not in portions:
                portions.append(portion)
        full = ".".join(packages if module == "__init__" else [*packages, module])
        # The interpreter's order: a package precedes an extension, which precedes a module.
        known = self.modules.get(full)
        if full and (known is None or rank < _rank(known)):
            self.modules[full] = f"{root}/{relative}"

    def is_package(self, full: str) -> bool:
        return _rank(self.modules[full]) == 0

    def path(self, name: str) -> str:
        """Returns the path of a file: the original one if this host has it, else that of the extracted file."""
        place = self.places[name]
        return place if os.path.isfile(place) else self.extracted(name)

    def extracted(self, name: str) -> str:
        if self._directory is None:
            self._directory = _extract(self)
        return os.path.join(self._directory, name)

    def replaces(self, other: Bundle) -> bool:
        """Returns whether modules of the other bundle differ from this one's. Modules missing here do not count."""
        mine = {place: self.files[name] for name, place in self.places.items()}
        return any(mine.get(place) != other.files[name] for name, place in other.places.items())


def _stem(file: str) -> tuple[str | None, int]:
    """Returns the module name of a file, and its rank among files of the same module."""
    if file == "__init__.py":
        return "__init__", 0
    for suffix in EXTENSION_SUFFIXES:
        if file.endswith(suffix):
            return file[: -len(suffix)], 1
    return (file[:-3], 2) if file.endswith(".py") else (None, 3)


def _rank(name: str) -> int:
    return _stem(name.rsplit("/", 1)[-1])[1]


def _extract(bundle: Bundle) -> str:
    """Extracts a bundle to a directory that workers of the same user and bundle share. Returns the directory."""
    root = os.path.join(tempfile.gettempdir(), f"dayfly-code-{os.getuid()}")
    try:
        os.makedirs(root, mode=0o700, exist_ok=True)
        about = os.lstat(root)
        if about.st_uid != os.getuid() or about.st_mode & 0o077 or os.path.islink(root):
            raise PermissionError(root)
    except OSError:
        # The directory belongs to another user: do not load code from it.
        root = tempfile.mkdtemp(prefix="dayfly-code-")
    directory = os.path.join(root, bundle.digest)
    if os.path.isdir(directory):
        os.utime(directory)
        return directory
    _tidy(root)
    part = tempfile.mkdtemp(dir=root, prefix=_PART)
    try:
        for name, content in bundle.files.items():
            path = os.path.join(part, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(content)
        os.rename(part, directory)
    except BaseException as error:
        _remove(part)
        # Another worker has meanwhile created the same directory.
        if not isinstance(error, OSError) or not os.path.isdir(directory):
            raise
    return directory


def _tidy(root: str) -> None:
    """Removes directories that no worker has used recently."""
    with os.scandir(root) as entries:
        for entry in entries:
            kept_s = _KEPT_PART_S if entry.name.startswith(_PART) else _KEPT_S
            with contextlib.suppress(OSError):
                if time.time() - entry.stat(follow_symlinks=False).st_mtime > kept_s:
                    _remove(entry.path)


def _remove(directory: str) -> None:
    from shutil import rmtree

    rmtree(directory, ignore_errors=True)


class _Loader(SourceFileLoader):
    """Loads a module from a bundle. It neither reads nor writes cached bytecode."""

    def __init__(self, full: str, path: str, content: bytes) -> None:
        super().__init__(full, path)
        self._content = content

    def get_data(self, path: str) -> bytes:
        return self._content if path == self.path else super().get_data(path)

    def path_stats(self, path: str) -> Any:
        # Cached bytecode is compared by seconds and size, which an edit may leave unchanged.
        raise OSError(path)


class Finder:
    """Finds the modules of a bundle, before those on the module path."""

    def __init__(self) -> None:
        self.bundle: Bundle | None = None
        #: Paths of loaded extensions: a process cannot load another extension from the same path.
        self._loaded: dict[str, bytes] = {}

    def find_spec(
        self, full: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        bundle = self.bundle
        if bundle is None:
            return None
        name = bundle.modules.get(full)
        if name is None:
            return self._portions(bundle, full, path)
        if name.endswith(".py"):
            place = bundle.path(name)
            below = [os.path.dirname(place)] if bundle.is_package(full) else None
            loader = _Loader(full, place, bundle.files[name])
            return spec_from_file_location(full, place, loader=loader, submodule_search_locations=below)
        place = self._extension(bundle, name)
        return spec_from_file_location(full, place, loader=ExtensionFileLoader(full, place))

    def _extension(self, bundle: Bundle, name: str) -> str:
        content = bundle.files[name]
        place = bundle.path(name)
        with open(place, "rb") as file:
            is_same = file.read() == content
        if not is_same or self._loaded.get(place, content) != content:
            place = bundle.extracted(name)
        self._loaded[place] = content
        return place

    @staticmethod
    def _portions(bundle: Bundle, full: str, path: Sequence[str] | None) -> ModuleSpec | None:
        portions = bundle.portions.get(full)
        if portions is None:
            return None
        found = PathFinder.find_spec(full, path)
        if found is not None and found.loader is not None and found.origin is not None:
            return None
        spec = ModuleSpec(full, None, is_package=True)
        own = [place if os.path.isdir(place) else bundle.extracted(name) for place, name in portions]
        others = [] if found is None else list(found.submodule_search_locations or ())
        spec.submodule_search_locations = own + [place for place in others if place not in own]
        return spec

    def use(self, bundle: Bundle) -> None:
        """Switches to a bundle. Discards imported modules of the previous bundle if they differ."""
        before, self.bundle = self.bundle, bundle
        if before is None or not bundle.replaces(before):
            return
        for full in (*before.modules, *before.portions):
            sys.modules.pop(full, None)
        if "linecache" in sys.modules:
            sys.modules["linecache"].clearcache()


_finder = Finder()


def load(digest: str, packed: bytes, pickled: bytes) -> Any:
    """Unpickles a function together with the modules that traveled with it. Pickles call it."""
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    bundle = _finder.bundle
    if bundle is None or bundle.digest != digest:
        _finder.use(Bundle(digest, packed))
    return pickle.loads(pickled)
