"""Endpoints on a real Slurm: nodes are pilot jobs, which come and go, and give way."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import slurm
from harness.album import Album
from harness.daemons import Daemon, private_directory
from harness.endpoints import Endpoint, endpoints_of, manager_alone
from harness.leaks import wait_until
from harness.marks import executions, leave_a_mark, outcomes
from harness.programs import program
from harness.sites import several_nodes, up
from harness.slurm import Slurm, slurm_cluster

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")
pytest.importorskip("parsl", reason="Parsl is not installed")
pytestmark = pytest.mark.skipif(slurm.unavailable() is not None, reason=str(slurm.unavailable()))

Make = Callable[..., Endpoint]


@pytest.fixture(scope="module")
def a_cluster() -> Iterator[Slurm]:
    with private_directory() as directory, slurm_cluster(Path(directory)) as cluster:
        yield cluster


@pytest.fixture
def cluster(a_cluster: Slurm) -> Iterator[Slurm]:
    """Two nodes of two cores, with nothing to do."""
    yield a_cluster
    a_cluster.cancel_all()


@pytest.fixture
def manager(cluster: Slurm, state: Path) -> Iterator[Daemon]:
    with manager_alone(state / "manager") as manager:
        yield manager


@pytest.fixture
def endpoint(cluster: Slurm, manager: Daemon, state: Path) -> Iterator[Make]:
    """``endpoint("partition=idle")`` sets one up for a job of both nodes at a time, and starts it."""
    with endpoints_of(manager, state / "home", **cluster.environment) as set_up:

        def make(*options: str, start: bool = True, more: tuple[str, ...] = ("--nodes-per-block", "2")) -> Endpoint:
            given = [word for option in ("exclusive=true", *options) for word in ("--option", option)]
            setup = ("--provider", "slurm", "--address", "127.0.0.1", "--walltime", "10m", *given, *more)
            return set_up(*setup, start=start, name="cluster")

        yield make


def node_of_slurm() -> str:
    return os.environ.get("SLURMD_NODENAME", "")


def test_idle_slurm_nodes_end_after_their_tasks(cluster: Slurm, manager: Daemon, endpoint: Make) -> None:
    here = endpoint("partition=idle", more=("--nodes-per-block", "2", "--idle", "1s"))
    with dayfly.connect(config=manager.state) as client, dayfly.Executor(endpoint="cluster", client=client) as executor:
        assert executor.submit(pow, 2, 10).result(60) == 1024
        wait_until(lambda: here.blocks and here.blocks[0]["joined"] == 2, "both nodes are there", 30)
        [block] = here.blocks
        assert cluster.state(block["job"]) == "RUNNING"
        assert block["ends_at_ms"] / 1000 - time.time() == pytest.approx(600, abs=60)
        names = executor.submit(node_of_slurm).result(30)
        assert names in {"n0", "n1"}
    wait_until(lambda: cluster.state(block["job"]) in ("CANCELLED", "COMPLETED"), "the job is over", 40)
    wait_until(lambda: here.seen["blocks"] == [], "the manager knows", 20)


def test_refusal_quotes_slurm(manager: Daemon, endpoint: Make) -> None:
    here = endpoint("partition=nowhere")
    with dayfly.connect(config=manager.state) as client:
        begun = time.monotonic()
        batch = client.batch(endpoint="cluster")
        future = batch.submit(abs, -1)
        wait_until(lambda: here.seen["trouble"], "the refusal is shown", 30)
        assert "invalid partition" in here.seen["trouble"].lower()
        assert time.monotonic() - begun < 10
        assert here.local["status"]["trouble"] == here.seen["trouble"]
        assert not future.done()
        batch.kill()


def test_waiting_job_gives_its_reason(cluster: Slurm, manager: Daemon, endpoint: Make) -> None:
    taken = cluster.fill("batch")
    cluster.wait_for(taken, "RUNNING")
    here = endpoint("partition=idle")
    with dayfly.connect(config=manager.state) as client:
        future = client.batch(endpoint="cluster").submit(abs, -1)
        wait_until(lambda: "waits: " in (here.seen["trouble"] or ""), "the reason is shown", 30)
        assert "Resources" in here.seen["trouble"] or "Priority" in here.seen["trouble"]
        cluster.cancel(taken)
        assert future.result(60) == 1
        wait_until(lambda: here.seen["trouble"] is None, "there is no trouble any more", 20)


def test_preempted_slurm_nodes_are_returned_at_once(
    cluster: Slurm, manager: Daemon, endpoint: Make, tmp_path: Path
) -> None:
    here = endpoint("partition=idle")
    count = 400
    with dayfly.connect(config=manager.state) as client:
        options = {"endpoint": "cluster", "repeatable": True}
        batch = client.map(leave_a_mark, [str(tmp_path)] * count, range(count), [0.05] * count, **options)
        wait_until(lambda: batch.done() > 20, "tasks go on", 60)
        [block] = here.blocks
        asked = time.monotonic()
        wanted = cluster.fill("batch", "sleep 5")
        cluster.wait_for(wanted, "RUNNING", timeout=20)
        # Slurm looks once a second, and gives five of grace, of which next to nothing is used.
        assert time.monotonic() - asked < 5
        assert cluster.state(block["job"]) != "RUNNING"
        # They come back after it, and no task is lost.
        assert outcomes(batch) == {"well": count}
        assert here.blocks[0]["job"] != block["job"]
    assert len(executions(tmp_path)) == count


def test_restarted_endpoint_adopts_its_pilot_jobs(cluster: Slurm, manager: Daemon, endpoint: Make) -> None:
    here = endpoint("partition=idle")
    with dayfly.connect(config=manager.state) as client, dayfly.Executor(endpoint="cluster", client=client) as executor:
        assert executor.submit(abs, -1).result(60) == 1
        [block] = here.blocks
        for end in (here.kill, lambda: here.stop("--keep-blocks")):
            end()
            assert cluster.state(block["job"]) == "RUNNING"
            here.start()
            assert executor.submit(abs, -2).result(60) == 2
            assert [one["job"] for one in here.blocks] == [block["job"]]
    here.stop()
    assert cluster.state(block["job"]) in ("CANCELLED", "COMPLETED", "COMPLETING")


def test_job_over_files_gives_same_result_on_slurm(manager: Daemon, endpoint: Make, tmp_path: Path) -> None:
    endpoint("partition=idle")
    album = Album(tmp_path, manager.client_environment(), "cluster")
    album.begin_and_die()
    submitted, before, _ = album.finish()
    assert (submitted, before) == (0, album.files)
    album.check()


def test_unknown_option_is_named_at_setup(endpoint: Make) -> None:
    with pytest.raises(AssertionError, match="partitoin"):
        endpoint("partitoin=idle", start=False)


def linger() -> int:
    time.sleep(300)
    return os.getpid()


def test_prolog_reclaims_and_epilog_returns_nodes(start: Callable[..., Daemon], tmp_path: Path) -> None:
    manager, _ = several_nodes(start, nodes=2, workers=2)
    scripts = {}
    for name, command in (("Prolog", 'reclaim "$SLURMD_NODENAME" --grace 1s'), ("Epilog", 'resume "$SLURMD_NODENAME"')):
        script = scripts[name] = tmp_path / name
        script.write_text(
            f"#!/bin/sh\n{program()} --manager {manager.state} node {command} >> {tmp_path}/log 2>&1 || true\n"
        )
        script.chmod(0o755)
    settings = {**{name: str(script) for name, script in scripts.items()}, "PrologFlags": "Alloc"}
    with (
        private_directory() as directory,
        slurm_cluster(Path(directory), settings=settings) as cluster,
        dayfly.connect(config=manager.state) as client,
    ):
        ids = {node["address"]["name"]: node["address"]["id"] for node in client.nodes()}
        leases = {name: client.lease(1, mode="warm", node=node) for name, node in ids.items()}
        pids = {name: lease.call(os.getpid) for name, lease in leases.items()}
        calls = {name: lease.submit(linger) for name, lease in leases.items()}
        wait_until(lambda: all(call.running() for call in calls.values()), "all nodes are at work")
        begun = time.monotonic()
        look = " ".join(f"test -d /proc/{pid} && echo {name} is at work;" for name, pid in pids.items())
        job = cluster.submit(f"{look} echo begun; sleep 2", "batch")
        cluster.wait_for(job, "RUNNING")
        # A second of grace, and Slurm's own look for jobs.
        assert time.monotonic() - begun < 8
        taken = cluster.about(job)["NodeList"]
        other = next(name for name in ids if name != taken)
        assert isinstance(calls[taken].exception(10), dayfly.Error)

        def states() -> dict[str, str]:
            return {node["address"]["name"]: node["state"] for node in client.nodes()}

        wait_until(lambda: states() == {taken: "reclaimed", other: "up"}, "the node is taken back", 10)
        cluster.wait_for(job, "COMPLETED")
        # Nothing of the leases was left when it began; the other node is at work.
        said = (Path(directory) / f"job-{job}.out").read_text().splitlines()
        assert said == [f"{other} is at work", "begun"]
        wait_until(lambda: len(up(manager)) == 2, "the node is lent again")
        with client.lease(1, mode="warm", node=ids[taken]) as again:
            assert again.call(abs, -1) == 1
        calls[other].kill()
        for lease in leases.values():
            lease.shutdown(cancel_futures=True)
        assert "cannot" not in (tmp_path / "log").read_text()
