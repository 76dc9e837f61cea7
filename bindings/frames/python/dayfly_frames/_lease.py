"""Leases the ranks of a session."""

from __future__ import annotations

import concurrent.futures as cf
import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

from dayfly import Client, Error
from dayfly._groups.run import invitation_to, kill_all
from dayfly._groups.storage import channel_settings, store_cleanup
from dayfly._groups.storage import settings as store_variables
from dayfly._leases.defaults import Placement
from dayfly._leases.gang import Gang

from dayfly_frames import _frames
from dayfly_frames._detach import Detacher
from dayfly_frames._progress import Progress
from dayfly_frames._rank import serve
from dayfly_frames._report import Reporter
from dayfly_frames._session import Session

T = TypeVar("T")
Recover = Literal["auto", "query", "tasks", "none"]
StorageOptions = Mapping[str, str] | Literal["env"] | None

#: Seconds that ranks have to return after the session has closed.
GRACE = 10.0
#: Least seconds that a session waits for workers in place of lost ones.
MIN_RENEWAL_WAIT = 30.0
#: Microseconds that a waiting rank polls before it sleeps.
SPIN_US = 500


class Ranks:
    """The workers of a session, each of which serves as a rank."""

    def __init__(
        self,
        client: Client,
        ranks: int,
        placement: Placement,
        lease: dict[str, Any],
        stores: dict[str, str],
        *,
        store: str | None,
        channel: str,
    ) -> None:
        self._client = client
        self._ranks = ranks
        self._placement = placement
        self._lease = {"mode": "warm"} | lease
        self._stores = stores
        self._channel = channel_settings(store, channel)
        self._variables = store_variables(store)
        self._left = contextlib.ExitStack()
        self._gang: Gang | None = None
        self._serving: list[Any] = []

    @property
    def partitions(self) -> int:
        """Partitions of a stage on each rank: the cores of a rank."""
        return max(1, round(float(self._lease.get("cores", 1))))

    def join(self, join: Callable[[str], T], **lease: Any) -> T:
        """Leases workers, starts a rank on each, and joins them: passes the invitation of the last rank.

        Raises:
            dayfly.Error: if the workers cannot be leased, or a rank does not start.
        """
        gang = self._client.gang(self._ranks, placement=self._placement, **(self._lease | lease))
        left = contextlib.ExitStack()
        try:
            group = invitation_to(self._client, self._ranks + 1) | {"spin_us": SPIN_US} | self._channel
            # A rank may leave something in the store before the last one has joined.
            left.enter_context(store_cleanup(group))
            invitations = [json.dumps(group | {"rank": rank}) for rank in range(self._ranks + 1)]
            memory = [held.grant["memory_bytes"] // held.workers for held in gang.leases for _ in range(held.workers)]
            serving = [
                gang.rank(rank).submit(serve, invitations[rank], memory[rank], self._stores, self._variables)
                for rank in range(self._ranks)
            ]
            joined = _joined(lambda: join(invitations[-1]), serving)
        except BaseException:
            gang.shutdown(wait=False, cancel_futures=True)
            left.close()
            raise
        self._gang, self._serving, self._left = gang, serving, left
        return joined

    def lease_ids(self) -> list[str]:
        """Returns the ids of the leases."""
        gang = self._gang
        return [held.grant["lease"] for held in gang.leases] if gang else []

    def price(self) -> float | None:
        """Returns what the leases cost in a second, by their own prices; None if the manager does not tell."""
        gang = self._gang
        leases = {held.grant["lease"] for held in gang.leases} if gang else set()
        price, after = 0.0, ""
        try:
            while leases:
                page = json.loads(self._client._native.get(f"/v1/bill?from={round(time.time() * 1000)}{after}"))
                for line in page["lines"]:
                    if line["lease"] in leases:
                        leases.remove(line["lease"])
                        price += price_of(line, int(self._lease.get("gpus", 0)))
                if leases and not page.get("next"):
                    return None
                after = f"&after={page.get('next')}"
        except Error:
            # A token for leases alone, for example.
            return None
        return price

    def join_again(self, join: Callable[[str], T]) -> T:
        """Gives the workers back, and leases others in their place."""
        self.end(0.5)
        return self.join(join, wait=max(MIN_RENEWAL_WAIT, self._lease.get("wait") or 0))

    def end(self, grace: float = GRACE) -> None:
        """Gives the workers back once their ranks have returned. Does nothing the second time."""
        gang, self._gang = self._gang, None
        if gang is None:
            return
        cf.wait(self._serving, timeout=grace)
        kill_all(future for future in self._serving if not future.done())
        with contextlib.suppress(cf.CancelledError):
            gang.shutdown(wait=True, cancel_futures=True)
        self._left.close()


def price_of(line: dict[str, Any], gpus: int) -> float:
    """Returns what a lease costs in a second in which its workers compute, in the unit of the prices.

    Args:
        line: its line of the bill.
        gpus: GPUs of each of its workers.
    """
    prices = line["prices"]
    of_core = prices["computing_per_s"] + prices.get("core_per_s", 0)
    of_worker = line["cores_per_worker"] * of_core + gpus * prices.get("gpu_per_s", 0)
    billionths = line["memory_bytes"] / (1 << 30) * prices["allocation_per_gib_s"] + line["workers"] * of_worker
    return float(billionths / 1e9)


def store_options(options: StorageOptions) -> dict[str, str]:
    """Returns how the ranks reach object stores. Secrets of the environment go to them only if that is asked for.

    Raises:
        ValueError: if the options are another text than "env".
    """
    if options is None:
        return {}
    if isinstance(options, str):
        if options != "env":
            raise ValueError(f'storage_options={options!r}: it is a mapping, or "env" for this process\'s environment')
        own = {name.lower(): value for name, value in os.environ.items() if name.startswith("AWS_")}
        return {name: value for name, value in own.items() if _frames.is_store_option(name)}
    return {name.lower(): str(value) for name, value in options.items()}


def open_session(
    client: Client,
    ranks: int,
    placement: Placement,
    lease: dict[str, Any],
    *,
    recover: Recover,
    partition_bytes: int,
    storage_options: StorageOptions,
    progress: bool,
    report: bool,
    store: str | None,
    channel: Literal["direct", "stored"],
) -> Session:
    """Leases workers, starts a rank on each, and joins them.

    Raises:
        ValueError: if there is to be no rank, no such recovery, no byte for a partition, or no store to exchange
            rows through.
        dayfly.Error: if the workers cannot be leased, or a rank does not start.
    """
    if ranks < 1:
        raise ValueError(f"ranks={ranks}: ask for at least one")
    if recover not in ("auto", "query", "tasks", "none"):
        raise ValueError(f'recover={recover!r}: it is "auto", "query", "tasks" or "none"')
    if partition_bytes < 1:
        raise ValueError(f"partition_bytes={partition_bytes}: a partition has at least one byte")
    stores = store_options(storage_options)
    workers = Ranks(client, ranks, placement, lease, stores, store=store, channel=channel)
    partitions = workers.partitions
    native = workers.join(
        lambda invitation: _frames.Session.join(invitation, partitions, partition_bytes, stores, recover)
    )
    renewing = threading.Lock()

    def renew(generation: int) -> None:
        with renewing:
            # Another thread may have replaced the same ranks.
            if native.generation() == generation:
                native.abandon()
                workers.join_again(native.rejoin)
                native.set_price(workers.price())

    def end() -> None:
        with renewing:
            workers.end()

    # With "tasks" and "auto", queries come here only if no rank is left, or they have failed on those that are left.
    if recover != "none":
        native.on_loss(renew)
    native.set_price(workers.price())
    native.set_detach(Detacher(client, {"ranks": ranks, "placement": placement} | lease, partition_bytes, stores))
    reporter = Reporter(client, native, workers.lease_ids) if report else None
    if reporter is not None:
        native.set_reporter(reporter)
    session = Session(native, end, reporter)
    if progress:
        native.set_progress(Progress(session.running))
    return session


def _joined(join: Callable[[], T], serving: list[Any]) -> T:
    """Joins the group, or raises why a rank did not."""
    joining: cf.Future[T] = cf.Future()

    def run() -> None:
        try:
            joining.set_result(join())
        except BaseException as error:
            joining.set_exception(error)

    # A daemon, since it would wait for ranks that have failed.
    threading.Thread(target=run, name="dayfly-frames-join", daemon=True).start()
    done, _ = cf.wait([joining, *serving], return_when=cf.FIRST_COMPLETED)
    for future in serving:
        # A rank returns only after the session has closed.
        if future in done:
            future.result()
    return joining.result()
