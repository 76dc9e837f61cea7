"""Sessions that all ranks of a communicator open together."""

from __future__ import annotations

import contextlib
import hashlib
import pickle
from collections.abc import Callable
from typing import Any, TypeVar

from dayfly import Error
from dayfly._failures import error_for

from dayfly_frames import _frames
from dayfly_frames._frame import Frame
from dayfly_frames._session import Session

T = TypeVar("T")


class Group:
    """The ranks of a session, seen from one of them.

    Rank 0 runs queries. The ranks exchange the outcome, so that all of them return or raise the same.
    """

    def __init__(self, member: _frames.Member, name: str, rank: int) -> None:
        self._member = member
        self._name = name
        self._rank = rank
        self._kept = 0
        self._has_ended = False

    def _exchange(self, call: str, value: Any = None, error: BaseException | None = None, key: str = "") -> list[Any]:
        """Returns the values of all ranks. Raises the error of the lowest rank that has one, on all ranks.

        Raises:
            dayfly.GroupError: if a rank is lost or does not call in time, or the ranks call different operations.
        """
        failure = error and failure_of(error)
        sent = pickle.dumps((call, key, failure, None if error else value), protocol=5)
        try:
            found = [pickle.loads(one) for one in self._member.allgather(sent)]
        except Error:
            # Otherwise the other ranks would wait for this one.
            self._has_ended = True
            self._member.close()
            raise
        for rank, (other, other_key, _, _) in enumerate(found):
            if other != found[0][0]:
                raise _mismatch(f"rank 0 calls {found[0][0]}, and rank {rank} calls {other}")
            if other_key != found[0][1]:
                raise _mismatch(f"the frames of rank 0 and rank {rank} were made by different operations")
        for rank, (_, _, failed, _) in enumerate(found):
            if failed:
                if error is not None and rank == self._rank:
                    raise error
                raise error_of_rank(rank, *failed)
        return [value for _, _, _, value in found]

    def lead(self, call: str, frame: _frames.Frame, compute: Callable[[], T]) -> T:
        """Calls this on rank 0, and returns the result on all ranks."""
        text = self._member.fingerprint(frame)
        self._exchange(f"{call}()", key=hashlib.sha256(text.encode()).hexdigest())
        value, error = None, None
        if self._rank == 0:
            try:
                value = compute()
            except BaseException as raised:
                error = raised
        result: T = self._exchange(f"the end of {call}()", value, error)[0]
        return result

    def _each(self, call: str, compute: Callable[[], T]) -> T:
        """Calls this on every rank, and returns this rank's result when all have theirs."""
        try:
            value = compute()
        except BaseException as error:
            self._exchange(call, error=error)
            raise
        self._exchange(call)
        return value

    def _next_id(self) -> bytes:
        """Returns the name of the next kept frame, the same on all ranks."""
        self._kept += 1
        return hashlib.blake2b(f"{self._name}/{self._kept}".encode(), digest_size=16).digest()

    def local(self, table: Any) -> _frames.Frame:
        """Returns a frame of the rows that the ranks have."""
        name = self._next_id()
        try:
            kept, error = None, None
            try:
                kept = self._member.keep(name, table)
            except BaseException as raised:
                error = raised
            return self._member.frame(self._exchange("local()", kept, error))
        except BaseException:
            with contextlib.suppress(Error):
                self._member.forget(name)
            raise

    def _persisted(self, call: str, frame: _frames.Frame) -> tuple[bytes, _frames.Frame]:
        led: list[_frames.Frame] = []

        def keep() -> bytes:
            led.append(frame.persist(1))
            return self._member.description(led[0])

        description = self.lead(call, frame, keep)
        # The ranks keep the rows as long as rank 0's frame exists.
        return description, led[0] if led else self._member.frame([description])

    def persist(self, frame: _frames.Frame) -> _frames.Frame:
        """Has the ranks keep the rows of a frame."""
        return self._persisted("persist", frame)[1]

    def own_rows(self, frame: _frames.Frame) -> _frames.Table:
        """Returns this rank's rows of a result."""
        description, kept = self._persisted("here", frame)
        table = self._each("the rows of here()", lambda: self._member.own_rows(description))
        # Rank 0 has all ranks forget the rows.
        del kept
        return table

    def table(self, call: str, frame: _frames.Frame, compute: Callable[[], _frames.Table]) -> _frames.Table:
        """Returns the table that rank 0 computes."""
        name = self._next_id()
        led: list[_frames.Table] = []

        def keep() -> bytes:
            led.append(compute())
            return self._member.keep(name, led[0])

        description = self.lead(call, frame, keep)
        try:
            return self._each(f"the rows of {call}()", lambda: led[0] if led else self._member.all_rows(description))
        finally:
            # Rank 0 keeps them for the others.
            with contextlib.suppress(Error):
                self._member.forget(name)

    def begin(self) -> None:
        """Waits until all ranks have opened the session."""
        self._exchange("Session.of()")

    def finish(self) -> None:
        """Waits until all ranks close the session. Does nothing if it has ended by an error, which was raised."""
        if not self._has_ended:
            self._exchange("close()")

    def leave(self) -> None:
        """Leaves the group."""
        self._member.close()


class RankSession(Session):
    """A session that all ranks of a communicator have opened with `Session.of`.

    All ranks call the same operations in the same order. Close it on all ranks, or use it in ``with``. A rank that
    leaves the ``with`` by an exception does not wait for the others: their next call raises `dayfly.GroupError`.
    """

    def __init__(self, native: _frames.Session, group: Group, end: Callable[[], None]) -> None:
        super().__init__(native, end)
        self._group: Group | None = group

    def local(self, table: Any) -> Frame:
        """Returns a frame of the rows of all ranks. Each rank gives its own part. All ranks call this.

        The rows stay where they are: tasks of this rank read them without a copy. They count as memory of the rank.

        Args:
            table: a table of PyArrow, Polars, pandas or DuckDB, or another ``__arrow_c_stream__``. It may have no rows,
                but it has the same columns and types as those of the other ranks.

        Raises:
            dayfly.RequestError: on all ranks, if their columns differ.
            dayfly.CapacityError: on all ranks, if one has no room for its rows.
        """
        if self._group is None:
            raise error_for("lease_ended", "this session is closed; open another one with Session.of() on all ranks")
        return Frame(self._group.local(table))

    def close(self) -> None:
        """Ends the session when all ranks call this. Does nothing the second time, and after the loss of a rank.

        Raises:
            dayfly.GroupError: if a rank is lost, or calls something else.
        """
        group, self._group = self._group, None
        try:
            if group is not None:
                group.finish()
        finally:
            super().close()

    def __exit__(self, *raised: object) -> None:
        if raised[0] is not None:
            self._group = None
        self.close()


def _mismatch(what: str) -> Error:
    return error_for("mismatch", f"{what}: all ranks call the same operations of a session in the same order")


def failure_of(error: BaseException) -> tuple[str, str]:
    """Returns code and message of an error, for other ranks."""
    if isinstance(error, Error):
        return error.code, str(error)
    if isinstance(error, Exception):
        return "invalid_request", f"{type(error).__name__}: {error}"
    return "cancelled", f"{type(error).__name__} ended the call"


def error_of_rank(rank: int, code: str, message: str) -> Error:
    """Returns the error that another rank has raised, with its rank."""
    return error_for(code, message if f"rank {rank}" in message else f"rank {rank}: {message}")
