"""Each rank forks children, which end in an orderly way and call MPI, while the ranks exchange messages."""

import os
import sys
from array import array

from mpi4py import MPI

world = MPI.COMM_WORLD
other = (world.rank + 1) % world.size
copy = world.Dup()
ROUNDS = 20


def error_of(call):
    try:
        call()
    except MPI.Exception as error:
        return str(error)
    return ""


def child():
    """A child of a rank: MPI has ended in it."""
    assert MPI.Is_finalized()
    for comm in world, copy:
        assert "forked" in error_of(lambda comm=comm: comm.Send(b"from a child", other))


def exchange(round):
    got = array("i", [-1])
    world.Sendrecv(array("i", [round]), other, 0, got, MPI.ANY_SOURCE, 0)
    assert got[0] == round, got
    copy.Barrier()


world.Set_errhandler(MPI.ERRORS_RETURN)
copy.Set_errhandler(MPI.ERRORS_RETURN)
for round in range(ROUNDS):
    pid = os.fork()
    if pid == 0:
        child()
        # Runs the finalizer of mpi4py.
        sys.exit(7)
    exchange(round)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 7, status
    exchange(round)
print(f"rank {world.rank} of {world.size} is done")
