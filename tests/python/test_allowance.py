"""Allowances: leases directly from nodes."""

import dayfly
import pytest
from harness.leaks import wait_until


def entries(client, lease):
    return [entry for entry in client.leases() if entry["lease"] == lease.id]


@pytest.fixture(scope="module")
def client():
    with dayfly.connect() as client:
        yield client


@pytest.mark.parametrize("sandbox", ["process", "isolated"])
def test_leases_from_nodes_are_recorded_afterwards(client, sandbox):
    with client.allowance(workers=4, sandbox=sandbox) as direct:
        with direct.lease(workers=2, mode="warm") as lease:
            assert list(lease.map(abs, [-1, 2, -3])) == [1, 2, 3]
            wait_until(lambda: entries(client, lease), "the manager never heard of the lease", 20)
            (entry,) = entries(client, lease)
            assert (entry["workers"], entry["sandbox"]) == (2, sandbox)
        wait_until(lambda: entries(client, lease)[0]["state"] == "released", "the manager never heard of its end", 20)
        wait_until(lambda: entries(client, lease)[0]["usage"]["calls"] > 0, "what the lease used was never booked", 20)


def test_allowance_limits_leases_until_one_is_released(client):
    with client.allowance(workers=2, workers_per_node=2) as direct:
        first = direct.lease(workers=1, mode="warm")
        second = direct.lease(workers=1, mode="warm")
        with pytest.raises(dayfly.CapacityError):
            direct.lease(workers=1, mode="warm")
        with pytest.raises(dayfly.Error, match="permits 2"):
            direct.lease(workers=3, mode="warm")
        assert second.call(pow, 2, 3) == 8
        first.shutdown()
        with direct.lease(workers=1, mode="warm", wait=10) as third:
            assert third.call(pow, 2, 4) == 16
        second.shutdown()


def test_waiting_lease_is_granted_when_capacity_returns(client):
    import threading

    with client.allowance(workers=1) as direct:
        first = direct.lease(workers=1, mode="warm")
        timer = threading.Timer(0.2, first.shutdown)
        timer.start()
        with direct.lease(workers=1, mode="warm", wait=20) as second:
            assert second.call(pow, 2, 4) == 16
        timer.join()


def test_lease_from_a_node_is_renewed_and_revoked(client):
    with client.allowance(workers=1, duration=60) as direct, direct.lease(mode="warm", duration=30) as lease:
        assert lease.call(pow, 2, 4) == 16
        wait_until(lambda: entries(client, lease), "the manager never heard of the lease", 20)
        lease.renew(50)
        with pytest.raises(dayfly.Error):
            direct.lease(mode="warm", duration=61)


def test_returned_allowance_is_refused(client):
    direct = client.allowance(workers=1)
    with direct.lease(mode="warm") as lease:
        assert lease.call(pow, 2, 4) == 16
    direct.close()
    wait_until(lambda: refused(direct), "nodes never heard that the allowance is over", 20)


def refused(direct):
    try:
        direct.lease(mode="warm").shutdown()
    except dayfly.Error:
        return True
    return False


def test_empty_allowance_is_refused(client):
    with pytest.raises(dayfly.RequestError, match="one worker at least"):
        client.allowance(workers=0)
