"""Results as a table, CSV, JSON or Parquet, on standard output or in a file."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import dayfly
from dayfly._text import shown

from dayfly_frames import _frames
from dayfly_frames._frame import Frame
from dayfly_frames._table import Table

Write = Callable[[bytes], object]


@contextlib.contextmanager
def destination(output: str | None) -> Iterator[Write]:
    """Yields what writes bytes to standard output, or to a file that is there only if all was written."""
    if output is None:
        yield _write_screen if sys.stdout.isatty() else _write_pipe
        return
    try:
        if os.path.exists(output) and not os.path.isfile(output):
            # A pipe or a device.
            with open(output, "wb") as file:
                yield file.write
            return
        target = Path(os.path.realpath(output))
        part = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            with open(part, "xb") as file:
                yield file.write
            part.replace(target)
        finally:
            with contextlib.suppress(OSError):
                part.unlink()
    except OSError as error:
        raise dayfly.RequestError(f"{output} cannot be written: {error.strerror}", "invalid_request") from error


def _write_screen(text: bytes) -> None:
    sys.stdout.write(shown(text.decode(errors="replace")))
    sys.stdout.flush()


def _write_pipe(text: bytes) -> None:
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()


def emit(
    frame: Frame, form: str, rows: int, write: Write, *, is_plan: bool = False, explained: Frame | None = None
) -> None:
    """Computes a frame, and writes its rows as they arrive. Of a table, at most this number of them.

    A frame of a plan comes as text, with the exchanges and the recovery of the explained one.
    """
    if form != "table":
        encoder = _frames.Encoder(form, frame.native)
        for batch in frame.batches():
            if ready := encoder.encode(batch.native):
                write(ready)
        if ready := encoder.finish():
            write(ready)
        if form == "json":
            write(b"\n")
    elif is_plan:
        write((_plans(frame) + _exchanges(explained)).encode())
    else:
        write(_table(frame, rows).encode())


def _table(frame: Frame, rows: int) -> str:
    first: list[_frames.Table] = []
    kept = total = 0
    for batch in frame.batches():
        if kept < rows or not first:
            first.append(batch.native)
            kept += len(batch)
        total += len(batch)
    # A query without rows has no batch.
    table = _frames.Table.concat(first[0], first[1:]) if first else frame.head(0).collect().native
    count = f"{total} row" if total == 1 else f"{total} rows"
    if total > rows:
        count += f", of which {rows} are shown: --rows shows more"
    return f"{table.text(rows)}{count}\n"


def _exchanges(explained: Frame | None) -> str:
    lines = explained.explain().splitlines(keepends=True) if explained is not None else []
    return "".join(line for line in lines if line.startswith(("stage ", "recovery: ")))


def _plans(frame: Frame) -> str:
    table: Table = frame.collect()
    encoder = _frames.Encoder("ndjson", frame.native)
    lines = (encoder.encode(table.native) + encoder.finish()).decode()
    plans = [json.loads(line) for line in lines.splitlines()]
    return "\n".join(f"{plan['plan_type']}\n{plan['plan'].rstrip()}\n" for plan in plans)
