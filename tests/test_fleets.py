"""Fleets from Python: one executor over several nodes that are killed, taken back, full, and idle."""

from __future__ import annotations

import concurrent.futures as cf
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import cloudpickle
import dayfly
import pytest
from harness.compilers import compile_source
from harness.daemons import Daemon
from harness.leaks import wait_until
from harness.sites import several_nodes

cloudpickle.register_pickle_by_value(sys.modules[__name__])

FUNCTIONS = Path(__file__).parent / "python" / "functions.c"


class Site:
    """A manager, three nodes of two warm workers each, and a client."""

    def __init__(self, manager: Daemon, nodes: list[Daemon], client: dayfly.Client) -> None:
        self.manager = manager
        self.nodes = nodes
        self.client = client

    def leased(self) -> int:
        """Returns the number of workers that the manager has granted and not taken back."""
        return sum(lease["workers"] for lease in self.client.leases() if lease["state"] == "active")


@pytest.fixture
def site(start: Callable[..., Daemon]) -> Iterator[Site]:
    manager, nodes = several_nodes(start, nodes=3, workers=2)
    with dayfly.connect(manager.state) as client:
        site = Site(manager, nodes, client)
        yield site
    # Fixtures outlive the check for leaks, and a client keeps its connections until it is dropped.
    del client, site.client


def slow_square(number: int) -> int:
    time.sleep(0.02)
    return number * number


def test_map_spreads_over_all_nodes(site: Site) -> None:
    with site.client.fleet(max=6, lease_workers=2, mode="warm") as fleet:
        assert isinstance(fleet, cf.Executor)
        assert list(fleet.map(slow_square, range(300), chunksize=1)) == [n * n for n in range(300)]
        assert fleet.workers == 6
        assert len(set(fleet.nodes)) == 3
        assert fleet.refusal is None


def test_fleet_never_exceeds_its_maximum(site: Site) -> None:
    with site.client.fleet(max=3, lease_workers=2, mode="warm") as fleet:
        results = fleet.map(slow_square, range(120), chunksize=1)
        most = 0
        for _ in results:
            most = max(most, fleet.workers)
        assert most == 3


def test_killed_node_loses_no_idempotent_call(site: Site) -> None:
    with site.client.fleet(min=6, max=6, lease_workers=2, mode="warm") as fleet:
        assert fleet.wait_for_workers(6)
        futures = [fleet.options(idempotent=True).submit(slow_square, n) for n in range(200)]
        wait_until(futures[20].done, "some calls")
        site.nodes[0].kill_tree()
        assert [future.result(timeout=60) for future in futures] == [n * n for n in range(200)]


def test_killed_node_names_calls_that_may_have_run(site: Site) -> None:
    with site.client.fleet(min=6, max=6, lease_workers=2, mode="warm") as fleet:
        assert fleet.wait_for_workers(6)
        futures = [fleet.submit(slow_square, n) for n in range(200)]
        wait_until(futures[20].done, "some calls")
        site.nodes[0].kill_tree()
        failed = [error for future in futures if (error := future.exception(timeout=60)) is not None]
        # Each of the two lost workers had one call, and long calls are not sent ahead.
        assert len(failed) <= 2
        assert {error.code for error in failed if isinstance(error, dayfly.Error)} <= {"maybe_executed"}


def test_idle_fleet_returns_its_workers(site: Site) -> None:
    with site.client.fleet(max=4, idle=0.2, mode="warm") as fleet:
        assert fleet.submit(slow_square, 3).result() == 9
        assert fleet.workers > 0
        wait_until(lambda: fleet.workers == 0, "an empty fleet")
        wait_until(lambda: site.leased() == 0, "released leases")
        assert fleet.call(slow_square, 4) == 16


def test_shutdown_of_fleet_leaves_no_lease(site: Site) -> None:
    with site.client.fleet(min=4, max=6, lease_workers=2, mode="warm") as fleet:
        assert fleet.wait_for_workers(4)
    assert site.leased() == 0
    with pytest.raises(RuntimeError, match="after shutdown"):
        fleet.submit(slow_square, 1)
    with pytest.raises(RuntimeError, match="after the shutdown"):
        fleet.wait_for_workers(1)


def test_dropped_fleet_leaves_no_lease(site: Site) -> None:
    fleet = site.client.fleet(min=2, max=2, mode="warm")
    assert fleet.wait_for_workers(2)
    del fleet
    wait_until(lambda: site.leased() == 0, "released leases")


def test_fleet_calls_shared_library(site: Site, tmp_path: Path) -> None:
    library = compile_source(FUNCTIONS, tmp_path / "functions.so")
    with site.client.fleet(max=2, runtime="native", mode="warm") as fleet:
        assert fleet.library(str(library)).reverse(b"over there") == b"ereht revo"


def test_fleet_under_allowance_needs_no_manager(site: Site) -> None:
    with site.client.allowance(4, memory=2 << 30) as direct:
        site.manager.kill()
        with direct.fleet(max=4, lease_workers=1, mode="warm", memory=64 << 20) as fleet:
            assert list(fleet.map(slow_square, range(100), chunksize=1)) == [n * n for n in range(100)]


def test_full_site_ends_calls_with_reason(site: Site) -> None:
    with (
        site.client.gang(6, mode="warm"),
        site.client.fleet(max=2, wait=0.3, mode="warm") as fleet,
        pytest.raises(dayfly.CapacityError) as raised,
    ):
        fleet.call(slow_square, 1)
    assert raised.value.code == "no_capacity"
    assert isinstance(fleet.refusal, dayfly.CapacityError)


@pytest.mark.parametrize(
    ("terms", "error"),
    [
        ({"max": 0}, ValueError),
        ({"min": 3, "max": 2}, ValueError),
        ({"max": 2, "lease_workers": 0}, ValueError),
        ({"max": 2, "idle": -1.0}, ValueError),
        ({"max": 2, "workers": 3}, TypeError),
        ({"max": 2, "echo": True}, TypeError),
        ({"max": 2, "mode": "cold"}, ValueError),
    ],
)
def test_impossible_terms_of_fleet_are_refused(terms: dict[str, object], error: type[Exception]) -> None:
    with dayfly.connect() as client, pytest.raises(error):
        client.fleet(**terms)  # type: ignore[arg-type]
