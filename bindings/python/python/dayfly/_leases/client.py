"""The requests of a client for leases."""

from __future__ import annotations

import functools
import inspect
import json
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, Self

from dayfly._connection import Connection
from dayfly._functions.environment import EnvironmentLike, environment_of
from dayfly._functions.runtime import runtime
from dayfly._leases.defaults import BULK, DAY, MAX_LEASE_WORKERS, SLOTS, STRIDE, Borrow, Placement
from dayfly._leases.gang import run_parallel
from dayfly._trace import traceparent

if TYPE_CHECKING:
    from dayfly._leases.fleet import Fleet
    from dayfly._leases.gang import Gang
    from dayfly._leases.lease import Lease


class LeaseClient(Connection):
    """The part of `Client` that leases workers."""

    def lease(
        self,
        workers: int = 1,
        *,
        mode: Literal["auto", "hot", "warm"] = "auto",
        duration: float = DAY,
        memory: int = 0,
        cores: float = 1,
        gpus: int = 0,
        lend: bool = True,
        borrow: Borrow = "cpu",
        hot_for: float | None = None,
        poll_for: float = 0.0,
        runtime: Literal["python", "native"] = "python",
        transport: str = "auto",
        idle_release: float = 10.0,
        node: str | None = None,
        sandbox: Literal["process", "isolated", "container"] | None = None,
        image: str | os.PathLike[str] | None = None,
        environment: EnvironmentLike = None,
        readable: Iterable[str | os.PathLike[str]] = (),
        writable: Iterable[str | os.PathLike[str]] = (),
        network: bool = False,
        wait: float = 0.0,
        slots: int = SLOTS,
        stride: int = STRIDE,
        bulk: int = BULK,
        spin: float | None = 50e-6,
        depth: int = 0,
        retries: int = 3,
        echo: bool = False,
    ) -> Lease:
        """Leases workers and opens a channel to each.

        Args:
            workers: number of workers.
            mode: ``hot`` workers poll, each on a core of its own. ``warm`` workers sleep while they wait. ``auto`` is
                ``hot`` if enough cores are free, else ``warm``. `Lease.mode` returns the mode that was granted.
            duration: seconds until the lease ends, counted from its first use.
            memory: bytes for the whole lease; 0 for the node's default share.
            cores: cores of each worker. A warm worker counts as that many workers towards the node's limit. It may have
                a part of a core: at least 0.01, with at most three decimals. Hot workers have whole cores.
            gpus: GPUs of each worker. ``CUDA_VISIBLE_DEVICES`` names them, and the worker sees no others.
            lend: whether calls of warm workers lend cores and memory that they do not use, where the node harvests.
                They get them back when they need them.
            borrow: what such calls may borrow: ``none``, ``cpu``, or ``cpu,memory``. A call that cannot return borrowed
                memory in time is ended with ``memory_returned``.
            hot_for: seconds that a hot worker polls after a call before it sleeps; None for no limit. While it sleeps,
                other leases may have its core. It then runs as a warm worker until a core is free.
            poll_for: seconds that a warm worker polls after a call before it sleeps; at most 0.01. Polling is billed.
            runtime: ``python`` workers call Python functions and shared libraries; ``native`` workers call shared
                libraries only.
            transport: ``shm``, ``tcp``, ``tls``, ``libfabric`` or ``libfabric:PROVIDER``. ``auto`` chooses the best of
                the first three.
            idle_release: seconds that the lease stays after its last channel has closed, for example because this
                process died; 0 to keep it for its whole duration.
            node: id of the node to lease from; None for any node.
            sandbox: ``process`` workers run as the node's own user. ``isolated`` workers see programs, libraries and
                the files named here, and have no privileges, no network and bounded memory. ``container`` workers are
                isolated workers that see an image in place of the host's programs and libraries. None is
                ``container`` if ``image`` is given, else the site's default.
            image: container image, as a name or path that the site allows. Append ``@sha256:...`` to require one
                version. The image provides Python, in the client's minor version, and the modules that functions
                import.
            environment: packages that functions import and the node's Python lacks: a list of requirements, a
                requirements or lock file, or a `dayfly.Environment`. The node builds it once, and grants no lease for
                it before that (see ``wait``).
            readable: files and directories of the host that isolated workers may read, if the site allows it.
            writable: files and directories of the host that isolated workers may read and write, if the site allows it.
            network: whether isolated workers share the host's network, if the site allows it.
            wait: seconds to wait for capacity; 0 to fail at once.
            slots: maximum outstanding calls of one worker; a power of two.
            stride: bytes of a slot. Smaller arguments and results travel inside the slot.
            bulk: bytes of address space for larger values, in each direction and for each worker.
            spin: seconds that a waiting thread polls before it sleeps; None to poll without limit, which occupies a
                core.
            depth: calls sent ahead to a worker; 0 to choose it from measured times.
            retries: how many times a call that was not executed is retried on another worker.
            echo: whether to print the workers' output here as it appears. `Lease.output` returns it in any case. An
                embedded manager prints to this terminal without ``echo``.

        Returns:
            The lease. Use it as a context manager, or call `Lease.shutdown`.

        Raises:
            ValueError: if ``environment`` is given for a runtime other than ``python``.
            dayfly.CapacityError: if there is no capacity within ``wait`` seconds, or no quota or budget.
            dayfly.Error: if the manager refuses the request or cannot be reached.
        """
        wanted = {name: value for name, value in locals().items() if name != "self"}
        [lease] = self._lease(wanted, None)
        return lease

    def gang(self, workers: int, *, placement: Placement = "packed", **lease: Any) -> Gang:
        """Leases all of the workers or none, on one node or several.

        Args:
            workers: number of workers on all nodes together.
            placement: ``packed`` uses as few nodes as possible, ``spread`` distributes evenly over as many nodes as
                possible, ``together`` uses one node, and ``fabric`` uses nodes of one fabric, as few as possible.
            lease: further arguments of `lease`; ``memory`` is for all workers together.

        Returns:
            The gang, with one lease for each node.

        Raises:
            dayfly.Error: ``no_capacity`` if the workers do not fit now (see ``wait`` of `lease`), ``too_large`` if they
                never fit.
        """
        from dayfly._leases.gang import Gang

        bound = inspect.signature(LeaseClient.lease).bind(self, workers, **lease)
        bound.apply_defaults()
        wanted = dict(bound.arguments)
        del wanted["self"]
        return Gang(self._lease(wanted, placement))

    def fleet(
        self,
        *,
        min: int = 0,
        max: int,
        lease_workers: int = 4,
        patience: float = 0.01,
        idle: float = 10.0,
        wait: float = 60.0,
        memory: int = 0,
        **lease: Any,
    ) -> Fleet:
        """Opens a fleet: workers on many nodes behind one queue. Returns at once.

        The fleet leases from any node with capacity, also a part of what it asks for, and from an `allowance` without
        asking the manager. The first worker serves while others are started.

        Args:
            min: number of workers that the fleet holds also without calls.
            max: maximum number of workers.
            lease_workers: maximum number of workers of one lease. Leases are given back as a whole, so smaller ones
                follow the demand more closely.
            patience: seconds that calls must have waited before the fleet grows. It grows at most by doubling.
            idle: seconds without calls after which a lease is given back.
            wait: seconds that calls wait while the fleet cannot lease any worker. Then they raise the reason.
            memory: bytes for each worker; 0 for the node's default share.
            lease: further arguments of `lease`, except ``workers``, ``wait`` and ``echo``.

        Raises:
            ValueError: if the bounds exclude each other, or for arguments of `lease` that cannot be.
            TypeError: for arguments that fleets do not take.
        """
        from dayfly._leases.fleet import Fleet

        if not 0 <= min <= max or max < 1:
            raise ValueError(f"min={min}, max={max}: ask for at least one worker, and not for fewer than the minimum")
        if not 1 <= lease_workers <= MAX_LEASE_WORKERS:
            raise ValueError(f"lease_workers={lease_workers}: ask for 1 to {MAX_LEASE_WORKERS} workers")
        refused = [name for name in ("workers", "wait", "echo") if name in lease]
        if refused:
            raise TypeError(f"a fleet takes no {refused[0]}= of its leases")
        size = lease_workers if lease_workers < max else max
        bound = inspect.signature(LeaseClient.lease).bind(self, size, memory=memory * size, **lease)
        bound.apply_defaults()
        wanted = dict(bound.arguments)
        del wanted["self"]
        wanted, channels, _ = self._terms(wanted)
        bounds = {"min": min, "max": max, "patience": patience, "idle": idle, "wait": wait}
        native = self._native.fleet(wanted, bounds, channels)
        fleet = Fleet(native, native.pool(self._foreign), self, max)
        with self._lock:
            self._leases.add(fleet)
        return fleet

    def _lease(self, wanted: dict[str, Any], placement: str | None) -> list[Lease]:
        """Leases according to the arguments of `lease`, and opens the channels."""
        from dayfly._leases.lease import Lease

        wanted, channels, echo = self._terms(wanted)
        natives = self._native.lease(wanted, placement)
        pools = run_parallel([functools.partial(native.pool, channels, self._foreign) for native in natives])
        leases = [Lease(native, pool, self, echo=echo) for native, pool in zip(natives, pools, strict=True)]
        with self._lock:
            self._leases.update(leases)
        return leases

    def _terms(self, wanted: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], bool]:
        """Splits the arguments of `lease`: terms of the lease, options of its channels, and whether to print output."""
        files = [(path, False) for path in wanted.pop("readable")] + [(path, True) for path in wanted.pop("writable")]
        wanted["files"] = [(os.path.abspath(path), writable) for path, writable in files]
        environment = environment_of(wanted.pop("environment"))
        if environment is not None and wanted["runtime"] != "python":
            raise ValueError("an environment has Python packages: lease with runtime='python'")
        wanted["runtime"] = json.dumps(runtime(environment)) if wanted["runtime"] == "python" else ""
        wanted["traceparent"] = traceparent()
        wanted["image"] = None if wanted["image"] is None else os.fspath(wanted["image"])
        # An embedded manager already writes the workers' output to this terminal.
        echo = wanted.pop("echo") and not (self._native.is_embedded() and sys.stdout is sys.__stdout__)
        names = ("transport", "slots", "stride", "bulk", "spin", "depth", "retries")
        return wanted, {name: wanted.pop(name) for name in names}, echo

    def allowance(
        self,
        workers: int,
        *,
        duration: float = DAY,
        memory: int = 0,
        cores: float = 0,
        workers_per_node: int = 0,
        sandbox: Literal["process", "isolated"] | None = None,
    ) -> Self:
        """Returns a client that leases directly from nodes, without asking the manager for each lease.

        Use it for many short leases, and for leases while the manager is unavailable. Nodes report the leases to the
        manager afterwards. The client tries nodes with capacity in turn.

        Args:
            workers: maximum number of workers of all leases at any time.
            duration: maximum duration of a lease in seconds.
            memory: bytes for all leases together; 0 to leave it to the nodes.
            cores: cores for all leases together; 0 for one for each worker.
            workers_per_node: maximum number of workers on one node; 0 for twice an even share.
            sandbox: as for `lease`. All leases of the returned client use it.

        Raises:
            dayfly.Error: if the manager refuses the allowance or cannot be reached.
        """
        native = self._native.allowance(
            workers=workers,
            cores=cores,
            memory=memory,
            workers_per_node=workers_per_node,
            duration=duration,
            sandbox=sandbox,
        )
        client = type(self)(native)
        client._trust = self._trust
        return client

    def leases(self) -> list[dict[str, Any]]:
        """Returns the manager's leases."""
        leases: list[dict[str, Any]] = json.loads(self._native.get("/v1/leases"))
        return leases
