"""Checkpoints: what the ranks of a group save together, so that a run goes on where it was ended."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from dayfly import _storage
from dayfly._errors import Error

if TYPE_CHECKING:
    from dayfly import MPI

T = TypeVar("T")

#: Where a run's checkpoints are, for ranks that `dayfly.run` and ``dayfly run`` start.
VARIABLE = "DAYFLY_CHECKPOINT"
_COMPLETE = "complete.json"
#: What a place for checkpoints raises where it cannot be used.
_TROUBLE = (OSError, Error)


class _Place(Protocol):
    """Where checkpoints lie: each under its number, as a few files."""

    def found(self) -> list[tuple[int, bool]]:
        """The numbers that are there, in order, and whether they are complete."""
        ...

    def write(self, number: int, name: str, data: bytes) -> None:
        """Puts it there whole or not at all. When this returns, the end of the power does not take it back."""
        ...

    def read(self, number: int, name: str) -> bytes:
        """What was written."""
        ...

    def remove(self, number: int) -> None:
        """Removes a checkpoint; what cannot be removed stays."""
        ...


class _Directory:
    """A directory that all ranks reach."""

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
    """Object storage, where an object is there whole or not at all, and for all as soon as it is."""

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
    """The checkpoints of one run, in a directory that all its ranks reach, or in object storage.

    A checkpoint is complete when every rank's part is stored; one that was cut short is never read. All methods are
    collective: every rank of the communicator calls them, in the same order.

    >>> checkpoint = Checkpoint()  # doctest: +SKIP
    >>> step, field = checkpoint.load(default=(0, start))  # doctest: +SKIP
    >>> while step < steps:  # doctest: +SKIP
    ...     step, field = step + 1, advance(field)
    ...     if step % 100 == 0:
    ...         checkpoint.save((step, field))
    """

    def __init__(
        self, path: str | os.PathLike[str] | None = None, comm: MPI.Comm | None = None, *, keep: int = 2
    ) -> None:
        """Finds the run's checkpoints.

        Args:
            path: the run's directory, or ``s3://bucket/prefix``; by default that of ``checkpoint=`` of `dayfly.run` or
                ``--checkpoint`` of ``dayfly run``.
            comm: whose ranks save; by default ``MPI.COMM_WORLD``.
            keep: how many complete checkpoints stay; older ones are removed.

        Raises:
            dayfly.Error: ``invalid_request`` without a directory.
        """
        from dayfly import MPI

        named = path if path is not None else os.environ.get(VARIABLE)
        if not named:
            raise Error(
                "this run has no directory for checkpoints; name one by checkpoint= of dayfly.run, by --checkpoint of "
                "`dayfly run`, or here",
                "invalid_request",
            )
        if keep < 1:
            raise ValueError(f"keep={keep}: keep at least one")
        where = _storage.local(named)
        self.path: Path | str = where if _storage.is_url(where) else Path(where)
        self._place: _Place = _Directory(self.path) if isinstance(self.path, Path) else _Bucket(self.path)
        self._comm = MPI.COMM_WORLD if comm is None else comm
        self._keep = keep
        # Never a number that was used before, not even by a checkpoint that was cut short.
        self._next = self._agreed(lambda: max([number for number, _ in self._place.found()], default=-1) + 1)

    def save(self, state: Any) -> None:
        """Saves each rank's ``state``, anything that can be pickled. Returns when all of it is stored.

        Raises:
            dayfly.Error: ``store_failed`` on every rank, with the first rank's reason, when some rank could not write.
        """
        number, self._next = self._next, self._next + 1
        mine: tuple[int, str] | str
        try:
            data = pickle.dumps(state, protocol=5)
            self._place.write(number, _part(self._comm.rank), data)
            mine = len(data), hashlib.sha256(data).hexdigest()
        except (*_TROUBLE, pickle.PicklingError, TypeError, AttributeError) as error:
            mine = f"rank {self._comm.rank} could not save its part of checkpoint {self._name(number)}: {error}"
        # Nobody's part counts before everybody's is there.
        parts = self._comm.allgather(mine)
        failed = [part for part in parts if isinstance(part, str)]
        if failed:
            raise Error(failed[0], "store_failed")
        self._agreed(lambda: self._finish(number, parts))

    def load(self, default: T | None = None) -> Any:
        """Each rank's state of the last complete checkpoint; ``default`` where there is none.

        Raises:
            dayfly.Error: ``invalid_request`` when another number of ranks saved it.
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
            # One that any rank cannot read is nobody's.
            if not any(self._comm.allgather(why)):
                return state
        return default

    def _agreed(self, find: Any) -> Any:
        """What rank 0 finds, on all ranks; what it raises, too."""
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
        """How many ranks saved it, this rank's state, and why that cannot be read."""
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
