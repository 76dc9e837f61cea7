"""Mistakes with windows: each is an error, and the window works after it."""

from array import array

from errors import error_class
from mpi4py import MPI

world = MPI.COMM_WORLD
other = (world.rank + 1) % world.size
memory = array("d", [0] * 4)
window = MPI.Win.Create(memory, memory.itemsize, comm=world)
window.Set_errhandler(MPI.ERRORS_RETURN)


def outside():
    window.Put(array("d", [7]), other, 100)
    window.Fence()


# Only one rank is mistaken: the others are in the same fence.
window.Fence()
assert error_class(outside if world.rank == 0 else window.Fence) == (MPI.ERR_RMA_RANGE if world.rank == 0 else 0)
window.Put(array("d", [world.rank]), other, 1)
window.Fence()
assert memory[1] == (world.rank - 1) % world.size

# More than there is room for.
two, one = array("d", [1, 2]), [0, 1, MPI.DOUBLE]
assert error_class(lambda: window.Put(two, other, one)) == MPI.ERR_TRUNCATE
assert error_class(lambda: window.Get(array("d", [0]), other, [0, 2, MPI.DOUBLE])) == MPI.ERR_TRUNCATE
assert error_class(lambda: window.Accumulate(two, other, one)) == MPI.ERR_TRUNCATE
window.Fence()

# Locks that are not held, or held already; an access that fails does not keep its lock.
assert error_class(lambda: window.Unlock(other)) == MPI.ERR_RMA_SYNC
assert error_class(window.Unlock_all) == MPI.ERR_RMA_SYNC
window.Lock(other)
assert error_class(lambda: window.Lock(other)) == MPI.ERR_RMA_SYNC
window.Put(two, other, 100)
assert error_class(lambda: window.Unlock(other)) == MPI.ERR_RMA_RANGE
world.Barrier()
window.Lock(other)
window.Unlock(other)

# The error of an access with a request is the request's.
window.Lock(other, MPI.LOCK_SHARED)
assert error_class(window.Rput(two, other, 100).Wait) == MPI.ERR_RMA_RANGE
assert error_class(lambda: window.Unlock(other)) == MPI.SUCCESS
window.Free()
print(f"rank {world.rank} of {world.size} is done")
