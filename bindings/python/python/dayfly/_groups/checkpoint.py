"""Checkpoints: state that the ranks of a group save together, from which a later run continues."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any, Protocol, TypeVar

from dayfly import groups
from dayfly._errors import Error
from dayfly._groups import storage

T = TypeVar("T")

#: Environment variable with the location of a run's checkpoints, for ranks of `dayfly.run` and ``dayfly run``.
VARIABLE = "DAYFLY_CHECKPOINT"
_COMPLETE = "complete.json"
#: Errors of an unusable location.
_TROUBLE = (OSError, Error)


class Ranks(Protocol):
    """The ranks that save together: a `dayfly.groups.Group`, or a communicator of MPI."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def allgather(self, sendobj: Any, /) -> list[Any]: ...
    def bcast(self, obj: Any, root: int = 0) -> Any: ...


class _Place(Protocol):
    """A location of checkpoints. Each checkpoint has a number and consists of a few files."""

    def found(self) -> list[tuple[int, bool]]:
        """Returns the numbers of the checkpoints, in order, and whether each is complete."""
        ...

    def write(self, number: int, name: str, data: bytes) -> None:
        """Stores a file atomically. When this returns, the file survives a power failure."""
        ...

    def read(self, number: int, name: str) -> bytes:
        """Returns the content of a file."""
        ...

    def remove(self, number: int) -> None:
        """Removes a checkpoint. Files that cannot be removed stay."""
        ...


class _Directory:
    """A directory that all ranks can access."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def found(self) -> list[tuple[int, bool]]:
        if not self.path.is_dir():
            return []
        places = [place for place in self.path.iterdir() if place.name.isdecimal() and place.is_dir()]
        return sorted((int(place.name), (place / _COMPLETE).is_file()) for place in places)

    def write(self, number: int, name: str, data: bytes) -> None:
        place = self.path / f"{number:08}"
        place.mkdir(parents=True, exist_ok=True)
        temporary = place / f".{name}.new"
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(place / name)
        if name == _COMPLETE:
            for directory in (place, self.path):
                handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
                try:
                    os.fsync(handle)
                finally:
                    os.close(handle)

    def read(self, number: int, name: str) -> bytes:
        return (self.path / f"{number:08}" / name).read_bytes()

    def remove(self, number: int) -> None:
        shutil.rmtree(self.path / f"{number:08}", ignore_errors=True)


class _Bucket:
    """Object storage. Its writes are atomic and immediately visible to all ranks."""

    def __init__(self, url: str) -> None:
        from dayfly._native import Objects

        self._objects = Objects(url)

    def found(self) -> list[tuple[int, bool]]:
        names = [name.split("/") for name in self._objects.list("")]
        names = [name for name in names if len(name) == 2 and name[0].isdecimal()]
        complete = {int(number) for number, file in names if file == _COMPLETE}
        return sorted({(int(number), int(number) in complete) for number, _ in names})

    def write(self, number: int, name: str, data: bytes) -> None:
        self._objects.put(f"{number:08}/{name}", data)

    def read(self, number: int, name: str) -> bytes:
        data = self._objects.get(f"{number:08}/{name}")
        if data is None:
            raise FileNotFoundError(f"there is no {name}")
        return data

    def remove(self, number: int) -> None:
        with contextlib.suppress(Error):
            self._objects.clear(f"{number:08}")


class Checkpoint:
    """The checkpoints of one run, in a directory that all its ranks can access, or in object storage.

    A checkpoint is complete when every rank's part is stored. An incomplete one is never loaded. All methods are
    collective: every rank of the communicator calls them, in the same order.
    >>> checkpoint = Checkpoint()  # doctest: +SKIP
    >>> step, field = checkpoint.load(default=(0, start))  # doctest: +SKIP
    >>> while step < steps:  # doctest: +SKIP
    ...     step, field = step + 1, advance(field)
    ...     if step % 100 == 0:
    ...         checkpoint.save((step, field))
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, comm: Ranks | None = None, *, keep: int = 2) -> None:
        """Opens the run's checkpoints.

        Args:
            path: directory or ``s3://bucket/prefix`` of the run; by default ``checkpoint=`` of `dayfly.run` or
                ``--checkpoint`` of ``dayfly run``.
            comm: the ranks that save, a group or a communicator of MPI; by default ``dayfly.groups.world()``.
            keep: number of complete checkpoints to keep. Older ones are removed.

        Raises:
            dayfly.Error: ``invalid_request`` if no path is given.
        """
        named = path if path is not None else os.environ.get(VARIABLE)
        if not named:
            raise Error(
                "this run has no directory for checkpoints; name one by checkpoint= of dayfly.run, by --checkpoint of "
                "`dayfly run`, or here",
                "invalid_request",
            )
        if keep < 1:
            raise ValueError(f"keep={keep}: keep at least one")
        where = storage.local_path(named)
        self.path: Path | str = where if storage.is_url(where) else Path(where)
        self._place: _Place = _Directory(self.path) if isinstance(self.path, Path) else _Bucket(self.path)
        self._comm: Ranks = groups.world() if comm is None else comm
        self._keep = keep
        # Never reuse a number, not even that of an incomplete checkpoint.
        self._next = self._agreed(lambda: max([number for number, _ in self._place.found()], default=-1) + 1)

    def save(self, state: Any) -> None:
        """Saves the state of each rank. Returns when the states of all ranks are stored.

        Args:
            state: this rank's state, which must be picklable.

        Raises:
            dayfly.Error: ``store_failed`` on every rank, with the first failed rank's reason, if any rank cannot write.
        """
        number, self._next = self._next, self._next + 1
        mine: tuple[int, str] | str
        try:
            data = pickle.dumps(state, protocol=5)
            self._place.write(number, _part(self._comm.rank), data)
            mine = len(data), hashlib.sha256(data).hexdigest()
        except (*_TROUBLE, pickle.PicklingError, TypeError, AttributeError) as error:
            mine = f"rank {self._comm.rank} could not save its part of checkpoint {self._name(number)}: {error}"
        # The checkpoint is complete only once all parts are stored.
        parts = self._comm.allgather(mine)
        failed = [part for part in parts if isinstance(part, str)]
        if failed:
            raise Error(failed[0], "store_failed")
        self._agreed(lambda: self._finish(number, parts))

    def load(self, default: T | None = None) -> Any:
        """Returns this rank's state in the last complete checkpoint.

        Args:
            default: the value to return if there is no checkpoint.

        Raises:
            dayfly.Error: ``invalid_request`` if the checkpoint has a different number of ranks.
        """
        complete = self._agreed(lambda: [number for number, is_complete in self._place.found() if is_complete])
        for number in reversed(complete):
            ranks, state, why = self._read(number)
            if ranks not in (None, self._comm.size):
                raise Error(
                    f"checkpoint {self._name(number)} was saved by {ranks} ranks and there are {self._comm.size}; "
                    "start as many, or name another directory",
                    "invalid_request",
                )
            # If any rank cannot read the checkpoint, no rank uses it.
            if not any(self._comm.allgather(why)):
                return state
        return default

    def _agreed(self, find: Any) -> Any:
        """Calls ``find`` on rank 0, and returns its result or raises its error on all ranks."""
        found: tuple[Any, str | None] = (None, None)
        if self._comm.rank == 0:
            try:
                found = (find(), None)
            except _TROUBLE as error:
                found = (None, f"checkpoints in {self.path} cannot be used: {error}")
        value, failure = self._comm.bcast(found, root=0)
        if failure is not None:
            raise Error(failure, "store_failed")
        return value

    def _name(self, number: int) -> str:
        return f"{self.path}/{number:08}"

    def _finish(self, number: int, parts: list[tuple[int, str]]) -> None:
        self._place.write(number, _COMPLETE, json.dumps({"parts": parts}).encode())
        found = self._place.found()
        complete = [known for known, is_complete in found if is_complete]
        oldest = complete[-self._keep :][0]
        for known, _ in found:
            if known < oldest:
                self._place.remove(known)

    def _read(self, number: int) -> tuple[int | None, Any, str | None]:
        """Returns how many ranks saved a checkpoint, this rank's state, and why it cannot be read, or None."""
        ranks: int | None = None
        try:
            parts = json.loads(self._place.read(number, _COMPLETE))["parts"]
            ranks = len(parts)
            if ranks != self._comm.size:
                return ranks, None, None
            data = self._place.read(number, _part(self._comm.rank))
            if [len(data), hashlib.sha256(data).hexdigest()] != parts[self._comm.rank]:
                return ranks, None, "its part is damaged"
            return ranks, pickle.loads(data), None
        except (*_TROUBLE, ValueError, KeyError, TypeError) as error:
            return ranks, None, str(error)


def _part(rank: int) -> str:
    return f"rank-{rank:05}"
