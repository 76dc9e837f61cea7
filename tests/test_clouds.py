"""Endpoints whose blocks are instances of clouds, all alike: fakes of them, with instances that are processes.

What one of them promises beside that is in `test_aws.py`, `test_google.py` and `test_azure.py`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import azure, cloud, google
from harness.azure import Azure
from harness.cloud import Cloud, Ec2
from harness.daemons import Daemon, private_directory
from harness.endpoints import Endpoint, Way, endpoints_of, manager_alone
from harness.google import Google
from harness.leaks import wait_until
from harness.providers import STAYS, Provider

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")

Make = Callable[..., Endpoint]
Clouds = Callable[[Path, Path], Cloud]


def _kinds() -> Iterator[object]:
    for made, missing in ((Ec2, cloud.unavailable()), (Google, google.unavailable()), (Azure, azure.unavailable())):
        yield pytest.param(made, id=made.kind, marks=pytest.mark.skipif(missing is not None, reason=str(missing)))


@pytest.fixture(name="cloud", params=_kinds())
def some_cloud(request: pytest.FixtureRequest, state: Path) -> Iterator[Cloud]:
    (state / "home").mkdir(parents=True)
    with private_directory() as directory:
        made = request.param(Path(directory), state / "home")
        yield made
        made.stop()


@pytest.fixture
def provider(cloud: Cloud, tmp_path: Path) -> Iterator[Provider]:
    with Provider(cloud.kind, tmp_path, cloud.environment(), **cloud.options()) as provider:
        yield provider


@pytest.fixture
def way(cloud: Cloud) -> Iterator[Way]:
    """A way to the cloud, on which nobody hears what becomes of a request for an instance."""
    way = Way(cloud.url, answered=lambda sent: not cloud.asks(sent))
    yield way
    way.close()


@pytest.fixture
def manager(cloud: Cloud, state: Path) -> Iterator[Daemon]:
    with manager_alone(state / "manager") as manager:
        yield manager


@pytest.fixture
def endpoint(cloud: Cloud, manager: Daemon, state: Path) -> Iterator[Make]:
    """``endpoint("--idle", "1s", worker_init="...")`` sets one up with such instances, and starts it."""
    with endpoints_of(manager, state / "home", **cloud.environment()) as set_up:

        def make(*more: str, **options: str) -> Endpoint:
            given = [word for key, value in cloud.options(**options).items() for word in ("--option", f"{key}={value}")]
            setup = ("--provider", cloud.kind, "--address", "127.0.0.1", "--walltime", "10m", *given, *more)
            return set_up(*setup, name="cloud")

        yield make


def test_instance_ends_with_its_command(cloud: Cloud, provider: Provider) -> None:
    job = provider.job("echo it is $DAYFLY_RANK; exit 3", walltime_s=3600)
    provider.wait_for(job, "ended")
    # Before anything else it says when it ends, whatever becomes of its script.
    assert cloud.output(job) == ["shutdown -P +62", "it is 0", "shutdown -P now"]
    wait_until(lambda: cloud.costs() == [], "nothing of it is to be paid for any more")


def test_repeated_submission_creates_one_instance(cloud: Cloud, provider: Provider) -> None:
    if cloud.kind == Ec2.kind:
        pytest.skip("moto makes another instance for the same token")
    job = provider.job(STAYS)
    assert provider.job(STAYS) == job
    provider.wait_for(job, "running")
    assert provider.job(STAYS) == job
    assert provider.job("exit 0") != job


def test_cancelled_instance_signals_its_command(cloud: Cloud, provider: Provider) -> None:
    job = provider.job(STAYS)
    wait_until(lambda: "here 0" in cloud.output(job), "the command runs", 20)
    provider.wait_for(job, "running")
    assert provider.ask(cancel=[job, "i-0123456789abcdef0"]) == {"cancelled": [job, "i-0123456789abcdef0"]}
    provider.wait_for(job, "ended")
    wait_until(lambda: "told 0" in cloud.output(job), "the command was told", 20)
    wait_until(lambda: cloud.costs() == [], "nothing is left")
    # What is over, or was never there, is none less cancelled.
    assert provider.ask(cancel=[job]) == {"cancelled": [job]}
    assert provider.how("i-0123456789abcdef0") == ("ended", "")


def test_instance_cancelled_before_a_query_has_ended(cloud: Cloud, provider: Provider) -> None:
    job = provider.job(STAYS)
    wait_until(lambda: job in cloud.costs(), "it is there")
    assert provider.ask(cancel=[job]) == {"cancelled": [job]}
    wait_until(lambda: cloud.costs() == [], "nothing is left")
    assert provider.how(job)[0] == "ended"


def test_command_ends_at_its_walltime(cloud: Cloud, provider: Provider) -> None:
    job = provider.job(STAYS, walltime_s=1)
    provider.wait_for(job, "ended")
    # What shells say of their children may stand between.
    said = [line for line in cloud.output(job) if line != "Terminated"]
    assert said == ["shutdown -P +3", "here 0", "told 0", "shutdown -P now"]


def test_preparation_ends_at_its_walltime(cloud: Cloud, tmp_path: Path) -> None:
    options = cloud.options(worker_init="echo begun; sleep 600")
    with Provider(cloud.kind, tmp_path, cloud.environment(), **options) as provider:
        job = provider.job("echo never", walltime_s=1)
        provider.wait_for(job, "ended")
    assert [line for line in cloud.output(job) if line != "Terminated"] == [
        "shutdown -P +3",
        "begun",
        "shutdown -P now",
    ]


def test_unsupported_options_are_named(cloud: Cloud, tmp_path: Path) -> None:
    def begin(**options: object) -> str:
        provider = Provider(cloud.kind, tmp_path, cloud.environment(), **options)
        answer = provider.begin()
        provider.end()
        return str(answer)

    assert "unknown option nodes" in begin(**cloud.options(nodes="a"))
    assert "option spot is a str" in begin(**cloud.options(spot="yes"))
    assert "make worker_init shorter" in begin(**cloud.options(worker_init="x" * 300_000))
    assert "option image is needed" in begin(**{key: one for key, one in cloud.options().items() if key != "image"})


def test_job_of_several_nodes_is_refused(provider: Provider) -> None:
    assert "cannot be 2" in provider.submit(nodes=2)["refused"]


def test_unconfirmed_instance_is_ended(cloud: Cloud, tmp_path: Path, way: Way) -> None:
    options = cloud.options(**{cloud.where: f"http://127.0.0.1:{way.port}"})
    with Provider(cloud.kind, tmp_path, cloud.environment(), **options) as provider:
        assert "onnection" in provider.submit(STAYS)["failed"]
        wait_until(lambda: bool(cloud.costs()), "it is there all the same")
        assert provider.ask(status=[]) == {"jobs": {}}
        wait_until(lambda: cloud.costs() == [], "it is ended")


def test_unreachable_provider_ends_no_instances(cloud: Cloud, provider: Provider, tmp_path: Path, way: Way) -> None:
    job = provider.job(STAYS)
    provider.wait_for(job, "running")
    options = cloud.options(**{cloud.where: f"http://127.0.0.1:{way.port}"})
    with Provider(cloud.kind, tmp_path, cloud.environment(), **options) as another:
        # It knows those of an earlier process.
        assert another.how(job) == ("running", "")
        way.cut()
        assert "failed" in another.ask(status=[job])
        assert "failed" in another.ask(cancel=[job])
        way.mend()
        assert another.how(job) == ("running", "")


def test_tasks_run_on_instances_that_end_when_idle(cloud: Cloud, manager: Daemon, endpoint: Make) -> None:
    here = endpoint("--idle", "1s", worker_init="echo prepared; export PREPARED=yes")
    with dayfly.connect(config=manager.state) as client, dayfly.Executor(endpoint="cloud", client=client) as executor:
        assert executor.submit(os.getenv, "PREPARED").result(60) == "yes"
        [block] = here.blocks
        assert cloud.is_running(block["job"])
        assert block["ends_at_ms"] / 1000 - time.time() == pytest.approx(600, abs=60)
        # Nothing of the endpoint's files is there: the node joined by what came with its command.
        assert executor.submit(os.listdir, here.directory.parents[2]).result(30) == []
    wait_until(lambda: cloud.costs() == [], "the instance is over", 40)
    wait_until(lambda: here.seen["blocks"] == [], "the manager knows", 20)
    assert "prepared" in cloud.output(block["job"])


def test_restarted_endpoint_adopts_its_instances(cloud: Cloud, manager: Daemon, endpoint: Make) -> None:
    here = endpoint("--min-blocks", "1")
    wait_until(lambda: here.blocks and here.blocks[0]["joined"] == 1, "its node is there", 40)
    [block] = here.blocks
    here.kill()
    here.start()
    with dayfly.connect(config=manager.state) as client, dayfly.Executor(endpoint="cloud", client=client) as executor:
        assert executor.submit(pow, 2, 10).result(60) == 1024
    assert [one["job"] for one in here.blocks] == [block["job"]]
    here.stop()
    wait_until(lambda: cloud.costs() == [], "none is left", 20)


def test_block_is_one_instance(endpoint: Make) -> None:
    with pytest.raises(AssertionError, match="is one node"):
        endpoint("--nodes-per-block", "2")
