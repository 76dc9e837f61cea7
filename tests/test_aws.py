"""Endpoints whose blocks are instances of EC2: what is not as in other clouds. The fake's API is moto's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import cloud
from harness.cloud import Ec2
from harness.daemons import Daemon, private_directory
from harness.endpoints import Endpoint, endpoints_of, manager_alone
from harness.leaks import wait_until
from harness.providers import Provider

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")
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


def test_instance_is_named_and_terminates_at_shutdown(ec2: Ec2, tmp_path: Path) -> None:
    with Provider("aws", tmp_path, ec2.environment(), **ec2.options()) as provider:
        job = provider.job("exit 3", walltime_s=3600)
        assert "shutdown" in provider.wait_for(job, "ended")
    about = ec2.instances()[job]
    assert {tag["Key"]: tag["Value"] for tag in about["Tags"]}["Name"] == "block-1"
    behaves = ec2.client.describe_instance_attribute(InstanceId=job, Attribute="instanceInitiatedShutdownBehavior")
    assert behaves["InstanceInitiatedShutdownBehavior"]["Value"] == "terminate"


def test_refusal_quotes_ec2(ec2: Ec2, tmp_path: Path) -> None:
    with Provider("aws", tmp_path, ec2.environment(), **ec2.options(subnet="subnet-0123")) as provider:
        assert "InvalidSubnetID.NotFound" in provider.submit()["refused"]
    provider = Provider("aws", tmp_path, ec2.environment(), **ec2.options(worker_init="x" * 20_000))
    assert "16384 bytes" in provider.begin()["trouble"]
    provider.end()


def test_refusal_is_shown_at_once(ec2: Ec2, manager: Daemon, endpoint: Make) -> None:
    network = ec2.client.describe_vpcs()["Vpcs"][0]["VpcId"]
    subnet = ec2.client.create_subnet(VpcId=network, CidrBlock="172.31.200.0/24")["Subnet"]["SubnetId"]
    here = endpoint(subnet=subnet)
    ec2.client.delete_subnet(SubnetId=subnet)
    with dayfly.connect(config=manager.state) as client:
        task = client.run(pow, 2, 10, endpoint="cloud")
        wait_until(lambda: here.seen["trouble"], "the refusal is known", 20)
        assert "InvalidSubnetID.NotFound" in json.dumps(here.seen["trouble"])
        task.cancel()
