"""Leases the ranks of a session."""

from __future__ import annotations

import concurrent.futures as cf
import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from dayfly import Client, Error
from dayfly._groups.run import invitation_to, kill_all
from dayfly._groups.storage import channel_settings, store_cleanup
from dayfly._groups.storage import settings as store_variables
from dayfly._leases.defaults import Placement
from dayfly._leases.gang import Gang

from dayfly_frames import _frames
from dayfly_frames._detach import Detacher
from dayfly_frames._keeper import Keeper
from dayfly_frames._progress import Progress
from dayfly_frames._rank import serve
from dayfly_frames._report import Reporter
from dayfly_frames._session import Session

if TYPE_CHECKING:
    from dayfly._leases.calls import Calls
    from dayfly._leases.lease import Lease

T = TypeVar("T")
Recover = Literal["auto", "query", "tasks", "none"]
StorageOptions = Mapping[str, str] | Literal["env"] | None

#: Seconds that ranks have to return after the session has closed.
GRACE = 10.0
#: Least seconds that a session waits for workers in place of lost ones.
MIN_RENEWAL_WAIT = 30.0
#: Seconds within which a node starts a worker again that was lost.
MAX_RESTART_S = 5.0
#: Seconds that the ranks of a group have to return before those of the next one start on their workers.
MOVE_GRACE = 2.0
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
        self._workers: list[Worker] = []
        self._serving: list[Any] = []

    @property
    def partitions(self) -> int:
        """Partitions of a stage on each rank: the cores of a rank."""
        return max(1, round(float(self._lease.get("cores", 1))))

    @property
    def leases(self) -> list[Lease]:
        """The leases of the ranks."""
        return _leases_of(self._workers)

    def join(self, join: Callable[[str], T], **lease: Any) -> T:
        """Leases workers, starts a rank on each, and joins them: passes the invitation of the last rank.

        Raises:
            dayfly.Error: if the workers cannot be leased, or a rank does not start.
        """
        workers = self._leased(self._ranks, **lease)
        try:
            return self._started(workers, join)
        except BaseException:
            _give_back(_leases_of(workers), wait=False)
            raise

    def _leased(self, count: int, **lease: Any) -> list[Worker]:
        options = self._lease | lease
        if count < self._ranks and options.get("memory"):
            # That of a lease is for all ranks together.
            options["memory"] = options["memory"] * count // self._ranks
        leases = self._client.gang(count, placement=self._placement, **options).leases
        return [Worker(held, number) for held in leases for number in range(held.workers)]

    def _started(self, workers: list[Worker], join: Callable[[str], T]) -> T:
        """Starts a rank on each worker, and joins them."""
        left, serving = contextlib.ExitStack(), list[Any]()
        try:
            group = invitation_to(self._client, self._ranks + 1) | {"spin_us": SPIN_US} | self._channel
            # A rank may leave something in the store before the last one has joined.
            left.enter_context(store_cleanup(group))
            invitations = [json.dumps(group | {"rank": rank}) for rank in range(self._ranks + 1)]
            for worker, invitation in zip(workers, invitations, strict=False):
                memory = worker.memory_bytes
                serving.append(worker.calls.submit(serve, invitation, memory, self._stores, self._variables))
            joined = _joined(lambda: join(invitations[-1]), serving)
        except BaseException:
            kill_all(future for future in serving if not future.done())
            left.close()
            raise
        self._workers, self._serving, self._left = workers, serving, left
        return joined

    def lease_ids(self) -> list[str]:
        """Returns the ids of the leases."""
        return [held.grant["lease"] for held in self.leases]

    def price(self) -> float | None:
        """Returns what the leases cost in a second, by their own prices; None if the manager does not tell."""
        leases = {held.grant["lease"] for held in self.leases}
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

    def replacements(self) -> list[Worker]:
        """Returns a worker for each rank: for lost ones those that their nodes have started again, or others.

        Raises:
            dayfly.Error: if others are needed, and cannot be leased within the ``wait`` of the session.
        """
        lost = [rank for rank, serving in enumerate(self._serving) if serving.done()]
        are_there = _are_there([self._workers[rank] for rank in lost])
        gone = [rank for rank, is_there in zip(lost, are_there, strict=True) if not is_there]
        workers = list(self._workers)
        if gone:
            for rank, worker in zip(gone, self._leased(len(gone)), strict=True):
                workers[rank] = worker
        return workers

    def others(self) -> list[Worker]:
        """Leases a new worker for each rank.

        Raises:
            dayfly.Error: if they cannot be leased within the ``wait`` of the session.
        """
        return self._leased(self._ranks)

    def move(self, workers: list[Worker], join: Callable[[str], T]) -> T:
        """Starts the ranks of a new group on these workers, after the end of the old one. Gives back what is left over.

        Raises:
            dayfly.Error: if a rank does not start. All workers are given back then.
        """
        before, used = self.leases, _leases_of(workers)
        self._end_ranks(MOVE_GRACE)
        try:
            joined = self._started(workers, join)
        except BaseException:
            self._workers = []
            _give_back(_united(before, used), wait=False)
            raise
        _give_back([held for held in before if held not in used], wait=False)
        return joined

    def give_back_unused(self, workers: list[Worker]) -> None:
        """Gives the leases back of workers on which no rank is."""
        used = self.leases
        _give_back([held for held in _leases_of(workers) if held not in used], wait=False)

    def _end_ranks(self, grace: float) -> None:
        cf.wait(self._serving, timeout=grace)
        kill_all(future for future in self._serving if not future.done())
        self._serving = []
        self._left.close()

    def end(self, grace: float = GRACE) -> None:
        """Gives the workers back once their ranks have returned. Does nothing the second time."""
        workers, self._workers = self._workers, []
        if workers:
            cf.wait(self._serving, timeout=grace)
            kill_all(future for future in self._serving if not future.done())
            with contextlib.suppress(cf.CancelledError):
                _give_back(_leases_of(workers), wait=True)
            self._left.close()


class Worker(NamedTuple):
    """A worker of a lease."""

    lease: Lease
    number: int

    @property
    def calls(self) -> Calls:
        """Calls on this worker."""
        return self.lease.options(worker=self.number)

    @property
    def memory_bytes(self) -> int:
        """Its share of the lease's memory."""
        return int(self.lease.grant["memory_bytes"]) // self.lease.workers


def _leases_of(workers: list[Worker]) -> list[Lease]:
    return _united([worker.lease for worker in workers], [])


def _united(one: list[Lease], other: list[Lease]) -> list[Lease]:
    return list({id(lease): lease for lease in [*one, *other]}.values())


def _give_back(leases: list[Lease], *, wait: bool) -> None:
    if leases:
        Gang(leases).shutdown(wait, cancel_futures=True)


def _are_there(workers: list[Worker]) -> list[bool]:
    """Returns whether each worker takes calls, as one does that its node has started again."""
    calls: list[Any] = []
    for worker in workers:
        try:
            calls.append(worker.calls.submit(os.getpid))
        except Error:
            calls.append(None)
    waited: list[Any] = [call for call in calls if call is not None]
    cf.wait(waited, timeout=MAX_RESTART_S)
    return [call is not None and call.done() and not call.cancelled() and call.exception() is None for call in calls]


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
    keeper = Keeper(workers, native)
    # With "tasks" and "auto", queries are repeated here only if no rank is left, or they have failed on those that are.
    if recover != "none":
        native.on_loss(keeper.renew)
        native.on_shortage(keeper.refill)
    native.set_price(workers.price())
    native.set_detach(Detacher(client, {"ranks": ranks, "placement": placement} | lease, partition_bytes, stores))
    reporter = Reporter(client, native, workers.lease_ids) if report else None
    if reporter is not None:
        native.set_reporter(reporter)
    session = Session(native, keeper.end, reporter)
    keeper.begin(session)
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
