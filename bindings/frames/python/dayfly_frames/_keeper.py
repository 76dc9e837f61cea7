"""Keeps the workers of a session: replaces lost ones, renews their leases, and moves to others before an end."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from typing import TYPE_CHECKING, NamedTuple

from dayfly import Error

if TYPE_CHECKING:
    from dayfly._leases.lease import Lease

    from dayfly_frames import _frames
    from dayfly_frames._lease import Ranks, Worker
    from dayfly_frames._session import Session

#: Part of a lease's duration that is left when the lease is renewed.
RENEWED_PART = 0.5
#: Part of a lease's duration that is left when a session moves to other workers, if the lease was not renewed.
MOVED_PART = 0.25
#: Least and most seconds between two looks at the leases.
MIN_LOOK_S, MAX_LOOK_S = 0.05, 60.0
#: Looks within the duration of a lease.
LOOKS = 16
#: Seconds after a refusal in which a session asks for no other workers.
REFUSED_PAUSE_S = 30.0


class Keeper:
    """Has workers for the ranks of a session as long as the session is open."""

    def __init__(self, workers: Ranks, native: _frames.Session) -> None:
        self._workers = workers
        self._native = native
        self._changing = threading.Lock()
        self._has_ended = threading.Event()
        self._refused_at = float("-inf")

    def renew(self, generation: int) -> None:
        """Replaces all ranks of a generation after a query has failed because some of them are lost.

        Raises:
            dayfly.Error: if the workers cannot be leased, or a rank does not start.
        """
        with self._changing:
            # Another thread may have replaced the same ranks.
            if self._native.generation() == generation:
                self._native.abandon()
                self._workers.join_again(self._native.rejoin)
                self._native.set_price(self._workers.price())

    def refill(self, generation: int) -> None:
        """Replaces the lost ranks of a generation before a query begins. Without workers for them, the others go on.

        Raises:
            dayfly.Error: if the ranks are replaced, and do not start.
        """
        with self._changing:
            if self._native.generation() != generation or time.monotonic() < self._refused_at + REFUSED_PAUSE_S:
                return
            try:
                workers = self._workers.replacements()
            except Error:
                self._refused_at = time.monotonic()
                return
            self._move(workers)

    def begin(self, session: Session) -> None:
        """Looks after the leases from now on, until the session ends or nothing refers to it."""
        arguments = (weakref.ref(session),)
        threading.Thread(target=self._look, args=arguments, name="dayfly-frames-keeper", daemon=True).start()

    def end(self) -> None:
        """Gives the workers back."""
        self._has_ended.set()
        with self._changing:
            self._workers.end()

    def _move(self, workers: list[Worker]) -> None:
        """Has the ranks on these workers from now on, unless a query is under way or a frame is kept."""
        if not self._native.abandon_idle():
            self._workers.give_back_unused(workers)
            return
        try:
            self._workers.move(workers, self._native.rejoin)
        except Error:
            self._workers.join_again(self._native.rejoin)
        self._native.set_price(self._workers.price())

    def _look(self, session: weakref.ref[Session]) -> None:
        terms: dict[str, Term] = {}
        while not self._has_ended.wait(_pause(terms)) and session() is not None:
            with self._changing:
                leases = self._workers.leases
                terms = {held.id: _renewed(held, terms.get(held.id) or _begun(held)) for held in leases}
                # What cannot be done now is tried again at the next look.
                with contextlib.suppress(Error):
                    if any(term.left < term.duration * MOVED_PART for term in terms.values()):
                        self._leave(min(term.left for term in terms.values()))

    def _leave(self, left: float) -> None:
        """Moves to other workers, if their leases end later than in so many seconds."""
        if self._has_ended.is_set() or not self._native.is_idle():
            return
        workers = self._workers.others()
        if min(_begun(worker.lease).left for worker in workers) > left:
            self._move(workers)
        else:
            self._workers.give_back_unused(workers)


class Term(NamedTuple):
    """The duration of a lease, and the end of it by the clock of this process."""

    duration: float
    end: float

    @property
    def left(self) -> float:
        """Seconds until the end."""
        return self.end - time.monotonic()


def _begun(lease: Lease) -> Term:
    """Returns the term of a lease that begins now. The expiry of its token is later: it may be used late."""
    duration = float(lease.grant["duration_ms"]) / 1000
    return Term(duration, time.monotonic() + duration)


def _pause(terms: dict[str, Term]) -> float:
    """Returns the seconds until the next look at leases of these terms."""
    shortest = min((term.duration for term in terms.values()), default=0.0)
    return min(max(shortest / LOOKS, MIN_LOOK_S), MAX_LOOK_S)


def _renewed(lease: Lease, term: Term) -> Term:
    """Renews a lease that is due. Returns its term, which is the old one if that fails."""
    if term.left < term.duration * RENEWED_PART:
        with contextlib.suppress(Error):
            now = time.monotonic()
            lease.renew(term.duration)
            return Term(term.duration, now + term.duration)
    return term
