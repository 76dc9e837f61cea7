"""How all ranks of a communicator open a session: their options, where they meet, and their group."""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
from typing import Any, NamedTuple, Protocol

from dayfly import groups
from dayfly._failures import error_for
from dayfly._mpi_library import is_over_dayfly
from dayfly._native import Rendezvous

from dayfly_frames import _frames
from dayfly_frames._group import Group, RankSession, error_of_rank, failure_of
from dayfly_frames._lease import StorageOptions, store_options
from dayfly_frames._rank import spill_of_node

#: Microseconds that a waiting rank polls before it sleeps.
SPIN_US = 500
#: Seconds until all ranks have met.
MEETING_S = 60
#: Longest time that a rank waits for the others.
MAX_TIMEOUT_S = 30 * 24 * 3600
#: Fields of the invitation to a group of Dayfly, which a session inside it shares.
ROUTE = ("rendezvous", "key", "voucher", "trust_fabric", "fabric", "store", "channel")


class Communicator(Protocol):
    """What a session needs of mpi4py's communicators and of Dayfly's groups."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def allgather(self, sendobj: Any) -> list[Any]: ...
    def bcast(self, obj: Any, root: int = 0) -> Any: ...


class Options(NamedTuple):
    """The arguments of `Session.of`."""

    cores: int | None
    memory_bytes: int | None
    spill: str | os.PathLike[str] | None
    partition_bytes: int
    storage_options: StorageOptions
    timeout: float
    address: str | None


def open_group(comm: Communicator, options: Options) -> RankSession:
    """Has all ranks of a communicator join a group, and returns this rank's session."""
    host, own = _host(), tuple(sorted(os.sched_getaffinity(0)))
    stores: dict[str, str] = {}
    wrong: str | None = None
    try:
        stores = _checked(options)
    except Exception as error:
        wrong = str(error)
    # Every rank gets here, so that none waits for one whose options are refused.
    met: list[tuple[str, tuple[int, ...], str | None]] = comm.allgather((host, own, wrong))
    for rank, (_, _, found) in enumerate(met):
        if found:
            raise error_for("invalid_request", f"an option of rank {rank} is refused: {found}")
    hosts = [(name, of_host) for name, of_host, _ in met]
    # Processes that mpirun does not bind share all cores of their host.
    threads = options.cores or max(1, len(own) // hosts.count((host, own)))
    rendezvous: Rendezvous | None = None
    opened: tuple[tuple[str, str] | None, dict[str, Any], int] | None = None
    if comm.rank == 0:
        try:
            route = _route_of(comm)
            if route is None:
                rendezvous, route = _own_rendezvous([name for name, _ in hosts], options.address)
            opened = None, route | _secrets(comm.size, options.timeout), threads
        except Exception as error:
            opened = failure_of(error), {}, threads
    failure, invitation, partitions = comm.bcast(opened, root=0)
    if failure:
        raise error_of_rank(0, *failure)
    of_node, spill_bytes = spill_of_node()
    spill = options.spill or of_node
    member = _frames.Member.join(
        json.dumps(invitation | {"rank": comm.rank}),
        threads,
        options.memory_bytes,
        os.fspath(spill) if spill else None,
        spill_bytes,
        partitions,
        options.partition_bytes,
        stores,
    )
    group = Group(member, invitation["name"], comm.rank)

    def end() -> None:
        group.leave()
        if rendezvous is not None:
            rendezvous.close()

    try:
        # A rank that could not join has left.
        group.begin()
    except BaseException:
        end()
        raise
    native = member.session()
    native.set_group(group)
    return RankSession(native, group, end)


def _checked(options: Options) -> dict[str, str]:
    """Returns the options of object stores.

    Raises:
        ValueError: if an option makes no sense.
    """
    for name in ("cores", "memory_bytes", "partition_bytes"):
        number = getattr(options, name)
        if number is not None and number < 1:
            raise ValueError(f"{name}={number}: it is at least 1")
    if options.spill and not os.path.isdir(options.spill):
        raise ValueError(f"spill={os.fspath(options.spill)!r}: it is a directory that exists")
    if not 1 <= options.timeout <= MAX_TIMEOUT_S:
        raise ValueError(f"timeout={options.timeout}: it is at least one second, and at most 30 days")
    stores = store_options(options.storage_options)
    for name in stores:
        if not _frames.is_store_option(name):
            raise ValueError(f"storage_options: object stores have no option {name!r}")
    return stores


def _secrets(size: int, timeout: float) -> dict[str, Any]:
    return {
        "name": f"frames-{secrets.token_hex(8)}",
        "secret": secrets.token_hex(32),
        "size": size,
        "spin_us": SPIN_US,
        "patience_s": MEETING_S,
        "deadline_s": round(timeout),
    }


def _route_of(comm: Communicator) -> dict[str, Any] | None:
    """Returns how the ranks of this process's group have met; None for the ranks of another MPI."""
    module = sys.modules.get("mpi4py.MPI")
    is_of_dayfly = isinstance(comm, groups.Group) or (module is not None and is_over_dayfly(module))
    known = groups.invitation() if is_of_dayfly else None
    return known and {name: known[name] for name in ROUTE if name in known}


def _own_rendezvous(hosts: list[str], address: str | None) -> tuple[Rendezvous, dict[str, Any]]:
    """Starts a rendezvous in this process. Returns it, and how the ranks reach it."""
    others = [host for host in hosts if host != hosts[0]]
    if address is None and not others:
        listen, address = "127.0.0.1:0", "127.0.0.1"
    else:
        listen, address = "0.0.0.0:0", address or _address_for(others[0].split()[0])
    rendezvous = Rendezvous(listen)
    return rendezvous, {"rendezvous": f"{address}:{rendezvous.port}", "key": rendezvous.key}


def _address_for(host: str) -> str:
    """Returns the address of this host that another one sees."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Sends nothing: the system only chooses the interface.
            probe.connect((host, 9))
            return str(probe.getsockname()[0])
        except OSError as error:
            raise error_for(
                "invalid_request",
                f"no address of this host is known that {host} reaches: name it with address= ({error})",
            ) from None


def _host() -> str:
    """Returns a name that processes share if they reach each other on the loopback."""
    try:
        network = os.stat("/proc/self/ns/net").st_ino
    except OSError:
        network = 0
    return f"{os.uname().nodename} {network}"
