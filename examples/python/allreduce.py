"""Adds up a vector over ranks: `python allreduce.py`, or `dayfly run --ranks 4 allreduce.py`."""

import dayfly
import numpy as np
from dayfly import MPI


def add_up():
    total = np.empty(3)
    MPI.COMM_WORLD.Allreduce(np.full(3, MPI.COMM_WORLD.rank + 1.0), total)
    return total.tolist()


if MPI.COMM_WORLD.size > 1:  # started by `dayfly run`: this process is one of the ranks
    print(add_up())
else:
    print(dayfly.run(add_up, ranks=4))
