"""The machinery of the black-box tests: programs under test, daemons in private directories, leak detection.

Tests use the fixtures of ``conftest.py``, which use this package.
"""

from harness.daemons import Daemon, DaemonError
from harness.leaks import Snapshot, descendants, wait_until
from harness.programs import program, run

__all__ = ["Daemon", "DaemonError", "Snapshot", "descendants", "program", "run", "wait_until"]
