"""The worker's side of a client's own code: modules are imported from what travelled with the function, not from disk.

See `_code` for what travels. Imports little, because every cold start pays for it.
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

#: Directories of code that nobody has used for so long are removed.
_KEPT_S = 7 * 86_400.0
#: Directories that a worker has begun to write and not finished for so long are removed: it was killed.
_KEPT_PART_S = 3_600.0
_PART = "part-"


class Bundle:
    """Files of a client's own code, as they travelled.

    Attributes:
        files: their content, by name below the bundle.
        places: their paths at the client, by the same names.
        modules: names of the files to import, by the modules' full names.
        portions: directories of packages, at the client and below the bundle, by the packages' full names.
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
        # As the interpreter has it: a package stands before an extension, and that before a module.
        known = self.modules.get(full)
        if full and (known is None or rank < _rank(known)):
            self.modules[full] = f"{root}/{relative}"

    def is_package(self, full: str) -> bool:
        return _rank(self.modules[full]) == 0

    def path(self, name: str) -> str:
        """Where a file is: at its own place, with all that lies beside it, where this host has that."""
        place = self.places[name]
        return place if os.path.isfile(place) else self.extracted(name)

    def extracted(self, name: str) -> str:
        if self._directory is None:
            self._directory = _extract(self)
        return os.path.join(self._directory, name)

    def replaces(self, other: Bundle) -> bool:
        """Whether modules of another one are not what they are in this one; those that it lacks are no concern."""
        mine = {place: self.files[name] for name, place in self.places.items()}
        return any(mine.get(place) != other.files[name] for name, place in other.places.items())


def _stem(file: str) -> tuple[str | None, int]:
    """The module that a file is, and where it stands among files of the same module."""
    if file == "__init__.py":
        return "__init__", 0
    for suffix in EXTENSION_SUFFIXES:
        if file.endswith(suffix):
            return file[: -len(suffix)], 1
    return (file[:-3], 2) if file.endswith(".py") else (None, 3)


def _rank(name: str) -> int:
    return _stem(name.rsplit("/", 1)[-1])[1]


def _extract(bundle: Bundle) -> str:
    """Writes a bundle to a directory that workers of the same user and bundle share; returns it."""
    root = os.path.join(tempfile.gettempdir(), f"dayfly-code-{os.getuid()}")
    try:
        os.makedirs(root, mode=0o700, exist_ok=True)
        about = os.lstat(root)
        if about.st_uid != os.getuid() or about.st_mode & 0o077 or os.path.islink(root):
            raise PermissionError(root)
    except OSError:
        # Somebody else's: code must not come from there.
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
        # Where another worker was faster, its directory is the same.
        if not isinstance(error, OSError) or not os.path.isdir(directory):
            raise
    return directory


def _tidy(root: str) -> None:
    """Removes what no worker uses any more."""
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
    """Loads a module from what travelled. Nothing is read from, or written to, a cache of compiled code."""

    def __init__(self, full: str, path: str, content: bytes) -> None:
        super().__init__(full, path)
        self._content = content

    def get_data(self, path: str) -> bytes:
        return self._content if path == self.path else super().get_data(path)

    def path_stats(self, path: str) -> Any:
        # Cached code is compared by seconds and size, which an edit may leave as they are.
        raise OSError(path)


class Finder:
    """Finds the modules of a bundle, before all that lie on the module path."""

    def __init__(self) -> None:
        self.bundle: Bundle | None = None
        #: Paths of extensions that this process has loaded: it cannot load another from there.
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
        """Modules are those of this bundle from now on. What was imported from another, that differs, is forgotten."""
        before, self.bundle = self.bundle, bundle
        if before is None or not bundle.replaces(before):
            return
        for full in (*before.modules, *before.portions):
            sys.modules.pop(full, None)
        if "linecache" in sys.modules:
            sys.modules["linecache"].clearcache()


_finder = Finder()


def load(digest: str, packed: bytes, pickled: bytes) -> Any:
    """What was pickled, with the modules that it travelled with. Called as a function is unpickled."""
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    bundle = _finder.bundle
    if bundle is None or bundle.digest != digest:
        _finder.use(Bundle(digest, packed))
    return pickle.loads(pickled)
