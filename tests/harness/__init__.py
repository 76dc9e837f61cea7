"""What black-box tests need: the programs under test, daemons in private directories, and proof that nothing leaks.

Tests use the fixtures of ``conftest.py``; this package is their machinery.
"""

from harness.daemons import Daemon, DaemonError
from harness.leaks import Snapshot, descendants, wait_until
from harness.programs import program, run

__all__ = ["Daemon", "DaemonError", "Snapshot", "descendants", "program", "run", "wait_until"]
