"""Workers that own a part of a core: what they get, what they pay, and what is refused."""

from __future__ import annotations

import json
import os
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import dayfly
import pytest
from harness.daemons import Daemon
from harness.leaks import wait_until
from harness.programs import clean_environment, program, run, run_python

HALVES = """
    import concurrent.futures, subprocess, sys, time
    import dayfly

    def computed(seconds):
        '''Processor time in that many seconds.'''
        begun, until = time.process_time(), time.monotonic() + seconds
        while time.monotonic() < until:
            pass
        return time.process_time() - begun

    with dayfly.connect() as client:
        leases = [client.lease(cores=0.5, sandbox=sys.argv[1]) for _ in range(4)]
        assert all(lease.mode == "warm" for lease in leases)
        try:
            client.lease(cores=0.01, mode="warm", sandbox=sys.argv[1])
        except dayfly.CapacityError as error:
            print(error)
        # One alone would have a whole core.
        print(leases[0].call(computed, 1.0))
        with concurrent.futures.ThreadPoolExecutor(4) as threads:
            print(sum(threads.map(lambda lease: lease.call(computed, 0.5), leases)))
        print(subprocess.run([sys.argv[2], "status"], check=True, capture_output=True, text=True).stdout)
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there are no two cores")
def test_four_halves_share_two_cores(start: Callable[..., Daemon]) -> None:
    python = ("--python", sys.executable)
    site = start("up", "--listen", "127.0.0.1:0", "--cores", "0", "--workers", "2", "--sandbox", "isolated", *python)
    environment = site.client_environment()
    done = run_python(HALVES, "isolated", str(program()), **environment)
    refused, alone, together, status = done.stdout.split("\n", 3)
    assert "0.01 places of warm workers of which 0 of 2" in refused, refused
    print(f"alone {alone} s in a second, four together {together} s in half a second")
    # Other programs on this machine may leave them less.
    assert 0.02 < float(alone) < 0.65, "held to half a core"
    assert 0.02 < float(together) < 1.3, "four halves for half a second, in bursts of a period"
    assert "0 of 2 free" in status, status
    assert "1 warm of 0.5 cores" in status, status


def post(site: Daemon, path: str, body: Any) -> tuple[int, str]:
    """Sends JSON as the administrator. Returns the status and the message."""
    connection = site.connection
    headers = {"Authorization": f"Bearer {connection['token']}", "Content-Type": "application/json"}
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(connection["manager"] + path, text, headers)
    trusted = ssl.create_default_context(cadata=connection["ca_pem"])
    try:
        with urllib.request.urlopen(request, timeout=20, context=trusted) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def lease_body(cores: str, mode: str = "warm") -> bytes:
    """A request for a lease, with this text as its number of cores."""
    body = {"workers": 1, "mode": mode, "duration_ms": 60_000, "runtime": {"kind": "native"}, "holder": "00" * 32}
    return (json.dumps(body)[:-1] + f', "cores_per_worker": {cores}}}').encode()


def test_every_interface_refuses_impossible_cores(start: Callable[..., Daemon]) -> None:
    site = start("up", "--listen", "127.0.0.1:0", "--sandbox", "process")
    for cores in ("0", "0.001", "-1", "0.12345", "1e18", "NaN", '"0.5"', "null"):
        status, text = post(site, "/v1/leases", lease_body(cores))
        assert status in (400, 422), (cores, status, text)
        assert "cores" in text or cores == "NaN", (cores, text)
    status, text = post(site, "/v1/leases", lease_body("0.5", "hot"))
    assert status == 400
    assert "whole cores, or for mode warm" in text, text
    environment = clean_environment(**site.client_environment())
    for cores in ("0", "0.001", "-1", "0.12345", "1e18", "NaN", "half"):
        asked = run(program(), "lease", "create", f"--cores-per-worker={cores}", env=environment, check=False)
        assert asked.returncode != 0
        assert "--cores-per-worker" in asked.stderr, asked.stderr
        asked = run(program(), "function", "register", "json:dumps", f"--cores={cores}", env=environment, check=False)
        assert asked.returncode != 0
        assert "--cores" in asked.stderr, asked.stderr
    with dayfly.connect(config=site.state / "connection.json") as client:
        for number in (0, 0.001, -1, 0.12345, 1e18, float("nan"), float("inf")):
            with pytest.raises(ValueError, match="cores="):
                client.lease(mode="warm", cores=number)
            with pytest.raises(ValueError, match="cores="):
                client.register(abs, cores=number)
            with pytest.raises(ValueError, match="cores="):
                dayfly.Executor(client=client, cores=number)
        with pytest.raises(dayfly.Error, match="whole cores, or for mode warm"):
            client.lease(mode="hot", cores=0.5)


WORK = """
    import sys, time
    import dayfly

    def work(seconds):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            pass

    with dayfly.connect() as client, client.lease(mode="warm", cores=float(sys.argv[1])) as lease:
        lease.call(work, 0.5)
"""


def test_half_a_core_pays_half(start: Callable[..., Daemon]) -> None:
    site = start("up", "--listen", "127.0.0.1:0", "--sandbox", "process")
    site.cli("prices", "--price-computing", "1")
    lines = {}
    for cores in ("0.5", "1"):
        run_python(WORK, cores, **site.client_environment())

        def line(cores: float = float(cores)) -> dict[str, Any]:
            return next(line for line in site.cli("bill") if line["cores_per_worker"] == cores)

        wait_until(lambda line=line: line()["usage"]["computing_us"] >= 500_000, "the last booking")
        lines[cores] = line()
    for cores, line in lines.items():
        expected = int(line["usage"]["computing_us"] * 1_000 * float(cores))
        assert line["computing"] == expected, line


def test_function_of_half_a_core_runs(start: Callable[..., Daemon]) -> None:
    site = start("up", "--listen", "127.0.0.1:0", "--cores", "0", "--workers", "2", "--sandbox", "process")
    with dayfly.connect(config=site.state / "connection.json") as client:
        registered = client.register(pow, name="pow", cores=0.25)
        assert registered.status["resources"]["cores"] == 0.25
        assert client.run(registered, 2, 5).result(30) == 32
        with dayfly.Executor(client=client, cores=0.5) as executor:
            assert executor.submit(pow, 2, 6).result(30) == 64
        leases = {lease["cores_per_worker"] for lease in site.cli("lease", "list")}
        assert leases, "workers stay for a while"
        assert leases <= {0.25, 0.5}
        assert client.nodes()[0]["capacity"]["workers"] == 2
    shown = run(program(), "function", "show", "pow", env=clean_environment(**site.client_environment())).stdout
    assert "0.25 cores" in shown, shown
