"""Leased workers for the ranks of an MPI program.

>>> from mpi4py import MPI  # doctest: +SKIP
>>> from dayfly.accelerator import Accelerator
>>> with Accelerator(MPI.COMM_WORLD) as accelerator:  # doctest: +SKIP
...     for step in range(1000):
...         accelerator.exchange()
...         forces = accelerator.share(force_on, particles)

A rank leases in the background and computes alone until it has workers. A rank without a lease is paired with a rank
that has one: it gets workers of a private node on that rank's host, so that both ranks' work is spread over the job
and its leases. A private node ends with the rank that started it, however that ends.

MPI is mpi4py over any MPI library. Only the thread that calls these functions uses MPI.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec, Self, TypeVar

from dayfly._errors import Error
from dayfly._leases.client import LeaseClient
from dayfly._leases.fleet import Fleet
from dayfly._leases.private_node import PrivateNode, client_of
from dayfly._leases.share import LOST, NOT_EXECUTED

if TYPE_CHECKING:
    from concurrent.futures import Future

    from mpi4py.MPI import Intracomm

    from dayfly._client import Client

__all__ = ["Accelerator", "Invocation", "Pairing"]

P = ParamSpec("P")
T = TypeVar("T")

#: Seconds until a refused request for a lease is repeated, at first. The pause doubles with each refusal.
MIN_PAUSE_S = 0.1
MAX_PAUSE_S = 6.4
#: Starts of the private node of a host.
MAX_STARTS = 3


class Pairing(NamedTuple):
    """How the ranks are served in a superstep."""

    #: Ranks with workers of their own lease.
    with_lease: int
    #: Ranks without a lease that have a partner.
    paired: int
    #: Of these, the ranks that have workers already.
    with_private: int
    #: For a rank without a lease, the rank whose host serves it; else None.
    partner: int | None


class _Status(NamedTuple):
    """What a rank sends to all others in `Accelerator.exchange`."""

    has_lease: bool
    #: Whether it neither has a lease nor was refused one yet.
    is_pending: bool
    #: The lowest rank on its host, which starts the host's private node.
    leader: int
    #: The leader of the host whose private node serves it; None if it has no private workers.
    served_by: int | None
    #: Allowance of the private node that it runs, "" for none; None if that has not changed.
    news: str | None


def _paired(statuses: Sequence[_Status]) -> dict[int, int]:
    """Returns the partner of each rank without a lease. Such ranks take turns over those with one."""
    with_lease = [rank for rank, status in enumerate(statuses) if status.has_lease]
    without = [rank for rank, status in enumerate(statuses) if not status.has_lease and not status.is_pending]
    return {rank: with_lease[at % len(with_lease)] for at, rank in enumerate(without)} if with_lease else {}


class Invocation(Generic[T]):
    """A submitted call. Created by `Accelerator.submit`."""

    def __init__(
        self, compute: Callable[[], T], future: Future[T] | None, may_be_computed: Callable[[Error], bool]
    ) -> None:
        self._compute = compute
        self._future = future
        self._may_be_computed = may_be_computed
        self._results: list[T] = []

    def done(self) -> bool:
        """Returns whether `result` returns without waiting for a worker."""
        return self._future is None or self._future.done()

    def result(self) -> T:
        """Returns the result, and waits for it. Without a worker, or if that is lost, this thread computes it.

        Raises:
            dayfly.Error: if the call failed. Exceptions of the function keep their own types.
        """
        if self._future is not None:
            try:
                return self._future.result()
            except Error as error:
                if not self._may_be_computed(error):
                    raise
            self._future = None
        if not self._results:
            self._results.append(self._compute())
        return self._results[0]


class _Source:
    """Workers of one manager or node. They are requested in the background, and again when they are lost.

    A refused request is repeated after a pause that grows. `progress` begins it, so that a program without supersteps
    sends no requests.
    """

    def __init__(self, client: LeaseClient, terms: Mapping[str, Any], *, owns_client: bool) -> None:
        self._client = client
        self._terms = terms
        self._owns_client = owns_client
        self._fleet: Fleet | None = None
        self._pause_s = MIN_PAUSE_S
        self._not_before = time.monotonic()
        #: Since when there are no workers.
        self._since = time.monotonic()
        #: Why the last request was refused.
        self.refusal: Error | None = None

    def progress(self) -> Fleet | None:
        """Begins a request if it is time for one. Returns the workers; None if there are none."""
        fleet, now = self._fleet, time.monotonic()
        if fleet is None:
            if now >= self._not_before:
                self._request()
            return None
        if fleet.workers > 0:
            self._since, self._pause_s, self.refusal = now, MIN_PAUSE_S, None
            return fleet
        if (refusal := fleet.refusal) is not None:
            self._fleet = None
            # The rank does not wait for the end of calls that were lost.
            fleet.shutdown(wait=False)
            self._pause(refusal)
        return None

    def _request(self) -> None:
        try:
            self._fleet = self._client.fleet(**self._terms)
        except Error as refusal:
            self._pause(refusal)

    def _pause(self, refusal: Error) -> None:
        self.refusal = refusal
        self._not_before = time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)

    def is_pending(self, patience: float) -> bool:
        """Returns whether workers may come: no request was refused, and less than ``patience`` seconds are over."""
        return self.refusal is None and time.monotonic() - self._since < patience

    def end(self, *, wait: bool) -> None:
        """Returns the workers, with ``wait`` before this returns."""
        fleet, self._fleet = self._fleet, None
        if fleet is not None:
            fleet.shutdown(wait=wait)
        if self._owns_client:
            self._client.close()


class Accelerator:
    """Workers for one rank of an MPI program: of its own lease, or of a private node of the job.

    Creating it is collective, but does not wait for workers. One thread at a time may use it.

    The rank and its workers compute the same function, and a rank that loses a worker computes the lost items again. So
    the functions must give the same result wherever they run, and however often.

    Args:
        comm: the communicator of the ranks, of mpi4py. None for ``MPI.COMM_WORLD``; the lease is then requested before
            MPI is initialized.
        client: client of the manager that grants the leases. It stays open. None for the manager that the environment
            variable ``DAYFLY_MANAGER`` names. With neither, no rank gets a lease, and all ranks compute alone.
        workers: number of workers of each rank.
        private_nodes: whether ranks without a lease get workers of private nodes.
        patience: seconds after which a rank without a response to its request counts as a rank without a lease.
        idempotent: whether calls may run again that were lost while a worker executed them. If False, they raise.
        lease: further arguments of `dayfly.Client.fleet` for the leases, such as ``mode``.

    Raises:
        ModuleNotFoundError: if mpi4py is not installed.
        ValueError: for arguments of a lease that cannot be.
        TypeError: for arguments that fleets do not take.
    """

    def __init__(
        self,
        comm: Intracomm | None = None,
        *,
        client: Client | None = None,
        workers: int = 1,
        private_nodes: bool = True,
        patience: float = 2.0,
        idempotent: bool = True,
        **lease: Any,
    ) -> None:
        _check_mpi4py()
        size = {"min": workers, "max": workers, "lease_workers": workers}
        # If a worker is lost and no other can be leased, a call must not wait: the rank computes it.
        self._terms = {**size, "wait": 0.0}
        self._private_nodes = private_nodes
        self._patience = patience
        self._idempotent = idempotent
        self._is_open = True
        self._comm: Intracomm | None = None
        self._refusal: Error | None = None
        self._serving: Fleet | None = None
        self._has_lease = False
        #: Workers of a private node, the leader of its host, and its allowance.
        self._private: _Source | None = None
        self._private_leader: int | None = None
        self._private_allowance = ""
        self._node: PrivateNode | None = None
        self._needs_node = False
        self._starts = 0
        self._leased = self._source_of_manager(client, {**self._terms, **lease})
        try:
            if self._leased is not None:
                self._leased.progress()
            self._attach(comm)
        except BaseException:
            self.close()
            raise

    def _source_of_manager(self, client: Client | None, terms: Mapping[str, Any]) -> _Source | None:
        if client is not None:
            return _Source(client, terms, owns_client=False)
        if not os.environ.get("DAYFLY_MANAGER"):
            return None
        try:
            return _Source(LeaseClient._open(), terms, owns_client=True)
        except Error as error:
            # This rank computes without workers, or with those of others: an error here would stop all ranks.
            self._refusal = error
            return None

    def _attach(self, comm: Intracomm | None) -> None:
        """Learns which ranks share a host. Collective."""
        from mpi4py import MPI

        self._comm = (MPI.COMM_WORLD if comm is None else comm).Dup()
        self._rank: int = self._comm.Get_rank()
        host = self._comm.Split_type(MPI.COMM_TYPE_SHARED, self._rank)
        self._leader: int = host.bcast(self._rank)
        is_only_host = host.Get_size() == self._comm.Get_size()
        host.Free()
        self._host_name = None if is_only_host else MPI.Get_processor_name()
        #: Allowance of each rank's private node, as all ranks know them.
        self._allowances = [""] * self._comm.Get_size()

    # Supersteps

    def exchange(self) -> Pairing:
        """Takes new workers into use, drops lost ones, and pairs the ranks. Call it before each superstep.

        Collective. It waits for the other ranks, and for nothing else. The workers stay the same until the next call.

        Raises:
            RuntimeError: after `finish` or `close`.
        """
        comm = self._comm
        if comm is None or not self._is_open:
            raise RuntimeError("cannot pair ranks after the end of the accelerator")
        self._take_up()
        allowance = self._progress_node()
        statuses = comm.allgather(
            _Status(
                has_lease=self._has_lease,
                is_pending=self._leased is not None and self._leased.is_pending(self._patience),
                leader=self._leader,
                served_by=None if self._has_lease or self._serving is None else self._private_leader,
                news=None if allowance == self._allowances[self._rank] else allowance,
            )
        )
        for rank, status in enumerate(statuses):
            if status.news is not None:
                self._allowances[rank] = status.news
        return self._pair(statuses)

    def _take_up(self) -> None:
        """Takes the workers of the lease into use, else those of a private node."""
        workers = None if self._leased is None else self._leased.progress()
        self._has_lease = workers is not None
        if self._has_lease:
            self._use_private(None)
        elif self._private is not None:
            workers = self._private.progress()
        self._serving = workers

    def _progress_node(self) -> str:
        """Starts the private node of this host if it is needed, also again. Returns its allowance; "" for none."""
        if self._node is not None and (failure := self._node.failure()) is not None:
            self._refusal = failure
            self._node.end(0)
            self._node = None
        if self._node is None and self._needs_node and self._starts < MAX_STARTS:
            self._starts += 1
            try:
                self._node = PrivateNode(self._host_name)
            except Error as error:
                self._refusal = error
        return "" if self._node is None else self._node.allowance()

    def _pair(self, statuses: Sequence[_Status]) -> Pairing:
        partners = _paired(statuses) if self._private_nodes else {}
        leaders = {rank: statuses[partner].leader for rank, partner in partners.items()}
        if not self._needs_node and self._rank in leaders.values():
            self._needs_node = True
            self._progress_node()
        self._use_private(leaders.get(self._rank))
        return Pairing(
            with_lease=sum(status.has_lease for status in statuses),
            paired=len(partners),
            with_private=sum(statuses[rank].served_by == leader for rank, leader in leaders.items()),
            partner=partners.get(self._rank),
        )

    def _use_private(self, leader: int | None) -> None:
        """Requests workers of the private node that a leader runs, and returns those of another node."""
        allowance = "" if leader is None else self._allowances[leader]
        if self._private is not None and (leader != self._private_leader or allowance != self._private_allowance):
            if self._serving is not None and not self._has_lease:
                self._serving = None
            self._private.end(wait=False)
            self._private = None
        if self._private is None and allowance:
            self._private_leader, self._private_allowance = leader, allowance
            try:
                self._private = _Source(client_of(allowance), {**self._terms, "mode": "warm"}, owns_client=True)
            except Error as error:
                self._refusal = error
                return
            self._private.progress()

    @property
    def workers(self) -> Fleet | None:
        """The workers of this rank until the next `exchange`; None if it has none."""
        return self._serving

    @property
    def has_lease(self) -> bool:
        """Whether `workers` are those of this rank's own lease."""
        return self._has_lease

    @property
    def refusal(self) -> Error | None:
        """Why the last request for workers was refused, or why the private node ended; None if neither happened."""
        found = [source.refusal for source in (self._leased, self._private) if source is not None]
        return next((refusal for refusal in found if refusal is not None), self._refusal)

    # Calls

    def share(self, fn: Callable[[Any], T], items: Iterable[Any]) -> list[T]:
        """Calls ``fn`` on every item, partly in this thread and partly on the workers. Returns the results in order.

        As `dayfly.Fleet.share`. Without workers, and for items that are lost with them, this thread computes.

        Args:
            fn: the function. It takes one item.
            items: the items. They are all kept in memory.

        Raises:
            dayfly.Error: if a call failed otherwise. Exceptions of the function keep their own types, and end the loop.
        """
        kept, workers = list(items), self._serving
        if workers is not None:
            try:
                return workers.share(fn, kept, idempotent=self._idempotent)
            except Error as error:
                # Some items may have been computed.
                if not self._idempotent or not self._may_be_computed(workers, error):
                    raise
        return [fn(item) for item in kept]

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Invocation[T]:
        """Sends a call to a worker and returns at once. Without workers, `Invocation.result` computes it.

        Args:
            fn: the function.
            args: positional arguments.
            kwargs: keyword arguments.
        """
        compute, workers = functools.partial(fn, *args, **kwargs), self._serving
        if workers is None:
            return Invocation(compute, None, lambda error: True)
        may_be_computed = functools.partial(self._may_be_computed, workers)
        try:
            future = workers.options(idempotent=self._idempotent).submit(fn, *args, **kwargs)
        except Error as error:
            if not may_be_computed(error):
                raise
            future = None
        return Invocation(compute, future, may_be_computed)

    def _may_be_computed(self, workers: Fleet, error: Error) -> bool:
        """Returns whether an error means that workers were lost, so that this rank may compute the call."""
        is_lost = error.code in LOST or workers.workers == 0
        return error.code in NOT_EXECUTED or (self._idempotent and is_lost)

    # End

    def finish(self) -> None:
        """Returns the workers and ends private nodes. Collective; call it before MPI is finalized. Idempotent."""
        comm = self._comm
        if comm is None or not self._is_open:
            return
        try:
            self._return_workers()
        finally:
            # After it, no rank uses a private node any more.
            comm.Barrier()
            self.close()
            comm.Free()

    def close(self) -> None:
        """Returns the workers of this rank and ends its private node, without the other ranks. Idempotent.

        The others lose what the node serves, and compute it. Their `finish` waits for this rank.
        """
        self._is_open = False
        try:
            self._return_workers()
        finally:
            node, self._node = self._node, None
            if node is not None:
                node.end()

    def _return_workers(self) -> None:
        sources, self._leased, self._private = (self._leased, self._private), None, None
        self._serving, self._has_lease = None, False
        for source in sources:
            if source is not None:
                source.end(wait=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # Ranks that did not fail may be in another collective operation.
        if error is None:
            self.finish()
        else:
            self.close()

    def __repr__(self) -> str:
        if not self._is_open:
            return "<dayfly.accelerator.Accelerator, finished>"
        kind = "its lease" if self._has_lease else "a private node" if self._serving is not None else "none"
        return f"<dayfly.accelerator.Accelerator of rank {self._rank}, with workers of {kind}>"


def _check_mpi4py() -> None:
    try:
        import mpi4py  # noqa: F401 (does not initialize MPI)
    except ModuleNotFoundError as error:
        if error.name != "mpi4py":
            raise
        raise ModuleNotFoundError(
            "the accelerator uses MPI by mpi4py, which is not installed: install the extra dayfly[mpi], or "
            "`pip install mpi4py`",
            name="mpi4py",
        ) from None
