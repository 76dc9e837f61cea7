"""Renewals that change the mode, the polling and the number of workers of a lease."""

import math
import os
import threading
import time

import dayfly
import pytest
from harness.leaks import wait_until


@pytest.fixture
def lease(client):
    with client.lease(workers=1, mode="warm") as lease:
        yield lease


def process(seconds=0.0):
    time.sleep(seconds)
    return os.getpid()


def serving(lease):
    return [number for number, incarnation in enumerate(lease.incarnations()) if incarnation]


@pytest.mark.parametrize("sandbox", ["process", "isolated"])
def test_added_workers_serve_when_renewal_returns(client, sandbox):
    with client.lease(workers=1, mode="warm", sandbox=sandbox) as lease:
        memory = lease.grant["memory_bytes"]
        lease.renew(60, workers=3)
        assert (lease.workers, lease.grant["memory_bytes"]) == (3, 3 * memory)
        assert serving(lease) == [0, 1, 2]
        found = {lease.options(worker=number).call(process) for number in range(3)}
        assert sandbox != "process" or len(found) == 3


def test_calls_survive_a_renewal_with_fewer_workers(client):
    with client.lease(workers=4, mode="warm") as lease:
        calls = [lease.submit(process, 0.01) for _ in range(60)]
        lease.renew(60, workers=2)
        assert lease.workers == 2
        calls += [lease.submit(process, 0.01) for _ in range(20)]
        found = [call.result(timeout=60) for call in calls]
        assert len(set(found[-10:])) <= 2
        wait_until(lambda: len(serving(lease)) == 2, "the retired workers are still there")


def test_running_call_keeps_its_worker(client):
    with client.lease(workers=3, mode="warm") as lease:
        assert lease.options(worker=1).call(pow, 2, 3) == 8
        begun = threading.Event()
        busy = lease.options(worker=1).submit(process, 1.5)
        threading.Thread(target=lambda: (wait_until(busy.running, "the call"), begun.set())).start()
        assert begun.wait(20)
        lease.renew(60, workers=1)
        assert lease.grant["numbers"] == [1]
        assert busy.result(timeout=60) == lease.call(process)
        lease.renew(60, workers=3)
        assert "numbers" not in lease.grant
        assert len({lease.options(worker=number).call(process) for number in range(3)}) == 3


def test_refused_renewal_changes_nothing(lease):
    before = lease.grant
    with pytest.raises(dayfly.Error) as refused:
        lease.renew(60, workers=1024)
    assert refused.value.code in {"too_large", "no_capacity"}
    for wrong in ({"workers": 0}, {"poll_for": 0.02}, {"mode": "cold"}, {"hot_for": -1}):
        with pytest.raises((dayfly.Error, ValueError)):
            lease.renew(60, **wrong)
    assert lease.grant == before
    assert lease.call(pow, 2, 3) == 8
    lease.renew(60, workers=1024, min_workers=2)
    assert 2 <= lease.workers < 1024


def test_mode_and_polling_are_renewed(lease):
    lease.renew(60, mode="hot", hot_for=0.05)
    assert lease.mode == "hot"
    assert lease.call(pow, 2, 3) == 8
    lease.renew(60, hot_for=math.inf)
    assert lease.call(pow, 2, 4) == 16
    lease.renew(60, mode="warm", poll_for=0.0005)
    assert lease.mode == "warm"
    # The channel was opened to a worker that never slept, and goes on.
    assert [lease.call(pow, 2, number) for number in range(50)] == [2**number for number in range(50)]


def test_lease_under_an_allowance_keeps_its_workers(client):
    with client.allowance(2) as direct, direct.lease(workers=1, mode="warm") as lease:
        assert lease.call(pow, 2, 3) == 8
        wait_until(lambda: lease.id in {entry["lease"] for entry in client.leases()}, "the manager lacks the lease")
        with pytest.raises(dayfly.Error, match="under an allowance keeps its number of workers"):
            lease.renew(60, workers=2)
        lease.renew(60, poll_for=0.001)
        assert lease.call(pow, 2, 3) == 8


def test_gang_keeps_its_workers(client):
    with (
        client.gang(1, mode="warm") as gang,
        pytest.raises(dayfly.Error, match="a lease of a gang keeps its number of workers"),
    ):
        gang.leases[0].renew(60, workers=2)
