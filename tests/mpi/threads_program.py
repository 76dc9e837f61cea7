"""Two threads of each rank make communicators at the same time, and talk in them. For any MPI with thread support."""

import sys
import threading
from array import array

from mpi4py import MPI

ROUNDS = 60
THREADS = 2
world = MPI.COMM_WORLD
bases = [world.Dup() for _ in range(THREADS)]
failures = []


def made(number, round):
    """A communicator of all ranks, made in one of several ways. The tags of the threads differ in their high bits."""
    base = bases[number]
    tag = 1 + (number << 16)
    match round % 4:
        case 0:
            return base.Dup()
        case 1:
            return base.Split(0, base.rank)
        case 2:
            return base.Create_group(base.group, tag)
        case _:
            if base.size == 1:
                return base.Dup()
            half = base.Split(base.rank % 2, base.rank)
            both = half.Create_intercomm(0, base, 1 - base.rank % 2, tag)
            merged = both.Merge(base.rank % 2 == 1)
            both.Free()
            half.Free()
            return merged


def talk(number):
    try:
        for round in range(ROUNDS):
            comm = made(number, round)
            assert comm.size == world.size
            right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
            found = comm.sendrecv((number, round, comm.rank), right, 0, source=left, recvtag=0)
            assert found == (number, round, left), (found, number, round, left)
            # Of a buffer: to reduce objects, mpi4py duplicates the communicator while it holds the interpreter's lock.
            total = array("i", [0])
            comm.Allreduce(array("i", [number]), total)
            assert total[0] == number * comm.size
            comm.Free()
    except BaseException as error:
        failures.append(f"thread {number}: {error!r}")


threads = [threading.Thread(target=talk, args=(number,), daemon=True) for number in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(20)
    if thread.is_alive():
        failures.append("a thread waits")
if failures:
    print(*failures, sep="\n", flush=True)
    MPI.COMM_WORLD.Abort(1)
print(f"rank {world.rank} of {world.size} is done")
sys.exit()
