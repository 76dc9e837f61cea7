"""The executor without durability: calls go directly to leased workers, and end with the submitting process."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar
from urllib.parse import quote

from dayfly._environment import EnvironmentLike
from dayfly._errors import Error
from dayfly._initializer import check_endpoint, workers_of, wrapper
from dayfly._map import async_results
from dayfly._programs import Program
from dayfly._tasks import Executor, Registered
from dayfly._trust import TrustLike, distrusted, joined, trust_of

if TYPE_CHECKING:
    from dayfly._client import Client
    from dayfly._future import Future

P = ParamSpec("P")
T = TypeVar("T")

#: The endpoint whose nodes belong to the client's own manager.
LOCAL = "local"
#: Seconds to wait for capacity and for the environment.
WAIT = 1800.0


class Direct(Executor):
    """The executor that ``Executor(durable=False)`` returns; see `Executor`."""

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        client: Client | None = None,
        durable: bool = False,
        workers: int | None = None,
        walltime: float | None = None,
        repeatable: bool = False,
        environment: EnvironmentLike = None,
        image: str | None = None,
        cores: int = 1,
        memory: int = 0,
        gpus: int = 0,
        max_workers: int | None = None,
        max_tasks_per_child: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        trust: TrustLike = None,
        **durable_alone: Any,
    ) -> None:
        check_endpoint(endpoint)
        workers = workers_of(workers, max_workers, max_tasks_per_child)
        wrap = wrapper(initializer, initargs)
        if asked := sorted(name for name, value in durable_alone.items() if value):
            raise ValueError(f"{', '.join(asked)}: only for durable tasks; leave it out, or durable=False itself")
        from dayfly._client import connect

        self._own_client = client is None
        if client is None:
            client = connect()
        if endpoint not in (None, LOCAL):
            own = client
            try:
                own._check_endpoint(str(endpoint))
                foreign = distrusted(_others(own, str(endpoint)), joined(own._trust, trust_of(trust)))
                # Through the endpoint's own manager, to which the endpoint invites us.
                client = _manager_of(own, str(endpoint))
                client._foreign = foreign
            finally:
                if self._own_client:
                    own.close()
            self._own_client = True
        self._client = client
        try:
            if workers is None:
                # Without a node, ask for one worker: a waiting request makes the endpoint start a node.
                workers = max(1, sum(node["free"]["cores"] for node in client.nodes()))
            self._lease = client.lease(
                workers,
                mode="warm",
                cores=cores,
                memory=memory * workers,
                gpus=gpus,
                environment=environment,
                image=image,
                wait=WAIT,
            )
        except BaseException as error:
            if isinstance(error, Error) and error.code == "unreachable" and endpoint not in (None, LOCAL):
                error.add_note(
                    f"from here the nodes of {endpoint!r} cannot be reached; leave durable=False out: durable tasks "
                    "need no way to them"
                )
            if self._own_client:
                client.close()
            raise
        if wrap is not None:
            self._lease._initialize_with(wrap)
        self._calls = self._lease.options(deadline=walltime, idempotent=repeatable)

    @property
    def tag(self) -> str:
        """Empty: calls that are not durable cannot be found again."""
        return ""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Calls a function on a leased worker, and returns the future."""
        self._lease._check_whole()
        return self._calls.submit(_callable(fn), *args, **kwargs)

    def map(
        self, fn: Callable[..., T], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 0
    ) -> Iterator[T]:
        """Calls a function on every item, and returns an iterator over the results, in order.

        By default, ``chunksize`` adapts to about half a millisecond of work in one call.
        """
        self._lease._check_whole()
        return self._calls.map(_callable(fn), *iterables, timeout=timeout, chunksize=chunksize or None)

    async def amap(self, fn: Callable[..., T], *iterables: Iterable[Any], chunksize: int = 0) -> AsyncIterator[T]:
        """As `map`, for ``async for``."""
        self._lease._check_whole()
        chunks = self._lease._chunks(_callable(fn), iterables, chunksize or None, False, self._calls._options)
        async for result in async_results(chunks):
            yield result

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the executor and its lease. Without ``wait``, the lease ends in the background, after its calls."""
        self._lease.shutdown(wait=wait or self._own_client, cancel_futures=cancel_futures)
        if self._own_client:
            self._client.close()

    def _interrupt(self) -> None:
        self._lease._interrupt()

    def __repr__(self) -> str:
        return f"<dayfly.Executor on {self._lease!r}>"


def _callable(fn: Any) -> Any:
    """Returns the callable for a worker."""
    if type(fn) is Registered:
        if fn._fn is None:
            raise TypeError(f"{fn!r} is kept by the manager, for durable tasks; pass the function itself")
        fn = fn._fn
    if isinstance(fn, Program):
        raise TypeError(f"{fn!r} runs as a durable task alone; leave durable=False out")
    return fn


def _others(client: Client, endpoint: str) -> list[str]:
    """Returns the tenant that runs an endpoint, if it is another; an empty name if that is unknown."""
    statuses = client.endpoints()
    found = next((status for status in statuses if endpoint in (status["name"], status["id"])), None)
    if found is None:
        return [""]
    return [found["owner"]] if found.get("foreign") else []


def _manager_of(client: Client, endpoint: str) -> Client:
    """Returns a client of the manager of an endpoint's own nodes, by the endpoint's invitation."""
    from dayfly import _native
    from dayfly._client import Client

    place = json.loads(client._native.post(f"/v1/endpoints/{quote(endpoint, safe='')}/invitation", "{}"))
    return Client(_native.Client.manager(place["manager"], place["token"], place["ca_pem"]))
