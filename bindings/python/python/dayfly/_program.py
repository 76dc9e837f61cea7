"""The console script ``dayfly``: the program that the wheel contains."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Replaces this process by the program."""
    from dayfly._client import binary

    program = binary()
    if program is None:
        sys.exit("dayfly: this package contains no program; name one by DAYFLY_BIN, or run `make build`")
    os.environ.setdefault("DAYFLY_PYTHON", sys.executable)
    os.execv(program, ["dayfly", *sys.argv[1:]])
