"""Teams to share with, and what tasks took: of whom, of what, and where."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from harness.endpoints import endpoints_of
from harness.leaks import wait_until
from harness.managers import Manager, tenant
from harness.programs import program, run

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")

# Workers cannot import what pytest made of this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def manager(state: Path) -> Iterator[Manager]:
    manager = Manager(state / "up")
    yield manager
    manager.stop()


@pytest.fixture
def client(manager: Manager) -> Iterator[dayfly.Client]:
    with dayfly.connect(config=manager.state) as client:
        yield client


def double(number: int) -> int:
    return 2 * number


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def short(line: dict[str, Any]) -> str:
    """A function's name without its module."""
    name: str = line["name"]
    return name.rsplit(".", 1)[-1]


def fail(mark: str) -> None:
    time.sleep(0.1)
    raise ValueError(mark)


def test_team_members_use_what_their_team_shares(manager: Manager, client: dayfly.Client, state: Path) -> None:
    people = {name: tenant(manager.daemon, name, state) for name in ("alice", "bob")}
    with dayfly.connect(config=people["alice"]) as alice, dayfly.connect(config=people["bob"]) as bob:
        assert client.team("astro", ["alice"], description="the telescope")["owner"] == "default"
        function = client.register(double, share=["team:astro"])
        assert alice.run(alice.function(function.id), 4).result(30) == 8
        for forbidden in (lambda: bob.function(function.id), lambda: bob.run(function, 4).result(30)):
            with pytest.raises(dayfly.Error, match="there is no function"):
                forbidden()
        assert [team["name"] for team in alice.teams()] == ["astro"]
        assert bob.teams() == []
        # It is its owner's to change, and nobody else's.
        with pytest.raises(dayfly.Error, match="belongs to another tenant"):
            alice.team("astro", ["alice", "bob"])
        client.team("astro", ["bob"])
        assert bob.run(bob.function(function.id), 5).result(30) == 10
        with pytest.raises(dayfly.Error, match="there is no function"):
            alice.function(function.id)
        # Nobody shares with a team that somebody else may make later, or takes over the name of one that was removed.
        with pytest.raises(dayfly.Error, match="there is no team"):
            bob.register(double, share=["team:bio"])
        manager.daemon.cli("team", "remove", "astro")
        with pytest.raises(dayfly.Error, match="belongs to another tenant"):
            alice.team("astro", ["alice"])
        with pytest.raises(dayfly.Error, match="there is no function"):
            bob.function(function.id)
        assert client.teams() == []
        client.team("astro", ["bob", "bob"])
        client.team("bio", ["bob"])
        with pytest.raises(dayfly.Error, match="you have no team `bio`"):
            bob.remove_team("bio")
        assert client.remove_team("bio")["members"] == ["bob"]
        assert [team["name"] for team in client.teams()] == ["astro"]
    manager.again()
    with dayfly.connect(config=people["bob"]) as bob:
        assert bob.run(bob.function(function.id), 6).result(30) == 12


def test_command_line_manages_teams(manager: Manager) -> None:
    def say(*arguments: str) -> Any:
        return manager.daemon.cli("team", *arguments)

    assert say("list") == []
    made = say("set", "astro", "alice", "bob", "--description", "the telescope")
    assert (made["members"], made["owner"], made["description"]) == (["alice", "bob"], "default", "the telescope")
    assert say("add", "astro", "carol", "bob")["members"] == ["alice", "bob", "carol"]
    dropped = say("drop", "astro", "alice")
    assert (dropped["members"], dropped["description"]) == (["bob", "carol"], "the telescope")
    environment = manager.daemon.client_environment()
    assert "bob, carol" in run(program(), "team", "list", env=environment).stdout
    assert say("remove", "astro")["name"] == "astro"
    assert say("list") == []
    for wrong in (("add", "astro", "x"), ("remove", "astro"), ("set", "1st", "x")):
        done = run(program(), "team", *wrong, check=False, env=environment)
        assert done.returncode != 0
        assert "team" in done.stderr


def test_usage_survives_a_restart(manager: Manager, client: dayfly.Client, state: Path) -> None:
    alice_at = tenant(manager.daemon, "alice", state)
    for future in [client.run(sleep, 0.1) for _ in range(4)]:
        future.result(30)
    assert client.run(double, 1).result(30) == 2
    with dayfly.Executor(client=client, retries=1) as executor, pytest.raises(ValueError, match="again"):
        executor.submit(fail, "again").result(30)
    with dayfly.connect(config=alice_at) as alice:
        assert alice.run(double, 2).result(30) == 4
        assert [(line["tenant"], short(line), line["tasks"]) for line in alice.usage()] == [("alice", "double", 1)]
        with pytest.raises(dayfly.Error, match="operator"):
            alice.usage(everybody=True)
    manager.again()
    with dayfly.connect(config=manager.state) as again:
        lines = {short(line): line for line in again.usage()}
        assert set(lines) == {"sleep", "double", "fail"}
        assert {name: (line["tasks"], line["failed"]) for name, line in lines.items()} == {
            "sleep": (4, 0),
            "double": (1, 0),
            "fail": (1, 1),
        }
        # Each of four took a tenth of a second, and so did both executions of the one that failed.
        assert 400 <= lines["sleep"]["took_ms"] < 4_000
        assert 200 <= lines["fail"]["took_ms"] < 4_000
        assert lines["double"]["took_ms"] < 400
        assert {(line["endpoint"], line["tenant"]) for line in lines.values()} == {("local", "default")}
        assert len(again.usage(everybody=True)) == 4
        again.run(double, 3).result(30)
        assert next(line for line in again.usage() if short(line) == "double")["tasks"] == 2
    environment = manager.daemon.client_environment()
    shown = run(program(), "usage", "--everybody", "--by", "tenant", env=environment).stdout
    assert [line.split()[:2] for line in shown.splitlines()[1:]] == [["alice", "1"], ["default", "7"]]
    csv = run(program(), "usage", "--csv", env=environment).stdout
    assert csv.splitlines()[0] == "what,tasks,failed,took_ms,cost"
    assert 'double (default)",2,0,' in csv
    assert json.loads(run(program(), "usage", "--until", "2001-01-01", "--json", env=environment).stdout) == []


def test_tenant_over_budget_or_suspended_is_refused(manager: Manager, state: Path) -> None:
    def set_astro(*spec: str) -> None:
        manager.daemon.cli("tenant", "set", "astro", *spec)

    def spent() -> int:
        return next(one["spent"] for one in manager.daemon.cli("tenant", "list") if one["name"] == "astro")

    def refusal() -> str:
        with pytest.raises(dayfly.Error) as refused:
            astro.run(function, 1).result(30)
        assert refused.value.code == "quota_exceeded"
        return str(refused.value)

    with dayfly.connect(config=tenant(manager.daemon, "astro", state)) as astro:
        function = astro.register(double)
        set_astro("--price-computing", "100", "--budget", "5")
        assert astro.run(sleep, 0.1).result(30) is None
        # Nodes say what was used every two seconds.
        wait_until(lambda: spent() > 5 * 10**9, "it is in the books", 30)
        assert "has spent" in refusal()
        steps = [dayfly.Step("one", function)]
        with pytest.raises(dayfly.Error, match="has spent"):
            astro.flow(steps, 1)
        with pytest.raises(dayfly.Error, match="no endpoint `elsewhere`"):
            dayfly.Executor(endpoint="elsewhere", client=astro, durable=False)
        # What happens meanwhile is not lost, and says what it waits for.
        timer = astro.trigger("each-second", function, timer="* * * * * *", keywords={})
        wait_until(lambda: "has spent" in str(timer.refresh()["trouble"]), "the trigger says why it waits", 30)
        assert timer.status["started"] == 0
        set_astro("--no-budget")
        assert astro.run(function, 2).result(30) == 4
        wait_until(lambda: timer.refresh()["started"] >= 1, "what waited starts", 30)
        timer.remove()
        set_astro("--suspend")
        assert "is suspended" in refusal()
        set_astro("--resume")
        assert astro.flow(steps, 3).result(30) == 6


def test_tasks_at_shared_remote_endpoint_are_charged_once(manager: Manager, state: Path) -> None:
    def of_astro() -> dict[str, Any]:
        found: list[dict[str, Any]] = manager.daemon.cli("tenant", "list")
        return next(one for one in found if one["name"] == "astro")

    def cost(client: dayfly.Client) -> int:
        return sum(line["cost"] for line in client.usage())

    astro_at = tenant(manager.daemon, "astro", state)
    manager.daemon.cli("tenant", "set", "astro", "--price-computing", "100")
    with endpoints_of(manager.daemon, state) as make:
        here = make("--share-with", "astro", "--min-blocks", "1", "--workers-per-node", "1")
        with dayfly.connect(config=astro_at) as astro:
            for future in [astro.batch(endpoint="here").submit(sleep, 0.2) for _ in range(5)]:
                future.result(60)
            # A second of computing, for a hundred each.
            before = cost(astro)
            assert 100 * 10**9 <= before < 400 * 10**9
            wait_until(lambda: of_astro()["spent_on_tasks"] == before, "it is charged", 30)
            assert (of_astro()["spent"], manager.daemon.cli("bill", "--tenant", "astro")) == (before, [])
        # It is neither lost nor charged again when the manager dies.
        manager.again()
        with dayfly.connect(config=astro_at) as astro, dayfly.connect(config=manager.state) as owner:
            assert (cost(astro), of_astro()["spent_on_tasks"], of_astro()["spent"]) == (before, before, before)
            manager.daemon.cli("tenant", "set", "astro", "--budget", str(before // 10**9 + 30))
            # At once: what comes after the budget is spent would be refused.
            futures = astro.map(sleep, [0.5] * 40, endpoint="here").futures
            wait_until(lambda: of_astro()["spent"] > of_astro()["budget"], "the budget is spent", 60)
            with pytest.raises(dayfly.Error, match="has spent"):
                astro.batch(endpoint="here").submit(double, 1).result(30)
            # What the endpoint has is executed; the rest waits, as it would for nodes here, until the budget grows.
            wait_until(lambda: here.seen["tasks"]["waiting"] + here.seen["tasks"]["running"] == 0, "all rests", 60)
            assert 0 < sum(future.done() for future in futures) < 40
            # It holds up nobody else. Whose an endpoint is has no use of it to pay here.
            owner.batch(endpoint="here").submit(sleep, 0.1).result(60)
            assert [line["cost"] for line in owner.usage()] == [0]
            manager.daemon.cli("tenant", "set", "astro", "--no-budget")
            for future in futures:
                assert future.result(60) is None
            wait_until(lambda: of_astro()["spent"] == cost(astro), "it is charged", 30)
