"""The output of workers and tasks."""

from __future__ import annotations

import base64
import codecs
import json
import sys
import threading
from collections.abc import Iterator
from typing import Literal

from dayfly import _native
from dayfly._errors import ConnectionFailed, Error
from dayfly._text import shown

#: Seconds that one request waits for output.
WAIT = 5.0
#: Seconds before the next request to an unreachable node.
PAUSE = 1.0
#: Seconds by which output may arrive after the result of its call.
MOMENT = 0.02


def _check(stream: str | None) -> None:
    if stream not in (None, "out", "err"):
        raise ValueError(f"stream={stream!r}: ask for 'out', 'err' or None for both")


def lease_output(native: _native.Lease, stream: Literal["out", "err"] | None) -> str:
    """Returns the output of a lease's workers, as far as the node keeps it."""
    _check(stream)
    reader, kept = native.printed(), b""
    while pieces := reader.next(MOMENT):
        kept += b"".join(data for is_error, data in pieces if stream is None or is_error == (stream == "err"))
    return kept.decode(errors="replace")


def task_output(
    native: _native.Client, task: str, stream: Literal["out", "err"] | None, *, follow: bool
) -> Iterator[tuple[Literal["out", "err"], str]]:
    """Yields the output of a task: all so far, or, with ``follow``, until the task ends."""
    _check(stream)
    decoders = {name: codecs.getincrementaldecoder("utf-8")(errors="replace") for name in ("out", "err")}
    start, wait = 0, round(WAIT * 1000) if follow else 0
    while True:
        page = json.loads(native.get(f"/v1/tasks/{task}/output?from={start}&wait_ms={wait}"))
        start = page["next"]
        for piece in page["pieces"]:
            where, text = piece["stream"], decoders[piece["stream"]].decode(base64.b64decode(piece["bytes"]))
            if text and stream in (None, where):
                yield where, text
        if page["over"] or not (follow or page["pieces"]):
            return


class Echo:
    """Prints the output of a lease's workers as it appears."""

    def __init__(self, native: _native.Lease) -> None:
        self._reader = native.printed()
        self._decoders = [codecs.getincrementaldecoder("utf-8")(errors="replace") for _ in range(2)]
        self._missed = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dayfly output", daemon=True)
        self._thread.start()

    def _show(self, wait: float) -> bool:
        pieces = self._reader.next(wait)
        if missed := self._reader.missed() - self._missed:
            self._missed += missed
            print(f"dayfly: {missed} bytes of output came too fast to be kept", file=sys.stderr)
        for is_error, data in pieces:
            stream = sys.stderr if is_error else sys.stdout
            text = self._decoders[is_error].decode(data)
            stream.write(shown(text) if stream.isatty() else text)
            stream.flush()
        return bool(pieces)

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                if not self._show(WAIT) and self._reader.is_over():
                    return
            except ConnectionFailed:
                self._over.wait(PAUSE)
            except (Error, OSError, ValueError):
                # The lease ended long ago, or standard output is closed.
                return

    def finish(self) -> None:
        """Prints the remaining output after the lease was released, when no more can follow."""
        self._over.set()
        self._thread.join()
        try:
            while self._show(MOMENT):
                pass
        except (Error, OSError, ValueError):
            # If the node is unreachable, the rest is lost.
            pass
