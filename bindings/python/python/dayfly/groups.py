"""Groups without MPI: the ranks of a run, which exchange Python objects.

>>> from dayfly import groups
>>> group = groups.world()
>>> group.rank, group.size
(0, 1)
>>> group.allgather("one")
['one']

`dayfly.Checkpoint`, `dayfly.torch` and ``Session.of`` of frames use this interface, and it needs no further package.
Programs that compute with buffers use MPI: ``from dayfly import MPI``. A process may use both. They are two groups of
the same ranks, with the same numbers.

Operations raise `dayfly.GroupError` if a rank is lost or if the ranks call operations that do not match, and
`dayfly.Error` with code ``timed_out`` if an operation takes longer than the group permits.
"""

from __future__ import annotations

import itertools
import json
import os
import pickle
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from dayfly._failures import error_for
from dayfly._mpi_library import rank_of_mpi
from dayfly._native import Communicator
from dayfly._worker import GROUP_VARIABLE

__all__ = ["Group", "Message", "world"]

#: What the native module takes for any rank and for any tag.
ANY = -1


class Message(NamedTuple):
    """A received message."""

    value: Any
    #: The rank that sent it.
    source: int
    tag: int


class Group:
    """Ranks that exchange objects. All ranks call the collective operations, in the same order.

    Objects are pickled. A rank that unpickles runs code of the ranks that send to it.
    """

    def __init__(self, native: Communicator) -> None:
        self._native = native
        #: Number of this rank, from 0.
        self.rank: int = native.rank
        #: Number of ranks.
        self.size: int = native.size

    @property
    def members(self) -> list[int]:
        """For each rank of this group, its number in `world`."""
        return self._native.members

    def __repr__(self) -> str:
        return f"<dayfly.groups.Group: rank {self.rank} of {self.size}>"

    @property
    def ways(self) -> list[str | None]:
        """How bytes travel to each rank.

        ``local`` within a host, ``direct`` over a connection that one of the two dialled, ``punched`` over one through
        the NATs of both, ``relay`` through the rendezvous, ``stored`` through a store, ``fabric`` over libfabric. None
        for this rank, and for ranks that are not connected yet (``lazy_connect`` of `dayfly.run`).
        """
        return self._native.ways

    # Messages

    def send(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Sends an object. Returns when it is sent; a long one is sent when the other rank receives it."""
        self._native.send(pickle.dumps(obj, protocol=5), dest, tag)

    def receive(self, source: int | None = None, tag: int | None = None) -> Message:
        """Waits for a message and receives it.

        Args:
            source: the rank that sends it; None for any rank.
            tag: its tag; None for any tag.
        """
        found, under, length = self._native.probe(*_envelope(source, tag))
        into = bytearray(length)
        self._native.recv(into, found, under)
        return Message(pickle.loads(into), found, under)

    def recv(self, source: int | None = None, tag: int | None = None) -> Any:
        """As `receive`, and returns the object only."""
        return self.receive(source, tag).value

    def has_message(self, source: int | None = None, tag: int | None = None) -> bool:
        """Returns whether `receive` would return without waiting."""
        return self._native.iprobe(*_envelope(source, tag)) is not None

    # Collective operations

    def barrier(self) -> None:
        """Waits until all ranks have called it."""
        self._native.collective("barrier")

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """Returns the root's object on all ranks."""
        packed = bytearray(pickle.dumps(obj, protocol=5) if self.rank == root else b"")
        length = bytearray(len(packed).to_bytes(8, "little"))
        self._native.collective("bcast", None, length, root=root)
        if self.rank != root:
            packed = bytearray(int.from_bytes(length, "little"))
        self._native.collective("bcast", None, packed, root=root)
        return obj if self.rank == root else pickle.loads(packed)

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        """Returns the objects of all ranks on the root, in the order of the ranks, and None on the others."""
        packed, received = self._packed(sendobj)
        into = bytearray(sum(received[-1])) if self.rank == root else None
        self._native.collective("gather", packed, into, root=root, received=received)
        return None if into is None else _unpacked(into, received)

    def allgather(self, sendobj: Any) -> list[Any]:
        """Returns the objects of all ranks, in the order of the ranks."""
        packed, received = self._packed(sendobj)
        into = bytearray(sum(received[-1]))
        self._native.collective("allgather", packed, into, received=received)
        return _unpacked(into, received)

    def _packed(self, obj: Any) -> tuple[bytes, list[tuple[int, int]]]:
        """Returns an object pickled, and where the objects of all ranks begin and how long they are."""
        packed = pickle.dumps(obj, protocol=5)
        lengths = bytearray(8 * self.size)
        self._native.collective("allgather", len(packed).to_bytes(8, "little"), lengths)
        return packed, laid_out([int.from_bytes(lengths[at : at + 8], "little") for at in range(0, len(lengths), 8)])

    # Other groups of these ranks

    def split(self, color: int | None, key: int = 0) -> Group | None:
        """Returns a group of the ranks with the same color, in the order of their keys; None without a color."""
        part = self._native.split(color, key)
        return None if part is None else Group(part)

    def shrink(self) -> Group:
        """Returns a group of the ranks that are left after some were lost. All that are left call it.

        MPI continues among them with ``MPI.COMM_WORLD.Create_group(MPI.COMM_WORLD.group.Incl(left.members))``.
        """
        return Group(self._native.shrink())


def _envelope(source: int | None, tag: int | None) -> tuple[int, int]:
    return ANY if source is None else source, ANY if tag is None else tag


def laid_out(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Returns start and length of blocks that follow each other."""
    return list(zip(itertools.accumulate(lengths, initial=0), lengths, strict=False))


def _unpacked(memory: bytearray, blocks: list[tuple[int, int]]) -> list[Any]:
    view = memoryview(memory)
    return [pickle.loads(view[start : start + length]) for start, length in blocks]


class _World:
    lock = threading.Lock()
    group: Group | None = None


def world() -> Group:
    """Returns the group of this process, and joins it at the first call.

    The group is that of `dayfly.run`, of ``dayfly run``, of a task of several ranks, or of the invitation in the
    environment variable ``DAYFLY_GROUP``. Any other process is a group of one rank.

    Raises:
        dayfly.Error: if the group cannot be joined, such as ``timed_out`` if not all ranks arrive.
    """
    with _World.lock:
        if _World.group is None:
            _World.group = _joined()
        return _World.group


def invitation() -> dict[str, Any] | None:
    """Returns the invitation to this process's group; None if it has none."""
    text = os.environ.get(GROUP_VARIABLE)
    if not text:
        return None
    try:
        return dict(json.loads(text))
    except (TypeError, ValueError):
        # Joining reports what is wrong with it.
        return None


def _joined() -> Group:
    text = os.environ.get(GROUP_VARIABLE)
    if not text:
        return Group(Communicator.alone())
    known = invitation()
    if known is None or known.get("rank") is not None:
        return Group(Communicator.join(text))
    # The invitation leaves the number open. It is the same here and in MPI, whichever of the two joins first.
    rank = rank_of_mpi()
    group = Group(Communicator.join(text if rank is None else json.dumps(known | {"rank": rank})))
    os.environ[GROUP_VARIABLE] = json.dumps(known | {"rank": group.rank})
    return group


class _Left:
    """Takes the place of the native communicator of a group that this process has left."""

    def __getattr__(self, name: str) -> Any:
        raise error_for("invalid_request", "this is the group of an earlier task; call groups.world() in each task")


def _leave() -> None:
    """Leaves the group of this process, also if the function has kept it. Parts of it stay while something has them."""
    group, _World.group = _World.group, None
    if group is not None:
        group._native = _Left()  # type: ignore[assignment]
