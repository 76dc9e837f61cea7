"""Collectives of files that fail on one rank: all ranks get an error, and none waits for another."""

import os
import resource
import signal
import sys

from errors import error_class
from mpi4py import MPI

world = MPI.COMM_WORLD
folder = sys.argv[1]
READ_WRITE = MPI.MODE_CREATE | MPI.MODE_RDWR


def same(call, expected):
    """All ranks get this error; none of them waits in the call."""
    assert set(world.allgather(error_class(call))) == {expected}


def opened(name, mode=READ_WRITE):
    return MPI.File.Open(world, os.path.join(folder, name), mode)


file = opened("sized")
file.Write_at_all(0, bytearray(8))
file.Sync()
# The first rank changes the size, and may make no file longer than this.
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
if world.rank == 0:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, most))
same(lambda: file.Set_size(1 << 30), MPI.ERR_IO)
same(lambda: file.Preallocate(1 << 30), MPI.ERR_IO)
if world.rank == 0:
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
file.Set_size(16)
assert file.Get_size() == 16

# The shared pointer cannot go before the start; only the first rank moves it.
same(lambda: file.Seek_shared(-1), MPI.ERR_ARG)
# The arguments of one rank are wrong, and the others are in the collective.
wrong = MPI.CHAR if world.rank == 0 else MPI.INT
same(lambda: file.Set_view(0, MPI.INT, wrong), MPI.ERR_ARG)
file.Set_view(0, MPI.INT, MPI.INT)
bytes_of_ints = 4 if world.rank else 3
same(lambda: file.Read_ordered([bytearray(bytes_of_ints), MPI.BYTE]), MPI.ERR_TYPE)
file.Seek_shared(0)
assert file.Get_position_shared() == 0
file.Close()

# The file is gone when the first rank deletes it.
file = opened("deleted", READ_WRITE | MPI.MODE_DELETE_ON_CLOSE)
world.Barrier()
if world.rank == 0:
    os.remove(os.path.join(folder, "deleted"))
same(file.Close, MPI.ERR_NO_SUCH_FILE)

# One rank cannot open the file: it has no descriptor left.
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
used = max(map(int, os.listdir("/proc/self/fd")))
if world.rank == world.size - 1:
    held = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 8, most))
    try:
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
same(lambda: opened("unopened"), MPI.ERR_IO)
if world.rank == world.size - 1:
    for descriptor in held:
        os.close(descriptor)
opened("opened").Close()
print(f"rank {world.rank} of {world.size} is done")
