"""A terminal that records what a program writes to it."""

from __future__ import annotations

import os
import pty
import selectors
import subprocess
import time

from harness.programs import clean_environment


def on_terminal(
    *args: str | os.PathLike[str], env: dict[str, str] | None = None, timeout: float = 60
) -> tuple[int, str]:
    """Runs a program on a terminal. Returns its exit status and its output."""
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            [os.fspath(arg) for arg in args],
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            env={**(env or clean_environment()), "NO_COLOR": "1"},
        )
        os.close(theirs)
        received = b""
        deadline = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(ours, selectors.EVENT_READ)
            while selector.select(max(0.0, deadline - time.monotonic())):
                try:
                    chunk = os.read(ours, 65536)
                except OSError:  # the other end is closed
                    chunk = b""
                if not chunk:
                    break
                received += chunk
        try:
            status = process.wait(timeout=max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=10)
            raise
    finally:
        os.close(ours)
    # A terminal ends lines with carriage return and line feed.
    return status, received.decode(errors="replace").replace("\r\n", "\n")
