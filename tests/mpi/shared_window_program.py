"""Windows in memory that all ranks share: no access needs the rank that has the memory."""

from array import array

import numpy
from errors import error_class
from mpi4py import MPI

world = MPI.COMM_WORLD
rank, size = world.rank, world.size
other = (rank + 1) % size
ROUNDS = 2000


def numbers(window):
    return numpy.frombuffer(window.tomemory(), "q")


# The target looks at its memory, and calls nothing of MPI.
window = MPI.Win.Allocate(8 * 100, 8, comm=world)
window.Set_errhandler(MPI.ERRORS_RETURN)
own = numbers(window)
window.Lock_all()
if rank == 0:
    window.Put(array("q", range(1, 51)), size - 1, 1)
    window.Flush(size - 1)
    window.Put(array("q", [1]), size - 1, 0)
    window.Flush(size - 1)
if rank == size - 1:
    while own[0] == 0:
        pass
    assert list(own[1:51]) == list(range(1, 51))
window.Unlock_all()
world.Barrier()

# Elements that do not lie side by side, both ways.
spread = MPI.INT64_T.Create_vector(5, 1, 2).Commit()
own[:] = -1
world.Barrier()
window.Lock(other)
window.Put([numpy.arange(10), 1, spread], other, [10, 1, spread])
window.Unlock(other)
world.Barrier()
assert list(own[10:20]) == [0, -1, 2, -1, 4, -1, 6, -1, 8, -1]
got = numpy.zeros(10, "q")
window.Lock(other, MPI.LOCK_SHARED)
window.Get([got, 1, spread], other, [10, 1, spread])
window.Unlock(other)
assert list(got[::2]) == [0, 2, 4, 6, 8]
spread.Free()
world.Barrier()

# All ranks change the same numbers at once, in every way.
own[:] = 0
world.Barrier()
window.Lock_all()
one, three, result = array("q", [1]), numpy.full(3, 1, "q"), array("q", [0])
for _ in range(ROUNDS):
    window.Accumulate(one, 0, 0, MPI.SUM)
    window.Fetch_and_op(one, result, 0, 0, MPI.SUM)
    window.Get_accumulate(three, numpy.zeros(3, "q"), 0, 1, MPI.SUM)
    expected = 0
    while True:
        window.Compare_and_swap(array("q", [expected + 1]), array("q", [expected]), result, 0, 4)
        window.Flush(0)
        if result[0] == expected:
            break
        expected = result[0]
window.Unlock_all()
world.Barrier()
if rank == 0:
    assert list(own[:5]) == [2 * ROUNDS * size] + [ROUNDS * size] * 4
world.Barrier()

# A lock that one rank has alone keeps the others out, and one that it shares keeps those out that want it alone.
own[:] = 0
world.Barrier()
for at in range(ROUNDS):
    kind = MPI.LOCK_SHARED if at % 4 == rank % 4 else MPI.LOCK_EXCLUSIVE
    window.Lock(0, kind)
    window.Get(result, 0, 0)
    if kind == MPI.LOCK_EXCLUSIVE:
        result[0] += 1
        window.Put(result, 0, 0)
    window.Unlock(0)
world.Barrier()
changes = sum(at % 4 != of % 4 for of in range(size) for at in range(ROUNDS))
assert rank != 0 or own[0] == changes

# Mistakes.
window.Lock(other)
assert error_class(lambda: window.Lock(other)) == MPI.ERR_RMA_SYNC
assert error_class(lambda: window.Put(array("q", [7]), other, 100)) == MPI.ERR_RMA_RANGE
assert error_class(lambda: window.Get(result, other, 100)) == MPI.ERR_RMA_RANGE
assert error_class(lambda: window.Accumulate(one, other, 2**60)) == MPI.ERR_RMA_RANGE
assert error_class(lambda: window.Fetch_and_op(one, result, other, 100)) == MPI.ERR_RMA_RANGE
assert error_class(window.Rput(one, other, 99).Wait) == MPI.SUCCESS
window.Unlock(other)
world.Barrier()
assert own[99] == 1

# Parts of shared windows follow each other without a gap, unless the program allows one.
for noncontiguous in ("false", "true"):
    shared = MPI.Win.Allocate_shared(8 * 3, 8, MPI.Info.Create({"alloc_shared_noncontig": noncontiguous}), world)
    numpy.frombuffer(shared.tomemory(), "q")[:] = rank
    shared.Fence()
    first, unit = shared.Shared_query(0)
    assert (len(first), unit) == (8 * 3, 8)
    if noncontiguous == "false":
        whole = MPI.memory.fromaddress(first.address, 8 * 3 * size)
        assert list(numpy.frombuffer(whole, "q")) == [of for of in range(size) for _ in range(3)]
    part, _ = shared.Shared_query(other)
    assert list(numpy.frombuffer(part, "q")) == [other] * 3
    shared.Fence()
    shared.Free()

# Memory that is not there is an error on all ranks, and kills none.
assert error_class(lambda: MPI.Win.Allocate_shared(1 << 60, 1, comm=world)) == MPI.ERR_RMA_SHARED
del own
window.Free()
print(f"rank {rank} of {size} is done")
