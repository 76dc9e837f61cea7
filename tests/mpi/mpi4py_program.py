"""Uses the real mpi4py: ring, reductions, derived datatypes, sparse exchange, and exchanges that must not hang."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
after, before = (rank + 1) % size, (rank - 1) % size


def test_objects_and_buffers_pass_around_a_ring() -> None:
    received = comm.sendrecv({"from": rank}, dest=after, source=before)
    assert received == {"from": before}
    numbers = np.full(1000, rank, dtype="d")
    room = np.empty_like(numbers)
    comm.Sendrecv(numbers, after, 3, room, before, 3)
    assert (room == before).all()


def test_reductions_agree() -> None:
    assert comm.allreduce(rank) == size * (size - 1) // 2
    total = np.zeros(5)
    comm.Allreduce(np.arange(5.0) * (rank + 1), total)
    assert (total == np.arange(5) * size * (size + 1) / 2).all()
    operation = MPI.Op.Create(lambda one, other, _: np.frombuffer(other, "d").__iadd__(np.frombuffer(one, "d")))
    comm.Allreduce(MPI.IN_PLACE, total, operation)
    assert (total == np.arange(5) * size * size * (size + 1) / 2).all()
    operation.Free()


def test_derived_datatype_is_unpacked() -> None:
    matrix = np.arange(64.0).reshape(8, 8) + 100 * rank
    column = MPI.DOUBLE.Create_vector(8, 1, 8).Commit()
    room = np.empty(8)
    request = comm.Irecv(room, before, 4)
    comm.Send([matrix, 1, column], after, 4)
    request.Wait()
    assert (room == np.arange(8) * 8 + 100 * before).all()
    column.Free()


def test_sparse_exchange_loses_nothing() -> None:
    for number in range(50):
        tag = number % 2
        targets = [to for to in range(size) if (number + rank + to) % 3]
        due = sum((number + start + rank) % 3 != 0 for start in range(size))
        requests = [comm.issend((number, rank), to, tag) for to in targets]
        barrier, seen, status = None, 0, MPI.Status()
        while True:
            if comm.iprobe(MPI.ANY_SOURCE, tag, status):
                assert comm.recv(source=status.source, tag=tag) == (number, status.source)
                seen += 1
            if barrier is not None:
                if barrier.Test():
                    break
            elif MPI.Request.Testall(requests):
                barrier = comm.Ibarrier()
        assert seen == due


def test_exchanges_do_not_hang() -> None:
    if size % 2:
        return
    other = rank ^ 1
    out, room = np.full(64 << 10, rank, "b"), np.empty(64 << 10, "b")
    request = comm.Irecv(room, other)
    comm.Send(out, other)
    request.Wait()
    MPI.Request.Waitall([comm.Isend(out, other), comm.Irecv(room, other)])
    request = comm.irecv(1 << 20, source=other)
    comm.Barrier()
    comm.send(bytes(64 << 10), other)
    assert request.wait() == bytes(64 << 10)
    MPI.Attach_buffer(bytearray(1 << 16))
    huge = np.zeros(64 << 20, "b")
    comm.Bsend(huge, other)
    comm.Recv(huge, other)
    MPI.Detach_buffer()


for name, test in list(globals().items()):
    if name.startswith("test_"):
        test()
        comm.Barrier()
print(f"rank {rank} of {size} is done")
