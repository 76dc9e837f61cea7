"""``python -m dayfly.executor``: runs this interpreter as an executor. Only nodes start it."""

from __future__ import annotations

import sys


def main() -> None:
    """Serves the node at descriptor 3 until it closes the connection."""
    # Buffer single lines: a worker ends without flushing, and parts of lines (as with PYTHONUNBUFFERED) would mix with
    # those of other workers on the same pipe.
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
