"""Clients: connections to a manager, which grant leases and submit durable tasks."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from dayfly._codec.trust import TrustLike, trust_of
from dayfly._leases.client import LeaseClient
from dayfly._leases.defaults import Placement
from dayfly._tasks.flow_client import FlowClient
from dayfly._tasks.task_client import TaskClient

if TYPE_CHECKING:
    from dayfly_frames import Session


def connect(
    url: str | os.PathLike[str] | None = None,
    *,
    config: str | os.PathLike[str] | None = None,
    token: str | None = None,
    ca: str | os.PathLike[str] | None = None,
    node: str | os.PathLike[str] | None = None,
    trust: TrustLike = None,
) -> Client:
    """Connects to a manager.

    The manager is the one that the arguments name, else the one in the environment variable ``DAYFLY_MANAGER``, else
    the one that ``dayfly up`` recorded in this user's state directory. If there is none, this process starts a manager
    of its own, which ends with the process.

    Args:
        url: address of a manager, such as ``https://host:7070`` (requires ``token`` and ``ca``), or path of a
            connection file or of the state directory that contains one.
        config: the same path, as a keyword. It takes precedence over ``url`` when both are paths.
        token: bearer token, when ``url`` is an address.
        ca: file with the certificate of the manager's certificate authority, when ``url`` is an address.
        node: allowance file (``allowance.json``) of a node. The client then leases from that node without a manager.
        trust: names of other tenants whose results this process unpickles, or True for all tenants. Unpickling runs
            code that they choose. All other foreign results are read as data only: plain values, NumPy arrays and
            Arrow tables. A result that contains anything else raises `dayfly.Untrusted`.

    Returns:
        The connected client. Use it as a context manager, or call `Client.close`.

    Raises:
        ValueError: if ``url`` is an address and ``token`` or ``ca`` is missing.
        dayfly.Error: if the manager cannot be reached, or refuses the connection.

    >>> with connect() as client:  # doctest: +SKIP
    ...     client
    <dayfly.Client of embedded manager at https://127.0.0.1:...>
    """
    client = Client._open(url, config=config, token=token, ca=ca, node=node)
    client._trust = trust_of(trust)
    return client


class Client(LeaseClient, TaskClient, FlowClient):
    """A connection to a manager. Created by `connect`."""

    def frames(
        self,
        ranks: int = 2,
        *,
        placement: Placement = "packed",
        recover: Literal["auto", "query", "tasks", "none"] = "auto",
        partition_bytes: int = 1 << 20,
        storage_options: Mapping[str, str] | Literal["env"] | None = None,
        progress: bool = False,
        store: str | None = None,
        channel: Literal["direct", "stored"] = "direct",
        **lease: Any,
    ) -> Session:
        """Leases workers for data frames and SQL. Needs the package ``dayfly-frames``.

        >>> from dayfly.frames import col, count  # doctest: +SKIP
        >>> with client.frames(ranks=2) as session:  # doctest: +SKIP
        ...     trips = session.scan_parquet("trips/*.parquet")
        ...     print(trips.group_by("zone").agg(count()).collect())

        Args:
            ranks: number of workers, all or none. Each executes a part of every query.
            placement: placement of the ranks on nodes, as for `gang`.
            recover: with ``query``, a query whose ranks are lost leases others and runs again, at most three times in
                all, unless it has returned rows already. With ``tasks``, the ranks keep what their tasks have computed
                until a query ends, and only the tasks of a lost rank run again, on the ranks that are left. With
                ``auto``, this is so for queries that read about 4 GiB of files or more; others run again as a whole on
                the ranks that are left, unless they have returned rows. With ``none``, a query fails. ``Frame.explain``
                shows which one a query has.
            partition_bytes: bytes of a table's files for each core of a rank. Fewer ranks read a smaller table.
            storage_options: how the ranks reach files under ``s3://``: ``aws_access_key_id``, ``aws_region``,
                ``aws_secret_access_key``, ``aws_session_token``, ``aws_endpoint_url`` and so on. With ``env``, the
                variables of this process, such as ``AWS_REGION``. They go to the workers: name keys with few rights.
            progress: whether queries that take longer show their stages, tasks, rows and bytes: as a line on standard
                error, in a notebook as a table. ``Session.running`` has the same.
            store: URL of a store for ranks that cannot connect to each other: ``s3://bucket/prefix``,
                ``redis://host:port``, ``rediss://`` or ``file:///directory``. For ``s3://``, this process's ``AWS_...``
                variables go to the workers.
            channel: ``stored`` to exchange rows through the store only; ``direct`` otherwise.
            lease: further arguments of `lease`; ``cores`` and ``memory`` bound what queries use. The session renews its
                leases until it is closed.

        Returns:
            The session. Closing it ends the lease.

        Raises:
            ImportError: if the package is not installed.
            ValueError: for ``channel="stored"`` without a store, and other arguments that cannot be.
            dayfly.Error: if the workers cannot be leased, or a rank does not start.
        """
        from dayfly.frames import open_session

        return open_session(
            self,
            ranks,
            placement,
            lease,
            recover=recover,
            partition_bytes=partition_bytes,
            storage_options=storage_options,
            progress=progress,
            store=store,
            channel=channel,
        )

    def remove_endpoint(self, name: str) -> dict[str, Any]:
        """Removes an endpoint of yours. Its tasks end.

        Args:
            name: name of the endpoint, as in `endpoints`.

        Returns:
            The last status of the endpoint.
        """
        endpoint: dict[str, Any] = json.loads(self._native.delete(f"/v1/endpoints/{quote(name, safe='')}"))
        return endpoint

    def team(self, name: str, members: Iterable[str], *, description: str = "") -> dict[str, Any]:
        """Creates a team of tenants, or changes yours. `register` shares functions with it as ``team:NAME``.

        Args:
            name: name, unique among the teams of all tenants.
            members: names of tenants.
            description: description for people.

        Returns:
            The team.
        """
        spec = json.dumps({"members": list(members), "description": description})
        team: dict[str, Any] = json.loads(self._native.put(f"/v1/teams/{quote(name, safe='')}", spec))
        return team

    def teams(self) -> list[dict[str, Any]]:
        """Returns the teams that you own or belong to."""
        teams: list[dict[str, Any]] = json.loads(self._native.get("/v1/teams"))
        return teams

    def remove_team(self, name: str) -> dict[str, Any]:
        """Removes a team of yours. Functions shared with the team are no longer shared with its members.

        Returns:
            The removed team.
        """
        team: dict[str, Any] = json.loads(self._native.delete(f"/v1/teams/{quote(name, safe='')}"))
        return team

    def usage(self, *, everybody: bool = False) -> list[dict[str, Any]]:
        """Returns the resources that your durable tasks used, by day, function and endpoint; see the API's
        ``UsageLine``.

        Args:
            everybody: whether to include all tenants. Requires the operator role.
        """
        lines: list[dict[str, Any]] = json.loads(self._native.get(f"/v1/usage?everybody={str(everybody).lower()}"))
        return lines

    def __repr__(self) -> str:
        return f"<dayfly.Client of {self._native.describe()}>"
