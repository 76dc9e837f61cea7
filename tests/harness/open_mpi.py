"""Programs under Open MPI's ``mpirun``, on this host."""

from __future__ import annotations

import importlib.util
import shutil

import pytest

OPEN_MPI = [
    *("mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"),
    *("--mca", "btl", "self,vader", "--mca", "btl_vader_single_copy_mechanism", "none"),
    # Everything stays on this host, and no remote shell is used.
    *("--mca", "oob_tcp_if_include", "lo", "--mca", "plm", "isolated"),
]

needs_open_mpi = pytest.mark.skipif(
    not shutil.which("mpirun") or importlib.util.find_spec("mpi4py") is None,
    reason="no Open MPI with mpi4py here. Install with: sudo apt-get install openmpi-bin, and scripts/bootstrap",
)
