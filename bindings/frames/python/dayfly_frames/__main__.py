"""The console script ``dayfly-frames``, which ``dayfly sql`` executes."""

from __future__ import annotations

import sys

from dayfly_frames._sql.command import run


def main() -> int:
    """Runs the command of the command line. Returns its exit status."""
    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
