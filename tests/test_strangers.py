"""Durable tasks of one tenant, which no other sees or touches, and functions, which only those run who may."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from harness.daemons import Daemon
from harness.leaks import wait_until
from harness.managers import manager_here
from harness.people import Person
from harness.programs import program, run

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")

# Workers cannot import what pytest made of this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

#: What strangers are told; the first does not even say that there is something.
REFUSALS = {"not_found": 404, "forbidden": 403}
TAG = "private"
#: More than goes through the manager's books, so that it is in the content store.
LONG = 200 << 10


@pytest.fixture(scope="module")
def manager() -> Iterator[Daemon]:
    # Its tasks wait for files of the tests. What strangers see of the host is in tests/attacks/test_tenants.py.
    with manager_here("--run-tenants-as-me") as manager:
        yield manager


def whisper(path: str) -> bytes:
    """Prints a secret, waits until it may end, and answers another."""
    print("alice's secret", flush=True)
    Path(path + ".begun").touch()
    while not Path(path).exists():
        time.sleep(0.01)
    return b"secret" + bytes(LONG)


def double(number: int) -> int:
    return 2 * number


@pytest.fixture
def running(alice: Person, tmp_path: Path) -> Iterator[Any]:
    """A task of alice's that runs, and whose end is looked at when the strangers are done with it."""
    gate = tmp_path / "gate"
    future = alice.client.batch(TAG, extend=True).submit(whisper, str(gate))
    wait_until(Path(f"{gate}.begun").exists, "the task runs", 30)
    wait_until(lambda: "secret" in alice.client.output(future), "what it printed is there")
    yield future
    gate.touch()
    assert future.result(30) == b"secret" + bytes(LONG)
    assert alice.client.output(future, "out") == "alice's secret\n"
    status = alice.client.task_status(future.id)
    assert (status["state"], status["error"], status["attempts"]) == ("done", None, 1)


def refused(answer: tuple[int, Any]) -> None:
    """A request by hand that got nothing."""
    status, said = answer
    assert REFUSALS.get(said["error"]["code"]) == status, answer
    assert "secret" not in json.dumps(said)


def test_stranger_cannot_find_tasks_from_python(bob: Person, running: Any) -> None:
    client = bob.client
    asked = [
        lambda: client.task(running.id),
        lambda: client.task_status(running.id),
        lambda: client.output(running.id),
        lambda: list(client.follow(running.id)),
    ]
    for ask in asked:
        with pytest.raises(dayfly.Error) as error:
            ask()
        assert error.value.code in REFUSALS


def test_tag_lists_only_the_tenants_own_tasks(bob: Person, running: Any) -> None:
    batch = bob.client.tasks(TAG)
    assert len(batch) == 0
    assert set(batch.counts().values()) == {0}
    assert batch.cancel() == {"ended": 0, "told": 0, "running": 0}
    assert list(batch.results(timeout=1)) == []
    # Nor does the same tag mix what both submit, and cancelling goes by who asks.
    own = bob.client.map(double, range(5), tag=TAG)
    assert list(own.results(timeout=30)) == [0, 2, 4, 6, 8]
    assert len(bob.client.tasks(TAG)) == 5
    assert bob.client.tasks(TAG).cancel() == {"ended": 0, "told": 0, "running": 0}
    assert not running.done()


def test_stranger_cannot_find_tasks_over_http(alice: Person, bob: Person, running: Any) -> None:
    task = f"/v1/tasks/{running.id}"
    assert alice.ask("GET", task)[0] == 200
    for path in ("", "/outcome", "/outcome?wait_ms=1", "/output", "/output?from=0&wait_ms=1"):
        refused(bob.ask("GET", task + path))
    everybody = bob.ask("GET", "/v1/tasks?everybody=true")
    refused(everybody)
    assert all(one["id"] != running.id for one in bob.ask("GET", "/v1/tasks?limit=10000")[1])
    assert all(one["tag"] == TAG for one in bob.ask("GET", f"/v1/tasks?tag={TAG}")[1])
    outcomes = bob.ask("GET", f"/v1/outcomes?tag={TAG}&wait_ms=1")[1]
    assert running.id not in json.dumps(outcomes)
    # To go on from a task of another's is no way to look around it.
    status, page = bob.ask("GET", f"/v1/tasks?before={running.id}")
    assert status in (*REFUSALS.values(), 200)
    assert running.id not in json.dumps(page)
    assert bob.ask("GET", "/v1/tasks/counts")[1]["running"] == 0


def test_stranger_cannot_cancel_tasks(bob: Person, running: Any) -> None:
    for what in ({"tasks": [running.id]}, {"tag": TAG}, {"tasks": [running.id], "tag": TAG}):
        status, said = bob.ask("POST", "/v1/tasks/cancel", what)
        if status == 200:
            assert said == {"ended": 0, "told": 0, "running": 0}, what
        else:
            refused((status, said))
    environment = {**os.environ, "DAYFLY_MANAGER": str(bob.connection)}
    run(program(), "task", "cancel", running.id, check=False, env=environment)
    assert "secret" not in run(program(), "task", "output", running.id, check=False, env=environment).stdout
    assert not running.done()


def test_stranger_cannot_depend_on_or_replace_tasks(bob: Person, running: Any) -> None:
    function = bob.client.register(double).id
    for one in ({"call": {"arguments": [1]}, "after": [running.id]}, {"arguments": "", "id": running.id}):
        status, said = bob.ask("POST", "/v1/tasks", {"function": function, "tag": TAG, "tasks": [one]})
        assert status >= 400, said
        assert said["error"]["code"] in ("not_found", "forbidden", "invalid_request"), said


def test_stranger_cannot_read_results_of_ended_tasks(alice: Person, bob: Person, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    future = alice.client.run(whisper, str(gate))
    assert len(future.result(30)) == LONG + len(b"secret")
    content = alice.ask("GET", f"/v1/tasks/{future.id}/outcome")[1]["content"]["hash"]
    for path in (f"/v1/tasks/{future.id}/outcome", f"/v1/tasks/{future.id}/output", f"/v1/contents/{content}"):
        refused(bob.ask("GET", path))
        assert bob.ask("GET", path)[0] == 404, "forbidden would tell that it is there"
    environment = {**os.environ, "DAYFLY_MANAGER": str(bob.connection)}
    assert run(program(), "task", "result", future.id, check=False, env=environment).returncode != 0
    # Who only knows the hash has no use of it in a task either.
    function = bob.client.register(len, name="len").id
    stolen = {"content": {"hash": content, "bytes": LONG}}
    status, said = bob.ask("POST", "/v1/tasks", {"function": function, "tasks": [stolen]})
    assert status >= 400, said


def runs(person: Person, function: Any) -> bool:
    """Whether a function is one that this tenant may find and run; what they are refused hides it wholly."""
    task = {"function": function.id, "tasks": [{"call": {"arguments": [21]}}]}
    listed = any(one.id == function.id for one in person.client.functions())
    if person.ask("GET", f"/v1/functions/{function.id}")[0] != 200:
        # Neither by its id nor by what its owner knows of it.
        for attempt in (
            lambda: person.client.function(function.id),
            lambda: person.client.run(function, 21).result(30),
        ):
            with pytest.raises(dayfly.Error) as error:
                attempt()
            assert error.value.code in REFUSALS
        for path in ("", "/code"):
            refused(person.ask("GET", f"/v1/functions/{function.id}{path}"))
        refused(person.ask("POST", "/v1/tasks", task))
        assert not listed
        return False
    assert person.client.run(person.client.function(function.id), 21).result(30) == 42
    assert listed
    assert person.ask("POST", "/v1/tasks", task)[0] == 201
    return True


def test_function_runs_only_for_tenants_sharing_it(people: dict[str, Person]) -> None:
    def shared(*whom: str) -> set[str]:
        # Each its own function: the same one again would be the same, with those it was shared with first.
        function = people["alice"].client.register(lambda number, _whom=whom: 2 * number, name="double", share=whom)
        return {name for name in ("alice", "bob", "carol") if runs(people[name], function)}

    assert shared() == {"alice"}
    assert shared("bob") == {"alice", "bob"}
    assert shared("carol", "bob") == {"alice", "bob", "carol"}
    assert shared("*") == {"alice", "bob", "carol"}


def test_sharing_can_be_changed_and_withdrawn(people: dict[str, Person]) -> None:
    alice, bob, carol = (people[name] for name in ("alice", "bob", "carol"))
    earlier, later = (alice.client.register(lambda n, _k=k: 2 * n, name="changing", share=["bob"]) for k in (1, 2))
    assert runs(bob, earlier)
    assert not runs(carol, later)
    # All versions of a name, or one.
    assert alice.client.share("changing", ["carol"]).id == later.id
    for version in (earlier, later):
        assert not runs(bob, version)
        assert runs(carol, version)
    alice.client.share(later, ())
    assert runs(carol, earlier)
    assert not runs(carol, later)
    assert runs(alice, later)
    # Nobody shares what is another's.
    refused(carol.ask("PUT", f"/v1/functions/{earlier.id}/sharing", {"shared_with": ["bob"]}))
    with pytest.raises(dayfly.Error, match="no team"):
        alice.client.share("changing", ["team:nobodys"])
    assert not runs(bob, earlier)


def test_caller_of_shared_function_owns_the_task(alice: Person, bob: Person, carol: Person, tmp_path: Path) -> None:
    function = alice.client.register(whisper, share=["bob"])
    gate = tmp_path / "gate"
    gate.touch()
    future = bob.client.run(bob.client.function(function.id), str(gate))
    assert len(future.result(30)) > LONG
    for person in (alice, carol):
        refused(person.ask("GET", f"/v1/tasks/{future.id}/outcome"))
        refused(person.ask("GET", f"/v1/tasks/{future.id}/output"))
    # It runs what its owner gave, and nobody it was shared with changes that or shares it on under its name.
    bob.client.register(double, name="whisper", share=["*"])
    assert alice.client.function("whisper").id == function.id


def leave(what: str) -> tuple[int, list[str]]:
    """In which process it runs, and what others have left there."""
    found: list[str] = sys.__dict__.setdefault("left_by_tenants", [])
    found.append(what)
    return os.getpid(), found


def test_tenants_share_no_worker(alice: Person, bob: Person) -> None:
    futures = [(person.name, person.client.run(leave, person.name)) for _ in range(20) for person in (alice, bob)]
    pids: dict[str, set[int]] = {"alice": set(), "bob": set()}
    for name, future in futures:
        pid, found = future.result(30)
        assert set(found) == {name}
        pids[name].add(pid)
    assert not pids["alice"] & pids["bob"]
