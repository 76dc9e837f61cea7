"""Leases the ranks of a session."""

from __future__ import annotations

import concurrent.futures as cf
import contextlib
import json
import threading
from typing import Any

from dayfly import Client
from dayfly._groups.run import invitation_to, kill_all
from dayfly._leases.defaults import Placement
from dayfly._leases.gang import Gang

from dayfly_frames import _frames
from dayfly_frames._rank import serve
from dayfly_frames._session import Session

#: Seconds that ranks have to return after the session has closed.
GRACE = 10.0
#: Microseconds that a waiting rank polls before it sleeps.
SPIN_US = 500


def open_session(client: Client, ranks: int, placement: Placement, lease: dict[str, Any]) -> Session:
    """Leases workers, starts a rank on each, and joins them.

    Raises:
        ValueError: if there is to be no rank.
        dayfly.Error: if the workers cannot be leased, or a rank does not start.
    """
    if ranks < 1:
        raise ValueError(f"ranks={ranks}: ask for at least one")
    gang = client.gang(ranks, placement=placement, **({"mode": "warm"} | lease))
    memory = lease.get("memory") or 0
    try:
        group = invitation_to(client, ranks + 1) | {"spin_us": SPIN_US}
        invitations = [json.dumps(group | {"rank": rank}) for rank in range(ranks + 1)]
        futures = [gang.rank(rank).submit(serve, invitations[rank], memory // ranks or None) for rank in range(ranks)]
        partitions = max(1, round(lease.get("cores", 1)))
        native = _joined(invitations[ranks], partitions, futures)
    except BaseException:
        gang.shutdown(wait=False, cancel_futures=True)
        raise
    return Session(native, lambda: _end(gang, futures))


def _joined(invitation: str, partitions: int, futures: list[Any]) -> _frames.Session:
    """Joins the group, or raises why a rank did not."""
    joining: cf.Future[_frames.Session] = cf.Future()

    def join() -> None:
        try:
            joining.set_result(_frames.Session.join(invitation, partitions))
        except BaseException as error:
            joining.set_exception(error)

    # A daemon, since it would wait for ranks that have failed.
    threading.Thread(target=join, name="dayfly-frames-join", daemon=True).start()
    done, _ = cf.wait([joining, *futures], return_when=cf.FIRST_COMPLETED)
    for future in futures:
        # A rank returns only after the session has closed.
        if future in done:
            future.result()
    return joining.result()


def _end(gang: Gang, futures: list[Any]) -> None:
    cf.wait(futures, timeout=GRACE)
    kill_all(future for future in futures if not future.done())
    with contextlib.suppress(cf.CancelledError):
        gang.shutdown(wait=True, cancel_futures=True)
