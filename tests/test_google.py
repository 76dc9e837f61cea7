"""Endpoints whose blocks are instances of Google's Compute Engine: what is not as in other clouds, with a fake."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import google
from harness.daemons import Daemon, private_directory
from harness.endpoints import Endpoint, endpoints_of, manager_alone
from harness.google import Google
from harness.google_rules import ACCOUNT, PROJECT, ZONE
from harness.leaks import wait_until
from harness.providers import STAYS, Provider

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")
pytestmark = pytest.mark.skipif(google.unavailable() is not None, reason=str(google.unavailable()))

Begin = Callable[..., Provider]
FULL = ("ZONE_RESOURCE_POOL_EXHAUSTED", f"The zone 'projects/{PROJECT}/zones/{ZONE}' does not have enough resources.")


@pytest.fixture
def compute(state: Path) -> Iterator[Google]:
    (state / "home").mkdir(parents=True)
    with private_directory() as directory:
        compute = Google(Path(directory), hidden=state / "home")
        yield compute
        compute.stop()


@pytest.fixture
def begin(compute: Google, tmp_path: Path) -> Begin:
    """``begin(spot=True)`` is a provider with such an option, to be entered."""
    return lambda **more: Provider("google", tmp_path, compute.environment(), **compute.options(**more))


@pytest.fixture
def manager(compute: Google, state: Path) -> Iterator[Daemon]:
    with manager_alone(state / "manager") as manager:
        yield manager


@pytest.fixture
def set_up(compute: Google, manager: Daemon, state: Path) -> Iterator[Callable[..., Endpoint]]:
    with endpoints_of(manager, state / "home", **compute.environment()) as set_up:
        yield set_up


def _trouble(provider: Provider) -> str:
    answer = provider.begin()
    provider.end()
    return str(answer.get("trouble") or answer.get("failed"))


def test_instance_has_the_requested_properties(compute: Google, begin: Begin) -> None:
    with begin(labels={"team": "physics"}, external_ip=True, service_account=ACCOUNT) as provider:
        job = provider.job(STAYS, walltime_s=3600)
        provider.wait_for(job, "running")
    about = compute.instances[job]
    assert job.startswith("block-1-")
    assert about["labels"]["team"] == "physics"
    assert about["disks"][0]["autoDelete"] is True
    assert about["networkInterfaces"][0]["accessConfigs"][0]["type"] == "ONE_TO_ONE_NAT"
    assert about["scheduling"] == {
        "automaticRestart": False,
        "provisioningModel": "STANDARD",
        # A minute after it shuts down by itself.
        "maxRunDuration": {"seconds": str(63 * 60)},
        "instanceTerminationAction": "DELETE",
    }


def test_spot_capacity_is_requested(compute: Google, begin: Begin) -> None:
    with begin(spot=True) as provider:
        job = provider.job(STAYS)
        provider.wait_for(job, "running")
    scheduling = compute.instances[job]["scheduling"]
    assert (scheduling["provisioningModel"], scheduling["onHostMaintenance"]) == ("SPOT", "TERMINATE")


def test_google_deletes_expired_instance_by_itself(compute: Google, begin: Begin) -> None:
    with begin() as provider:
        job = provider.job(STAYS, walltime_s=3600)
        provider.wait_for(job, "running")
    compute.pass_over(62 * 60)
    compute.look()
    assert compute.costs() == [job]
    compute.pass_over(60)
    wait_until(lambda: compute.costs() == [], "it is deleted")


def test_instance_deletes_itself_with_its_service_account(compute: Google, begin: Begin) -> None:
    with begin(service_account=ACCOUNT) as provider:
        provider.job("exit 0")
    # Nobody is there any more who would.
    wait_until(lambda: compute.costs() == [], "it is deleted")
    assert [one["operationType"] for one in compute.operations] == ["insert", "delete"]


def test_undeletable_instance_is_deleted_by_the_restarted_endpoint(compute: Google, begin: Begin) -> None:
    compute.trusts_instances = False
    with begin(service_account=ACCOUNT) as provider:
        job = provider.job("exit 0")
    wait_until(lambda: compute.instances[job]["status"] == "TERMINATED", "it is shut down")
    assert compute.output(job) == ["shutdown -P +12", "shutdown -P now"]
    with begin() as provider:
        wait_until(lambda: compute.costs() == [], "it is deleted")
        assert provider.how(job) == ("ended", "")


def test_instances_of_other_endpoints_are_not_touched(compute: Google, begin: Begin, tmp_path: Path) -> None:
    with begin() as provider:
        job = provider.job("exit 0")
    wait_until(lambda: compute.instances[job]["status"] == "TERMINATED", "it is shut down")
    elsewhere = tmp_path / "elsewhere"
    with Provider("google", elsewhere, compute.environment(), **compute.options()) as another:
        # But who asks for it by its name is told.
        assert another.ask(status=[]) == {"jobs": {}}
        assert compute.costs() == [job]
        assert another.how(job)[0] == "ended"


def test_missing_instances_end_with_the_reason(compute: Google, begin: Begin) -> None:
    compute.fault = FULL
    with begin() as provider:
        job = provider.job(STAYS)
        assert provider.wait_for(job, "ended") == f"{FULL[1]} ({FULL[0]})"
    # By another process, too.
    with begin() as provider:
        assert provider.how(job) == ("ended", f"{FULL[1]} ({FULL[0]})")
    assert compute.costs() == []


def test_instances_are_found_over_many_pages(compute: Google, begin: Begin) -> None:
    compute.page = 1
    with begin() as provider:
        jobs = [provider.job(f"{STAYS} # {number}") for number in range(3)]
        for job in jobs:
            provider.wait_for(job, "running")
        told: dict[str, Any] = provider.ask(status=jobs)["jobs"]
        assert {job: how["state"] for job, how in told.items()} == dict.fromkeys(jobs, "running")
        provider.ask(cancel=jobs)


def test_error_quotes_google(compute: Google, begin: Begin) -> None:
    assert "/machineTypes/e9-small' was not found (notFound)" in _trouble(begin(machine_type="e9-small"))
    assert "/global/images/none' was not found (notFound)" in _trouble(begin(image="none"))
    assert "zones/mars-1a" in _trouble(begin(zone="mars-1a"))
    with begin(network="elsewhere") as provider:
        assert "network resource cannot be found. (invalid)" in provider.submit()["refused"]
    with begin(labels={"Team": "x"}) as provider:
        assert "resource.labels" in provider.submit()["refused"]
    with begin() as provider:
        assert "between 30 seconds and 120 days. (invalid)" in provider.submit(walltime_s=200 * 86400)["refused"]
    assert compute.costs() == []


def test_missing_credentials_error_names_the_remedy(compute: Google, tmp_path: Path) -> None:
    nothing = {"GOOGLE_APPLICATION_CREDENTIALS": str(tmp_path / "none.json")}
    assert "gcloud auth application-default login" in _trouble(
        Provider("google", tmp_path, nothing, **compute.options())
    )


def test_refusal_is_shown_at_once(compute: Google, manager: Daemon, set_up: Callable[..., Endpoint]) -> None:
    given = [word for key, value in compute.options().items() for word in ("--option", f"{key}={value}")]
    here = set_up("--provider", "google", "--address", "127.0.0.1", "--walltime", "10m", *given, name="cloud")
    compute.fault = FULL
    with dayfly.connect(config=manager.state) as client:
        task = client.run(pow, 2, 10, endpoint="cloud")
        wait_until(lambda: here.seen["trouble"] and FULL[0] in here.seen["trouble"], "the refusal is known", 20)
        task.cancel()


def test_setup_reports_errors(compute: Google, set_up: Callable[..., Endpoint]) -> None:
    options = compute.options(machine_type="e9-small")
    given = [word for key, value in options.items() for word in ("--option", f"{key}={value}")]
    with pytest.raises(AssertionError, match="e9-small' was not found"):
        set_up("--provider", "google", "--address", "127.0.0.1", "--walltime", "10m", *given, name="cloud")
