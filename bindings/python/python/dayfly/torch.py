"""PyTorch's collectives over the ranks of a group: the ``dayfly`` backend of ``torch.distributed``.

    import torch.distributed as dist
    import dayfly.torch  # registers the backend
    dist.init_process_group("dayfly")

Inside a group, started by `dayfly.run` or ``dayfly run``, nothing else is needed: rank and size are the group's, and
libraries on top of ``torch.distributed`` work, such as ``DistributedDataParallel``. Tensors must be in CPU memory,
contiguous or not. Operations with ``async_op=True`` progress while this rank waits for others.
"""

from __future__ import annotations

import collections
import importlib
import json
import os
import socket
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from dayfly import groups
from dayfly._errors import RequestError
from dayfly._native import Communicator, Op, Request

_SUM = Op.named("sum")
_OPERATIONS = [
    (dist.ReduceOp.SUM, _SUM),
    (dist.ReduceOp.PRODUCT, Op.named("prod")),
    (dist.ReduceOp.MIN, Op.named("min")),
    (dist.ReduceOp.MAX, Op.named("max")),
    (dist.ReduceOp.BAND, Op.named("band")),
    (dist.ReduceOp.BOR, Op.named("bor")),
    (dist.ReduceOp.BXOR, Op.named("bxor")),
]
#: Completed operations that are kept alive. PyTorch has at most a few in flight.
KEPT = 64

#: Types that the group cannot reduce, and the wider types that it reduces instead.
_WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.bool: torch.uint8}


def _refusal(message: str) -> RequestError:
    return RequestError(message, "invalid_request")


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the elements as a contiguous, flat tensor: a view if possible, else a copy.

    Raises an error if the tensor is not in CPU memory or is sparse.
    """
    if tensor.device.type != "cpu":
        raise _refusal(f"a tensor on {tensor.device}; the backend dayfly works on tensors of the processor: use .cpu()")
    if tensor.is_sparse:
        raise _refusal("a sparse tensor; use .to_dense()")
    return tensor.detach().contiguous().view(-1)


def _bytes(flat: torch.Tensor) -> torch.Tensor:
    """Returns the bytes of a flat tensor. Ranks exchange bytes of every type, also of those that they cannot reduce."""
    return flat.view(torch.uint8)


class _Out:
    """A contiguous receive buffer for a tensor."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.flat = tensor, _flat(tensor)

    @property
    def bytes(self) -> torch.Tensor:
        return _bytes(self.flat)

    def finish(self) -> None:
        if self.flat.data_ptr() != self.tensor.data_ptr():
            self.tensor.detach().copy_(self.flat.view(self.tensor.shape))


class _Work(dist.Work if hasattr(dist, "Work") else dist._Work):  # type: ignore[misc]
    """An operation in flight."""

    def __init__(self, requests: Sequence[Request], finish: Callable[[], Any], result: list[torch.Tensor]) -> None:
        super().__init__()
        self._requests, self._finish = list(requests), finish
        # Process groups keep operations for a while, which must not keep the tensors alive.
        self._about = [weakref.ref(tensor) for tensor in result]
        self._source = -1
        self._over = False

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits until the operation is complete."""
        if not self._over:
            for request in self._requests:
                self._note(request.wait())
            self._end()
        return True

    def _note(self, found: tuple[int, int, int] | None) -> None:
        if found is not None:
            self._source = found[0]

    def _end(self) -> None:
        self._over = True
        self._finish()
        self._requests, self._finish = [], lambda: None

    def is_completed(self) -> bool:
        """Returns whether the operation is complete. Raises if it failed."""
        while self._requests:
            done, found = self._requests[0].test()
            if not done:
                return False
            self._note(found)
            del self._requests[0]
        if not self._over:
            self._end()
        return True

    def is_success(self) -> bool:
        """Returns whether the operation is complete. Raises if it failed."""
        return self.is_completed()

    def exception(self) -> None:
        """Returns None: failures are raised."""

    def synchronize(self) -> None:
        """Waits until the operation is complete."""
        self.wait()

    def result(self) -> list[torch.Tensor]:
        """Returns the tensors of the operation."""
        return [tensor for about in self._about if (tensor := about()) is not None]

    def source_rank(self) -> int:
        """Returns the rank that sent the received message."""
        return self._source

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Waits, and returns a completed future of the result. No thread would complete it later."""
        self.wait()
        result = self.result()
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        future.set_result(result)
        return future


def _single(tensors: Sequence[Any], what: str) -> Any:
    if len(tensors) != 1:
        raise _refusal(f"{what} of {len(tensors)} tensors at once; the backend dayfly takes one for each rank")
    return tensors[0]


class ProcessGroup(dist.ProcessGroup):  # type: ignore[misc]
    """A communicator as a PyTorch process group."""

    def __init__(self, comm: Communicator, timeout: timedelta | None = None) -> None:
        super().__init__(comm.rank, comm.size)
        self._comm = comm
        self._kept: collections.deque[_Work] = collections.deque()

    def _start(self, name: str, own: Any = None, into: Any = None, **options: Any) -> Request:
        """Starts a collective operation."""
        request = self._comm.collective(name, own, into, background=True, **options)
        assert request is not None
        return request

    def _started(self, requests: Sequence[Request], finish: Callable[[], Any], result: list[torch.Tensor]) -> _Work:
        work = _Work(requests, finish, result)
        # PyTorch holds only the C++ part of an operation. The Python part completes it, so it is kept here.
        self._kept.append(work)
        while len(self._kept) > KEPT and self._kept[0].is_completed():
            self._kept.popleft()
        return work

    def getBackendName(self) -> str:
        """Returns the name of the backend."""
        return "dayfly"

    def name(self) -> str:
        """Returns the name of the backend."""
        return "dayfly"

    _get_backend_name = getBackendName
    supports_coalescing = False

    def _get_backend(self, device: Any) -> ProcessGroup:
        """Returns itself for every device. The operations raise an error for unsupported devices."""
        return self

    def _set_sequence_number_for_group(self) -> None:
        pass

    def _get_sequence_number_for_group(self) -> int:
        return 0

    def _no_blocks(self) -> list[tuple[int, int]]:
        """Returns the blocks of a rank that is not the root, which does not know their lengths."""
        return [(0, 0)] * self._comm.size

    # Reductions

    def _combined(self, tensor: torch.Tensor, op: Any) -> tuple[torch.Tensor, Op, Callable[[torch.Tensor], Any]]:
        """Returns the tensor to reduce, the operation, and a function that converts the result to the tensor's type."""
        flat = _flat(tensor)
        wide = flat.to(_WIDER.get(flat.dtype, flat.dtype))
        for theirs, ours in _OPERATIONS:
            if op == theirs:
                return wide, ours, lambda found: found.to(tensor.dtype)
        if hasattr(dist.ReduceOp, "AVG") and op == dist.ReduceOp.AVG:
            size = self._comm.size
            if not flat.is_floating_point():
                raise _refusal(f"an average of {tensor.dtype}; use a floating-point type")
            return wide, _SUM, lambda found: (found / size).to(tensor.dtype)
        raise _refusal(f"the backend dayfly has no reduction {op}")

    def _allreduce(self, tensor: torch.Tensor, op: Any) -> tuple[Request, Callable[[], Any]]:
        wide, ours, narrow = self._combined(tensor, op)
        found = torch.empty_like(wide)
        request = self._start("allreduce", wide, found, op=ours)
        return request, lambda: tensor.detach().copy_(narrow(found).view(tensor.shape))

    def allreduce(self, tensors: Any, opts: Any = None) -> _Work:
        """Reduces the elements of all ranks, and gives the result to all ranks."""
        return self.allreduce_coalesced([tensors] if isinstance(tensors, torch.Tensor) else tensors, opts)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> _Work:
        """As `allreduce`, for several tensors."""
        op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        started = [self._allreduce(tensor, op) for tensor in tensors]

        def finish() -> None:
            for _, end in started:
                end()

        return self._started([request for request, _ in started], finish, tensors)

    def reduce(self, tensors: list[torch.Tensor], opts: Any) -> _Work:
        """Reduces the elements of all ranks, and gives the result to the root."""
        tensor = _single(tensors, "a reduction")
        wide, ours, narrow = self._combined(tensor, opts.reduceOp)
        # What is combined on the way passes through it on every rank.
        found = wide.clone()
        request = self._start("reduce", None, found, op=ours, root=opts.rootRank)

        def finish() -> None:
            if self._comm.rank == opts.rootRank:
                tensor.detach().copy_(narrow(found).view(tensor.shape))

        return self._started([request], finish, tensors)

    def reduce_scatter(
        self, output_tensors: list[torch.Tensor], input_tensors: list[list[torch.Tensor]], opts: Any = None
    ) -> _Work:
        """Reduces the elements of all ranks, and gives each rank its part of the result."""
        output, inputs = _single(output_tensors, "a reduction"), _single(input_tensors, "a reduction")
        return self._scatter_reduced(
            output, torch.cat([_flat(one) for one in inputs]), opts, [len(_flat(one)) for one in inputs]
        )

    def _scatter_reduced(self, output: torch.Tensor, all_of: torch.Tensor, opts: Any, counts: list[int]) -> _Work:
        op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        wide, ours, narrow = self._combined(all_of, op)
        found = torch.empty(output.numel(), dtype=wide.dtype)
        lengths = [count * wide.element_size() for count in counts]
        request = self._start("reduce_scatter", wide, found, op=ours, counts=lengths)
        return self._started([request], lambda: output.detach().copy_(narrow(found).view(output.shape)), [output])

    def _reduce_scatter_base(self, output: torch.Tensor, all_of: torch.Tensor, opts: Any = None) -> _Work:
        return self._scatter_reduced(output, all_of, opts, [output.numel()] * self._comm.size)

    # Names in different versions of PyTorch, here and below.
    reduce_scatter_tensor = reduce_scatter_single = _reduce_scatter_base

    # Data movement

    def broadcast(self, tensors: Any, opts: Any = None) -> _Work:
        """Sends the root's elements to all ranks."""
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        out = _Out(_single(tensors, "a broadcast"))
        request = self._start("bcast", None, out.bytes, root=0 if opts is None else opts.rootRank)
        return self._started([request], out.finish, tensors)

    def allgather(
        self, output_tensors: list[list[torch.Tensor]], input_tensors: list[torch.Tensor], opts: Any = None
    ) -> _Work:
        """Gathers the elements of all ranks to all ranks."""
        outputs, own = _single(output_tensors, "a gathering"), _flat(_single(input_tensors, "a gathering"))
        found = torch.empty(sum(out.numel() for out in outputs), dtype=own.dtype)
        request = self._start("allgather", _bytes(own), _bytes(found), received=_blocks(outputs))
        return self._started([request], lambda: _divide(found, outputs), outputs)

    def _allgather_base(self, output: torch.Tensor, own: torch.Tensor, opts: Any = None) -> _Work:
        out = _Out(output)
        request = self._start("allgather", _bytes(_flat(own)), out.bytes)
        return self._started([request], out.finish, [output])

    allgather_into_tensor = all_gather_single = _allgather_base

    def allgather_coalesced(
        self, output_lists: list[list[torch.Tensor]], input_list: list[torch.Tensor], opts: Any = None
    ) -> _Work:
        """As `allgather`, for several tensors."""
        for number, own in enumerate(input_list):
            self.allgather([[outputs[number] for outputs in output_lists]], [own]).wait()
        return self._started([], lambda: None, [tensor for outputs in output_lists for tensor in outputs])

    def gather(self, output_tensors: list[list[torch.Tensor]], input_tensors: list[torch.Tensor], opts: Any) -> _Work:
        """Gathers the elements of all ranks to the root."""
        own = _flat(_single(input_tensors, "a gathering"))
        if self._comm.rank != opts.rootRank:
            request = self._start("gather", _bytes(own), root=opts.rootRank, received=self._no_blocks())
            return self._started([request], lambda: None, [])
        outputs = _single(output_tensors, "a gathering")
        found = torch.empty(sum(out.numel() for out in outputs), dtype=own.dtype)
        request = self._start("gather", _bytes(own), _bytes(found), root=opts.rootRank, received=_blocks(outputs))
        return self._started([request], lambda: _divide(found, outputs), outputs)

    def gather_single(self, output: torch.Tensor | None, own: torch.Tensor, opts: Any) -> _Work:
        """As `gather`, into one tensor."""
        if self._comm.rank != opts.rootRank or output is None:
            return self.gather([], [own], opts)
        return self.gather([list(output.view(self._comm.size, -1))], [own], opts)

    def scatter(self, output_tensors: list[torch.Tensor], input_tensors: list[list[torch.Tensor]], opts: Any) -> _Work:
        """Sends each rank its part of the root's elements."""
        out, sent, blocks = _Out(_single(output_tensors, "a scattering")), None, self._no_blocks()
        if self._comm.rank == opts.rootRank:
            inputs = _single(input_tensors, "a scattering")
            sent, blocks = _bytes(torch.cat([_flat(one) for one in inputs])), _blocks(inputs)
        request = self._start("scatter", sent, out.bytes, root=opts.rootRank, sent=blocks)
        return self._started([request], out.finish, output_tensors)

    def alltoall(
        self, output_tensors: list[torch.Tensor], input_tensors: list[torch.Tensor], opts: Any = None
    ) -> _Work:
        """Sends a tensor to each rank and receives one from each."""
        sent = torch.cat([_flat(one) for one in input_tensors])
        found = torch.empty(sum(out.numel() for out in output_tensors), dtype=sent.dtype)
        request = self._start(
            "alltoall", _bytes(sent), _bytes(found), sent=_blocks(input_tensors), received=_blocks(output_tensors)
        )
        return self._started([request], lambda: _divide(found, output_tensors), output_tensors)

    def alltoall_base(
        self,
        output: torch.Tensor,
        own: torch.Tensor,
        output_split_sizes: list[int] | None = None,
        input_split_sizes: list[int] | None = None,
        opts: Any = None,
    ) -> _Work:
        """As `alltoall`, for parts of one tensor along its first dimension."""
        out, sent = _Out(output), _flat(own)

        def blocks(tensor: torch.Tensor, sizes: list[int] | None) -> list[tuple[int, int]]:
            if not sizes:
                length = tensor.numel() * tensor.element_size() // self._comm.size
                return groups.laid_out([length] * self._comm.size)
            row = tensor.numel() // max(1, tensor.shape[0]) * tensor.element_size()
            return groups.laid_out([size * row for size in sizes])

        request = self._start(
            "alltoall",
            _bytes(sent),
            out.bytes,
            sent=blocks(own, input_split_sizes),
            received=blocks(output, output_split_sizes),
        )
        return self._started([request], out.finish, [output])

    all_to_all_single = alltoall_base

    def barrier(self, opts: Any = None) -> _Work:
        """Waits until all ranks have called it."""
        return self._started([self._start("barrier")], lambda: None, [])

    # Point-to-point messages

    def send(self, tensors: list[torch.Tensor], dst: int, tag: int = 0) -> _Work:
        """Sends a tensor to a rank."""
        flat = _flat(_single(tensors, "a message"))
        return self._started([self._comm.isend(_bytes(flat), dst, tag)], lambda: None, tensors)

    def recv(self, tensors: list[torch.Tensor], src: int, tag: int = 0) -> _Work:
        """Receives into a tensor from a rank."""
        out = _Out(_single(tensors, "a message"))
        return self._started([self._comm.irecv(out.bytes, src, tag)], out.finish, tensors)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int = 0) -> _Work:
        """Receives into a tensor from any rank."""
        return self.recv(tensors, groups.ANY, tag)


def _blocks(tensors: Sequence[torch.Tensor]) -> list[tuple[int, int]]:
    """Returns start and length in bytes of tensors that follow each other."""
    return groups.laid_out([tensor.numel() * tensor.element_size() for tensor in tensors])


def _divide(found: torch.Tensor, outputs: Sequence[torch.Tensor]) -> None:
    parts = found.split([out.numel() for out in outputs])
    for out, part in zip(outputs, parts, strict=True):
        out.detach().copy_(part.view(out.shape))


def _make(store: dist.Store, rank: int, size: int, timeout: timedelta) -> ProcessGroup:
    """Creates the group of `init_process_group`, which all ranks call, or of `new_group`, which only members reach."""
    world = groups.world()
    if size == world.size:
        part = world._native.split(0, rank)
        assert part is not None
        return ProcessGroup(part, timeout)
    if size == 1:
        return ProcessGroup(Communicator.alone(), timeout)
    own = groups.invitation()
    if own is None:
        raise _refusal(f"a group of {size} ranks in a world of {world.size}; start as many by dayfly.run")
    # Ranks that are not members do not call this, so the members rendezvous again.
    if rank == 0:
        store.set("dayfly", os.urandom(8).hex())
    name = f"{own['name']}/{store.get('dayfly').decode()}"
    return ProcessGroup(Communicator.join(json.dumps(own | {"name": name, "size": size, "rank": rank})), timeout)


def _meet(url: str, *args: Any, **options: Any) -> Iterator[tuple[dist.Store, int, int]]:
    """Yields the store, with the group's rank and size. The store is a file on one host, else a server at rank 0."""
    world = groups.world()
    rank, size = world.rank, world.size
    path = None
    if rank == 0:
        handle, path = tempfile.mkstemp(prefix="dayfly-torch-")
        os.close(handle)
    path = world.bcast(path)
    if all(world.allgather(os.path.exists(path))):
        yield dist.FileStore(path, size), rank, size
        return
    if rank == 0:
        os.unlink(path)
    timeout = options.get("timeout", timedelta(minutes=30))
    server = dist.TCPStore(socket.gethostname(), 0, size, True, timeout, wait_for_workers=False) if rank == 0 else None
    host, port = world.bcast((server.host, server.port) if server else None)
    yield server or dist.TCPStore(host, port, size, False, timeout, wait_for_workers=False), rank, size


def _register() -> None:
    if hasattr(dist.Backend, "DAYFLY"):
        return
    try:
        dist.Backend.register_backend("dayfly", _make, devices=["cpu"])
    except TypeError:  # before PyTorch 2
        dist.Backend.register_backend("dayfly", _make)
    # A function of the same name hides the module as an attribute.
    rendezvous: Any = importlib.import_module("torch.distributed.rendezvous")
    rendezvous.register_rendezvous_handler("dayfly", _meet)
    # Environment variables take precedence. A process that Dayfly started has none, and needs none.
    handlers: dict[str, Any] = rendezvous._rendezvous_handlers
    usual = handlers["env"]

    def meet(url: str, *args: Any, **options: Any) -> Any:
        started_by_others = "RANK" in os.environ or "MASTER_ADDR" in os.environ
        return (usual if started_by_others else _meet)(url, *args, **options)

    handlers["env"] = meet


_register()
