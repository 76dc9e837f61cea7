"""Adds up a vector over ranks: `python allreduce.py`, or `mayfly run --ranks 4 allreduce.py`."""

import mayfly
import numpy as np
from mayfly import MPI


def add_up():
    total = np.empty(3)
    MPI.COMM_WORLD.Allreduce(np.full(3, MPI.COMM_WORLD.rank + 1.0), total)
    return total.tolist()


if MPI.COMM_WORLD.size > 1:  # by `mayfly run`: this is one of the ranks
    print(add_up())
else:
    print(mayfly.run(add_up, ranks=4))
