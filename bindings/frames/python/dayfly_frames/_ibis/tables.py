"""The tables and views of a connection."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import ibis.common.exceptions as com
import ibis.expr.operations as ops

from dayfly_frames._frame import Frame


class Tables:
    """Frames by name. A view is a frame too: it keeps the frames that it was made of."""

    def __init__(self) -> None:
        self._frames: dict[str, Frame] = {}
        self._views: set[str] = set()
        #: Tables of ``ibis.memtable``, which are in no list.
        self._temporary: dict[str, Frame] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._frames)

    def __getitem__(self, name: str) -> Frame:
        frame = self._frames.get(name) or self._temporary.get(name)
        if frame is None:
            raise com.TableNotFound(name)
        return frame

    @property
    def all(self) -> dict[str, Frame]:
        """What queries see."""
        return self._temporary | self._frames

    def check_free(self, name: str, *, overwrite: bool) -> None:
        """Raises an error if there is a table of this name that is not to be replaced."""
        if name in self._frames and not overwrite:
            raise com.IbisInputError(f"table {name!r} exists: choose another name, or pass overwrite=True")

    def put(self, name: str, frame: Frame, *, is_view: bool = False) -> None:
        """Adds a table, or replaces it."""
        self._frames[name] = frame
        (self._views.add if is_view else self._views.discard)(name)

    def put_temporary(self, op: ops.InMemoryTable, frame: Frame) -> None:
        """Adds a table until Ibis drops the object that stands for it."""
        name = op.name
        self._temporary[name] = frame
        weakref.finalize(op, self._forget, name, frame).atexit = False

    def _forget(self, name: str, frame: Frame) -> None:
        # Another object may have taken the name meanwhile.
        if self._temporary.get(name) is frame:
            del self._temporary[name]

    def drop(self, name: str, *, is_view: bool, force: bool) -> None:
        """Removes a table, or a view."""
        kind = "view" if is_view else "table"
        if name in self._frames and (name in self._views) == is_view:
            del self._frames[name]
            self._views.discard(name)
        elif name in self._frames:
            raise com.IbisInputError(f"{name!r} is no {kind}: use drop_{'table' if is_view else 'view'}")
        elif not force:
            raise com.TableNotFound(name)

    def check_table(self, name: str) -> None:
        """Raises an error unless this is a table, whose rows can change."""
        if name not in self._frames:
            raise com.TableNotFound(name)
        if name in self._views:
            raise com.UnsupportedOperationError(f"{name!r} is a view: its rows cannot change")

    def rename(self, old: str, new: str) -> None:
        """Renames a table or a view."""
        frame = self[old]
        self.check_free(new, overwrite=False)
        self.put(new, frame, is_view=old in self._views)
        self._frames.pop(old, None)
        self._views.discard(old)
