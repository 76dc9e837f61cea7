"""`dayfly.run`: runs one function on many workers that communicate."""

from __future__ import annotations

import concurrent.futures as cf
import contextlib
import json
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import cloudpickle

from dayfly._errors import ConnectionFailed, Error, GroupError, LeaseError
from dayfly._futures.future import Future
from dayfly._groups import storage
from dayfly._groups.checkpoint import VARIABLE
from dayfly._groups.rank import run_rank
from dayfly._leases.client import LeaseClient
from dayfly._leases.defaults import Placement
from dayfly._leases.gang import Gang

T = TypeVar("T")

_log = logging.getLogger("dayfly")


def run(
    fn: Callable[..., Any],
    *,
    ranks: int,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    client: LeaseClient | None = None,
    timeout: float | None = None,
    spin: float | None = 0.0005,
    placement: Placement = "packed",
    checkpoint: str | os.PathLike[str] | None = None,
    restarts: int = 0,
    tables: str | os.PathLike[str] | None = None,
    store: str | None = None,
    channel: Literal["direct", "stored"] = "direct",
    fabric: str | None = None,
    lazy_connect: bool = False,
    **lease: Any,
) -> list[Any]:
    """Calls ``fn(*args, **kwargs)`` on several workers at the same time, as the ranks of a group.

    In the function, ``MPI.COMM_WORLD`` connects the ranks after ``from dayfly import MPI``, which is mpi4py's module.
    mpi4py comes with ``dayfly[mpi]``. `dayfly.groups.world` connects them without it.

    Args:
        fn: the function.
        ranks: number of workers, all or none.
        args: positional arguments, the same for all ranks.
        kwargs: keyword arguments, the same for all ranks.
        client: client to lease the workers with; by default the one that `dayfly.connect` finds.
        timeout: maximum seconds of the whole run; None for no limit.
        spin: seconds that a waiting rank polls before it sleeps; None to poll without limit, which has the lowest
            latency if every rank has a core of its own.
        placement: placement of the ranks on nodes, as for `Client.gang`.
        checkpoint: directory or ``s3://bucket/prefix`` for `dayfly.Checkpoint` of the ranks. A later run with the
            same location continues from its last checkpoint.
        restarts: how many times the run is restarted on new workers after a node, the lease or a rank was lost or the
            lease expired. It continues from its last complete checkpoint.
        tables: file written by ``dayfly bench comm --tune``, with the algorithms of the collectives.
        store: URL of a store for ranks that cannot connect to each other: ``s3://bucket/prefix``,
            ``redis://host:port``, ``rediss://`` or ``file:///directory``. For S3, the ranks receive this process's
            ``AWS_*`` variables.
        channel: ``stored`` to communicate through the store only; ``direct`` otherwise.
        fabric: libfabric provider for ranks on different hosts, if both have it, such as ``verbs`` or
            ``verbs/mlx5_0``. With it, traffic between hosts is never encrypted, whether or not they have the provider:
            use it on trusted networks only.
        lazy_connect: whether to connect two ranks when one first needs the other, instead of connecting all ranks at
            the start. Useful for many ranks that each communicate with few.
        lease: further arguments of `Client.lease`, such as ``memory`` or ``sandbox``.

    Returns:
        The results of all ranks, in the order of the ranks.

    Raises:
        GroupError: if a rank is lost, or the ranks called operations that do not match.
        TimeoutError: after ``timeout`` seconds.
        Exception: the exception of the function, from the lowest rank that raised one of its own.
    """
    if ranks < 1:
        raise ValueError(f"ranks={ranks}: ask for at least one")
    if client is None:
        asked = {name: value for name, value in locals().items() if name not in ("client", "fn", "lease")}
        with LeaseClient._open() as own:
            return run(fn, client=own, **asked, **lease)
    held, work = client, pack_call(fn, args, kwargs)
    chosen = group_settings(spin, tables, store, channel, fabric=fabric, lazy_connect=lazy_connect)
    environment = rank_variables(checkpoint, store)
    deadline = None if timeout is None else time.monotonic() + timeout

    def once(lease: Mapping[str, Any]) -> list[Any]:
        with held.gang(ranks, placement=placement, **lease) as gang:
            group = invitation_to(held, ranks) | chosen
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            with storage.store_cleanup(group):
                return gather_results(start_ranks(gang, group, work, environment), left)

    return run_with_restarts(once, {"mode": "warm"} | lease, restarts)


#: Seconds that a restarted run waits for capacity, unless its lease has its own ``wait``.
RESTART_WAIT = 60.0


def run_with_restarts(once: Callable[[dict[str, Any]], T], lease: dict[str, Any], restarts: int) -> T:
    """Calls ``once``, and again after failures that the function did not cause, at most ``restarts`` times."""
    from dayfly._pool_errors import WorkerDied

    # External failures, which a restart can overcome.
    lost = (ConnectionFailed, GroupError, LeaseError, WorkerDied)
    for left in range(restarts, 0, -1):
        try:
            return once(lease)
        except lost as error:
            if isinstance(error, GroupError) and error.code != "rank_lost":
                raise
            again = "once more" if left == 1 else f"up to {left} times more"
            # As text: a log record with the exception would keep the lease alive.
            _log.warning("the run is started again from its last checkpoint, %s: %s", again, str(error))
            # The failure may also have reduced the capacity.
            lease = {"wait": RESTART_WAIT} | lease
    return once(lease)


def pack_call(fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> bytes:
    """Returns a function with its arguments, pickled."""
    work: bytes = cloudpickle.dumps((fn, tuple(args), dict(kwargs or {})), protocol=5)
    return work


def rank_variables(checkpoint: str | os.PathLike[str] | None, store: str | None) -> dict[str, str]:
    """Returns the environment variables with the locations of checkpoints and store, for the ranks."""
    saved = {} if checkpoint is None else {VARIABLE: storage.local_path(checkpoint)}
    return storage.settings(checkpoint, store) | saved


def start_ranks(
    gang: Gang, group: Mapping[str, Any], work: bytes, environment: Mapping[str, str] | None = None
) -> list[Future[Any]]:
    """Starts a packed function on all ranks of a gang, as a group, and returns the futures."""
    more = dict(environment or {})
    return [
        gang.rank(rank).submit(run_rank, json.dumps({**group, "rank": rank}), work, more) for rank in range(len(gang))
    ]


#: Seconds until all ranks must have joined. Ranks join when they first use the group, after work of their own.
PATIENCE_S = 600


def group_settings(
    spin: float | None,
    tables: str | os.PathLike[str] | None,
    store: str | None,
    channel: str,
    *,
    fabric: str | None = None,
    lazy_connect: bool = False,
) -> dict[str, Any]:
    """Returns the part of an invitation that configures how ranks wait and communicate."""
    chosen: dict[str, Any] = {"patience_s": PATIENCE_S, **storage.channel_settings(store, channel)}
    if spin is not None:
        chosen["spin_us"] = round(spin * 1e6)
    if tables is not None:
        chosen["tables"] = json.loads(Path(tables).read_text())
    if fabric is not None:
        chosen |= {"fabric": fabric, "trust_fabric": True}
    if lazy_connect:
        chosen["lazy_connect"] = True
    return chosen


def invitation_to(client: LeaseClient, size: int) -> dict[str, Any]:
    """Returns the invitation to a new group, without the number of the rank."""
    place = client.rendezvous()
    # Other groups use the same rendezvous, so the name must be unique. By the prefix, the manager knows the tenant.
    name = f"{place.get('group_prefix', '')}run-{secrets.token_hex(8)}"
    return {
        "rendezvous": place["address"],
        "key": place["key"],
        "voucher": place["voucher"],
        "name": name,
        "secret": secrets.token_hex(32),
        "size": size,
    }


def kill_all(futures: Iterable[Future[Any]]) -> None:
    """Kills calls, whether or not they have begun."""
    for future in futures:
        # A call that has ended meanwhile, or whose lease has, needs no kill.
        with contextlib.suppress(Error):
            future.kill()


def gather_results(futures: list[Future[Any]], timeout: float | None) -> list[Any]:
    """Waits for all ranks and returns their results, or raises the cause of a failure."""
    done: Any
    waiting: Any
    done, waiting = cf.wait(futures, timeout=timeout, return_when=cf.FIRST_EXCEPTION)
    failed = [future for future in futures if future in done and future.exception() is not None]
    if not failed and waiting:
        kill_all(waiting)
        raise TimeoutError(f"{len(waiting)} of {len(futures)} ranks had not ended within {timeout} s")
    if failed:
        # Other ranks detect the loss when they next need the failed rank. The rest run to their end.
        done, waiting = cf.wait(futures, timeout=GRACE)
        kill_all(waiting)
        cause = _cause([future.exception() for future in futures if future in done])
        try:
            raise cause
        finally:
            # The traceback would keep the futures, one future the exception, and all of them the lease.
            del cause, futures, failed, done, waiting
    return [future.result() for future in futures]


#: Seconds that the other ranks have to end after one has failed.
GRACE = 5.0


def _cause(errors: list[BaseException | None]) -> BaseException:
    """Returns the first failure that is not a consequence of another."""
    raised = [error for error in errors if error is not None]
    own = [error for error in raised if not isinstance(error, GroupError)]
    return (own or raised)[0]
