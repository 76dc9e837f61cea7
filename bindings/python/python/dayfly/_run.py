"""`dayfly.run`: one function on many workers that talk to each other."""

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

from dayfly import _checkpoint, _storage
from dayfly._client import Client, connect
from dayfly._errors import ConnectionFailed, Error, GroupError, LeaseError
from dayfly._future import Future
from dayfly._gang import Gang

T = TypeVar("T")

_log = logging.getLogger("dayfly")


def run(
    fn: Callable[..., Any],
    *,
    ranks: int,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    client: Client | None = None,
    timeout: float | None = None,
    spin: float | None = 0.0005,
    placement: Literal["packed", "spread", "together", "fabric"] = "packed",
    checkpoint: str | os.PathLike[str] | None = None,
    restarts: int = 0,
    tables: str | os.PathLike[str] | None = None,
    store: str | None = None,
    channel: Literal["direct", "stored"] = "direct",
    fabric: str | None = None,
    lazily: bool = False,
    **lease: Any,
) -> list[Any]:
    """Calls ``fn(*args, **kwargs)`` on so many workers at once, which form a group, and answers their results, by rank.

    Inside, ``dayfly.MPI.COMM_WORLD`` connects them: ``from dayfly import MPI``, as with mpi4py.

    Args:
        fn: the function.
        ranks: workers; all or none.
        args: its arguments, the same for all.
        kwargs: its keyword arguments.
        client: where to lease them; by default as `dayfly.connect` finds it.
        timeout: seconds that all of it may take.
        spin: seconds that a waiting rank polls before it sleeps; None for always, which answers fastest if every rank
            has a core of its own.
        placement: on which nodes, as of `Client.gang`.
        checkpoint: directory, or ``s3://bucket/prefix``, where `dayfly.Checkpoint` of the ranks saves; the same one
            goes on with what is there.
        restarts: how often the run is started again, on new workers, after a node, its lease or a rank was lost or its
            time was over. It goes on from its last complete checkpoint.
        tables: file that ``dayfly bench comm --tune`` wrote: which algorithms collectives use.
        store: URL of a store for ranks that reach each other in no other way: ``s3://bucket/prefix``,
            ``redis://host:port``, ``rediss://`` or ``file:///directory``. For S3, the ``AWS_*`` variables of this
            process go along.
        channel: ``stored`` for ranks that exchange through the store alone.
        fabric: provider of libfabric over which ranks on different hosts exchange, where both have it, such as
            ``verbs`` or ``verbs/mlx5_0``. Nothing is encrypted then, whether they have it or not: nobody may listen
            between the hosts.
        lazily: whether two ranks are connected when one of them first needs the other, instead of all with all at the
            start. For many ranks of which each exchanges with few.
        lease: more of `Client.lease`, such as ``memory`` or ``sandbox``.

    Raises:
        GroupError: a rank is lost, or the ranks did not call what fits together.
        TimeoutError: after ``timeout`` seconds.
        Exception: what the function raised, on the lowest rank that raised something of its own.
    """
    if ranks < 1:
        raise ValueError(f"ranks={ranks}: ask for at least one")
    if client is None:
        asked = {name: value for name, value in locals().items() if name not in ("client", "fn", "lease")}
        with connect() as own:
            return run(fn, client=own, **asked, **lease)
    held, work = client, packed(fn, args, kwargs)
    chosen = choices(spin, tables, store, channel, fabric=fabric, lazily=lazily)
    environment = variables(checkpoint, store)
    deadline = None if timeout is None else time.monotonic() + timeout

    def once(lease: Mapping[str, Any]) -> list[Any]:
        with held.gang(ranks, placement=placement, **lease) as gang:
            group = invitation_to(held, ranks) | chosen
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            with _storage.cleared(group):
                return gather(start(gang, group, work, environment), left)

    return restarting(once, {"mode": "warm"} | lease, restarts)


#: Seconds that a run which starts again waits for room, unless its lease says otherwise.
RESTART_WAIT = 60.0


def restarting(once: Callable[[dict[str, Any]], T], lease: dict[str, Any], restarts: int) -> T:
    """Does something on a new lease each time that it was lost by no fault of its own, so often at most."""
    from dayfly._broken import WorkerDied

    # What happens to a run from outside, rather than by what it does.
    lost = (ConnectionFailed, GroupError, LeaseError, WorkerDied)
    for left in range(restarts, 0, -1):
        try:
            return once(lease)
        except lost as error:
            if isinstance(error, GroupError) and error.code != "rank_lost":
                raise
            again = "once more" if left == 1 else f"up to {left} times more"
            # As text: whoever keeps what was logged would keep the exception, and with that the lease.
            _log.warning("the run is started again from its last checkpoint, %s: %s", again, str(error))
            # What was lost was room, too.
            lease = {"wait": RESTART_WAIT} | lease
    return once(lease)


def packed(fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> bytes:
    """A function with its arguments, as it travels."""
    work: bytes = cloudpickle.dumps((fn, tuple(args), dict(kwargs or {})), protocol=5)
    return work


def variables(checkpoint: str | os.PathLike[str] | None, store: str | None) -> dict[str, str]:
    """The environment in which ranks reach where they save and what they exchange through."""
    saved = {} if checkpoint is None else {_checkpoint.VARIABLE: _storage.local(checkpoint)}
    return _storage.settings(checkpoint, store) | saved


def start(
    gang: Gang, group: Mapping[str, Any], work: bytes, environment: Mapping[str, str] | None = None
) -> list[Future[Any]]:
    """Starts what was packed on all ranks of a gang, as a group."""
    more = dict(environment or {})
    return [gang.rank(rank).submit(_rank, json.dumps({**group, "rank": rank}), work, more) for rank in range(len(gang))]


def choices(
    spin: float | None,
    tables: str | os.PathLike[str] | None,
    store: str | None,
    channel: str,
    *,
    fabric: str | None = None,
    lazily: bool = False,
) -> dict[str, Any]:
    """What an invitation says of how ranks wait and exchange."""
    chosen: dict[str, Any] = _storage.channel(store, channel)
    if spin is not None:
        chosen["spin_us"] = round(spin * 1e6)
    if tables is not None:
        chosen["tables"] = json.loads(Path(tables).read_text())
    if fabric is not None:
        chosen |= {"fabric": fabric, "trust_fabric": True}
    if lazily:
        chosen["lazily"] = True
    return chosen


def invitation_to(client: Client, size: int) -> dict[str, Any]:
    """What the ranks of a new group need to find each other, all but their numbers."""
    place = client.rendezvous()
    # Others meet there too, whose names are not known.
    name = f"run-{secrets.token_hex(8)}"
    return {
        "rendezvous": place["address"],
        "key": place["key"],
        "voucher": place["voucher"],
        "name": name,
        "secret": secrets.token_hex(32),
        "size": size,
    }


def _rank(group: str, work: bytes, environment: dict[str, str]) -> Any:
    """What each worker does."""
    from dayfly import MPI

    with _storage.environment(environment):
        MPI._join(group)
        try:
            fn, args, kwargs = cloudpickle.loads(work)
            return fn(*args, **kwargs)
        finally:
            MPI._leave()


def kill(futures: Iterable[Future[Any]]) -> None:
    """Ends calls, whatever state they are in."""
    for future in futures:
        # One that is over meanwhile, or whose lease is, needs no end.
        with contextlib.suppress(Error):
            future.kill()


def gather(futures: list[Future[Any]], timeout: float | None) -> list[Any]:
    """The results of all ranks, or what is the cause of a failure, when all have ended."""
    done: Any
    waiting: Any
    done, waiting = cf.wait(futures, timeout=timeout, return_when=cf.FIRST_EXCEPTION)
    failed = [future for future in futures if future in done and future.exception() is not None]
    if not failed and waiting:
        kill(waiting)
        raise TimeoutError(f"{len(waiting)} of {len(futures)} ranks had not ended within {timeout} s")
    if failed:
        # The others hear that a rank has left as soon as they need it; those that need none go on to their end.
        done, waiting = cf.wait(futures, timeout=GRACE)
        kill(waiting)
        cause = _cause([future.exception() for future in futures if future in done])
        try:
            raise cause
        finally:
            # Otherwise its traceback would keep the futures, and one of those the exception, and all of them the lease.
            del cause, futures, failed, done, waiting
    return [future.result() for future in futures]


#: Seconds that the other ranks have to end after one has failed.
GRACE = 5.0


def _cause(errors: list[BaseException | None]) -> BaseException:
    """Of several failures that one which is no consequence of another."""
    raised = [error for error in errors if error is not None]
    own = [error for error in raised if not isinstance(error, GroupError)]
    return (own or raised)[0]
