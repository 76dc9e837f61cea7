"""Sends that are cancelled: each has either a receive or the status of a cancelled operation, and never both."""

from mpi4py import MPI

world = MPI.COMM_WORLD
LENGTHS = 8, 100_000, 1_000_000
ROUNDS = 30
OFFER, RESULT, LAST = 1, 2, 3


def cancelled(request):
    status = MPI.Status()
    request.Cancel()
    request.Wait(status)
    return status.Is_cancelled()


def without_receive(length):
    """The receiver knows of the message, and has no receive for it."""
    if world.rank == 0:
        request = world.Issend(bytes(length), 1, OFFER)
        world.Ssend(b"", 1, LAST)
        assert cancelled(request)
    else:
        world.Recv(bytearray(), 0, LAST)
    world.Barrier()
    assert not world.Iprobe(0, OFFER)


def with_receive(length):
    """The receive is posted before or while the send is cancelled."""
    if world.rank == 0:
        world.Recv(bytearray(), 1, LAST)
        request = world.Issend(b"\7" * length, 1, OFFER)
        world.send(cancelled(request), 1, RESULT)
    else:
        got = bytearray(length)
        request = world.Irecv(got, 0, OFFER)
        world.Send(b"", 0, LAST)
        if world.recv(source=0, tag=RESULT):
            assert not request.Test()
            request.Cancel()
        request.Wait()
        assert got in (bytes(length), b"\7" * length)


for length in LENGTHS:
    without_receive(length)
    for _ in range(ROUNDS):
        with_receive(length)
print(f"rank {world.rank} of {world.size} is done")
