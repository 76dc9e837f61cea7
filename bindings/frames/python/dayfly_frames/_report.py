"""Reports of queries to the manager, which shows them in its console, its API and ``dayfly queries``.

A query is reported once it has run for a second, by a thread of its own, until it has ended. Shorter ones are not.
A report that fails is left out: it never fails or delays its query.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal

from dayfly import Error

from dayfly_frames import _frames
from dayfly_frames._progress import NativeTask, Work, by_rank, by_stage

if TYPE_CHECKING:
    from dayfly import Client

#: Seconds between two reports.
PERIOD = 1.0
#: Seconds within which ranks report their last tasks, after the query's last row.
SETTLING = 1.0
#: Seconds for which the last report is tried again.
MAX_LAST_REPORT = 10.0
#: Seconds that a session waits for last reports when it closes.
MAX_FINISH = 2.0
#: Bounds of a report, as the manager has them.
MAX_TEXT_BYTES, MAX_ERROR_BYTES, MAX_PARTS = 4096, 4096, 512
#: Codes with which a manager refuses this and every later report: it is an older one, or the token has not the right.
REFUSALS = ("not_found", "unauthorized", "forbidden", "invalid_request", "payload_too_large")

State = Literal["running", "done", "failed", "cancelled"]


class Reporter:
    """Reports the queries of a session."""

    def __init__(self, client: Client, native: _frames.Session, leases: Callable[[], list[str]]) -> None:
        self._client = client
        self._native = native
        self._leases = leases
        #: Reports with a thread.
        self._open: set[Report] = set()

    def send(self, query: str, body: dict[str, Any]) -> bool:
        """Sends a report. Returns whether the query is to be cancelled.

        Raises:
            dayfly.Error: if the manager does not take it.
        """
        told = json.loads(self._client._native.put(f"/v1/queries/{query}", json.dumps(body)))
        return bool(told["cancel"])

    def tasks_of(self, label: _frames.Label) -> tuple[list[NativeTask], int]:
        """Returns the tasks of a query, and the runs that were lost.

        Raises:
            dayfly.LeaseError: if the session is closed.
        """
        return self._native.tasks_of(label)

    def leases(self) -> list[str]:
        """Returns the ids of the ranks' leases."""
        return self._leases()

    def open(self, report: Report) -> None:
        """Adds a report with a thread."""
        self._open.add(report)

    def close(self, report: Report) -> None:
        """Removes a report whose thread ends."""
        self._open.discard(report)

    def finish(self) -> None:
        """Waits until the last reports of ended queries are sent, but not for long."""
        deadline = time.monotonic() + MAX_FINISH
        for report in list(self._open):
            report.join(deadline)


class Report:
    """One query, and the thread that reports it once it takes long. Without a reporter, it does nothing."""

    def __init__(self, native: _frames.Frame, call: str, text: str | None) -> None:
        self._reporter: Reporter | None = native.reporter()
        if self._reporter is None:
            return
        self._native = native
        self._call = call
        self._text = text
        self._label = _frames.Label()
        self._id = ""
        self._begun = time.monotonic()
        self._seconds = 0.0
        self._state: State = "running"
        self._error: str | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._tasks: list[NativeTask] = []
        self._lost_runs = 0

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Runs a part of the query in this thread. An error ends it."""
        if self._reporter is None:
            yield
            return
        self._label.enter(self._start)
        try:
            yield
        except BaseException as error:
            self._end(*outcome_of(error))
            raise
        finally:
            self._label.leave()

    def end(self, state: State = "done") -> None:
        """Ends the query. Does nothing the second time."""
        if self._reporter is not None:
            self._end(state, None)

    def join(self, deadline: float) -> None:
        """Waits until the last report is sent, if the query has ended."""
        if self._ended.is_set() and self._thread is not None:
            self._thread.join(max(0.0, deadline - time.monotonic()))

    def _end(self, state: State, error: str | None) -> None:
        if not self._ended.is_set():
            self._seconds = time.monotonic() - self._begun
            self._state, self._error = state, error
            self._ended.set()

    def _start(self) -> None:
        """Starts the thread. The native module calls this, while the query runs."""
        assert self._reporter is not None
        self._id = secrets.token_hex(16)
        # A daemon, so that an interpreter that exits in a query does not wait for it.
        self._thread = threading.Thread(target=self._run, name="dayfly-frames-report", daemon=True)
        self._reporter.open(self)
        try:
            self._thread.start()
        except RuntimeError:
            # The system has no thread to spare.
            self._thread = None
            self._reporter.close(self)

    def _run(self) -> None:
        assert self._reporter is not None
        try:
            while not self._ended.is_set():
                if self._report("running") is None:
                    return
                self._ended.wait(PERIOD)
            pause = threading.Event()
            deadline = time.monotonic() + SETTLING
            while self._has_running_tasks() and time.monotonic() < deadline:
                pause.wait(SETTLING / 10)
            deadline = time.monotonic() + MAX_LAST_REPORT
            while self._report(self._state) is False and time.monotonic() < deadline:
                pause.wait(PERIOD)
        finally:
            self._reporter.close(self)

    def _has_running_tasks(self) -> bool:
        self._look()
        return self._state == "done" and any(done is None for _, _, done in self._tasks)

    def _look(self) -> None:
        """Reads the tasks. The last ones stay when the session is closed."""
        assert self._reporter is not None
        with contextlib.suppress(Error):
            self._tasks, self._lost_runs = self._reporter.tasks_of(self._label)

    def _report(self, state: State) -> bool | None:
        """Reports the query. Returns whether the manager has it; None if it takes no reports."""
        assert self._reporter is not None
        self._look()
        try:
            if self._reporter.send(self._id, self._body(state)):
                self._label.cancel()
        except Error as error:
            return None if error.code in REFUSALS else False
        return True

    def _body(self, state: State) -> dict[str, Any]:
        assert self._reporter is not None
        seconds = time.monotonic() - self._begun if state == "running" else self._seconds
        price = self._native.price()
        text = self._text or f"{self._call}: {self._native.outline(MAX_TEXT_BYTES)}"
        body = {
            "text": bounded(text.strip(), MAX_TEXT_BYTES),
            "state": state,
            "elapsed_ms": round(1000 * seconds),
            "leases": self._reporter.leases()[:MAX_PARTS],
            "stages": parts_of(by_stage(self._tasks)),
            "ranks": parts_of(by_rank(self._tasks)),
            "lost_runs": self._lost_runs,
        }
        if price is not None:
            body["cost"] = round(1e9 * price * seconds)
        if state == "failed" and self._error:
            body["error"] = bounded(self._error, MAX_ERROR_BYTES)
        return body


def outcome_of(error: BaseException) -> tuple[State, str | None]:
    """Returns the state in which an error leaves its query, and why."""
    if isinstance(error, Error):
        if error.code == "cancelled":
            return "cancelled", None
        return "failed", f"[{error.code}] {error.message}"
    if isinstance(error, Exception):
        return "failed", f"{type(error).__name__}: {error}"
    # Ctrl-C, or the end of a generator.
    return "cancelled", None


def parts_of(works: dict[int, Work]) -> list[dict[str, int]]:
    """Returns what stages or ranks have done, as in a report. Of too many, those that have computed most."""
    most = sorted(works, key=lambda number: works[number].core_seconds, reverse=True)[:MAX_PARTS]
    return [part_of(number, works[number]) for number in sorted(most)]


def part_of(number: int, work: Work) -> dict[str, int]:
    """Returns what one stage or rank has done, as in a report."""
    return {
        "number": number,
        "tasks": work.tasks,
        "ended": work.ended,
        "rows": work.rows,
        "received_bytes": work.received_bytes,
        "spilled_bytes": work.spilled_bytes,
        "core_us": round(1e6 * work.core_seconds),
    }


def bounded(text: str, max_bytes: int) -> str:
    """Returns the beginning of a text, with at most so many bytes of UTF-8."""
    return text.encode(errors="replace")[:max_bytes].decode(errors="ignore")
