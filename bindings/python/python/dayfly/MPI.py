"""Communication between the ranks of a group, with the names and the semantics of mpi4py's ``MPI``.

>>> from dayfly import MPI
>>> comm = MPI.COMM_WORLD
>>> comm.Get_rank(), comm.Get_size()
(0, 1)

A program that says ``from mpi4py import MPI`` moves by changing the import. `COMM_WORLD` is the group that this
process was started in, by `dayfly.run` or ``dayfly run``; a process of no group is a world of its own. Methods in lower
case send objects, pickled; those with a capital send buffers: NumPy arrays, or whatever else has the buffer protocol or
DLPack, as they are or as ``[data, count, type]``. What cannot be sent or received into is a `RequestError`.
"""

from __future__ import annotations

import functools
import os
import pickle
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dayfly._errors import GroupError
from dayfly._mpi.buffers import (
    _Buffer,
    _copied,
    _each,
    _laid_out,
    _plain,
    _refusal,
    _same,
    _unpack,
)
from dayfly._mpi.requests import (
    _NOTHING,
    _OVER,
    Prequest,
    Request,
    Status,
    _Object,
)
from dayfly._mpi.types import (
    ANY_SOURCE,
    ANY_TAG,
    BAND,
    BOOL,
    BOR,
    BXOR,
    BYTE,
    C_BOOL,
    C_DOUBLE_COMPLEX,
    C_FLOAT_COMPLEX,
    CHAR,
    COMPLEX,
    DOUBLE,
    DOUBLE_COMPLEX,
    DOUBLE_INT,
    FLOAT,
    FLOAT_INT,
    IN_PLACE,
    INT,
    INT8_T,
    INT16_T,
    INT32_T,
    INT64_T,
    INT_INT,
    LAND,
    LONG,
    LONG_INT,
    LONG_LONG,
    LOR,
    LXOR,
    MAX,
    MAXLOC,
    MIN,
    MINLOC,
    PROC_NULL,
    PROD,
    ROOT,
    SHORT,
    SHORT_INT,
    SIGNED_CHAR,
    SUM,
    TWOINT,
    UINT8_T,
    UINT16_T,
    UINT32_T,
    UINT64_T,
    UNDEFINED,
    UNSIGNED,
    UNSIGNED_CHAR,
    UNSIGNED_LONG,
    UNSIGNED_SHORT,
    Datatype,
    Op,
)
from dayfly._native import Communicator, Memory
from dayfly._worker import GROUP_VARIABLE

if TYPE_CHECKING:
    COMM_WORLD: Comm
    COMM_SELF: Comm

__all__ = [
    "ANY_SOURCE",
    "ANY_TAG",
    "BAND",
    "BOOL",
    "BOR",
    "BXOR",
    "BYTE",
    "CHAR",
    "COMM_NULL",
    "COMM_SELF",
    "COMM_TYPE_SHARED",
    "COMM_WORLD",
    "COMPLEX",
    "C_BOOL",
    "C_DOUBLE_COMPLEX",
    "C_FLOAT_COMPLEX",
    "DOUBLE",
    "DOUBLE_COMPLEX",
    "DOUBLE_INT",
    "FLOAT",
    "FLOAT_INT",
    "GROUP_VARIABLE",
    "INT",
    "INT8_T",
    "INT16_T",
    "INT32_T",
    "INT64_T",
    "INT_INT",
    "IN_PLACE",
    "LAND",
    "LONG",
    "LONG_INT",
    "LONG_LONG",
    "LOR",
    "LXOR",
    "MAX",
    "MAXLOC",
    "MIN",
    "MINLOC",
    "PROC_NULL",
    "PROD",
    "ROOT",
    "SHORT",
    "SHORT_INT",
    "SIGNED_CHAR",
    "SUM",
    "TWOINT",
    "UINT8_T",
    "UINT16_T",
    "UINT32_T",
    "UINT64_T",
    "UNDEFINED",
    "UNSIGNED",
    "UNSIGNED_CHAR",
    "UNSIGNED_LONG",
    "UNSIGNED_SHORT",
    "Comm",
    "Datatype",
    "Exception",
    "Finalize",
    "Get_processor_name",
    "Init",
    "Intracomm",
    "Is_finalized",
    "Is_initialized",
    "Op",
    "Prequest",
    "Request",
    "Status",
    "Wtick",
    "Wtime",
]

#: What the operations here raise, as mpi4py calls it.
Exception = GroupError

#: What ranks get that are in no part of a communicator.
COMM_NULL = None


class Comm:
    """Ranks that exchange messages and compute together."""

    def __init__(self, native: Communicator) -> None:
        self._native = native
        self.rank: int = native.rank
        self.size: int = native.size
        #: Objects that are to be received in the background, in the order in which they were asked for.
        self._waiting: list[_Object] = []

    def Get_rank(self) -> int:
        """Number of this rank."""
        return self.rank

    def Get_size(self) -> int:
        """How many ranks there are."""
        return self.size

    def __repr__(self) -> str:
        return f"<dayfly.MPI.Comm: rank {self.rank} of {self.size}>"

    # Messages of objects

    def send(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Sends an object."""
        if dest != PROC_NULL:
            self._native.send(pickle.dumps(obj, protocol=5), dest, tag)

    ssend = bsend = rsend = send

    def _receive(self, source: int, tag: int) -> tuple[Any, tuple[int, int, int]]:
        source, tag, length = self._native.probe(source, tag)
        into = bytearray(length)
        found = self._native.recv(into, source, tag)
        return pickle.loads(into), found

    def _advance(self, asked: _Object) -> None:
        """Waits for a message for this receive, and gives it to the first that it fits."""
        source, tag, _ = self._native.probe(asked._source, asked._tag)
        first = next(waiting for waiting in self._waiting if waiting is asked or waiting._matches(source, tag))
        # It may want an earlier message of the same rank.
        value, found = self._receive(source, first._tag)
        self._waiting.remove(first)
        first._take(value, found)

    def recv(self, buf: Any = None, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> Any:
        """Receives an object."""
        if source == PROC_NULL or self._waiting:
            return self.irecv(buf, source, tag).wait(status)
        value, found = self._receive(source, tag)
        if status is not None:
            status._set(found)
        return value

    def sendrecv(
        self,
        sendobj: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: Status | None = None,
    ) -> Any:
        """Sends an object and receives another, so that ranks can do this in circles."""
        sending = self.isend(sendobj, dest, sendtag)
        received = self.recv(None, source, recvtag, status)
        sending.wait()
        return received

    def isend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        """Starts to send an object."""
        if dest == PROC_NULL:
            return Request(None)
        return Request(self._native.isend(pickle.dumps(obj, protocol=5), dest, tag))

    issend = ibsend = irsend = isend

    def irecv(self, buf: Any = None, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        """Starts to receive an object; `Request.wait` answers it."""
        if source == PROC_NULL:
            return Request(None)
        self._waiting.append(_Object(self, source, tag))
        return self._waiting[-1]

    def probe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> bool:
        """Waits for a message, without receiving it."""
        found = _NOTHING if source == PROC_NULL else self._native.probe(source, tag)
        if status is not None:
            status._set(found)
        return True

    def iprobe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> bool:
        """Whether a message is here."""
        found = _NOTHING if source == PROC_NULL else self._native.iprobe(source, tag)
        if found is not None and status is not None:
            status._set(found)
        return found is not None

    Probe, Iprobe = probe, iprobe

    # Messages of buffers

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        """Sends a buffer."""
        if dest != PROC_NULL:
            self._native.send(buf if _plain(buf) else _Buffer(buf).memory, dest, tag)

    Ssend = Bsend = Rsend = Send

    def Recv(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> None:
        """Receives into a buffer."""
        found = _NOTHING
        if source != PROC_NULL:
            found = self._native.recv(buf if _plain(buf) else _Buffer(buf, write=True).memory, source, tag)
        if status is not None:
            status._set(found)

    def Sendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: Status | None = None,
    ) -> None:
        """Sends one buffer and receives into another, so that ranks can do this in circles."""
        if PROC_NULL in (dest, source):
            self.Send(sendbuf, dest, sendtag)
            return self.Recv(recvbuf, source, recvtag, status)
        out, into = _Buffer(sendbuf).memory, _Buffer(recvbuf, write=True).memory
        found = self._native.sendrecv(out, dest, sendtag, into, source, recvtag)
        if status is not None:
            status._set(found)
        return None

    def Sendrecv_replace(
        self,
        buf: Any,
        dest: int,
        sendtag: int = 0,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: Status | None = None,
    ) -> None:
        """Sends a buffer and receives into the same."""
        out = bytes(_Buffer(buf).memory)
        self.Sendrecv([out, BYTE], dest, sendtag, buf, source, recvtag, status)

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        """Starts to send a buffer, which must stay as it is until the request is over."""
        if dest == PROC_NULL:
            return Request(None)
        return Request(self._native.isend(_Buffer(buf).memory, dest, tag))

    Issend = Ibsend = Irsend = Isend

    def Irecv(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        """Starts to receive into a buffer."""
        if source == PROC_NULL:
            return Request(None)
        return Request(self._native.irecv(_Buffer(buf, write=True).memory, source, tag))

    def Send_init(self, buf: Any, dest: int, tag: int = 0) -> Prequest:
        """Sends a buffer each time that it is started, as it is then."""
        return Prequest(functools.partial(self.Isend, buf, dest, tag))

    Ssend_init = Bsend_init = Rsend_init = Send_init

    def Recv_init(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Prequest:
        """Receives into a buffer each time that it is started."""
        return Prequest(functools.partial(self.Irecv, buf, source, tag))

    # Collectives of buffers. Each has one form that may go on in the background, which both of its methods call.

    def _collect(self, background: bool, name: str, *args: Any, **options: Any) -> Request:
        native = self._native.collective(name, *args, background=background, **options)
        return Request(native) if background else _OVER

    def Barrier(self) -> None:
        """Waits until all ranks are here."""
        self._native.collective("barrier")

    barrier = Barrier

    def Ibarrier(self) -> Request:
        """The same in the background."""
        return self._collect(True, "barrier")

    def _bcast(self, background: bool, buf: Any, root: int) -> Request:
        memory: Any = _Buffer(buf, write=self.rank != root).memory
        if memory.readonly:
            memory = _copied(memory)
        return self._collect(background, "bcast", None, memory, root=root)

    def Bcast(self, buf: Any, root: int = 0) -> None:
        """Gives everybody the root's buffer."""
        # What the root may not write to is copied, in the longer way.
        if not (_plain(buf) and self._native.bcast(buf, root)):
            self._bcast(False, buf, root)

    def Ibcast(self, buf: Any, root: int = 0) -> Request:
        """The same in the background."""
        return self._bcast(True, buf, root)

    def _own_part(self, buffer: _Buffer) -> bytes:
        """What this rank has where everybody's parts are."""
        length = buffer.memory.nbytes // self.size
        start, length = buffer.blocks[self.rank] if buffer.blocks else (self.rank * length, length)
        return bytes(memoryview(buffer.memory)[start : start + length])

    def _gather(self, background: bool, sendbuf: Any, recvbuf: Any, root: int, varying: bool) -> Request:
        # All ranks must call the same operation, and only the root knows how long the blocks are.
        if self.rank != root:
            blocks = [(0, 0)] * self.size if varying else None
            return self._collect(background, "gather", _Buffer(sendbuf).memory, None, root=root, received=blocks)
        into = _Buffer(recvbuf, write=True, parts=self.size, varying=varying)
        own = self._own_part(into) if sendbuf is IN_PLACE else _Buffer(sendbuf).memory
        return self._collect(background, "gather", own, into.memory, root=root, received=into.blocks)

    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Gives the root everybody's buffer, in the order of the ranks."""
        self._gather(False, sendbuf, recvbuf, root, False)

    def Igather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Request:
        """The same in the background."""
        return self._gather(True, sendbuf, recvbuf, root, False)

    def Gatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """The same, of any length: ``recvbuf=[data, counts, type]`` or ``[data, (counts, displs), type]``."""
        self._gather(False, sendbuf, recvbuf, root, True)

    def Igatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Request:
        """The same in the background."""
        return self._gather(True, sendbuf, recvbuf, root, True)

    def _scatter(self, background: bool, sendbuf: Any, recvbuf: Any, root: int, varying: bool) -> Request:
        if self.rank != root:
            blocks = [(0, 0)] * self.size if varying else None
            into = _Buffer(recvbuf, write=True).memory
            return self._collect(background, "scatter", None, into, root=root, sent=blocks)
        out = _Buffer(sendbuf, parts=self.size, varying=varying)
        # In place, the root's part stays where it is, and what it would receive goes nowhere.
        own = bytearray(self._own_part(out)) if recvbuf is IN_PLACE else _Buffer(recvbuf, write=True).memory
        return self._collect(background, "scatter", out.memory, own, root=root, sent=out.blocks)

    def Scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Gives everybody its part of the root's buffer."""
        self._scatter(False, sendbuf, recvbuf, root, False)

    def Iscatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Request:
        """The same in the background."""
        return self._scatter(True, sendbuf, recvbuf, root, False)

    def Scatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """The same, of parts of any length: ``sendbuf=[data, counts, type]`` or ``[data, (counts, displs), type]``."""
        self._scatter(False, sendbuf, recvbuf, root, True)

    def Iscatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Request:
        """The same in the background."""
        return self._scatter(True, sendbuf, recvbuf, root, True)

    def _allgather(self, background: bool, sendbuf: Any, recvbuf: Any, varying: bool) -> Request:
        into = _Buffer(recvbuf, write=True, parts=self.size, varying=varying)
        own = self._own_part(into) if sendbuf is IN_PLACE else _Buffer(sendbuf).memory
        return self._collect(background, "allgather", own, into.memory, received=into.blocks)

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        """Gives everybody everybody's buffer, in the order of the ranks."""
        if _plain(sendbuf) and _plain(recvbuf):
            self._native.allgather(sendbuf, recvbuf)
        else:
            self._allgather(False, sendbuf, recvbuf, False)

    def Iallgather(self, sendbuf: Any, recvbuf: Any) -> Request:
        """The same in the background."""
        return self._allgather(True, sendbuf, recvbuf, False)

    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        """The same, of any length: ``recvbuf=[data, counts, type]`` or ``[data, (counts, displs), type]``."""
        self._allgather(False, sendbuf, recvbuf, True)

    def Iallgatherv(self, sendbuf: Any, recvbuf: Any) -> Request:
        """The same in the background."""
        return self._allgather(True, sendbuf, recvbuf, True)

    def _alltoall(self, background: bool, sendbuf: Any, recvbuf: Any, varying: bool) -> Request:
        into = _Buffer(recvbuf, write=True, parts=self.size, varying=varying)
        if sendbuf is IN_PLACE:
            own, sent = bytes(into.memory), into.blocks
        else:
            out = _Buffer(sendbuf, parts=self.size, varying=varying)
            own, sent = out.memory, out.blocks  # type: ignore[assignment]
        return self._collect(background, "alltoall", own, into.memory, sent=sent, received=into.blocks)

    def Alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        """Sends everybody its part of a buffer, and receives everybody's."""
        if _plain(sendbuf) and _plain(recvbuf):
            self._native.collective("alltoall", sendbuf, recvbuf)
        else:
            self._alltoall(False, sendbuf, recvbuf, False)

    def Ialltoall(self, sendbuf: Any, recvbuf: Any) -> Request:
        """The same in the background."""
        return self._alltoall(True, sendbuf, recvbuf, False)

    def Alltoallv(self, sendbuf: Any, recvbuf: Any) -> None:
        """The same, of parts of any length."""
        self._alltoall(False, sendbuf, recvbuf, True)

    def Ialltoallv(self, sendbuf: Any, recvbuf: Any) -> Request:
        """The same in the background."""
        return self._alltoall(True, sendbuf, recvbuf, True)

    def _alltoallw(self, background: bool, sendbuf: Any, recvbuf: Any) -> Request:
        into, received = _each(recvbuf, self.size, write=True)
        own, sent = (bytes(into), received) if sendbuf is IN_PLACE else _each(sendbuf, self.size)
        return self._collect(background, "alltoall", own, into, sent=sent, received=received)

    def Alltoallw(self, sendbuf: Any, recvbuf: Any) -> None:
        """The same, of parts that each have a type: ``[data, counts, displacements in bytes, types]``."""
        self._alltoallw(False, sendbuf, recvbuf)

    def Ialltoallw(self, sendbuf: Any, recvbuf: Any) -> Request:
        """The same in the background."""
        return self._alltoallw(True, sendbuf, recvbuf)

    def _combine(self, background: bool, name: str, own: Any, into: Any, by: _Buffer, op: Op, **more: Any) -> Request:
        return self._collect(background, name, own, into, datatype=by.datatype.number, op=op._native, **more)

    def _result(self, sendbuf: Any, recvbuf: Any) -> tuple[_Buffer, Memory | memoryview | None]:
        """The buffer of the result, and what is combined into it unless that is there already."""
        into = _Buffer(recvbuf, write=True)
        if sendbuf is IN_PLACE:
            return into, None
        out = _Buffer(sendbuf)
        _same(into, out, into.count)
        return into, out.memory

    def _reduce(self, background: bool, sendbuf: Any, recvbuf: Any, op: Op, root: int) -> Request:
        if self.rank == root:
            into, own = self._result(sendbuf, recvbuf)
            if own is not None:
                memoryview(into.memory)[:] = own
            return self._combine(background, "reduce", None, into.memory, into, op, root=root)
        out = _Buffer(sendbuf)
        # What is combined on the way passes through memory of its own.
        return self._combine(background, "reduce", None, _copied(out.memory), out, op, root=root)

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM, root: int = 0) -> None:
        """Combines everybody's elements, for the root."""
        self._reduce(False, sendbuf, recvbuf, op, root)

    def Ireduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM, root: int = 0) -> Request:
        """The same in the background."""
        return self._reduce(True, sendbuf, recvbuf, op, root)

    def _allreduce(self, background: bool, sendbuf: Any, recvbuf: Any, op: Op) -> Request:
        into, own = self._result(sendbuf, recvbuf)
        return self._combine(background, "allreduce", bytes(into.memory) if own is None else own, into.memory, into, op)

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> None:
        """Combines everybody's elements, for everybody."""
        if _plain(sendbuf) and _plain(recvbuf):
            self._native.collective("allreduce", sendbuf, recvbuf, op=op._native)
        else:
            self._allreduce(False, sendbuf, recvbuf, op)

    def Iallreduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> Request:
        """The same in the background."""
        return self._allreduce(True, sendbuf, recvbuf, op)

    def _reduce_scatter(
        self, background: bool, sendbuf: Any, recvbuf: Any, counts: Sequence[int] | None, op: Op
    ) -> Request:
        into = _Buffer(recvbuf, write=True)
        if counts is None:
            if sendbuf is IN_PLACE:
                raise _refusal("Reduce_scatter in place; say how much of it is whose (recvcounts)")
            counts = self.allgather(into.count)
        counts = [int(count) for count in counts]
        if len(counts) != self.size:
            raise _refusal(f"{len(counts)} counts for {self.size} ranks")
        size = into.datatype.size
        # In place, what is combined lies where the result is to go, to the beginning.
        out = into if sendbuf is IN_PLACE else _Buffer(sendbuf)
        _same(into, out, sum(counts))
        own = bytes(into.memory) if out is into else out.memory
        if into.count < counts[self.rank]:
            raise _refusal(f"{counts[self.rank]} elements for a buffer of {into.count}")
        result = memoryview(into.memory)[: counts[self.rank] * size]
        sizes = [count * size for count in counts]
        return self._combine(background, "reduce_scatter", own, result, into, op, counts=sizes)

    def _block_counts(self, sendbuf: Any, recvbuf: Any) -> list[int]:
        parts = self.size if sendbuf is IN_PLACE else 1
        return [_Buffer(recvbuf, write=True, parts=parts).count] * self.size

    def Reduce_scatter(self, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int] | None = None, op: Op = SUM) -> None:
        """Combines everybody's elements, and gives each rank its part."""
        self._reduce_scatter(False, sendbuf, recvbuf, recvcounts, op)

    def Ireduce_scatter(
        self, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int] | None = None, op: Op = SUM
    ) -> Request:
        """The same in the background."""
        return self._reduce_scatter(True, sendbuf, recvbuf, recvcounts, op)

    def Reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> None:
        """The same, of parts that are equally long."""
        self._reduce_scatter(False, sendbuf, recvbuf, self._block_counts(sendbuf, recvbuf), op)

    def Ireduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> Request:
        """The same in the background."""
        return self._reduce_scatter(True, sendbuf, recvbuf, self._block_counts(sendbuf, recvbuf), op)

    def _scan(self, background: bool, sendbuf: Any, recvbuf: Any, op: Op) -> Request:
        into, own = self._result(sendbuf, recvbuf)
        if own is not None:
            memoryview(into.memory)[:] = own
        return self._combine(background, "scan", None, into.memory, into, op)

    def Scan(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> None:
        """Combines the elements of the ranks up to this one."""
        self._scan(False, sendbuf, recvbuf, op)

    def Iscan(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> Request:
        """The same in the background."""
        return self._scan(True, sendbuf, recvbuf, op)

    def _exscan(self, background: bool, sendbuf: Any, recvbuf: Any, op: Op) -> Request:
        into, own = self._result(sendbuf, recvbuf)
        return self._combine(background, "exscan", bytes(into.memory) if own is None else own, into.memory, into, op)

    def Exscan(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> None:
        """Combines the elements of the ranks before this one; rank 0's ``recvbuf`` is left alone."""
        self._exscan(False, sendbuf, recvbuf, op)

    def Iexscan(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> Request:
        """The same in the background."""
        return self._exscan(True, sendbuf, recvbuf, op)

    # Collectives of objects

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """Gives everybody the root's object."""
        packed = pickle.dumps(obj, protocol=5) if self.rank == root else b""
        length = bytearray(len(packed).to_bytes(8, "little"))
        self._collect(False, "bcast", None, length, root=root)
        if self.rank == root:
            self._collect(False, "bcast", None, bytearray(packed), root=root)
            return obj
        into = bytearray(int.from_bytes(length, "little"))
        self._collect(False, "bcast", None, into, root=root)
        return pickle.loads(into)

    def _lengths(self, packed: bytes) -> list[int]:
        into = bytearray(8 * self.size)
        self._collect(False, "allgather", len(packed).to_bytes(8, "little"), into)
        return [int.from_bytes(into[at : at + 8], "little") for at in range(0, len(into), 8)]

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        """Gives the root everybody's objects, in the order of the ranks."""
        packed = pickle.dumps(sendobj, protocol=5)
        blocks = _laid_out(self._lengths(packed))
        into = bytearray(sum(blocks[-1])) if self.rank == root else None
        self._collect(False, "gather", packed, into, root=root, received=blocks)
        return None if into is None else _unpack(into, blocks)

    def allgather(self, sendobj: Any) -> list[Any]:
        """Gives everybody everybody's objects, in the order of the ranks."""
        packed = pickle.dumps(sendobj, protocol=5)
        blocks = _laid_out(self._lengths(packed))
        into = bytearray(sum(blocks[-1]))
        self._collect(False, "allgather", packed, into, received=blocks)
        return _unpack(into, blocks)

    def scatter(self, sendobj: Sequence[Any] | None, root: int = 0) -> Any:
        """Gives everybody its object of the root's."""
        packed: list[bytes] = []
        wrong = None
        if self.rank == root:
            if sendobj is None or len(sendobj) != self.size:
                wrong = ValueError(f"scatter of {'nothing' if sendobj is None else len(sendobj)} among {self.size}")
            else:
                packed = [pickle.dumps(obj, protocol=5) for obj in sendobj]
        # Everybody hears of it, and nobody waits for what will not come.
        lengths: list[int] | None = self.bcast([len(one) for one in packed] if wrong is None else None, root)
        if lengths is None:
            raise wrong or ValueError("the root scattered not as many objects as there are ranks")
        blocks = _laid_out(lengths)
        into = bytearray(lengths[self.rank])
        self._collect(False, "scatter", b"".join(packed), into, root=root, sent=blocks)
        return pickle.loads(into)

    def alltoall(self, sendobj: Sequence[Any]) -> list[Any]:
        """Sends everybody an object, and receives everybody's."""
        if len(sendobj) != self.size:
            raise ValueError(f"alltoall of {len(sendobj)} objects among {self.size}")
        packed = [pickle.dumps(obj, protocol=5) for obj in sendobj]
        lengths = bytearray(8 * self.size)
        own = b"".join(len(one).to_bytes(8, "little") for one in packed)
        self._collect(False, "alltoall", own, lengths)
        sent = _laid_out([len(one) for one in packed])
        received = _laid_out([int.from_bytes(lengths[at : at + 8], "little") for at in range(0, len(lengths), 8)])
        into = bytearray(sum(received[-1]))
        self._collect(False, "alltoall", b"".join(packed), into, sent=sent, received=received)
        return _unpack(into, received)

    def reduce(self, sendobj: Any, op: Op | Callable[[Any, Any], Any] = SUM, root: int = 0) -> Any:
        """Combines everybody's objects in the order of the ranks, for the root."""
        gathered = self.gather(sendobj, root)
        return None if gathered is None else functools.reduce(op, gathered)

    def allreduce(self, sendobj: Any, op: Op | Callable[[Any, Any], Any] = SUM) -> Any:
        """Combines everybody's objects in the order of the ranks, for everybody."""
        return functools.reduce(op, self.allgather(sendobj))

    def scan(self, sendobj: Any, op: Op | Callable[[Any, Any], Any] = SUM) -> Any:
        """Combines the objects of the ranks up to this one."""
        return functools.reduce(op, self.allgather(sendobj)[: self.rank + 1])

    def exscan(self, sendobj: Any, op: Op | Callable[[Any, Any], Any] = SUM) -> Any:
        """Combines the objects of the ranks before this one; none at rank 0."""
        before = self.allgather(sendobj)[: self.rank]
        return functools.reduce(op, before) if before else None

    # Groups

    def Split(self, color: int = 0, key: int = 0) -> Comm | None:
        """A communicator of those ranks that give the same color, in the order of their keys."""
        part = self._native.split(None if color == UNDEFINED else color, key)
        return None if part is None else Comm(part)

    def Split_type(self, split_type: int, key: int = 0) -> Comm | None:
        """A communicator of the ranks on the same host, by `COMM_TYPE_SHARED`."""
        return self.Split(UNDEFINED if split_type == UNDEFINED else self._native.hosts[self.rank], key)

    @property
    def ways(self) -> list[str | None]:
        """How the bytes to each rank travel, which mpi4py has no name for.

        ``local`` within a host, ``direct`` over a connection that one of the two dialled, ``punched`` over one through
        the NATs of both, ``relay`` where nothing else was left, ``stored`` through a store, ``fabric`` over
        libfabric; None to this rank itself, and to those with which it is not connected yet (``lazy_connect`` of
        `dayfly.run`).
        """
        return self._native.ways

    def Dup(self) -> Comm:
        """Another communicator of the same ranks, whose messages do not meet those of this one."""
        return Comm(self._native.dup())

    Clone = Dup

    def Shrink(self) -> Comm:
        """A communicator of the ranks that are left, when some are lost. All that are left must call it."""
        return Comm(self._native.shrink())

    shrink = Shrink

    def Free(self) -> None:
        """Does nothing: a communicator goes when nobody has it any more."""

    def Abort(self, errorcode: int = 1) -> None:
        """Ends this process; the others hear that the rank is lost."""
        os._exit(errorcode)


Intracomm = Comm
COMM_TYPE_SHARED = 1


_making = threading.Lock()
#: What this process was invited to, for whoever makes further groups of the same ranks.
_invitation: str | None = None


def _join(invitation: str) -> Comm:
    """Makes the group of an invitation this process' world."""
    comm = Comm(Communicator.join(invitation))
    globals().update(COMM_WORLD=comm, _invitation=invitation)
    return comm


def _leave() -> None:
    """Forgets the group of this process."""
    globals().pop("COMM_WORLD", None)
    globals().update(_invitation=None)


def __getattr__(name: str) -> Any:
    if name not in ("COMM_WORLD", "COMM_SELF"):
        raise AttributeError(f"module 'dayfly.MPI' has no attribute {name!r}")
    with _making:
        if name not in globals():
            invitation = os.environ.get(GROUP_VARIABLE) if name == "COMM_WORLD" else None
            if invitation:
                _join(invitation)
            else:
                globals()[name] = Comm(Communicator.alone())
        return globals()[name]


def Wtime() -> float:
    """Seconds since some moment."""
    return time.monotonic()


def Wtick() -> float:
    """Seconds between two ticks of `Wtime`."""
    return time.get_clock_info("monotonic").resolution


def Get_processor_name() -> str:
    """Name of this host."""
    return os.uname().nodename


def Is_initialized() -> bool:
    """Always: there is nothing to initialise."""
    return True


def Is_finalized() -> bool:
    """Never: a communicator goes when nobody has it any more."""
    return False


def Init() -> None:
    """Does nothing."""


def Finalize() -> None:
    """Leaves the group."""
    _leave()
