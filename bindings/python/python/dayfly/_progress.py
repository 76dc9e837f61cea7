"""A progress bar for the terminal."""

from __future__ import annotations

import sys
import time
from typing import TextIO

#: Seconds between two updates of the bar.
_PAUSE = 0.1
_WIDTH = 30


class Progress:
    """Draws the progress of a map on standard error.

    >>> import io
    >>> out = io.StringIO()
    >>> bar = Progress(10, out)
    >>> bar.advance(10); bar.close()
    >>> out.getvalue().splitlines()[-1].split("|")[0]
    '100% '
    """

    def __init__(self, total: int | None, out: TextIO | None = None) -> None:
        self._total = total
        self._out = out if out is not None else sys.stderr
        self._done = 0
        self._start = time.monotonic()
        self._drawn = 0.0
        self._closed = False

    def advance(self, items: int) -> None:
        """Adds ``items`` to the number of completed items."""
        self._done += items
        now = time.monotonic()
        if now - self._drawn >= _PAUSE:
            self._drawn = now
            self._draw(now)

    def _draw(self, now: float) -> None:
        spent = max(now - self._start, 1e-9)
        rate = self._done / spent
        if self._total:
            share = min(self._done / self._total, 1.0)
            full = int(share * _WIDTH)
            left = (self._total - self._done) / rate if rate else 0.0
            bar = "█" * full + " " * (_WIDTH - full)
            text = f"{share:4.0%} |{bar}| {self._done}/{self._total}  {rate:,.0f}/s  {left:.0f} s left"
        else:
            text = f"{self._done}  {rate:,.0f}/s"
        self._out.write(f"\r{text.strip()}\x1b[K")
        self._out.flush()

    def close(self) -> None:
        """Draws the bar once more and ends the line."""
        if not self._closed:
            self._closed = True
            self._draw(time.monotonic())
            self._out.write("\n")
            self._out.flush()
