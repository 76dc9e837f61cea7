"""Requests of sends that ended at once, and errors of requests."""

from array import array

from errors import error_class
from mpi4py import MPI

world = MPI.COMM_WORLD
word = array("i", [7])

# Each way to end a request.
for end in (MPI.Request.Wait, MPI.Request.Test, MPI.Request.Free, lambda sent: MPI.Request.Waitall([sent])):
    sent = world.Isend(word, world.rank, 1)
    end(sent)
    assert sent == MPI.REQUEST_NULL
sent = [world.Isend(word, world.rank, 1), MPI.REQUEST_NULL]
assert sent[0].Get_status()
sent[0].Cancel()
status = MPI.Status()
assert MPI.Request.Waitany(sent, status) == 0
assert not status.Is_cancelled()
assert MPI.Request.Waitany(sent) == MPI.UNDEFINED
assert MPI.Request.Waitsome([world.Isend(word, world.rank, 1), MPI.REQUEST_NULL]) == [0]
assert MPI.Request.Testsome([world.Isend(word, world.rank, 1)]) == [0]
for _ in range(7):
    world.Recv(array("i", [0]), world.rank, 1)

# Requests in any order: the last one ends first.
receives = [world.Irecv(array("i", [0]), world.rank, tag) for tag in range(50)]
for tag in reversed(range(50)):
    world.Send(word, world.rank, tag)
    assert MPI.Request.Testsome(receives) == [tag]


# An operation of two messages that fails leaves none of them under way.
room = array("i", [0])
for start in (world.Sendrecv, world.Isendrecv):
    assert error_class(lambda start=start: start(word, 99, 0, room, world.rank, 5)) == MPI.ERR_RANK
    world.Send(word, world.rank, 5)
    assert world.Iprobe(world.rank, 5)
    assert room[0] == 0
    world.Recv(array("i", [0]), world.rank, 5)
two = array("i", [1, 2])
assert error_class(lambda: world.Sendrecv(two, world.rank, 6, room, world.rank, 6)) == MPI.ERR_TRUNCATE
assert error_class(lambda: world.Sendrecv_replace(word, world.rank, 7, 99, 7)) == MPI.ERR_RANK

# An error of a request is its communicator's.
world.Set_errhandler(MPI.ERRORS_ABORT)
own, seen = world.Dup(), []
handler = MPI.Comm.Create_errhandler(lambda comm, code: seen.append((comm == own, MPI.Get_error_class(code))))
own.Set_errhandler(handler)
for wait in (MPI.Request.Wait, lambda request: MPI.Request.Waitall([request]), lambda r: MPI.Request.Waitany([r])):
    request = own.Irecv(word, own.rank)
    own.Send(array("i", [1, 2]), own.rank)
    try:
        wait(request)
    except MPI.Exception:
        pass
assert [ours for ours, _ in seen] == [True] * 3, seen
assert {MPI.ERR_TRUNCATE} <= {error for _, error in seen} <= {MPI.ERR_TRUNCATE, MPI.ERR_IN_STATUS}, seen
own.Free()
print("done")
