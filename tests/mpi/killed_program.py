"""Rank 1 is killed while the others poll, or access a window. Each of them gets an error that names rank 1."""

import os
import signal
import sys
import time

from mpi4py import MPI

world = MPI.COMM_WORLD
LIMIT = time.monotonic() + 20


def end_of(poll):
    """Polls until there is an error. Returns its text."""
    while time.monotonic() < LIMIT:
        try:
            poll()
        except MPI.Exception as error:
            return str(error)
    return "no error"


def end_rank_1():
    """Kills rank 1 when all others wait for nothing but it."""
    if world.rank != 1:
        world.Send(b"", 1)
        return
    for _ in range(world.size - 1):
        world.Recv(bytearray(), MPI.ANY_SOURCE)
    os.kill(os.getpid(), signal.SIGKILL)


def window_of_dead_rank():
    window = MPI.Win.Create(bytearray(8), comm=world)
    window.Set_errhandler(MPI.ERRORS_RETURN)
    window.Lock_all()
    end_rank_1()
    yield lambda: window.Rget(bytearray(8), 1).Wait()
    yield lambda: window.Flush(1)
    yield window.Fence
    yield window.Free


def lock_of_dead_rank():
    window = MPI.Win.Allocate(8, comm=world)
    window.Set_errhandler(MPI.ERRORS_RETURN)
    if world.rank == 1:
        window.Lock(0, MPI.LOCK_EXCLUSIVE)
    world.Barrier()
    end_rank_1()
    yield lambda: window.Lock(0)
    yield window.Fence
    yield window.Free


def exposure_to_dead_rank():
    window = MPI.Win.Create(bytearray(8), comm=world)
    window.Set_errhandler(MPI.ERRORS_RETURN)
    if world.rank != 1:
        window.Post(world.group.Incl([1]))
    end_rank_1()
    yield window.Test
    yield window.Wait


def polls(case):
    if case == "exposure":
        yield from exposure_to_dead_rank()
        return
    if case == "window":
        yield from window_of_dead_rank()
        return
    if case == "lock":
        yield from lock_of_dead_rank()
        return
    request = world.Irecv(bytearray(1), source=1)
    end_rank_1()
    yield request.Test if case == "test" else lambda: world.Iprobe(source=1)


for poll in polls(sys.argv[1]):
    text = end_of(poll)
    assert "rank 1 is lost" in text, text
print("every error names rank 1")
