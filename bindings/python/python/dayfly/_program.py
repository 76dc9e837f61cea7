"""The console script ``dayfly``: the program that the wheel contains."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def binary() -> str | None:
    """Returns the path of the ``dayfly`` program: ``DAYFLY_BIN``, else the packaged one, else None."""
    named = os.environ.get("DAYFLY_BIN")
    if named:
        return named
    packaged = Path(__file__).parent / "bin" / "dayfly"
    return str(packaged) if packaged.is_file() else None


def main() -> None:
    """Replaces this process by the program."""
    program = binary()
    if program is None:
        sys.exit("dayfly: this package contains no program; name one by DAYFLY_BIN, or run `make build`")
    os.environ.setdefault("DAYFLY_PYTHON", sys.executable)
    os.execv(program, ["dayfly", *sys.argv[1:]])
