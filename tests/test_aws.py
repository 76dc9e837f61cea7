"""Endpoints whose blocks are instances of EC2: a fake, with an API that is moto's and instances that are processes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import cloud
from harness.cloud import Ec2
from harness.daemons import Daemon, private_directory
from harness.endpoints import Endpoint, Way, endpoints_of, manager_alone
from harness.leaks import wait_until
from harness.providers import STAYS, Provider

mayfly = pytest.importorskip("mayfly", reason="the package is not installed: make build")
pytestmark = pytest.mark.skipif(cloud.unavailable() is not None, reason=str(cloud.unavailable()))

Make = Callable[..., Endpoint]


@pytest.fixture
def ec2(state: Path) -> Iterator[Ec2]:
    (state / "home").mkdir(parents=True)
    with private_directory() as directory:
        ec2 = Ec2(Path(directory), hidden=state / "home")
        yield ec2
        ec2.stop()


@pytest.fixture
def provider(ec2: Ec2, tmp_path: Path) -> Iterator[Provider]:
    with Provider("aws", tmp_path, ec2.environment(), **ec2.options()) as provider:
        yield provider


@pytest.fixture
def manager(ec2: Ec2, state: Path) -> Iterator[Daemon]:
    with manager_alone(state / "manager") as manager:
        yield manager


@pytest.fixture
def endpoint(ec2: Ec2, manager: Daemon, state: Path) -> Iterator[Make]:
    """``endpoint(subnet=...)`` sets one up with such instances, and starts it."""
    with endpoints_of(manager, state / "home", **ec2.environment()) as set_up:

        def make(*more: str, **options: str) -> Endpoint:
            given = [word for key, value in ec2.options(**options).items() for word in ("--option", f"{key}={value}")]
            setup = ("--provider", "aws", "--address", "127.0.0.1", "--walltime", "10m", *given, *more)
            return set_up(*setup, name="cloud")

        yield make


def test_an_instance_runs_its_command_and_ends_with_it(ec2: Ec2, provider: Provider) -> None:
    job = provider.job("echo it is $MAYFLY_RANK; exit 3", walltime_s=3600)
    assert "shutdown" in provider.wait_for(job, "ended")
    # Before anything else it says when it ends, whatever becomes of its script.
    assert ec2.output(job) == ["shutdown -P +62", "it is 0", "shutdown -P now"]
    about = ec2.instances()[job]
    assert {tag["Key"]: tag["Value"] for tag in about["Tags"]}["Name"] == "block-1"
    behaves = ec2.client.describe_instance_attribute(InstanceId=job, Attribute="instanceInitiatedShutdownBehavior")
    assert behaves["InstanceInitiatedShutdownBehavior"]["Value"] == "terminate"


def test_the_command_of_a_cancelled_instance_is_told(ec2: Ec2, provider: Provider) -> None:
    job = provider.job(STAYS)
    wait_until(lambda: "here 0" in ec2.output(job), "the command runs", 20)
    assert provider.ask(cancel=[job, "i-0123456789abcdef0"]) == {"cancelled": [job, "i-0123456789abcdef0"]}
    assert "shutdown" in provider.wait_for(job, "ended")
    wait_until(lambda: "told 0" in ec2.output(job), "the command was told", 20)
    # What is over, or was never there, is none less cancelled.
    assert provider.ask(cancel=[job]) == {"cancelled": [job]}
    assert provider.how("i-0123456789abcdef0") == ("ended", "")


def test_a_command_has_its_walltime_and_no_more(ec2: Ec2, provider: Provider) -> None:
    job = provider.job(STAYS, walltime_s=1)
    provider.wait_for(job, "ended")
    # What shells say of their children may stand between.
    said = [line for line in ec2.output(job) if line != "Terminated"]
    assert said == ["shutdown -P +3", "here 0", "told 0", "shutdown -P now"]


def test_what_is_refused_is_refused_in_the_words_of_ec2(ec2: Ec2, tmp_path: Path) -> None:
    def begin(**options: object) -> str:
        provider = Provider("aws", tmp_path, ec2.environment(), **options)
        answer = provider.begin()
        provider.end()
        return str(answer)

    assert "unknown option zone" in begin(**ec2.options(zone="a"))
    assert "option spot is a str" in begin(**ec2.options(spot="yes"))
    assert "16384 bytes" in begin(**ec2.options(worker_init="x" * 20_000))
    assert "option image is needed" in begin(region="us-east-1", instance_type="t3.micro")
    with Provider("aws", tmp_path, ec2.environment(), **ec2.options(subnet="subnet-0123")) as provider:
        assert "InvalidSubnetID.NotFound" in provider.submit()["refused"]
    with Provider("aws", tmp_path, ec2.environment(), **ec2.options()) as provider:
        assert "cannot be 2" in provider.submit(nodes=2)["refused"]


def test_an_instance_that_nobody_answered_for_is_ended(ec2: Ec2, tmp_path: Path) -> None:
    way = Way(ec2.url, answered=lambda sent: b"RunInstances" not in sent or b"DryRun" in sent)
    try:
        options = ec2.options(endpoint_url=f"http://127.0.0.1:{way.port}")
        with Provider("aws", tmp_path, ec2.environment(), **options) as provider:
            assert "onnection" in provider.submit(STAYS)["failed"]
            wait_until(lambda: bool(ec2.instances()), "it is there all the same")
            assert provider.ask(status=[]) == {"jobs": {}}
            wait_until(lambda: {ec2.state(one) for one in ec2.instances()} == {"terminated"}, "it is ended")
    finally:
        way.close()


def test_tasks_run_on_instances_which_go_when_they_idle(ec2: Ec2, manager: Daemon, endpoint: Make) -> None:
    here = endpoint("--idle", "1s", worker_init="echo prepared; export PREPARED=yes")
    with mayfly.connect(config=manager.state) as client, mayfly.Executor(endpoint="cloud", client=client) as executor:
        assert executor.submit(os.getenv, "PREPARED").result(60) == "yes"
        [block] = here.blocks
        assert ec2.state(block["job"]) == "running"
        assert block["ends_at_ms"] / 1000 - time.time() == pytest.approx(600, abs=60)
        # Nothing of the endpoint's files is there: the node joined by what came with its command.
        assert executor.submit(os.listdir, here.directory.parents[2]).result(30) == []
    wait_until(lambda: ec2.state(block["job"]) == "terminated", "the instance is over", 40)
    wait_until(lambda: here.seen["blocks"] == [], "the manager knows", 20)
    assert "prepared" in ec2.output(block["job"])


def test_instances_are_adopted_by_an_endpoint_that_is_started_again(ec2: Ec2, manager: Daemon, endpoint: Make) -> None:
    here = endpoint("--min-blocks", "1")
    wait_until(lambda: here.blocks and here.blocks[0]["joined"] == 1, "its node is there", 40)
    [block] = here.blocks
    here.kill()
    here.start()
    with mayfly.connect(config=manager.state) as client, mayfly.Executor(endpoint="cloud", client=client) as executor:
        assert executor.submit(pow, 2, 10).result(60) == 1024
    assert [one["job"] for one in here.blocks] == [block["job"]]
    here.stop()
    wait_until(lambda: {ec2.state(one) for one in ec2.instances()} == {"terminated"}, "none is left", 20)


def test_a_refusal_is_shown_at_once(ec2: Ec2, manager: Daemon, endpoint: Make) -> None:
    network = ec2.client.describe_vpcs()["Vpcs"][0]["VpcId"]
    subnet = ec2.client.create_subnet(VpcId=network, CidrBlock="172.31.200.0/24")["Subnet"]["SubnetId"]
    here = endpoint(subnet=subnet)
    ec2.client.delete_subnet(SubnetId=subnet)
    with mayfly.connect(config=manager.state) as client:
        task = client.run(pow, 2, 10, endpoint="cloud")
        wait_until(lambda: here.seen["trouble"], "the refusal is known", 20)
        assert "InvalidSubnetID.NotFound" in json.dumps(here.seen["trouble"])
        task.cancel()


def test_a_block_is_one_instance(endpoint: Make) -> None:
    with pytest.raises(AssertionError, match="is one node"):
        endpoint("--nodes-per-block", "2")
