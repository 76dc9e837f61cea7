"""Rank 0 writes one number in many places of a file, while the others read them all: they see one number."""

import os
import sys
from array import array

from mpi4py import MPI

world = MPI.COMM_WORLD
PLACES, ROUNDS = 500, 300
file = MPI.File.Open(world, os.path.join(sys.argv[1], "atomic"), MPI.MODE_CREATE | MPI.MODE_RDWR)
every_second = MPI.INT.Create_vector(PLACES, 1, 2).Commit()
file.Set_view(0, MPI.INT, every_second)
file.Write_at_all(0, array("i", [0] * PLACES))
file.Set_atomicity(True)
assert file.Get_atomicity()
got = array("i", [0] * PLACES)
if world.rank == 0:
    for round in range(1, ROUNDS + 1):
        file.Write_at(0, array("i", [round] * PLACES))
else:
    while got[0] < ROUNDS:
        before = got[0]
        file.Read_at(0, got)
        assert len(set(got)) == 1, set(got)
        assert got[0] >= before
every_second.Free()
file.Close()
print(f"rank {world.rank} of {world.size} is done")
