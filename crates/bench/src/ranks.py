"""What `dayfly bench comm --language python` measures: ranks.py MODULE OP BLOCKS MOST MS SIZE...

Both sides are mpi4py. MODULE is mpi4py for Open MPI, whose mpirun starts it, or dayfly for Dayfly's MPI library, which
finds the rank and the descriptors of its sockets in DAYFLY_BENCH_RANK.
Rank 0 prints, for each size, the microseconds of one operation in the fastest of BLOCKS blocks of up to MOST
operations, which take up to MS milliseconds.
"""

import os
import sys
import time

import numpy as np


def world(module):
    if module == "mpi4py":
        from mpi4py import MPI

        return MPI.COMM_WORLD
    from dayfly import MPI

    rank, cores = MPI.COMM_WORLD.Get_rank(), sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    return MPI.COMM_WORLD


def operation(comm, op, send, receive):
    rank, part = comm.Get_rank(), send[: len(send) // comm.Get_size()]

    def pingpong():
        if rank == 0:
            comm.Send(send, 1, 1)
            comm.Recv(receive, 1, 1)
        elif rank == 1:
            comm.Recv(receive, 0, 1)
            comm.Send(send, 0, 1)

    return {
        "pingpong": pingpong,
        "bcast": lambda: comm.Bcast(send, 0),
        "allreduce": lambda: comm.Allreduce(send, receive),
        "allgather": lambda: comm.Allgather(part, receive),
        "alltoall": lambda: comm.Alltoall(send, receive),
        "barrier": comm.Barrier,
    }[op]


def timed(comm, run, count):
    """Returns the seconds of one of so many operations."""
    comm.Barrier()
    start = time.perf_counter()
    for _ in range(count):
        run()
    comm.Barrier()
    return (time.perf_counter() - start) / count


def main(module, op, blocks, most, milliseconds, sizes):
    comm = world(module)
    width = comm.Get_size() if op in ("alltoall", "allgather") else 1
    kind = "f8" if op == "allreduce" else "u1"
    for size in sizes:
        length = size * width // np.dtype(kind).itemsize
        run = operation(comm, op, np.ones(length, kind), np.full(length, 2, kind))
        most_here = max(2, min(most, (16 << 20) // (size + 1)))
        fitting = np.array([milliseconds / 1e3 / timed(comm, run, 1 + most_here // 64)])
        comm.Bcast(fitting, 0)
        count = max(2, min(most_here, int(fitting[0])))
        timed(comm, run, 1 + count // 8)
        best = min(timed(comm, run, count) for _ in range(blocks)) * 1e6
        if comm.Get_rank() == 0:
            print(size, best, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *(int(word) for word in sys.argv[3:6]), [int(size) for size in sys.argv[6:]])
