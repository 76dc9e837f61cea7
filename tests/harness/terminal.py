"""A terminal that records what a program writes to it."""

from __future__ import annotations

import fcntl
import os
import pty
import selectors
import subprocess
import termios
import time
from pathlib import Path

from harness.leaks import die_with_parent
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


class Terminal:
    """A program that a test types to. It has a terminal of its own, whose control characters it gets as signals."""

    def __init__(
        self, *args: str | os.PathLike[str], env: dict[str, str] | None = None, cwd: Path | None = None
    ) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [os.fspath(arg) for arg in args],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**(env or clean_environment()), "NO_COLOR": "1", "TERM": "dumb"},
            cwd=cwd,
            start_new_session=True,
            preexec_fn=_take_terminal,  # noqa: PLW1509 (one call, loaded before)
        )
        os.close(theirs)
        #: What it wrote since the last `wait_for`.
        self.unread = ""

    def type(self, text: str) -> None:
        """Types a text."""
        os.write(self._ours, text.encode())

    def wait_for(self, text: str, timeout: float = 30) -> str:
        """Waits until the program has written a text. Returns what it wrote before."""
        deadline = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self._ours, selectors.EVENT_READ)
            while text not in self.unread:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise AssertionError(f"{text!r} did not come within {timeout} s, but: {self.unread!r}")
                try:
                    chunk = os.read(self._ours, 65536)
                except OSError:  # the other end is closed
                    raise AssertionError(f"the program ended before {text!r}, and wrote: {self.unread!r}") from None
                self.unread += chunk.decode(errors="replace").replace("\r\n", "\n")
        before, _, self.unread = self.unread.partition(text)
        return before

    def close(self) -> int:
        """Waits until the program has ended, and closes the terminal. Returns its exit status."""
        try:
            return self.process.wait(timeout=20)
        finally:
            self.process.kill()
            self.process.wait(timeout=10)
            os.close(self._ours)


def _take_terminal() -> None:
    die_with_parent()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
