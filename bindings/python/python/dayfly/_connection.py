"""The connection of a client to its manager, and the leases and executors that end with it."""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import weakref
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from dayfly import _native
from dayfly._codec.trust import NOBODY, Trust
from dayfly._errors import ConnectionFailed, RequestError
from dayfly._program import binary


class _Work(Protocol):
    """A lease or an executor."""

    def shutdown(self, wait: bool = ...) -> None: ...

    def _interrupt(self) -> None: ...


class Connection:
    """The base of `Client`: what leases, tasks and groups need of it."""

    def __init__(self, native: _native.Client) -> None:
        self._native = native
        #: Other tenants whose results this client unpickles.
        self._trust: Trust = NOBODY
        #: Untrusted tenants that operate the workers that this client leases.
        self._foreign: list[str] = []
        self._leases: weakref.WeakSet[_Work] = weakref.WeakSet()
        #: Executors of this client. `close` ends them.
        self._executors: weakref.WeakSet[_Work] = weakref.WeakSet()
        self._pid = os.getpid()
        # Reentrant: an executor registers itself while it is created under this lock.
        self._lock = threading.RLock()
        #: Names and ids of endpoints that were found to exist.
        self._known_endpoints: set[str] = set()
        _connections.add(self)

    @classmethod
    def _open(
        cls,
        url: str | os.PathLike[str] | None = None,
        *,
        config: str | os.PathLike[str] | None = None,
        token: str | None = None,
        ca: str | os.PathLike[str] | None = None,
        node: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Connects to a manager or a node. The arguments are those of `dayfly.connect`."""
        if node is not None:
            return cls(_native.Client.node(os.fspath(node)))
        path = config if config is not None else url
        if url is not None and os.fspath(url).startswith(("https://", "http://")):
            if token is None or ca is None:
                raise ValueError("an address needs token= and ca= beside it; a connection file has all three")
            return cls(_native.Client.manager(os.fspath(url), token, Path(ca).read_text()))
        return cls(_native.Client.connect(None if path is None else os.fspath(path), binary()))

    @classmethod
    def _own(cls) -> Self:
        """Starts an embedded manager, regardless of the configuration."""
        return cls(_native.Client.embedded(binary()))

    def endpoints(self) -> list[dict[str, Any]]:
        """Returns the endpoints that you may use, with their load."""
        endpoints: list[dict[str, Any]] = json.loads(self._native.get("/v1/endpoints"))
        return endpoints

    def nodes(self) -> list[dict[str, Any]]:
        """Returns the manager's nodes."""
        nodes: list[dict[str, Any]] = json.loads(self._native.get("/v1/nodes"))
        return nodes

    def rendezvous(self) -> dict[str, str]:
        """Returns the rendezvous for the ranks of groups: its ``address`` (``host:port``) and its ``key``."""
        place: dict[str, str] = json.loads(self._native.get("/v1/rendezvous"))
        return place

    def close(self) -> None:
        """Shuts down this client's executors and leases, and its manager if that is embedded."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            leases, executors = list(self._leases), list(self._executors)
        for executor in executors:
            executor.shutdown(wait=False)
        for lease in leases:
            lease.shutdown(wait=True)
        self._native.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _check_endpoint(self, name: str) -> None:
        """Checks that an endpoint exists. Does nothing if the manager cannot be reached.

        Raises:
            dayfly.RequestError: ``not_found``, with the names of the existing endpoints.
        """
        if name in self._known_endpoints:
            return
        try:
            known = self.endpoints()
        except ConnectionFailed:
            # Submitted tasks wait for the manager, which then refuses the endpoint.
            return
        # The manager counts tasks to list endpoints, which is expensive if there are many tasks.
        self._known_endpoints |= {str(endpoint[key]) for endpoint in known for key in ("name", "id")}
        if name in self._known_endpoints:
            return
        names = ", ".join(f"`{endpoint['name']}`" for endpoint in known) or "none"
        raise RequestError(
            f"there is no endpoint `{name}` that you may use. There are: {names}. `client.endpoints()` and "
            "`dayfly endpoint list` show them",
            "not_found",
        )

    def _keep(self, executor: _Work) -> None:
        """Registers an executor that must end with this client or process at the latest."""
        with self._lock:
            self._executors.add(executor)

    def _forget(self, lease: _Work) -> None:
        with self._lock:
            self._leases.discard(lease)

    def _abandon(self) -> None:
        """Ends the client at process exit. Submitted work runs to its end, as with other executors."""
        if os.getpid() == self._pid:
            is_interrupted = getattr(sys, "last_type", None) is KeyboardInterrupt
            waits = self._native.is_embedded()
            for executor in list(self._executors):
                if is_interrupted and waits:
                    executor._interrupt()
                executor.shutdown(wait=waits)
            for lease in list(self._leases):
                if is_interrupted:
                    lease._interrupt()
                lease.shutdown(wait=True)
            self._native.close()


_connections: weakref.WeakSet[Connection] = weakref.WeakSet()


@atexit.register
def _at_exit() -> None:
    for connection in list(_connections):
        try:
            connection._abandon()
        except Exception as error:
            print(f"dayfly: {error}", file=sys.stderr)
