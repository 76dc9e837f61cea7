"""`mayfly.run`: one function on many workers that talk to each other."""

from __future__ import annotations

import concurrent.futures as cf
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cloudpickle

from mayfly._client import Client, connect


def run(
    fn: Callable[..., Any],
    *,
    ranks: int,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    client: Client | None = None,
    timeout: float | None = None,
    spin: float | None = 0.0005,
    **lease: Any,
) -> list[Any]:
    """Calls ``fn(*args, **kwargs)`` on so many workers at once, which form a group, and answers their results, by rank.

    Inside, ``mayfly.MPI.COMM_WORLD`` connects them: ``from mayfly import MPI``, as with mpi4py.

    Args:
        fn: the function.
        ranks: workers; all or none.
        args: its arguments, the same for all.
        kwargs: its keyword arguments.
        client: where to lease them; by default as `mayfly.connect` finds it.
        timeout: seconds that all of it may take.
        spin: seconds that a waiting rank polls before it sleeps; None for always, which answers fastest if every rank
            has a core of its own.
        lease: more of `Client.lease`, such as ``memory`` or ``sandbox``.

    Raises:
        GroupError: a rank is lost, or the ranks did not call what fits together.
        TimeoutError: after ``timeout`` seconds.
        Exception: what the function raised, on the lowest rank that raised something of its own.
    """
    if ranks < 1:
        raise ValueError(f"ranks={ranks}: ask for at least one")
    if client is None:
        with connect() as own:
            return run(fn, ranks=ranks, args=args, kwargs=kwargs, client=own, timeout=timeout, spin=spin, **lease)
    invitation = invitation_to(client, ranks)
    if spin is not None:
        invitation["spin_us"] = round(spin * 1e6)
    work = cloudpickle.dumps((fn, tuple(args), dict(kwargs or {})), protocol=5)
    with client.lease(workers=ranks, **({"mode": "warm"} | lease)) as held:
        futures = [
            held.options(worker=rank).submit(_rank, json.dumps(invitation | {"rank": rank}), work)
            for rank in range(ranks)
        ]
        return _gather(futures, timeout)


def invitation_to(client: Client, size: int) -> dict[str, Any]:
    """What the ranks of a new group need to find each other, all but their numbers."""
    place = client.rendezvous()
    # Others meet there too, whose names are not known.
    name = f"run-{secrets.token_hex(8)}"
    return {
        "rendezvous": place["address"],
        "key": place["key"],
        "name": name,
        "secret": secrets.token_hex(32),
        "size": size,
    }


def _rank(invitation: str, work: bytes) -> Any:
    """What each worker does."""
    from mayfly import MPI

    MPI._join(invitation)
    try:
        fn, args, kwargs = cloudpickle.loads(work)
        return fn(*args, **kwargs)
    finally:
        MPI._leave()


def _gather(futures: list[Any], timeout: float | None) -> list[Any]:
    done: Any
    waiting: Any
    done, waiting = cf.wait(futures, timeout=timeout, return_when=cf.FIRST_EXCEPTION)
    failed = [future for future in futures if future in done and future.exception() is not None]
    if not failed and waiting:
        for future in waiting:
            future.kill()
        raise TimeoutError(f"{len(waiting)} of {len(futures)} ranks had not ended within {timeout} s")
    if failed:
        # The others hear that a rank has left as soon as they need it; those that need none go on to their end.
        done, waiting = cf.wait(futures, timeout=GRACE)
        for future in waiting:
            future.kill()
        raise _cause([future.exception() for future in futures if future in done])
    return [future.result() for future in futures]


#: Seconds that the other ranks have to end after one has failed.
GRACE = 5.0


def _cause(errors: list[BaseException | None]) -> BaseException:
    """Of several failures that one which is no consequence of another."""
    from mayfly._errors import GroupError

    raised = [error for error in errors if error is not None]
    own = [error for error in raised if not isinstance(error, GroupError)]
    return (own or raised)[0]
