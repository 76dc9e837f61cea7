"""Leases straight from several nodes, with a manager that is there, away, and back."""

from __future__ import annotations

import collections
from typing import Any

import dayfly
import pytest
from harness.leaks import wait_until
from harness.sites import several_nodes


@pytest.fixture
def site(start: Any) -> tuple[Any, list[Any]]:
    """A manager and three nodes of two warm workers each."""
    return several_nodes(start, nodes=3, workers=2)


def test_leases_spread_over_nodes_with_room(site):
    manager, _ = site
    with dayfly.connect(manager.state) as client, client.allowance(workers=6, workers_per_node=2) as direct:
        leases = [direct.lease(mode="warm", runtime="native") for _ in range(6)]
        held = collections.Counter(lease.grant["node"]["name"] for lease in leases)
        assert held == {"n0": 2, "n1": 2, "n2": 2}
        with pytest.raises(dayfly.CapacityError):
            direct.lease(mode="warm", runtime="native")
        for lease in leases:
            lease.shutdown()


def test_leases_without_manager_are_billed_on_its_return(site):
    manager, nodes = site
    ids = []
    client = dayfly.connect(manager.state)
    direct = client.allowance(workers=6, workers_per_node=2)
    manager.kill()
    for _ in range(6):
        with direct.lease(mode="warm", runtime="native") as lease:
            ids.append(lease.id)
    held = direct.lease(mode="warm", runtime="native")
    # One that its node does not live to report is told by the node's next life.
    nodes[0].kill_tree()
    again = manager.restart()
    nodes[0] = nodes[0].restart()
    try:
        with dayfly.connect(again.state) as books:
            wait_until(lambda: set(ids) <= states(books).keys(), "the leases in the books", 30)
            wait_until(lambda: {states(books)[lease] for lease in ids} == {"released"}, "their ends")
        bill = again.cli("bill")
        assert set(ids) <= {line["lease"] for line in bill}
        # An allowance of the manager's earlier life is forgotten, and asked for again.
        wait_until(lambda: leases_again(direct), "a lease under a new allowance", 30)
        held.shutdown()
        direct.close()
        client.close()
    finally:
        nodes[0].stop()
        again.stop()


def states(client: Any) -> dict[str, str]:
    return {entry["lease"]: entry["state"] for entry in client.leases()}


def leases_again(direct: Any) -> bool:
    try:
        direct.lease(mode="warm", runtime="native").shutdown()
    except dayfly.Error:
        return False
    return True
