"""MPI: ``from dayfly import MPI`` is the module ``mpi4py.MPI``, over Dayfly's MPI library.

>>> from dayfly import MPI  # doctest: +SKIP
>>> MPI.COMM_WORLD.allreduce(1)  # doctest: +SKIP
4

``MPI.COMM_WORLD`` is the group of this process: that of `dayfly.run`, of ``dayfly run`` or of a task of several ranks.
Any other process is a world of one rank. mpi4py comes with ``dayfly[mpi]``, and its documentation is that of this
module. `dayfly.groups` exchanges objects between ranks without it.

Importing raises `ImportError` if mpi4py is not installed or uses another MPI library in this process, and
`dayfly.Error` if the group cannot be joined.
"""

import sys
from typing import TYPE_CHECKING

from dayfly._mpi_library import import_mpi

if TYPE_CHECKING:
    from mpi4py.MPI import *  # noqa: F403
else:
    sys.modules[__name__] = import_mpi()
