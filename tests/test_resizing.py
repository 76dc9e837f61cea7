"""Nodes that offer more or fewer resources while they run."""

from __future__ import annotations

import concurrent.futures as cf
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import dayfly
import pytest
from harness.daemons import Daemon
from harness.leaks import wait_until
from harness.programs import program, run
from harness.sites import several_nodes

cloudpickle.register_pickle_by_value(sys.modules[__name__])

Start = Callable[..., Daemon]


def gpus() -> str:
    return os.environ["CUDA_VISIBLE_DEVICES"]


def wait_for(path: str) -> int:
    """Reports that it runs, and returns when the file exists."""
    Path(path + ".runs").touch()
    while not Path(path).exists():
        time.sleep(0.005)
    return 7


def offered(manager: Daemon) -> dict[str, Any]:
    (node,) = manager.cli("status")["nodes"]
    capacity: dict[str, Any] = node["capacity"]
    return capacity


def test_idle_lease_ends_before_busy_one(start: Start, tmp_path: Path) -> None:
    manager, _ = several_nodes(start, nodes=1, workers=4)
    with (
        dayfly.connect(manager.state) as client,
        client.lease(2, mode="warm") as idle,
        client.lease(2, mode="warm") as busy,
    ):
        assert idle.call(abs, -1) == 1
        running = busy.submit(wait_for, str(tmp_path / "go"))
        wait_until((tmp_path / "go.runs").exists, "the call")
        status = manager.cli("node", "resize", "n0", "--workers", "2")
        assert status["capacity"]["workers"] == 2
        # The manager may count the ended lease twice until the next heartbeat.
        wait_until(lambda: manager.cli("status")["nodes"][0]["free"]["workers"] == 0, "the node's report")
        with pytest.raises(dayfly.LeaseError):
            idle.call(abs, -1)
        with pytest.raises(dayfly.CapacityError):
            client.lease(1, mode="warm")
        (tmp_path / "go").touch()
        assert running.result() == 7
        assert busy.call(abs, -2) == 2


def test_running_call_ends_within_the_grace(start: Start, tmp_path: Path) -> None:
    manager, _ = several_nodes(start, nodes=1, workers=2)
    with dayfly.connect(manager.state) as client, client.lease(2, mode="warm") as lease:
        running = lease.submit(wait_for, str(tmp_path / "go"))
        wait_until((tmp_path / "go.runs").exists, "the call")
        with cf.ThreadPoolExecutor(1) as threads:
            resized = threads.submit(manager.cli, "node", "resize", "n0", "--workers", "0", "--grace", "30s")
            # The new offer holds at once, although the lease has not ended.
            wait_until(lambda: offered(manager)["workers"] == 0 or resized.done(), "the new offer")
            assert not resized.done()
            (tmp_path / "go").touch()
            assert resized.result(timeout=20)["leases"] == 0
        assert running.result() == 7


def test_growth_serves_a_waiting_request(start: Start) -> None:
    manager, _ = several_nodes(start, nodes=1, workers=2)
    manager.cli("node", "resize", "n0", "--workers", "0")
    with dayfly.connect(manager.state) as client, cf.ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(client.lease, 2, mode="warm", wait=30)
        with pytest.raises(cf.TimeoutError):
            waiting.result(timeout=0.2)
        manager.cli("node", "resize", "n0", "--workers", "2")
        with waiting.result(timeout=20) as lease:
            assert lease.call(abs, -1) == 1


def test_offer_survives_restart_of_node(start: Start) -> None:
    manager, [node] = several_nodes(start, nodes=1, workers=4)
    before = offered(manager)
    manager.cli("node", "resize", "n0", "--workers", "1", "--memory", "1G")
    node.kill_tree()
    wait_until(lambda: manager.cli("status")["nodes"][0]["state"] != "up", "the end of the node")
    again = node.restart()
    try:
        wait_until(lambda: manager.cli("status")["nodes"][0]["state"] == "up", "the node")
        assert offered(manager) == before | {"workers": 1, "memory_bytes": 1 << 30}
    finally:
        again.stop()


def test_gpus_that_leave_are_not_seen(start: Start) -> None:
    manager, _ = several_nodes(start, 1, 4, "process", "--gpus", "a,b")
    with dayfly.connect(manager.state) as client:
        with client.lease(1, mode="warm", gpus=1) as lease:
            assert lease.call(gpus) == "a"
            manager.cli("node", "resize", "n0", "--gpus", "1")
            assert lease.call(gpus) == "a"
            manager.cli("node", "resize", "n0", "--gpus", "0")
            with pytest.raises(dayfly.LeaseError):
                lease.call(gpus)
        with client.lease(1, mode="warm") as lease:
            assert lease.call(gpus) == ""
        with pytest.raises(dayfly.Error) as refused:
            client.lease(1, mode="warm", gpus=1)
        assert refused.value.code in ("no_capacity", "too_large")


def test_fleet_moves_to_node_with_room(start: Start) -> None:
    manager, _ = several_nodes(start, nodes=2, workers=2)
    with dayfly.connect(manager.state) as client:
        names = {node["address"]["id"]: node["address"]["name"] for node in client.nodes()}
        with client.fleet(min=2, max=2, lease_workers=2, mode="warm") as fleet:
            assert fleet.wait_for_workers(2)
            (first,) = fleet.nodes
            manager.cli("node", "resize", names[first], "--workers", "0", "--grace", "5s")
            assert list(fleet.map(abs, range(-50, 0), chunksize=1)) == list(range(50, 0, -1))
            assert first not in fleet.nodes


def test_impossible_offers_are_refused(start: Start) -> None:
    manager, _ = several_nodes(start, nodes=1, workers=2)
    before = offered(manager)
    environment = manager.client_environment()
    for arguments, why in [
        (("--workers", "3"), "was started with 2"),
        (("--gpus", "1"), "was started with 0"),
        (("--memory", "900000G"), "was started with"),
        ((), "changes nothing"),
    ]:
        refused = run(program(), "node", "resize", "n0", *arguments, env=environment, check=False)
        assert refused.returncode != 0
        assert why in refused.stderr
    refused = run(program(), "node", "resize", "nowhere", "--workers", "1", env=environment, check=False)
    assert "nowhere" in refused.stderr
    assert offered(manager) == before


def test_only_operators_resize_nodes(start: Start, tmp_path: Path) -> None:
    from harness.managers import tenant

    manager, _ = several_nodes(start, nodes=1, workers=2)
    connection = tenant(manager, "guest", tmp_path)
    environment = manager.client_environment() | {"DAYFLY_MANAGER": str(connection)}
    refused = run(program(), "node", "resize", "n0", "--workers", "1", env=environment, check=False)
    assert refused.returncode != 0
    assert offered(manager)["workers"] == 2
