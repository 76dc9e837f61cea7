"""Endpoints: places where tasks run, with nodes that come when there are tasks and go when there are none."""

from __future__ import annotations

import concurrent.futures
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.album import Album
from harness.daemons import Daemon, free_port
from harness.endpoints import Endpoint, Way, endpoints_of, manager_alone
from harness.leaks import wait_until
from harness.marks import executions, go_on, leave_a_mark, leave_a_mark_behind, outcomes
from harness.projects import DURABLE, Project

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")

Make = Callable[..., Endpoint]


@pytest.fixture
def manager(state: Path) -> Iterator[Daemon]:
    """A manager at a port that it has again when it is started again; nothing is left when it has ended."""
    with manager_alone(state / "manager", free_port()) as manager:
        yield manager


@pytest.fixture
def endpoint(manager: Daemon, state: Path) -> Iterator[Make]:
    """As of `endpoints_of`."""
    with endpoints_of(manager, state / "home") as make:
        yield make


def name_of_node() -> str:
    """What the node was told that runs this: it is somewhere above."""
    process = os.getpid()
    while process > 1:
        words = Path(f"/proc/{process}/cmdline").read_text().split("\0")
        if "--name" in words:
            return words[words.index("--name") + 1]
        status = Path(f"/proc/{process}/status").read_text()
        process = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("PPid:"))
    return "none"


def test_nodes_start_for_tasks_and_end_when_idle(manager: Daemon, endpoint: Make) -> None:
    here = endpoint("--idle", "1s", "--description", "a desk")
    assert here.seen["state"] == "up"
    assert here.seen["description"] == "a desk"
    assert here.blocks == []
    with dayfly.connect(config=manager.state) as client, dayfly.Executor(endpoint="here", client=client) as executor:
        assert executor.submit(pow, 2, 10).result(30) == 1024
        [block] = here.blocks
        assert (block["state"], block["joined"], block["nodes"]) == ("running", 1, 1)
        assert list(executor.map(abs, range(-50, 0))) == list(range(50, 0, -1))
        wait_until(lambda: here.blocks == [], "the block is gone", 20)
        wait_until(lambda: here.seen["blocks"] == [], "its manager knows", 5)
        # And comes again.
        assert executor.submit(pow, 2, 11).result(30) == 2048
        assert here.blocks[0]["name"] != block["name"]
    tasks = manager.cli("endpoint", "tasks", "here")
    assert len(tasks) == 52
    assert {task["endpoint"] for task in tasks} == {"here"}


def test_task_that_fits_no_node_is_refused(manager: Daemon, endpoint: Make) -> None:
    here = endpoint("--idle", "1s")

    def submit(version: str, **environment: Any) -> tuple[int, Any]:
        function = {
            "form": {"form": "python", "python": version, "cloudpickle": "3.1.0"},
            "runtime": {
                "kind": "python",
                "version": f"{version}.1",
                "cloudpickle": "3.1.0",
                "executable": "/nowhere/bin/python",
                **environment,
            },
            "code": "",
        }
        status, said = manager.post("/v1/functions", function)
        assert status == 201, said
        return manager.post("/v1/tasks", {"function": said["id"], "endpoint": "here", "tasks": [{}]})

    for _ in range(2):
        status, said = submit("3.7")
        assert (status, said["error"]["code"]) == (422, "python_mismatch")
        assert "3.7.1" in said["error"]["message"]
        assert "environment" in said["error"]["message"]
    # Nothing was accepted, so that nobody asked for a node.
    assert here.blocks == []
    assert manager.cli("task", "list") == []
    # An environment may have another version; nothing can be built of this one here, which its task says.
    status, said = submit("3.7", environment={"requirements": []})
    assert status == 201, said


def test_broken_connection_loses_and_repeats_no_task(manager: Daemon, endpoint: Make, tmp_path: Path) -> None:
    here = endpoint(start=False)
    way = Way(manager.connection["manager"])
    here.goes_through(way)
    here.start()
    count = 3_000
    with dayfly.connect(config=manager.state) as client:
        batch = client.map(leave_a_mark, [str(tmp_path)] * count, range(count), endpoint="here")
        for _ in range(3):
            go_on(batch, 100)
            way.cut()
            wait_until(lambda: here.seen["state"] == "down", "the break is noticed")
            way.mend()
        assert outcomes(batch) == {"well": count}
    assert set(executions(tmp_path).values()) == {1}
    way.close()


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_untaken_outcomes_survive_an_endpoint_restart(
    manager: Daemon, endpoint: Make, tmp_path: Path, how: str
) -> None:
    here = endpoint(start=False)
    way = Way(manager.connection["manager"])
    here.goes_through(way)
    here.start()
    count, marks, gate = 10, tmp_path / "marks", tmp_path / "gate"
    marks.mkdir()
    with dayfly.connect(config=manager.state) as client:
        batch = client.map(
            leave_a_mark_behind, [str(gate)] * count, [str(marks)] * count, range(count), endpoint="here"
        )

        def has_all() -> bool:
            # One that waits may still be on its way; when some run, the rest came with them.
            tasks = here.seen["tasks"]
            return tasks["running"] > 0 and tasks["waiting"] + tasks["running"] == count

        wait_until(has_all, "the endpoint has all", 30)
        way.cut()
        wait_until(lambda: here.seen["state"] == "down", "the break is noticed")
        gate.touch()
        outbox = here.directory / "outbox"
        wait_until(lambda: outbox.exists() and outbox.read_bytes().count(b"attempt") == count, "all ended", 30)
        here.kill() if how == "kill" else here.stop()
        way.mend()
        here.start()
        assert outcomes(batch) == {"well": count}
        wait_until(lambda: not outbox.exists(), "the manager has them")
    assert set(executions(marks).values()) == {1}
    way.close()


def test_killed_endpoint_finds_its_nodes_again(manager: Daemon, endpoint: Make, tmp_path: Path) -> None:
    here = endpoint()
    count = 2_000
    marks = {name: tmp_path / name for name in ("repeatable", "once")}
    with dayfly.connect(config=manager.state) as client:
        batches = {}
        for name, place in marks.items():
            place.mkdir()
            more = {"repeatable": name == "repeatable", "endpoint": "here"}
            batches[name] = client.map(leave_a_mark, [str(place)] * count, range(count), **more)
        wait_until(lambda: all(batch.done() > 50 for batch in batches.values()), "tasks go on", 60)
        [block] = here.blocks
        here.kill()
        here.start()
        wait_until(lambda: here.blocks and here.blocks[0]["joined"] == 1, "its node is there again", 20)
        assert here.blocks[0]["job"] == block["job"]
        assert outcomes(batches["repeatable"]) == {"well": count}
        ended = outcomes(batches["once"])
    assert set(ended) <= {"well", "maybe_executed"}
    assert ended.total() == count
    assert max(executions(marks["once"]).values()) == 1
    assert len(executions(marks["repeatable"])) == count


def test_killed_manager_gets_all_outcomes_after_restart(manager: Daemon, endpoint: Make, tmp_path: Path) -> None:
    here = endpoint()
    count = 2_000
    with dayfly.connect(config=manager.state) as client:
        gate, place = tmp_path / "gate", tmp_path / "marks"
        place.mkdir()
        # The first hundred go on at once; what the endpoint is at when its manager dies waits for us.
        gates = ["/"] * 100 + [str(gate)] * (count - 100)
        batch = client.map(leave_a_mark_behind, gates, [str(place)] * count, range(count), endpoint="here")
        wait_until(lambda: batch.done() >= 100, "tasks go on", 60)
        manager.kill()
        gate.touch()
        # The endpoint goes on with what it has.
        wait_until(lambda: len(list(place.iterdir())) > 100, "tasks go on without a manager", 30)
        here.manager = again = manager.restart()
        ended = outcomes(batch)
    assert ended.total() == count
    assert set(ended) <= {"well", "maybe_executed"}
    # What the endpoint had, it told: only what had been written down as sent, and never was, is in doubt.
    assert ended["maybe_executed"] < count / 2
    assert max(executions(place).values()) == 1
    assert len(executions(place)) >= ended["well"]
    again.stop()


def test_stopping_endpoint_returns_tasks_not_started(manager: Daemon, endpoint: Make, tmp_path: Path) -> None:
    here = endpoint()
    count = 60
    with dayfly.connect(config=manager.state) as client:
        batch = client.map(leave_a_mark, [str(tmp_path)] * count, range(count), [0.2] * count, endpoint="here")
        wait_until(lambda: batch.done() > 3, "tasks go on", 30)
        here.stop()
        assert here.seen["state"] == "down"
        assert here.local["running"] is False
        wait_until(lambda: here.seen["tasks"]["queued"] > 0, "tasks wait")
        here.start()
        ended = outcomes(batch)
    assert set(ended) <= {"well", "maybe_executed"}
    # Those that were at work: two workers, and what lay ahead of them.
    assert ended["maybe_executed"] <= 8
    assert max(executions(tmp_path).values()) == 1


def test_cancelled_and_late_tasks_end_at_disconnected_endpoint(manager: Daemon, endpoint: Make, tmp_path: Path) -> None:
    here = endpoint()
    with dayfly.connect(config=manager.state) as client:
        place = str(tmp_path)
        cancelled = client.batch(endpoint="here")
        late = client.batch(endpoint="here", deadline=4)
        futures = [batch.submit(leave_a_mark, place, task, 60) for task, batch in enumerate((cancelled, late))]
        wait_until(lambda: len(executions(tmp_path)) == 2, "both run", 30)
        here.kill()
        wait_until(lambda: here.seen["state"] == "down", "it is away")
        cancelled.kill()
        with pytest.raises(concurrent.futures.CancelledError):
            futures[0].result(20)
        with pytest.raises(dayfly.Error) as error:
            futures[1].result(20)
        assert error.value.code == "deadline_exceeded"
    # What it had is ended when it hears of that.
    here.start()
    wait_until(lambda: here.seen["tasks"]["running"] == 0, "nothing runs")


def test_task_is_placed_on_node_with_enough_time(manager: Daemon, endpoint: Make) -> None:
    endpoint("--walltime", "20s", "--max-blocks", "2")
    with dayfly.connect(config=manager.state) as client:
        batch = client.batch(endpoint="here", walltime=1)
        first = batch.submit(name_of_node).result(30)
        time.sleep(6)
        # Fourteen seconds are left of the first node: enough for one and not for the other.
        long = client.batch(endpoint="here", walltime=15).submit(name_of_node)
        short = client.batch(endpoint="here", walltime=1).submit(name_of_node)
        assert short.result(30) == first
        assert long.result(30) != first
        never = client.batch(endpoint="here", walltime=21).submit(name_of_node)
        with pytest.raises(dayfly.Error, match=r"may take 21 s and nodes .* for 20 s at most") as refused:
            never.result(30)
        assert refused.value.code == "too_large"


def test_job_continues_without_its_client(manager: Daemon, endpoint: Make, tmp_path: Path) -> None:
    endpoint()
    album = Album(tmp_path, manager.client_environment(), "here")
    album.begin_and_die()
    submitted, before, done = album.finish()
    assert (submitted, before) == (0, album.files)
    assert done >= 500
    album.check()


def test_unshared_endpoint_serves_only_its_owner(manager: Daemon, endpoint: Make, state: Path) -> None:
    here = endpoint("--idle", "1s")
    manager.cli("tenant", "set", "alice")
    token = state / "alice.json"
    manager.cli("token", "create", "laptop", "--tenant", "alice", "--output", str(token))
    with dayfly.connect(config=token) as alice:
        with pytest.raises(dayfly.Error, match="no endpoint `here` that you may use"):
            alice.batch(endpoint="here").submit(abs, -1).result(20)
        assert [one["name"] for one in alice.endpoints()] == []
        # Nor is its name hers to take, or its token hers to have.
        assert "belongs to another tenant" in here.of(state / "alice", token).refusal("setup")
        shared = endpoint("--share-with", "alice", name="shared")
        assert alice.batch(endpoint="shared").submit(abs, -2).result(40) == 2
        assert shared.seen["shared_with"] == ["alice"]
        with pytest.raises(dayfly.Error, match="no endpoint `here`"):
            alice.remove_endpoint("here")
    here.stop()
    with dayfly.connect(config=manager.state) as client:
        assert client.remove_endpoint("here")["name"] == "here"
        assert "here" not in [one["name"] for one in client.endpoints()]


def test_endpoint_reads_its_sharing_at_every_start(manager: Daemon, endpoint: Make, state: Path) -> None:
    def share(with_whom: str) -> None:
        path = here.directory / "endpoint.toml"
        lines = [line for line in path.read_text().splitlines() if "shared_with" not in line]
        path.write_text("\n".join([f"shared_with = {with_whom}", *lines]) + "\n")

    here = endpoint("--idle", "1s", start=False)
    manager.cli("tenant", "set", "alice")
    token = state / "alice.json"
    manager.cli("token", "create", "laptop", "--tenant", "alice", "--output", str(token))
    with dayfly.connect(config=token) as alice:
        share('["alice"]')
        here.start()
        wait_until(lambda: here.seen["shared_with"] == ["alice"], "the manager knows")
        batch = alice.batch(endpoint="here")
        assert batch.submit(os.path.exists, str(here.directory)).result(40) is False
        here.stop()
        # Accepted while it is shared, and run when it is not any more.
        left = batch.submit(os.path.exists, str(here.directory))
        batch.flush()
        share("[]")
        here.start()
        wait_until(lambda: here.seen["shared_with"] == [], "the manager knows")
        with pytest.raises(dayfly.Error, match="no endpoint `here` that you may use"):
            alice.batch(endpoint="here").submit(abs, -1).result(20)
        # It sees nothing of the owner's even then; the owner does.
        assert left.result(40) is False
    with dayfly.connect(config=manager.state) as client:
        assert client.batch(endpoint="here").submit(os.path.exists, str(here.directory)).result(40) is True
    # What cannot be is told, and changes nothing.
    here.stop()
    share('["team:nobody"]')
    here.start()
    wait_until(lambda: "no team `nobody`" in str(here.seen["trouble"]), "it is told")
    assert here.seen["shared_with"] == []


def test_direct_calls_skip_the_manager(manager: Daemon, endpoint: Make, state: Path) -> None:
    here = endpoint("--idle", "1s", "--max-blocks", "2")
    with dayfly.connect(config=manager.state) as client:
        # Nodes come for it: one for each two workers.
        with dayfly.Executor(endpoint="here", client=client, durable=False, workers=2) as executor:
            assert executor.submit(pow, 2, 10).result(60) == 1024
            assert list(executor.map(abs, range(-1000, 0))) == list(range(1000, 0, -1))
            with dayfly.Executor(endpoint="here", client=client, durable=False, workers=2) as second:
                assert second.submit(pow, 2, 11).result(60) == 2048
                assert len(here.blocks) == 2
            assert executor.submit(pow, 2, 12).result(60) == 4096
        wait_until(lambda: here.blocks == [], "its nodes go again", 40)
        assert here.seen["tasks"]["done"] == 0
        # By the same word, and without it.
        with dayfly.Executor(endpoint="here", client=client) as executor:
            assert executor.submit(pow, 2, 13).result(60) == 8192
        here.stop()
        with pytest.raises(dayfly.Error, match="not connected"):
            dayfly.Executor(endpoint="here", client=client, durable=False)
    manager.cli("tenant", "set", "alice")
    token = state / "alice.json"
    manager.cli("token", "create", "laptop", "--tenant", "alice", "--output", str(token))
    with dayfly.connect(config=token) as alice:
        with pytest.raises(dayfly.Error, match="no endpoint `here` that you may use"):
            dayfly.Executor(endpoint="here", client=alice, durable=False)
        endpoint("--share-with", "alice", name="shared")
        with dayfly.Executor(endpoint="shared", client=alice, durable=False, workers=1) as executor:
            # As a guest: nothing of the owner's is there.
            assert executor.submit(os.path.exists, str(here.directory)).result(60) is False


def test_endpoint_runs_the_edited_helper(manager: Daemon, endpoint: Make, tmp_path: Path) -> None:
    project = Project(tmp_path)
    endpoint("--idle", "60s")
    body = DURABLE.format(call="helper2.g")
    assert project.script(manager, body) == "1"
    project.write("helper1.py", "def f():\n    return 'edited'\n")
    assert project.script(manager, body) == "edited"


def test_only_its_own_token_connects_an_endpoint(manager: Daemon, endpoint: Make) -> None:
    here = endpoint(start=False)
    path = here.directory / "credential.json"
    credential = json.loads(path.read_text())
    path.write_text(json.dumps(credential | {"token": manager.connection["token"]}))
    here.start()
    assert "set the endpoint up anew" in here.local["status"]["connection"]
    assert here.seen["state"] == "down"
    # Nor can it be used for anything else.
    path.write_text(json.dumps(credential))
    stranger = here.directory / "stranger.json"
    stranger.write_text(json.dumps(manager.connection | {"token": credential["token"]}))
    with dayfly.connect(config=stranger) as client, pytest.raises(dayfly.Error, match="an endpoint"):
        client.endpoints()


def test_configuration_errors_are_named(manager: Daemon, endpoint: Make, state: Path) -> None:
    here = endpoint(start=False)
    assert "is set up already" in here.refusal("setup")
    configuration = here.directory / "endpoint.toml"
    text = configuration.read_text()
    configuration.write_text(text.replace("walltime =", "waltime ="))
    assert "waltime" in here.refusal("start")
    configuration.write_text(text)
    here.start()
    assert "runs already" in here.refusal("start")
    assert "stop it first" in here.refusal("remove")
    here.stop()
    assert here.say("remove") == {"removed": "here"}
    assert "there is no endpoint `here`" in here.refusal("start")
    nowhere = Endpoint(manager, state / "home", "nowhere")
    assert "no option `partition`" in nowhere.refusal("setup", "--option", "partition=idle")
    assert "cannot be used" in nowhere.refusal("setup", "--provider", "slurm", "--python", "/bin/false")
    nowhere.name = "../x"
    assert "no name for an endpoint" in nowhere.refusal("setup")
