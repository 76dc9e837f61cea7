"""Accesses that do not fit into a window or into memory: each is an error, and the window works after it."""

import pathlib
import resource
from array import array

from errors import error_class
from mpi4py import MPI

world = MPI.COMM_WORLD
other = (world.rank + 1) % world.size
HUGE = 1 << 28


def put(window, data, target):
    window.Lock(other)
    window.Put(data, other, target)
    return error_class(lambda: window.Unlock(other))


def runs_longer_than_memory():
    """The bytes of so many pairs with their padding are more than an address can count."""
    memory = array("i", [0] * 4)
    window = MPI.Win.Create(memory, 1, comm=world)
    window.Set_errhandler(MPI.ERRORS_RETURN)
    pair = [array("i", [7, 7]), 1, MPI.SHORT_INT]
    for count in (1 << 60) + 1, (1 << 61) + 1:
        assert put(window, pair, [1 << 33, count, MPI.SHORT_INT]) == MPI.ERR_RMA_RANGE
    assert put(window, array("i", [5]), [4, 1, MPI.INT]) == MPI.SUCCESS
    world.Barrier()
    assert memory.tolist() == [0, 5, 0, 0]
    window.Free()


def runs_in_two_attached_parts():
    """Each run of an access lies in attached memory of a dynamic window, and the gap between them does not."""
    memory = array("i", [0] * 12)
    start = MPI.Get_address(memory)
    window = MPI.Win.Create_dynamic(comm=world)
    window.Set_errhandler(MPI.ERRORS_RETURN)
    view = memoryview(memory)
    parts = [view[:4], view[8:]]
    for part in parts:
        window.Attach(part)
    there = world.allgather(start)[other]
    two = array("i", [1, 2])
    for second, expected in (8, MPI.SUCCESS), (4, MPI.ERR_RMA_RANGE):
        # From the first part into the second one, or into the gap.
        of = MPI.INT.Create_indexed_block(1, [0, second]).Commit()
        assert put(window, two, [there, 1, of]) == expected
        of.Free()
    world.Barrier()
    assert memory.tolist() == [1, *[0] * 7, 2, 0, 0, 0]
    for part in parts:
        window.Detach(part)
    window.Free()


def requests_without_memory():
    """Rank 1 has no memory for what rank 0 sends it."""
    memory = bytearray(8)
    window = MPI.Win.Create(memory, 1, comm=world)
    window.Set_errhandler(MPI.ERRORS_RETURN)
    if world.rank == 1:
        pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + HUGE // 2, most))
    world.Barrier()
    if world.rank == 0:
        assert put(window, bytearray(HUGE), [0, HUGE, MPI.BYTE]) == MPI.ERR_NO_MEM
        assert put(window, bytearray([9]), [0, 1, MPI.BYTE]) == MPI.SUCCESS
    world.Barrier()
    assert memory[0] == (9 if world.rank == 1 else 0)
    window.Free()


runs_longer_than_memory()
runs_in_two_attached_parts()
requests_without_memory()
print(f"rank {world.rank} of {world.size} is done")
