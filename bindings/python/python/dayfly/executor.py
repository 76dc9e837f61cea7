"""``python -m dayfly.executor``: this interpreter as an executor. A node starts it; nobody does by hand."""

from __future__ import annotations

import sys


def main() -> None:
    """Serves the node at descriptor 3 until it closes the connection."""
    # What functions print must not wait in a buffer for more than a line, for a worker ends without flushing; nor less
    # than a line (as PYTHONUNBUFFERED has it), for several workers write into one pipe.
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(line_buffering=True, write_through=False)
    from dayfly import _native, _worker

    _worker.warm_up()
    try:
        _native.executor_main()
    except RuntimeError as error:
        sys.exit(f"python -m dayfly.executor: {error}")


if __name__ == "__main__":
    main()
