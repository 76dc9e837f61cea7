"""Endpoints whose blocks are virtual machines of Azure: what is not as in other clouds, with a fake of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import azure
from harness.azure import Azure
from harness.azure_rules import GROUP, IDENTITY
from harness.daemons import Daemon, private_directory
from harness.endpoints import Endpoint, endpoints_of, manager_alone
from harness.leaks import wait_until
from harness.providers import STAYS, Provider

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")
pytestmark = pytest.mark.skipif(azure.unavailable() is not None, reason=str(azure.unavailable()))

Begin = Callable[..., Provider]
FULL = ("AllocationFailed", "We do not have sufficient capacity for the requested VM size in this region.")


@pytest.fixture
def compute(state: Path) -> Iterator[Azure]:
    (state / "home").mkdir(parents=True)
    with private_directory() as directory:
        compute = Azure(Path(directory), hidden=state / "home")
        yield compute
        compute.stop()


@pytest.fixture
def begin(compute: Azure, tmp_path: Path) -> Begin:
    """``begin(spot=True)`` is a provider with such an option, to be entered."""
    return lambda **more: Provider("azure", tmp_path, compute.environment(), **compute.options(**more))


@pytest.fixture
def manager(compute: Azure, state: Path) -> Iterator[Daemon]:
    with manager_alone(state / "manager") as manager:
        yield manager


@pytest.fixture
def set_up(compute: Azure, manager: Daemon, state: Path) -> Iterator[Callable[..., Endpoint]]:
    with endpoints_of(manager, state / "home", **compute.environment()) as set_up:
        yield set_up


def _trouble(provider: Provider) -> str:
    answer = provider.begin()
    provider.end()
    return str(answer.get("trouble") or answer.get("failed"))


def test_machine_has_the_requested_properties(compute: Azure, begin: Begin) -> None:
    with begin(spot=True, public_ip=True, tags={"team": "physics"}, ssh_public_key="ssh-ed25519 AAAAC3") as provider:
        job = provider.job(STAYS)
        provider.wait_for(job, "running")
        about = compute.there[job]
        assert about["tags"]["team"] == "physics"
        properties = about["properties"]
        assert (properties["priority"], properties["evictionPolicy"]) == ("Spot", "Delete")
        (key,) = properties["osProfile"]["linuxConfiguration"]["ssh"]["publicKeys"]
        assert key["keyData"] == "ssh-ed25519 AAAAC3"
        # All that came with it goes with it.
        assert len(compute.costs()) == 4
        provider.ask(cancel=[job])
        wait_until(lambda: compute.costs() == [], "all of it is gone")


def test_machine_deletes_itself_with_its_identity(compute: Azure, begin: Begin) -> None:
    with begin(identity="nodes") as provider:
        job = provider.job("exit 0")
        assert list(compute.there[job]["identity"]["userAssignedIdentities"]) == [IDENTITY]
    # Nobody is there any more who would.
    wait_until(lambda: compute.costs() == [], "it is deleted")


def test_undeletable_instance_is_deleted_by_the_restarted_endpoint(compute: Azure, begin: Begin) -> None:
    compute.trusts_machines = False
    with begin(identity=IDENTITY) as provider:
        job = provider.job("exit 0")
    wait_until(lambda: compute.there[job]["_power"] == "stopped", "it is shut down")
    assert compute.output(job) == ["shutdown -P +12", "shutdown -P now"]
    with begin() as provider:
        wait_until(lambda: compute.costs() == [], "it is deleted")
        assert provider.how(job) == ("ended", "")


def test_machines_of_other_endpoints_are_not_touched(compute: Azure, begin: Begin, tmp_path: Path) -> None:
    compute.page = 1
    with begin() as provider:
        first, second = provider.job("exit 0"), provider.job("exit 0 # again")
    wait_until(lambda: {one["_power"] for one in compute.there.values()} == {"stopped"}, "they are shut down")
    with Provider("azure", tmp_path / "elsewhere", compute.environment(), **compute.options()) as another:
        assert set(compute.there) == {first, second}
        # But who asks for one by its name is told.
        assert another.how(first) == ("ended", "VM stopped")
    wait_until(lambda: set(compute.there) == {second}, "that one is deleted")
    with begin():
        wait_until(lambda: compute.costs() == [], "so is the other, by who made it")


def test_missing_machines_end_with_the_reason(compute: Azure, begin: Begin) -> None:
    compute.fault = FULL
    with begin() as provider:
        job = provider.job(STAYS)
        told: list[str] = []

        def is_over() -> bool:
            state, words = provider.how(job)
            told.append(words)
            return state == "ended"

        wait_until(is_over, "it is over")
        assert told[-1] == f"{FULL[1]} ({FULL[0]})"
        wait_until(lambda: compute.costs() == [], "what came of it is deleted")


def test_error_quotes_azure(compute: Azure, begin: Begin, tmp_path: Path) -> None:
    unsaid = {name: value for name, value in compute.options().items() if name != "identity"}
    assert "option identity is needed" in _trouble(Provider("azure", tmp_path, compute.environment(), **unsaid))
    assert "Resource group 'none' could not be found. (ResourceGroupNotFound)" in _trouble(begin(resource_group="none"))
    assert "could not be found. (SubscriptionNotFound)" in _trouble(begin(subscription="none"))
    assert "(ResourceNotFound)" in _trouble(begin(subnet="net/none"))
    for wrong, code in (
        ({"vm_size": "Standard_X1"}, "InvalidParameter"),
        ({"image": "a:b:c:d"}, "PlatformImageNotFound"),
        ({"identity": "none-such"}, "FailedIdentityOperation"),
        ({"ssh_public_key": "secret"}, "InvalidParameter"),
    ):
        with begin(**wrong) as provider:
            assert f"({code})" in provider.submit()["refused"]
    compute.quota = 0
    with begin() as provider:
        assert "approved Total Regional Cores quota" in provider.submit()["refused"]
    assert compute.costs() == []


def test_unknown_subscription_ends_no_instances(compute: Azure, begin: Begin) -> None:
    with begin() as provider:
        job = provider.job(STAYS)
        provider.wait_for(job, "running")
    another = begin(subscription="none")
    another.begin()
    assert "SubscriptionNotFound" in another.ask(status=[job])["failed"]
    another.end()


def test_missing_credentials_are_reported(compute: Azure, tmp_path: Path) -> None:
    nothing = {"AZURE_TOKEN_CREDENTIALS": "EnvironmentCredential"}
    assert "EnvironmentCredential" in _trouble(Provider("azure", tmp_path, nothing, **compute.options()))


def test_refusal_is_shown_at_once(compute: Azure, manager: Daemon, set_up: Callable[..., Endpoint]) -> None:
    given = [word for key, value in compute.options().items() for word in ("--option", f"{key}={value}")]
    here = set_up("--provider", "azure", "--address", "127.0.0.1", "--walltime", "10m", *given, name="cloud")
    compute.quota = 0
    with dayfly.connect(config=manager.state) as client:
        task = client.run(pow, 2, 10, endpoint="cloud")
        wait_until(lambda: here.seen["trouble"] and "quota" in here.seen["trouble"], "the refusal is known", 20)
        task.cancel()


def test_setup_reports_errors(compute: Azure, set_up: Callable[..., Endpoint]) -> None:
    options = compute.options(resource_group=f"{GROUP}-none")
    given = [word for key, value in options.items() for word in ("--option", f"{key}={value}")]
    with pytest.raises(AssertionError, match="ResourceGroupNotFound"):
        set_up("--provider", "azure", "--address", "127.0.0.1", "--walltime", "10m", *given, name="cloud")
