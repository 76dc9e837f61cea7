"""Communication between the ranks of a group, with the names and the semantics of mpi4py's ``MPI``.

>>> from mayfly import MPI
>>> comm = MPI.COMM_WORLD
>>> comm.Get_rank(), comm.Get_size()
(0, 1)

A program that says ``from mpi4py import MPI`` moves by changing the import. `COMM_WORLD` is the group that this
process was started in, by `mayfly.run` or ``mayfly run``; a process of no group is a world of its own. Methods in lower
case send objects, pickled; those with a capital send buffers: NumPy arrays, or whatever else has the buffer protocol,
as they are or as ``[data, count, type]``.
"""

from __future__ import annotations

import functools
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from mayfly._errors import GroupError
from mayfly._native import Communicator
from mayfly._native import Op as _NativeOp
from mayfly._native import Request as _NativeRequest

if TYPE_CHECKING:
    COMM_WORLD: Comm
    COMM_SELF: Comm

#: What the operations here raise, as mpi4py calls it.
Exception = GroupError

ANY_SOURCE = -1
ANY_TAG = -1
PROC_NULL = -2
UNDEFINED = -32766
ROOT = -3

#: Environment variable with the group of this process, as `mayfly run` sets it.
GROUP_VARIABLE = "MAYFLY_GROUP"


class _InPlace:
    def __repr__(self) -> str:
        return "IN_PLACE"


#: The buffer of the other side is also this one's.
IN_PLACE = _InPlace()


class Datatype:
    """Type of the elements of a buffer."""

    def __init__(self, name: str, number: int, size: int) -> None:
        self.name = name
        self.number = number
        self.size = size

    def Get_size(self) -> int:
        """Bytes of one element."""
        return self.size

    def __repr__(self) -> str:
        return f"mayfly.MPI.{self.name}"


BYTE = Datatype("BYTE", 0, 1)
SIGNED_CHAR = INT8_T = Datatype("INT8_T", 1, 1)
SHORT = INT16_T = Datatype("INT16_T", 2, 2)
INT = INT32_T = Datatype("INT32_T", 3, 4)
LONG = LONG_LONG = INT64_T = Datatype("INT64_T", 4, 8)
CHAR = UNSIGNED_CHAR = UINT8_T = Datatype("UINT8_T", 5, 1)
UNSIGNED_SHORT = UINT16_T = Datatype("UINT16_T", 6, 2)
UNSIGNED = UINT32_T = Datatype("UINT32_T", 7, 4)
UNSIGNED_LONG = UINT64_T = Datatype("UINT64_T", 8, 8)
FLOAT = Datatype("FLOAT", 9, 4)
DOUBLE = Datatype("DOUBLE", 10, 8)
BOOL = C_BOOL = Datatype("BOOL", 11, 1)
COMPLEX = C_FLOAT_COMPLEX = Datatype("C_FLOAT_COMPLEX", 12, 8)
DOUBLE_COMPLEX = C_DOUBLE_COMPLEX = Datatype("C_DOUBLE_COMPLEX", 13, 16)
#: Pairs of a value and its place, each of eight bytes.
DOUBLE_INT = Datatype("DOUBLE_INT", 14, 16)
LONG_INT = Datatype("LONG_INT", 15, 16)

#: Formats of the buffer protocol (`struct`); those whose size depends on the machine are looked up by it.
_FORMATS = {
    "b": INT8_T,
    "h": INT16_T,
    "i": INT32_T,
    "q": INT64_T,
    "l": INT64_T,
    "B": UINT8_T,
    "H": UINT16_T,
    "I": UINT32_T,
    "Q": UINT64_T,
    "L": UINT64_T,
    "f": FLOAT,
    "d": DOUBLE,
    "?": BOOL,
    "Zf": C_FLOAT_COMPLEX,
    "Zd": C_DOUBLE_COMPLEX,
}


class Op:
    """An operation that combines elements."""

    def __init__(
        self,
        native: _NativeOp,
        name: str,
        combine: Callable[..., Any] | None,
        commute: bool = True,
    ) -> None:
        self._native = native
        self._name = name
        #: Of two objects, for the methods in lower case.
        self._combine = combine
        self._commute = commute

    @classmethod
    def Create(cls, function: Callable[[Any, Any, Datatype], None], commute: bool = False) -> Op:
        """An operation of one's own: ``function(left, right, datatype)`` combines two buffers into the second.

        It must be associative, and must not keep the buffers. For objects, it is called as ``function(left, right)``
        by the methods in lower case and answers the combination.
        """

        def call(left: memoryview, right: memoryview, number: int) -> None:
            function(left, right, _BY_NUMBER[number])

        return cls(_NativeOp.user(call, commute), getattr(function, "__name__", "op"), function, commute)

    def Is_commutative(self) -> bool:
        """Whether the order of the ranks may be changed."""
        return self._commute

    def Free(self) -> None:
        """Does nothing: it goes when nobody has it any more."""

    def __call__(self, left: Any, right: Any) -> Any:
        if self._combine is None:
            raise TypeError(f"{self!r} does not combine objects")
        return self._combine(left, right)

    def __repr__(self) -> str:
        return f"mayfly.MPI.{self._name}"


_BY_NUMBER = {t.number: t for t in list(globals().values()) if isinstance(t, Datatype)}


def _lesser(left: Any, right: Any) -> Any:
    # Of equal values the lower place, as in MPI.
    return left if (left[0], left[1]) <= (right[0], right[1]) else right


def _greater(left: Any, right: Any) -> Any:
    if left[0] == right[0]:
        return left if left[1] <= right[1] else right
    return left if left[0] > right[0] else right


SUM = Op(_NativeOp.named("sum"), "SUM", lambda a, b: a + b)
PROD = Op(_NativeOp.named("prod"), "PROD", lambda a, b: a * b)
MIN = Op(_NativeOp.named("min"), "MIN", lambda a, b: b if b < a else a)
MAX = Op(_NativeOp.named("max"), "MAX", lambda a, b: b if b > a else a)
LAND = Op(_NativeOp.named("land"), "LAND", lambda a, b: bool(a) and bool(b))
LOR = Op(_NativeOp.named("lor"), "LOR", lambda a, b: bool(a) or bool(b))
LXOR = Op(_NativeOp.named("lxor"), "LXOR", lambda a, b: bool(a) != bool(b))
BAND = Op(_NativeOp.named("band"), "BAND", lambda a, b: a & b)
BOR = Op(_NativeOp.named("bor"), "BOR", lambda a, b: a | b)
BXOR = Op(_NativeOp.named("bxor"), "BXOR", lambda a, b: a ^ b)
MINLOC = Op(_NativeOp.named("minloc"), "MINLOC", _lesser)
MAXLOC = Op(_NativeOp.named("maxloc"), "MAXLOC", _greater)


class Status:
    """What a receive, or a probe, found."""

    def __init__(self) -> None:
        self.source = ANY_SOURCE
        self.tag = ANY_TAG
        self.count = 0

    def _set(self, found: tuple[int, int, int] | None) -> None:
        if found is not None:
            self.source, self.tag, self.count = found

    def Get_source(self) -> int:
        """Who sent it."""
        return self.source

    def Get_tag(self) -> int:
        """Under which tag."""
        return self.tag

    def Get_count(self, datatype: Datatype = BYTE) -> int:
        """Elements of it."""
        whole, rest = divmod(self.count, datatype.size)
        return UNDEFINED if rest else whole

    Get_elements = Get_count


class _Buffer:
    """A buffer that a caller named: memory, type of the elements, and where the ranks' blocks are."""

    __slots__ = ("count", "counts", "datatype", "displs", "memory")

    def __init__(self, named: Any) -> None:
        self.counts: Sequence[int] | None = None
        self.displs: Sequence[int] | None = None
        data, counts, datatype = named, None, None
        if isinstance(named, (list, tuple)):
            data, *rest = named
            for part in rest:
                if isinstance(part, (Datatype, str)):
                    datatype = part
                elif counts is None:
                    counts = part
                else:
                    counts = (counts, part)
        view = _view_of(data)
        if isinstance(datatype, str):
            datatype = _FORMATS[datatype]
        self.datatype: Datatype = datatype or _datatype_of(view)
        # A view of bytes has no elements of the type that was named.
        size = self.datatype.size
        self.memory: memoryview = view
        self.count = view.nbytes // size
        if isinstance(counts, int):
            self.count = counts
            self.memory = _bytes_of(view)[: counts * size]
        elif counts is not None:
            self._blocks(counts)

    def _blocks(self, counts: Any) -> None:
        if isinstance(counts, tuple) and len(counts) == 2 and not isinstance(counts[0], int):
            self.counts, self.displs = [int(n) for n in counts[0]], counts[1]
        else:
            self.counts = [int(n) for n in counts]
        if self.displs is None:
            starts, at = [], 0
            for count in self.counts:
                starts.append(at)
                at += count
            self.displs = starts
        self.displs = [int(n) for n in self.displs]

    def blocks(self) -> list[tuple[int, int]] | None:
        """Start and length in bytes of each rank's block, if they were named."""
        if self.counts is None or self.displs is None:
            return None
        size = self.datatype.size
        return [(start * size, count * size) for start, count in zip(self.displs, self.counts, strict=True)]


def _view_of(data: Any) -> memoryview:
    try:
        return memoryview(data)
    except TypeError:
        # Tensors of PyTorch and others that lie in memory of the processor.
        if hasattr(data, "__dlpack__"):
            import numpy as np

            tensor: Any = np.from_dlpack(data)
            return memoryview(tensor)
        raise


def _bytes_of(view: memoryview) -> memoryview:
    if view.format == "B" and view.ndim == 1:
        return view
    try:
        return view.cast("B")
    except (TypeError, ValueError):
        import numpy as np

        # Formats that `memoryview.cast` does not know, such as complex numbers.
        plain: Any = np.asarray(view).view(np.uint8).reshape(-1)
        return memoryview(plain)


def _datatype_of(view: memoryview) -> Datatype:
    name = view.format.lstrip("@=<")
    if name in ("l", "L") and view.itemsize == 4:
        return INT32_T if name == "l" else UINT32_T
    return _FORMATS.get(name, BYTE)


class Request:
    """An operation in the background."""

    def __init__(self, native: _NativeRequest | None, finish: Callable[[], Any] | None = None) -> None:
        self._native = native
        self._finish = finish
        self._value: Any = None
        self._done = native is None

    def _end(self, found: tuple[int, int, int] | None, status: Status | None) -> None:
        self._done = True
        if status is not None:
            status._set(found)
        if self._finish is not None:
            self._value = self._finish()
            self._finish = None

    def Wait(self, status: Status | None = None) -> bool:
        """Waits until it is over."""
        if not self._done and self._native is not None:
            self._end(self._native.wait(), status)
        return True

    def Test(self, status: Status | None = None) -> bool:
        """Whether it is over."""
        if not self._done and self._native is not None:
            over, found = self._native.test()
            if over:
                self._end(found, status)
        return self._done

    def wait(self, status: Status | None = None) -> Any:
        """Waits until it is over, and answers the object that was received."""
        self.Wait(status)
        return self._value

    def test(self, status: Status | None = None) -> tuple[bool, Any]:
        """Whether it is over, and the object that was received."""
        return self.Test(status), self._value

    def Cancel(self) -> None:
        """Ends it early."""
        if self._native is not None:
            self._native.cancel()
        self._done = True

    @staticmethod
    def Waitall(requests: Iterable[Request], statuses: list[Status] | None = None) -> bool:
        """Waits for all of them."""
        for number, request in enumerate(requests):
            request.Wait(statuses[number] if statuses else None)
        return True

    @staticmethod
    def waitall(requests: Iterable[Request], statuses: list[Status] | None = None) -> list[Any]:
        """Waits for all of them, and answers the objects that were received."""
        return [r.wait(statuses[n] if statuses else None) for n, r in enumerate(requests)]

    @staticmethod
    def Waitany(requests: Sequence[Request], status: Status | None = None) -> int:
        """Waits for one of them, and answers which."""
        if all(request._done for request in requests):
            return UNDEFINED
        while True:
            for number, request in enumerate(requests):
                if not request._done and request.Test(status):
                    return number
            time.sleep(0)

    @staticmethod
    def Testall(requests: Iterable[Request]) -> bool:
        """Whether all of them are over."""
        # Each of them moves on, also behind one that is not over.
        over = [request.Test() for request in requests]
        return all(over)


class _Object(Request):
    """An object on its way here, received when its message is there: its length is not known before."""

    def __init__(self, comm: Comm, source: int, tag: int) -> None:
        super().__init__(None)
        self._comm, self._source, self._tag = comm, source, tag
        self._done = False

    def Wait(self, status: Status | None = None) -> bool:
        if not self._done:
            self._value = self._comm.recv(source=self._source, tag=self._tag, status=status)
            self._done = True
        return True

    def Test(self, status: Status | None = None) -> bool:
        if not self._done and self._comm.iprobe(self._source, self._tag):
            self.Wait(status)
        return self._done

    def Cancel(self) -> None:
        self._done = True


class Comm:
    """Ranks that exchange messages and compute together."""

    def __init__(self, native: Communicator) -> None:
        self._native = native
        self.rank: int = native.rank
        self.size: int = native.size

    def Get_rank(self) -> int:
        """Number of this rank."""
        return self.rank

    def Get_size(self) -> int:
        """How many ranks there are."""
        return self.size

    def __repr__(self) -> str:
        return f"<mayfly.MPI.Comm: rank {self.rank} of {self.size}>"

    # Messages of objects

    def send(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Sends an object."""
        if dest != PROC_NULL:
            self._native.send(pickle.dumps(obj, protocol=5), dest, tag)

    ssend = bsend = send

    def recv(self, buf: Any = None, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> Any:
        """Receives an object."""
        if source == PROC_NULL:
            return None
        source, tag, length = self._native.probe(source, tag)
        into = bytearray(length)
        found = self._native.recv(into, source, tag)
        if status is not None:
            status._set(found)
        return pickle.loads(into)

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

    def irecv(self, buf: Any = None, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        """Starts to receive an object; `Request.wait` answers it."""
        return _Object(self, source, tag)

    def probe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> bool:
        """Waits for a message, without receiving it."""
        found = self._native.probe(source, tag)
        if status is not None:
            status._set(found)
        return True

    def iprobe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> bool:
        """Whether a message is here."""
        found = self._native.iprobe(source, tag)
        if found is not None and status is not None:
            status._set(found)
        return found is not None

    Probe, Iprobe = probe, iprobe

    # Messages of buffers

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        """Sends a buffer."""
        if dest != PROC_NULL:
            self._native.send(_Buffer(buf).memory, dest, tag)

    Ssend = Bsend = Send

    def Recv(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> None:
        """Receives into a buffer."""
        if source == PROC_NULL:
            return
        found = self._native.recv(_Buffer(buf).memory, source, tag)
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
        out, into = _Buffer(sendbuf).memory, _Buffer(recvbuf).memory
        found = self._native.sendrecv(out, dest, sendtag, into, source, recvtag)
        if status is not None:
            status._set(found)
        return None

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        """Starts to send a buffer, which must stay as it is until the request is over."""
        if dest == PROC_NULL:
            return Request(None)
        return Request(self._native.isend(_Buffer(buf).memory, dest, tag))

    def Irecv(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        """Starts to receive into a buffer."""
        if source == PROC_NULL:
            return Request(None)
        return Request(self._native.irecv(_Buffer(buf).memory, source, tag))

    # Collectives of buffers

    def _collect(self, background: bool, name: str, *args: Any, **options: Any) -> Request | None:
        native = self._native.collective(name, *args, background=background, **options)
        return Request(native) if background else None

    def Barrier(self) -> None:
        """Waits until all ranks are here."""
        self._collect(False, "barrier")

    barrier = Barrier

    def Ibarrier(self) -> Request:
        """The same in the background."""
        return self._started("barrier")

    def _started(self, name: str, *args: Any, **options: Any) -> Request:
        request = self._collect(True, name, *args, **options)
        assert request is not None
        return request

    def _bcast(self, background: bool, buf: Any, root: int) -> Request | None:
        return self._collect(background, "bcast", None, _Buffer(buf).memory, root=root)

    def Bcast(self, buf: Any, root: int = 0) -> None:
        """Gives everybody the root's buffer."""
        self._bcast(False, buf, root)

    def Ibcast(self, buf: Any, root: int = 0) -> Request:
        """The same in the background."""
        return self._bcast(True, buf, root)  # type: ignore[return-value]

    def _gather(self, background: bool, sendbuf: Any, recvbuf: Any, root: int) -> Request | None:
        into = _Buffer(recvbuf) if self.rank == root else None
        memory = into.memory if into else None
        blocks = into.blocks() if into else None
        own: Any = _Buffer(sendbuf).memory if sendbuf is not IN_PLACE else None
        if own is None:
            own = bytes(_part(into, blocks, self.rank, self.size))
        return self._collect(background, "gather", own, memory, root=root, received=blocks)

    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Gives the root everybody's buffer, in the order of the ranks."""
        self._gather(False, sendbuf, recvbuf, root)

    def Igather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Request:
        """The same in the background."""
        return self._gather(True, sendbuf, recvbuf, root)  # type: ignore[return-value]

    def Gatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """The same, of any length: ``recvbuf=[data, counts, type]`` or ``[data, (counts, displs), type]``."""
        # All ranks must call the same operation, and only the root knows whether its blocks are equally long.
        if self.rank == root:
            into = _Buffer(recvbuf)
            blocks = into.blocks() or _equal(into, self.size)
            own = bytes(_part(into, blocks, root, self.size)) if sendbuf is IN_PLACE else _Buffer(sendbuf).memory
            self._collect(False, "gather", own, into.memory, root=root, received=blocks)
        else:
            self._collect(False, "gather", _Buffer(sendbuf).memory, None, root=root, received=[(0, 0)] * self.size)

    def _scatter(self, background: bool, sendbuf: Any, recvbuf: Any, root: int, varies: bool) -> Request | None:
        out = _Buffer(sendbuf) if self.rank == root else None
        blocks = out.blocks() if out else None
        if varies:
            blocks = blocks or (_equal(out, self.size) if out else [(0, 0)] * self.size)
        if recvbuf is IN_PLACE:
            own_part = bytearray(len(_part(out, blocks, self.rank, self.size)))
            return self._collect(background, "scatter", out and out.memory, own_part, root=root, sent=blocks)
        into = _Buffer(recvbuf).memory
        return self._collect(background, "scatter", out and out.memory, into, root=root, sent=blocks)

    def Scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Gives everybody its part of the root's buffer."""
        self._scatter(False, sendbuf, recvbuf, root, False)

    def Iscatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Request:
        """The same in the background."""
        return self._scatter(True, sendbuf, recvbuf, root, False)  # type: ignore[return-value]

    def Scatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """The same, of parts of any length: ``sendbuf=[data, counts, type]`` or ``[data, (counts, displs), type]``."""
        self._scatter(False, sendbuf, recvbuf, root, True)

    def _allgather(self, background: bool, sendbuf: Any, recvbuf: Any) -> Request | None:
        into = _Buffer(recvbuf)
        blocks = into.blocks()
        in_place = sendbuf is IN_PLACE
        own = bytes(_part(into, blocks, self.rank, self.size)) if in_place else _Buffer(sendbuf).memory
        return self._collect(background, "allgather", own, into.memory, received=blocks)

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        """Gives everybody everybody's buffer, in the order of the ranks."""
        self._allgather(False, sendbuf, recvbuf)

    Allgatherv = Allgather

    def Iallgather(self, sendbuf: Any, recvbuf: Any) -> Request:
        """The same in the background."""
        return self._allgather(True, sendbuf, recvbuf)  # type: ignore[return-value]

    def _alltoall(self, background: bool, sendbuf: Any, recvbuf: Any, varies: bool) -> Request | None:
        into = _Buffer(recvbuf)
        out = _Buffer(sendbuf) if sendbuf is not IN_PLACE else None
        own = out.memory if out else bytes(_bytes_of(into.memory))
        sent, received = out.blocks() if out else into.blocks(), into.blocks()
        if varies:
            sent, received = sent or _equal(out or into, self.size), received or _equal(into, self.size)
        return self._collect(background, "alltoall", own, into.memory, sent=sent, received=received)

    def Alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        """Sends everybody its part of a buffer, and receives everybody's."""
        self._alltoall(False, sendbuf, recvbuf, False)

    def Alltoallv(self, sendbuf: Any, recvbuf: Any) -> None:
        """The same, of parts of any length."""
        self._alltoall(False, sendbuf, recvbuf, True)

    def Ialltoall(self, sendbuf: Any, recvbuf: Any) -> Request:
        """The same in the background."""
        return self._alltoall(True, sendbuf, recvbuf, False)  # type: ignore[return-value]

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM, root: int = 0) -> None:
        """Combines everybody's elements, for the root."""
        if self.rank == root:
            into = _Buffer(recvbuf)
            if sendbuf is not IN_PLACE:
                _copy(into, _Buffer(sendbuf))
            self._collect(False, "reduce", None, into.memory, root=root, datatype=into.datatype.number, op=op._native)
        else:
            own = _Buffer(sendbuf)
            # What is combined on the way passes through memory of its own.
            scratch = bytearray(_bytes_of(own.memory))
            self._collect(False, "reduce", None, scratch, root=root, datatype=own.datatype.number, op=op._native)

    def _allreduce(self, background: bool, sendbuf: Any, recvbuf: Any, op: Op) -> Request | None:
        into = _Buffer(recvbuf)
        own = bytes(_bytes_of(into.memory)) if sendbuf is IN_PLACE else _Buffer(sendbuf).memory
        return self._collect(background, "allreduce", own, into.memory, datatype=into.datatype.number, op=op._native)

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> None:
        """Combines everybody's elements, for everybody."""
        self._allreduce(False, sendbuf, recvbuf, op)

    def Iallreduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> Request:
        """The same in the background."""
        return self._allreduce(True, sendbuf, recvbuf, op)  # type: ignore[return-value]

    def Reduce_scatter(self, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int] | None = None, op: Op = SUM) -> None:
        """Combines everybody's elements, and gives each rank its part."""
        into, out = _Buffer(recvbuf), _Buffer(sendbuf)
        counts = list(recvcounts) if recvcounts is not None else self.allgather(into.count)
        sizes = [count * into.datatype.size for count in counts]
        number = into.datatype.number
        self._collect(False, "reduce_scatter", out.memory, into.memory, counts=sizes, datatype=number, op=op._native)

    def Reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> None:
        """The same, of parts that are equally long."""
        self.Reduce_scatter(sendbuf, recvbuf, [_Buffer(recvbuf).count] * self.size, op)

    def Scan(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> None:
        """Combines the elements of the ranks up to this one."""
        into = _Buffer(recvbuf)
        if sendbuf is not IN_PLACE:
            _copy(into, _Buffer(sendbuf))
        self._collect(False, "scan", None, into.memory, datatype=into.datatype.number, op=op._native)

    def Exscan(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> None:
        """Combines the elements of the ranks before this one; rank 0's ``recvbuf`` is left alone."""
        into = _Buffer(recvbuf)
        own = bytes(_bytes_of(into.memory)) if sendbuf is IN_PLACE else _Buffer(sendbuf).memory
        self._collect(False, "exscan", own, into.memory, datatype=into.datatype.number, op=op._native)

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


def _part(buffer: _Buffer | None, blocks: list[tuple[int, int]] | None, rank: int, size: int) -> memoryview:
    if buffer is None:
        raise ValueError("IN_PLACE is for the root")
    start, length = (blocks or _equal(buffer, size))[rank]
    return _bytes_of(buffer.memory)[start : start + length]


def _equal(buffer: _Buffer, size: int) -> list[tuple[int, int]]:
    length = buffer.memory.nbytes // size
    return [(rank * length, length) for rank in range(size)]


def _copy(into: _Buffer, out: _Buffer) -> None:
    target, source = _bytes_of(into.memory), _bytes_of(out.memory)
    if target.nbytes < source.nbytes:
        raise ValueError(f"a result of {source.nbytes} bytes for a buffer of {target.nbytes}")
    target[: source.nbytes] = source


def _laid_out(lengths: Sequence[int]) -> list[tuple[int, int]]:
    blocks, at = [], 0
    for length in lengths:
        blocks.append((at, length))
        at += length
    return blocks


def _unpack(memory: bytearray, blocks: list[tuple[int, int]]) -> list[Any]:
    view = memoryview(memory)
    return [pickle.loads(view[start : start + length]) for start, length in blocks]


_making = threading.Lock()


def _join(invitation: str) -> Comm:
    """Makes the group of an invitation this process' world."""
    comm = Comm(Communicator.join(invitation))
    globals()["COMM_WORLD"] = comm
    return comm


def _leave() -> None:
    """Forgets the group of this process."""
    globals().pop("COMM_WORLD", None)


def __getattr__(name: str) -> Any:
    if name not in ("COMM_WORLD", "COMM_SELF"):
        raise AttributeError(f"module 'mayfly.MPI' has no attribute {name!r}")
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
