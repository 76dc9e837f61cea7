"""Endpoints whose blocks are pods: of a fake Kubernetes, whose pods are processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import kubernetes
from harness.daemons import Daemon, private_directory
from harness.endpoints import Endpoint, endpoints_of, manager_alone
from harness.kubernetes import Kubernetes
from harness.leaks import wait_until
from harness.providers import STAYS, Provider

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")
pytestmark = pytest.mark.skipif(kubernetes.unavailable() is not None, reason=str(kubernetes.unavailable()))

Make = Callable[..., Endpoint]


@pytest.fixture
def cluster(state: Path) -> Iterator[Kubernetes]:
    (state / "home").mkdir(parents=True)
    with private_directory() as directory:
        cluster = Kubernetes(Path(directory), hidden=state / "home", room=2)
        yield cluster
        cluster.stop()


@pytest.fixture
def provider(cluster: Kubernetes, tmp_path: Path) -> Iterator[Provider]:
    with Provider("kubernetes", tmp_path, cluster.environment(), image="dayfly:1", namespace="tests") as provider:
        yield provider


@pytest.fixture
def manager(cluster: Kubernetes, state: Path) -> Iterator[Daemon]:
    with manager_alone(state / "manager") as manager:
        yield manager


@pytest.fixture
def endpoint(cluster: Kubernetes, manager: Daemon, state: Path) -> Iterator[Make]:
    """``endpoint("namespace=tests")`` sets one up with such pods, and starts it."""
    with endpoints_of(manager, state / "home", **cluster.environment()) as set_up:

        def make(*options: str, more: tuple[str, ...] = ()) -> Endpoint:
            given = [word for option in ("image=dayfly:1", *options) for word in ("--option", option)]
            setup = ("--provider", "kubernetes", "--address", "127.0.0.1", "--walltime", "10m", *given, *more)
            return set_up(*setup, name="pods")

        yield make


def test_pod_ends_with_its_command(cluster: Kubernetes, provider: Provider) -> None:
    well = provider.job("echo it is $DAYFLY_RANK")
    badly = provider.job("exit 3")
    provider.wait_for(well, "ended")
    provider.wait_for(badly, "ended")
    assert cluster.output(well) == ["it is 0"]


def test_refusal_quotes_the_cluster(cluster: Kubernetes, provider: Provider) -> None:
    for _ in range(cluster.room):
        provider.job(STAYS)
    assert "exceeded quota: pods=2" in provider.submit()["refused"]


def test_cancelled_pod_signals_its_command(cluster: Kubernetes, provider: Provider) -> None:
    job = provider.job(STAYS)
    wait_until(lambda: "here 0" in cluster.output(job), "the command runs", 20)
    assert provider.how(job) == ("running", "")
    assert provider.ask(cancel=[job, "gone"]) == {"cancelled": [job, "gone"]}
    wait_until(lambda: "told 0" in cluster.output(job), "the command was told", 20)
    assert provider.how(job) == ("ended", "")
    assert cluster.names() == []


def test_pod_ends_at_its_walltime(provider: Provider) -> None:
    job = provider.job(STAYS, walltime_s=1)
    assert provider.wait_for(job, "ended") == "DeadlineExceeded"


def test_missing_kubernetes_client_error_names_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "kubernetes.py").write_text("""raise ImportError("No module named 'kubernetes'")""")
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    provider = Provider("kubernetes", tmp_path / "blocks", {"PYTHONPATH": path}, image="dayfly:1")
    assert "-m pip install parsl kubernetes" in provider.begin()["failed"]
    provider.end()


def test_unresponsive_cluster_ends_no_pods(cluster: Kubernetes, provider: Provider) -> None:
    job = provider.job(STAYS)
    cluster.down = True
    assert "failed" in provider.ask(status=[job])
    assert "failed" in provider.submit()
    cluster.down = False
    assert provider.how(job) == ("running", "")


def test_tasks_run_on_pods_that_end_when_idle(cluster: Kubernetes, manager: Daemon, endpoint: Make) -> None:
    here = endpoint("worker_init=export PREPARED=yes", more=("--idle", "1s"))
    with dayfly.connect(config=manager.state) as client, dayfly.Executor(endpoint="pods", client=client) as executor:
        assert executor.submit(os.getenv, "PREPARED").result(60) == "yes"
        [block] = here.blocks
        assert cluster.names() == [block["job"]]
        # Nothing of the endpoint's files is there: the node joined by what came with its command.
        assert executor.submit(os.listdir, here.directory.parents[2]).result(30) == []
    wait_until(lambda: cluster.names() == [], "the pod is gone", 40)
    wait_until(lambda: here.seen["blocks"] == [], "the manager knows", 20)


def test_refusal_is_shown_at_once(cluster: Kubernetes, manager: Daemon, endpoint: Make) -> None:
    here = endpoint()
    cluster.room = 0
    with dayfly.connect(config=manager.state) as client:
        future = client.batch(endpoint="pods").submit(abs, -1)
        wait_until(lambda: here.seen["trouble"], "the refusal is known", 20)
        assert "exceeded quota" in here.seen["trouble"]
        future.kill()
