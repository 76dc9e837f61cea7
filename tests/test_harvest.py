"""Harvesting: a node measures long calls of real workers, and says why if it cannot."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import dayfly
import pytest
from harness.daemons import Daemon
from harness.leaks import wait_until
from harness.programs import clean_environment, program, run, run_python
from harness.sites import several_nodes, up
from prometheus_client.openmetrics.parser import text_string_to_metric_families

CALLS = """
    import sys, time
    import dayfly

    def half(seconds):
        '''Computes for half of the time.'''
        until = time.monotonic() + seconds / 2
        while time.monotonic() < until:
            pass
        time.sleep(seconds / 2)

    def short():
        return 1

    with dayfly.connect() as client, client.lease(workers=1, mode="warm", sandbox=sys.argv[1]) as lease:
        for _ in range(6):
            lease.call(half, 0.3)
        for _ in range(200):
            lease.call(short)
"""


def harvest_of(site: Daemon) -> dict[str, Any]:
    """What the site's only node reports of harvesting."""
    (node,) = site.cli("status")["nodes"]
    found: dict[str, Any] = node.get("harvest", {})
    return found


def metrics_of(site: Daemon) -> dict[tuple[str, ...], float]:
    """The node's metrics by name and labels."""
    address = next(line for line in site.output().splitlines() if "/metrics" in line)
    url = "http://" + address.split("http://")[1].split("/metrics")[0] + "/metrics"
    with urllib.request.urlopen(url, timeout=20) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}


def harvesting(start: Callable[..., Daemon], mode: str, *options: str) -> Daemon:
    """A node that harvests. Skips the test where it can measure nothing, after a look at the reason."""
    site = start("up", "--listen", "127.0.0.1:0", "--python", sys.executable, "--harvest", mode, *options)
    wait_until(lambda: harvest_of(site) != {}, "the first report")
    found = harvest_of(site)
    assert found["mode"] == mode
    if "why" in found:
        assert found["why"].endswith("."), found
        text = run(program(), "status", env=clean_environment(**site.client_environment())).stdout
        assert "nothing is harvested" in text
        pytest.skip(found["why"])
    return site


@pytest.mark.parametrize("sandbox", ["process", "isolated"])
def test_watching_node_learns_what_long_calls_use(start: Callable[..., Daemon], sandbox: str) -> None:
    site = harvesting(start, "watch", "--metrics", "127.0.0.1:0", "--harvest-log", "4M", "--sandbox", sandbox)
    run_python(CALLS, sandbox, **site.client_environment())
    wait_until(lambda: harvest_of(site)["samples"] >= 4, "the calls after the first one")
    wait_until(lambda: harvest_of(site)["calls"] == 0, "the end of the last call")
    found = harvest_of(site)
    assert found["functions"] == 1, found
    owned, used = found["core_ms"]["owned"], found["core_ms"]["used"]
    # Five calls of 0.3 s, of which each computes for the half.
    assert 900 < owned < 4_000, found
    assert 0.2 < used / owned < 0.8, found
    assert found["core_ms"]["borrowed"] == 0
    assert found["mib_s"]["used"] > 0
    metrics = metrics_of(site)
    assert metrics["dayfly_node_harvest_samples_total",] == found["samples"]
    assert metrics["dayfly_node_harvest_cpu_seconds_total", "used"] == pytest.approx(used / 1000, rel=0.01)
    assert metrics["dayfly_node_harvest_memory_mebibyte_seconds_total", "used"] == found["mib_s"]["used"]
    assert "used" in run(program(), "status", env=clean_environment(**site.client_environment())).stdout
    (profile,) = site.cli("function", "profile", "half")
    assert profile["samples"] == found["samples"]
    assert (profile["mode"], profile["model"], profile["owned"]["milli_cores"]) == ("watch", "none", 1000)
    assert "samples are there to predict by" in profile["reason"], profile
    site.stop()
    (record,) = site.state.rglob("harvest.jsonl")
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert "rules" in lines[0]
    begins = [line["event"] for line in lines[1:] if line["event"]["event"] == "begin"]
    assert len(begins) >= 4
    # The size of a call is its number of seconds.
    assert all(begin["features"]["sizes"] == [0.3, 0.0, 0.0, 0.0] for begin in begins), begins
    assert all(line["actions"] == [] for line in lines[1:]), "nothing is lent"
    replayed = run(program(), "simulate", "--replay", record).stdout
    assert f"{len(lines) - 1} events: the same decisions" in replayed


WIDE = """
    import multiprocessing, sys, time
    import dayfly

    def compute(seconds):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            pass

    def wide(seconds):
        '''Would use two cores.'''
        helper = multiprocessing.get_context("fork").Process(target=compute, args=(seconds,))
        helper.start()
        compute(seconds)
        helper.join()

    with dayfly.connect() as client, client.lease(workers=2, mode="warm", sandbox=sys.argv[1]) as lease:
        for _ in range(6):
            lease.call(wide, 0.5)
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is no second core to lend")
@pytest.mark.parametrize("sandbox", ["process", "isolated"])
def test_call_borrows_a_core_that_nobody_uses(start: Callable[..., Daemon], sandbox: str) -> None:
    site = harvesting(start, "on", "--sandbox", sandbox)
    node = node_id(site)
    run_python(WIDE, sandbox, **site.client_environment())
    wait_until(lambda: harvest_of(site)["samples"] >= 4, "the calls after the first one")
    wait_until(lambda: harvest_of(site)["calls"] == 0, "the end of the last call")
    found = harvest_of(site)["core_ms"]
    # As long as other programs on this machine leave it something to use: what is not used is returned.
    assert found["borrowed"] > 100, found
    assert found["used"] > found["owned"] * 0.3, found
    wait_until(lambda: borrowed_on_bill(site) > 0, "the loan on the bill")
    assert borrowed_on_bill(site) <= (found["borrowed"] + 1) * 1000
    assert "could not be changed" not in site.output()
    wait_until(lambda: raised_limits(node) == [], "the return of all loans")


SAMPLED = """
    import dayfly

    def compute(milliseconds, text="ab"):
        import time
        until = time.monotonic() + milliseconds / 1000
        while time.monotonic() < until:
            pass

    with dayfly.connect() as client:
        sized = client.register(compute, name="sized", size=lambda milliseconds: (milliseconds, 7), repeatable=True)
        try:
            client.register(compute, size="seconds")
            raise SystemExit("a size that is no parameter")
        except ValueError as error:
            assert "no parameter 'seconds'" in str(error), error
        wrong = client.register(compute, name="wrong", size=lambda milliseconds: "large")
        for use in (lambda: client.run(wrong, 1), lambda: client.profile(wrong, sample=(1,))):
            try:
                use()
                raise SystemExit("a wrong size, or a function that must not be repeated")
            except ValueError as error:
                assert "size= returned 'large'" in str(error) or "repeatable" in str(error), error
        (profile,) = client.profile(sized, sample=(80,), sizes=12, timeout=100)
        assert profile["samples"] >= 4, profile
        client.register(compute, name="plain", source=True, repeatable=True)
        client.register(compute, name="once", source=True)
"""


def test_sample_teaches_a_function_at_many_sizes(start: Callable[..., Daemon], tmp_path: Path) -> None:
    site = harvesting(start, "watch", "--harvest-log", "4M", "--sandbox", "process")
    program_file = tmp_path / "sampled.py"
    program_file.write_text(textwrap.dedent(SAMPLED))
    run(sys.executable, program_file, timeout=120, env={**os.environ, **site.client_environment()})
    before = harvest_of(site)["samples"]
    sample = tmp_path / "sample.json"
    sample.write_text(json.dumps({"arguments": [80], "keywords": {"text": "abcdefgh"}}))
    environment = clean_environment(**site.client_environment())
    refused = run(program(), "function", "profile", "once", "--sample", sample, env=environment, check=False)
    assert "not registered as repeatable" in refused.stderr
    (profile,) = site.cli("function", "profile", "plain", "--sample", str(sample), "--sizes", "12", "--scale", "1")
    assert profile["samples"] >= 4, profile
    wait_until(lambda: harvest_of(site)["samples"] >= before + 4, "the next heartbeat")
    site.stop()
    (record,) = site.state.rglob("harvest.jsonl")
    events = [json.loads(line)["event"] for line in record.read_text().splitlines()[1:]]
    sizes = {tuple(event["features"]["sizes"]) for event in events if event["event"] == "begin"}
    # Twelve sizes up to 160 ms: of the pickled function as its client states them, of the source as they are.
    stated = {(round(step * 160 / 12), second, 0, 0) for step in range(1, 13) for second in (7, 8)}
    assert sizes <= stated, sizes
    assert {second for _, second, _, _ in sizes} == {7, 8}, sizes


#: A function that would use two cores.
FORKING = """
    import time
    import dayfly

    def wide(seconds):
        '''Would use two cores.'''
        import multiprocessing

        def compute():
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                pass

        helper = multiprocessing.get_context("fork").Process(target=compute)
        helper.start()
        compute()
        helper.join()
"""

BOUND = (
    FORKING
    + """
    with dayfly.connect() as client:
        try:
            client.lease(mode="warm", borrow="gpu")
            raise SystemExit("a lease that borrows GPUs")
        except ValueError as error:
            assert "borrow=" in str(error), error
        with client.lease(mode="warm", lend=False, borrow="none") as lease:
            for _ in range(4):
                lease.call(wide, 0.3)
        with dayfly.Executor(client=client, lend=False, borrow="none") as executor:
            for _ in range(4):
                executor.submit(wide, 0.3).result()
"""
)


def test_calls_follow_the_terms_of_their_lease(start: Callable[..., Daemon]) -> None:
    site = harvesting(start, "on", "--harvest-log", "4M", "--harvest-within-tenant", "--sandbox", "process")
    run_python(BOUND, **site.client_environment())
    wait_until(lambda: harvest_of(site)["samples"] >= 4, "the calls after the first ones")
    assert harvest_of(site)["core_ms"]["borrowed"] == 0
    site.stop()
    (record,) = site.state.rglob("harvest.jsonl")
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert lines[0]["rules"]["stays_within_tenant"] is True
    begins = [line["event"] for line in lines[1:] if line["event"]["event"] == "begin"]
    assert len(begins) >= 4
    assert not any(begin["lends"] or begin["borrows_cpu"] or begin["borrows_memory"] for begin in begins), begins


GANG = (
    FORKING
    + """
    with dayfly.connect() as client, client.gang(2, mode="warm") as gang:
        for _ in range(5):
            for future in [gang.rank(rank).submit(wide, 0.3) for rank in range(2)]:
                future.result()
"""
)


def test_calls_of_a_gang_are_ranks(start: Callable[..., Daemon]) -> None:
    site = harvesting(start, "on", "--harvest-log", "4M", "--cores", "0", "--workers", "2", "--sandbox", "process")
    run_python(GANG, **site.client_environment())
    wait_until(lambda: harvest_of(site)["samples"] >= 4, "the calls after the first ones")
    site.stop()
    (record,) = site.state.rglob("harvest.jsonl")
    events = [json.loads(line)["event"] for line in record.read_text().splitlines()[1:]]
    groups = [event["group"] for event in events if event["event"] == "begin"]
    assert len(groups) >= 4
    assert {group["size"] for group in groups} == {2}
    assert len({group["id"] for group in groups}) == 1


TASKS = (
    FORKING
    + """
    import sys

    def short():
        return 1

    with dayfly.connect() as client, dayfly.Executor(client=client) as executor:
        for _ in range(5):
            future = executor.submit(wide, 0.5)
            future.result()
        brief = executor.submit(short)
        brief.result()
        print(future.id, brief.id)
"""
)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is no second core to lend")
def test_task_shows_what_it_owned_and_borrowed(start: Callable[..., Daemon]) -> None:
    site = harvesting(start, "on", "--sandbox", "process")
    task, brief = run_python(TASKS, **site.client_environment()).stdout.split()
    wait_until(lambda: "loans" in site.cli("task", "show", task), "the task's loans")
    loans = site.cli("task", "show", task)["loans"]
    assert loans["task"] == task
    # It computes for half a second, of which the first milliseconds may be missing.
    assert 300_000 < loans["us"] < 5_000_000, loans
    assert sum(point["us"] for point in loans["points"]) == loans["us"]
    assert 3 <= len(loans["points"]) <= 64
    sums = {name: loans["sums"][name]["core_us"] for name in ("owned", "used", "lent", "borrowed")}
    assert sums["owned"] == pytest.approx(loans["us"], rel=0.01)
    assert 0.3 * sums["owned"] < sums["used"] < 3 * sums["owned"], sums
    assert sums["lent"] <= sums["owned"]
    assert all(point["owned"]["milli_cores"] == 1000 for point in loans["points"])
    # As long as other programs on this machine leave it something to use.
    assert sums["borrowed"] > 10_000, sums
    assert loans["sums"]["used"]["mib_s"] > 0
    environment = clean_environment(**site.client_environment())
    text = run(program(), "task", "show", task, env=environment).stdout
    assert "borrowed" in text
    assert "core seconds" in text
    assert "|" not in text, "a chart for a file"
    # A short task costs no message, and the reason is stated.
    assert "loans" not in site.cli("task", "show", brief)
    with dayfly.connect(site.state) as client, pytest.raises(dayfly.RequestError, match="was not measured"):
        client.loans(brief)
    site.stop()
    site = site.restart()
    assert site.cli("task", "show", task)["loans"] == loans
    (look,) = run(program(), "top", "--once", "--json", env=environment).stdout.splitlines()
    (node,) = json.loads(look)["nodes"]
    assert node["harvest"]["now"]["owned"] == {"milli_cores": 0, "memory_bytes": 0}
    assert "HARVEST" in run(program(), "top", "--once", env=environment).stdout
    site.stop()


def borrowed_on_bill(site: Daemon) -> int:
    """Microseconds of one core that all leases of the site borrowed."""
    return sum(line.get("loans", {}).get("borrowed_core_us", 0) for line in site.cli("bill"))


MEMORY = """
    import sys, time
    import dayfly

    MIB = 1 << 20

    def hold(wait, mib, seconds):
        '''Waits, takes memory, and holds it.'''
        time.sleep(wait)
        taken = bytearray(b"x") * (mib << 20)
        time.sleep(seconds)
        return len(taken) >> 20

    def grow(plan):
        '''Another function with a profile of its own. All plans are equally long: no size tells them apart.'''
        wait, mib, seconds = map(float, plan.split())
        time.sleep(wait)
        taken = bytearray(b"y") * (int(mib) << 20)
        time.sleep(seconds)
        return len(taken) >> 20

    terms = {"workers": 1, "mode": "warm", "sandbox": sys.argv[1]}
    with (
        dayfly.connect() as client,
        client.lease(memory=1536 * MIB, **terms) as owner,
        client.lease(memory=256 * MIB, borrow="cpu,memory", **terms) as borrower,
    ):
        for _ in range(4):
            borrower.call(hold, 0.03, 1, 0)
        assert borrower.call(hold, 0.1, 700, 0.2) == 700, "nobody else runs"
        for _ in range(25):
            owner.call(grow, "0.03 0001 0")
        deadline = time.monotonic() + 60
        while all(profile["model"] == "none" for profile in client.profile("grow")):
            assert time.monotonic() < deadline, "no model predicts it"
            owner.call(grow, "0.03 0001 0")
        growing = owner.submit(grow, "1.50 1000 1")
        held = borrower.submit(hold, 0.3, 800, 30)
        assert growing.result(timeout=60) == 1000
        try:
            held.result(timeout=60)
            raise SystemExit("a call that keeps what it borrowed")
        except dayfly.WorkerDied as error:
            assert error.code == "memory_returned", error
            assert "borrow" in str(error), error
        assert borrower.call(hold, 0, 1, 0) == 1, "by the next worker"
"""


@pytest.mark.parametrize("sandbox", ["process", "isolated"])
def test_growing_lender_ends_who_keeps_its_memory(start: Callable[..., Daemon], sandbox: str) -> None:
    site = harvesting(start, "on", "--sandbox", sandbox, "--memory", "2G")
    run_python(MEMORY, sandbox, **site.client_environment())
    wait_until(lambda: harvest_of(site)["calls"] == 0, "the end of the last call")
    assert harvest_of(site)["mib_s"]["borrowed"] > 100
    loans = [line.get("loans", {}) for line in site.cli("bill")]
    assert sum(loan.get("borrowed_mib_s", 0) for loan in loans) > 100, loans
    assert sum(loan.get("lent_mib_s", 0) for loan in loans) > 100, loans
    assert "could not be" not in site.output()


def test_operator_switches_a_running_node(start: Callable[..., Daemon]) -> None:
    site = start("up", "--listen", "127.0.0.1:0", "--python", sys.executable)
    assert harvest_of(site) == {}
    environment = clean_environment(**site.client_environment())
    refused = run(program(), "function", "profile", "half", env=environment, check=False)
    assert "--harvest watch" in refused.stderr
    (node,) = site.cli("status")["nodes"]
    site.cli("node", "harvest", node["address"]["name"], "watch")
    wait_until(lambda: harvest_of(site).get("mode") == "watch", "the next heartbeat")
    if "why" not in harvest_of(site):
        run_python(CALLS, "process", **site.client_environment())
        wait_until(lambda: harvest_of(site)["samples"] >= 4, "the calls after the first one")
    site.cli("node", "harvest", node["address"]["id"], "off")
    wait_until(lambda: harvest_of(site) == {}, "the next heartbeat")
    refused = run(
        program(), "node", "harvest", "0" * 32, "on", env=clean_environment(**site.client_environment()), check=False
    )
    assert "there is no node" in refused.stderr


def test_warm_leases_go_to_the_node_that_lends(start: Callable[..., Daemon]) -> None:
    manager, _ = several_nodes(start, 2, 4)

    def harvest() -> dict[str, Any]:
        (node,) = (node for node in up(manager) if node["address"]["name"] == "n1")
        found: dict[str, Any] = node.get("harvest", {})
        return found

    manager.cli("node", "harvest", "n1", "on")
    wait_until(lambda: harvest() != {}, "the next heartbeat")
    if "why" in harvest():
        pytest.skip(harvest()["why"])
    with dayfly.connect(manager.state) as client:
        for _ in range(6):
            # A heartbeat that was on its way at the lease's end still counts it.
            wait_until(lambda: len(set(free_workers(manager))) == 1, "equally many free workers")
            with client.lease(workers=1, mode="warm") as lease:
                assert lease.grant["node"]["name"] == "n1"


def free_workers(manager: Daemon) -> list[float]:
    return [node["free"]["workers"] for node in manager.cli("status")["nodes"]]


def raised_limits(node: str) -> list[str]:
    """Control groups of the node's workers that may use more than one core. Groups may end while they are looked at."""
    found = []
    for path, _, files in os.walk("/sys/fs/cgroup/cpu"):
        if f"/dayfly-{node}/" not in path or not Path(path).name.startswith("worker-"):
            continue
        if "cpu.cfs_quota_us" in files:
            with suppress(OSError):
                quota = int((Path(path) / "cpu.cfs_quota_us").read_text())
                found += [path] if quota > 100_000 else []
    return found


def raised_memory(node: str) -> list[Path]:
    """Control groups of the node's workers that may use more memory than the 256 MiB that they own."""
    limits = Path("/sys/fs/cgroup").glob(f"**/dayfly-{node}/**/worker-*/memory.limit_in_bytes")
    return [limit for limit in limits if 256 << 20 < int(limit.read_text()) < 1 << 60]


BORROWING = (
    FORKING
    + """
    import os

    terms = {"mode": "warm", "memory": 256 << 20, "borrow": "cpu,memory"}
    with dayfly.connect() as client, client.lease(workers=1, **terms) as lease:
        worker = lease.call(os.getpid)
        for _ in range(3):
            lease.call(wide, 0.2)
        print(worker, flush=True)
        try:
            lease.call(wide, float(input()))
        except dayfly.Error as error:
            print("failed:", error.code, flush=True)
        print("done", flush=True)
"""
)


class Borrower:
    """A client whose call borrows a core and memory, until it is closed."""

    def __init__(self, site: Daemon, seconds: float) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(BORROWING)],
            env={**os.environ, **site.client_environment()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.worker = int(self.line())
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()

    def line(self) -> str:
        """Returns the next line that it prints."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def node_id(site: Daemon) -> str:
    """The part of the node's id that its control groups are named by."""
    (node,) = site.cli("status")["nodes"]
    found: str = node["address"]["id"]
    return found[:12]


def bill_adds_up(site: Daemon) -> bool:
    """Whether the bill has all that the node's calls borrowed. Each lease is rounded down to microseconds."""
    return abs(borrowed_on_bill(site) / 1000 - harvest_of(site)["core_ms"]["borrowed"]) < 2


two_cores_and_groups = [
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is no second core to lend"),
    pytest.mark.skipif(not Path("/sys/fs/cgroup/cpu").is_dir(), reason="it looks at groups of version 1"),
]


class TestKilledInMidLoan:
    """What remains of a loan after a part of the system was killed."""

    pytestmark = two_cores_and_groups

    def test_node_leaves_no_raised_limit(self, start: Callable[..., Daemon]) -> None:
        site = harvesting(start, "on", "--sandbox", "process")
        node = node_id(site)
        borrower = Borrower(site, 60)
        try:
            wait_until(lambda: raised_limits(node) != [] and raised_memory(node) != [], "loans of both")
            wait_until(lambda: borrowed_on_bill(site) > 0, "the loan on the bill")
            billed = borrowed_on_bill(site)
            site.kill_tree()
        finally:
            borrower.close()
        again = site.restart()
        wait_until(lambda: harvest_of(again) != {}, "the first report")
        assert raised_limits(node) == []
        assert raised_memory(node) == []
        assert harvest_of(again)["calls"] == 0
        assert borrowed_on_bill(again) >= billed > 0
        again.stop()

    @pytest.mark.parametrize("killed", ["worker", "client"])
    def test_borrower_returns_its_loan(self, start: Callable[..., Daemon], killed: str) -> None:
        site = harvesting(start, "on", "--sandbox", "process")
        node = node_id(site)
        borrower = Borrower(site, 60)
        try:
            wait_until(lambda: raised_limits(node) != [], "a loan")
            wait_until(lambda: harvest_of(site)["core_ms"]["borrowed"] > 0, "a measured loan")
            if killed == "worker":
                os.kill(borrower.worker, signal.SIGKILL)
                assert borrower.line().startswith("failed:")
                assert borrower.line() == "done"
            else:
                borrower.close()
            # A lease ends some seconds after its client.
            wait_until(lambda: raised_limits(node) == [], "the return of the loan", timeout=30)
        finally:
            borrower.close()
        wait_until(lambda: harvest_of(site)["calls"] == 0, "the end of the call")
        wait_until(lambda: bill_adds_up(site), "all loans on the bill")
        assert borrowed_on_bill(site) > 0

    def test_manager_gets_all_loans_later(self, start: Callable[..., Daemon]) -> None:
        manager, _ = several_nodes(start, 1, 2, "process", "--harvest", "on")
        wait_until(lambda: harvest_of(manager) != {}, "the first report")
        if "why" in harvest_of(manager):
            pytest.skip(harvest_of(manager)["why"])
        node = node_id(manager)
        borrower = Borrower(manager, 3)
        try:
            wait_until(lambda: raised_limits(node) != [], "a loan")
            manager.kill()
            # The call goes on, since it needs no manager.
            assert borrower.line() == "done"
            manager = manager.restart()
        finally:
            borrower.close()
        wait_until(lambda: harvest_of(manager).get("calls") == 0, "the node's return")
        wait_until(lambda: bill_adds_up(manager), "all loans on the bill")
        assert borrowed_on_bill(manager) > 0
        manager.stop()
