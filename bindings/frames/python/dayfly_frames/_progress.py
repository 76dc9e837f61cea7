"""What the tasks of queries have done, while they run and afterwards."""

from __future__ import annotations

import html
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

#: Seconds between two looks at a query.
PAUSE = 0.2
#: Seconds before the first look: shorter queries show nothing.
PATIENCE = 0.5

#: A task, as the native module has it: its stage, its rank, and, once it has ended, its rows, bytes received, bytes
#: spilled and seconds of computing.
NativeTask = tuple[int, int, tuple[int, int, int, float] | None]


class Work(NamedTuple):
    """What several tasks have done: those of one rank, or those of one stage. Tasks that run count as tasks alone."""

    tasks: int = 0
    ended: int = 0
    #: Rows that they have sent on.
    rows: int = 0
    #: Bytes that they have received from other tasks.
    received_bytes: int = 0
    #: Bytes that did not fit into memory, and went to disk.
    spilled_bytes: int = 0
    #: Seconds that cores have computed.
    core_seconds: float = 0.0

    def and_task(self, done: tuple[int, int, int, float] | None) -> Work:
        """Returns this with one more task."""
        if done is None:
            return self._replace(tasks=self.tasks + 1)
        rows, received, spilled, seconds = done
        return Work(
            self.tasks + 1,
            self.ended + 1,
            self.rows + rows,
            self.received_bytes + received,
            self.spilled_bytes + spilled,
            self.core_seconds + seconds,
        )


class Query(NamedTuple):
    """A query under way."""

    #: Seconds since its first task was sent.
    seconds: float
    #: What the tasks of each stage have done. A stage reads the rows of stages with smaller numbers.
    stages: dict[int, Work]
    #: What the tasks of each rank have done.
    ranks: dict[int, Work]


def by_stage(tasks: Iterable[NativeTask]) -> dict[int, Work]:
    """Returns what tasks have done, by their stages."""
    return _by((stage, done) for stage, _, done in tasks)


def by_rank(tasks: Iterable[NativeTask]) -> dict[int, Work]:
    """Returns what tasks have done, by their ranks."""
    return _by((rank, done) for _, rank, done in tasks)


def _by(tasks: Iterable[tuple[int, tuple[int, int, int, float] | None]]) -> dict[int, Work]:
    works: dict[int, Work] = {}
    for place, done in tasks:
        works[place] = works.get(place, Work()).and_task(done)
    return dict(sorted(works.items()))


def query_of(seconds: float, tasks: list[NativeTask]) -> Query:
    """Returns what the native module knows of a query."""
    return Query(seconds, by_stage(tasks), by_rank(tasks))


def line(query: Query) -> str:
    """Returns a line of text about a query."""
    works = query.stages.values()
    ended_stages = sum(work.ended == work.tasks for work in works)
    ended, tasks = sum(work.ended for work in works), sum(work.tasks for work in works)
    rows, received = sum(work.rows for work in works), sum(work.received_bytes for work in works)
    text = (
        f"{ended_stages}/{len(works)} stages, {ended}/{tasks} tasks, {rows:,} rows, {received / 1e6:,.1f} MB exchanged"
    )
    if spilled := sum(work.spilled_bytes for work in works):
        text += f", {spilled / 1e6:,.1f} MB spilled"
    return f"{text}, {query.seconds:.1f} s"


def table(query: Query) -> str:
    """Returns an HTML table about a query: a row for each stage."""
    names = ("stage", *(name.replace("_", " ") for name in Work._fields))
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    rows = "".join(
        f"<tr><td>{stage}</td>{''.join(f'<td>{value:,}</td>' for value in work[:-1])}<td>{work[-1]:.2f}</td></tr>"
        for stage, work in query.stages.items()
    )
    return f"<table><caption>{html.escape(line(query))}</caption><tr>{head}</tr>{rows}</table>"


class Display(Protocol):
    """Where progress is shown."""

    def show(self, query: Query) -> None:
        """Shows a query, in place of the one before."""

    def end(self) -> None:
        """Shows nothing more."""


class Terminal:
    """Shows a line on standard error."""

    def __init__(self) -> None:
        self._shown = False

    def show(self, query: Query) -> None:
        self._shown = True
        sys.stderr.write(f"\r{line(query)}\x1b[K")
        sys.stderr.flush()

    def end(self) -> None:
        if self._shown:
            sys.stderr.write("\n")
            sys.stderr.flush()


class Notebook:
    """Shows a table below the cell that runs."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, query: Query) -> None:
        from IPython.display import HTML, display

        if self._handle is None:
            self._handle = display(HTML(table(query)), display_id=True)
        else:
            self._handle.update(HTML(table(query)))

    def end(self) -> None:
        pass


def default_display() -> Display:
    """Returns a table in a notebook, and a line elsewhere."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return Notebook() if getattr(shell, "kernel", None) is not None else Terminal()


class Progress:
    """Shows the queries of a session while they run."""

    def __init__(self, running: Callable[[], list[Query]], display: Callable[[], Display] = default_display) -> None:
        self._running = running
        self._display = display

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Shows the oldest query under way, until the block ends."""
        ended = threading.Event()
        # A daemon, so that an interpreter that exits in a query does not wait for it.
        thread = threading.Thread(target=self._show_until, args=(ended,), name="dayfly-frames-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _show_until(self, ended: threading.Event) -> None:
        display = self._display()
        pause = PATIENCE
        while not ended.wait(pause):
            pause = PAUSE
            running = self._running()
            if running:
                display.show(running[0])
        display.end()
