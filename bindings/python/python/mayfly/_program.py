"""The console script ``mayfly``: the program that the wheel contains."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Becomes the program."""
    from mayfly._client import binary

    program = binary()
    if program is None:
        sys.exit("mayfly: this package contains no program; name one by MAYFLY_BIN, or run `make build`")
    os.environ.setdefault("MAYFLY_PYTHON", sys.executable)
    os.execv(program, ["mayfly", *sys.argv[1:]])
