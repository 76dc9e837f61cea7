"""Checkpoints: what the ranks of a group save together, so that a run goes on where it was ended."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mayfly._errors import Error

if TYPE_CHECKING:
    from mayfly import MPI

T = TypeVar("T")

#: Where a run's checkpoints are, for ranks that `mayfly.run` and ``mayfly run`` start.
VARIABLE = "MAYFLY_CHECKPOINT"
_COMPLETE = "complete.json"


class Checkpoint:
    """The checkpoints of one run, in a directory that all its ranks reach.

    A checkpoint is complete when every rank's part is on the disk; one that was cut short is never read. All methods
    are collective: every rank of the communicator calls them, in the same order.

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
            path: the run's directory; by default that of ``checkpoint=`` of `mayfly.run` or ``--checkpoint`` of
                ``mayfly run``.
            comm: whose ranks save; by default ``MPI.COMM_WORLD``.
            keep: how many complete checkpoints stay; older ones are removed.

        Raises:
            mayfly.Error: ``invalid_request`` without a directory.
        """
        from mayfly import MPI

        named = path if path is not None else os.environ.get(VARIABLE)
        if not named:
            raise Error(
                "this run has no directory for checkpoints; name one by checkpoint= of mayfly.run, by --checkpoint of "
                "`mayfly run`, or here",
                "invalid_request",
            )
        if keep < 1:
            raise ValueError(f"keep={keep}: keep at least one")
        self.path = Path(named)
        self._comm = MPI.COMM_WORLD if comm is None else comm
        self._keep = keep
        # Never a number that was used before, not even by a checkpoint that was cut short.
        self._next = self._agreed(lambda: max([number for number, _ in self._found()], default=-1) + 1)

    def save(self, state: Any) -> None:
        """Saves each rank's ``state``, anything that can be pickled. Returns when all of it is on the disk.

        Raises:
            mayfly.Error: ``store_failed`` on every rank, with the first rank's reason, when some rank could not write.
        """
        number, self._next = self._next, self._next + 1
        place = self.path / f"{number:08}"
        mine: tuple[int, str] | str
        try:
            place.mkdir(parents=True, exist_ok=True)
            mine = self._write(place / _part(self._comm.rank), pickle.dumps(state, protocol=5))
        except (OSError, pickle.PicklingError, TypeError, AttributeError) as error:
            mine = f"rank {self._comm.rank} could not save its part of checkpoint {place}: {error}"
        # Nobody's part counts before everybody's is there.
        parts = self._comm.allgather(mine)
        failed = [part for part in parts if isinstance(part, str)]
        if failed:
            raise Error(failed[0], "store_failed")
        self._agreed(lambda: self._finish(place, parts))

    def load(self, default: T | None = None) -> Any:
        """Each rank's state of the last complete checkpoint; ``default`` where there is none.

        Raises:
            mayfly.Error: ``invalid_request`` when another number of ranks saved it.
        """
        complete = self._agreed(lambda: [number for number, is_complete in self._found() if is_complete])
        for number in reversed(complete):
            place = self.path / f"{number:08}"
            ranks, state, why = self._read(place)
            if ranks not in (None, self._comm.size):
                raise Error(
                    f"checkpoint {place} was saved by {ranks} ranks and there are {self._comm.size}; start as many, or "
                    "name another directory",
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
            except OSError as error:
                found = (None, f"checkpoints in {self.path} cannot be used: {error}")
        value, failure = self._comm.bcast(found, root=0)
        if failure is not None:
            raise Error(failure, "store_failed")
        return value

    def _found(self) -> list[tuple[int, bool]]:
        """The numbers that are there, in order, and whether they are complete."""
        if not self.path.is_dir():
            return []
        places = [place for place in self.path.iterdir() if place.name.isdecimal() and place.is_dir()]
        return sorted((int(place.name), (place / _COMPLETE).is_file()) for place in places)

    def _write(self, path: Path, data: bytes) -> tuple[int, str]:
        """Puts it there whole or not at all; answers its length and hash."""
        temporary = path.with_name(f".{path.name}.new")
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
        return len(data), hashlib.sha256(data).hexdigest()

    def _finish(self, place: Path, parts: list[tuple[int, str]]) -> None:
        self._write(place / _COMPLETE, json.dumps({"parts": parts}).encode())
        for directory in (place, self.path):
            handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        found = self._found()
        complete = [number for number, is_complete in found if is_complete]
        oldest = complete[-self._keep :][0]
        for number, _ in found:
            if number < oldest:
                shutil.rmtree(self.path / f"{number:08}", ignore_errors=True)

    def _read(self, place: Path) -> tuple[int | None, Any, str | None]:
        """How many ranks saved it, this rank's state, and why that cannot be read."""
        ranks: int | None = None
        try:
            parts = json.loads((place / _COMPLETE).read_text())["parts"]
            ranks = len(parts)
            if ranks != self._comm.size:
                return ranks, None, None
            data = (place / _part(self._comm.rank)).read_bytes()
            if [len(data), hashlib.sha256(data).hexdigest()] != parts[self._comm.rank]:
                return ranks, None, "its part is damaged"
            return ranks, pickle.loads(data), None
        except (OSError, ValueError, KeyError, TypeError) as error:
            return ranks, None, str(error)


def _part(rank: int) -> str:
    return f"rank-{rank:05}"
