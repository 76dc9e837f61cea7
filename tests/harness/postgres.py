"""A PostgreSQL server in a private directory, on a Unix socket (``scripts/postgres``)."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

from harness.leaks import die_with_parent
from harness.programs import ROOT, run

SCRIPT = ROOT / "scripts" / "postgres"


@cache
def _bin() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    path = found[-1] if found else shutil.which("initdb")
    return Path(path).parent if path else None


def unavailable() -> str | None:
    """Returns why PostgreSQL is unavailable, or None."""
    return None if _bin() else "PostgreSQL is not installed: sudo apt-get install postgresql"


class Postgres:
    """A server, which ends with this process at the latest."""

    def __init__(self) -> None:
        self.script = subprocess.Popen(
            [SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # When a test run is interrupted, the end of its input stops the server.
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 (one call, loaded before)
        )
        self.directory = self._answer()
        self.made = 0

    def _answer(self) -> str:
        assert self.script.stdout is not None
        line = self.script.stdout.readline().strip()
        assert line, "the server does not start; its log is above"
        return line

    def database(self) -> str:
        """Creates an empty database. Returns its URL."""
        self.made += 1
        name = f"test{self.made}"
        bin_dir = _bin()
        assert bin_dir is not None
        run(bin_dir / "createdb", "--host", self.directory, "--username", "dayfly", name)
        return f"postgresql://dayfly@/{name}?host={self.directory}"

    def tell(self, what: str) -> None:
        """Sends the command ``stop``, ``kill`` or ``start``, and waits until it is done."""
        assert self.script.stdin is not None
        os.write(self.script.stdin.fileno(), f"{what}\n".encode())
        assert self._answer() == what

    def end(self) -> None:
        """Stops the server and removes its directory."""
        assert self.script.stdin is not None
        assert self.script.stdout is not None
        self.script.stdin.close()
        self.script.wait(20)
        self.script.stdout.close()
