"""Beginnings and ends of ids lead to nothing of another tenant's."""

from __future__ import annotations

import json

import dayfly
import pytest
from harness.daemons import Daemon
from harness.people import Person
from harness.programs import program, run


def three(n: int) -> int:
    """A task."""
    return n + 3


@pytest.fixture(scope="module")
def tasks(people: dict[str, Person]) -> list[str]:
    """Tasks of alice's, which have ended."""
    ids = []
    for n in range(3):
        # Ids of one client differ in their last digits alone.
        with dayfly.connect(config=people["alice"].connection) as client:
            future = client.run(three, n)
            assert future.result(30) == n + 3
            ids.append(str(future.id))
    return ids


def test_end_and_beginning_of_id_name_the_task(alice: Person, tasks: list[str]) -> None:
    for given in (tasks[1][-12:], tasks[1][-6:], tasks[1][:30], f"...{tasks[1][-12:]}", tasks[1][-12:].upper()):
        for path in ("", "/outcome", "/output"):
            assert alice.ask("GET", f"/v1/tasks/{given}{path}")[0] == 200, (given, path)
        assert alice.ask("GET", f"/v1/tasks/{given}")[1]["id"] == tasks[1]
    assert alice.client.task(tasks[2][-8:]).result(30) == 5
    assert alice.client.cancel(tasks[2][-8:]) == {"ended": 0, "told": 0, "running": 0}


def test_ambiguous_id_lists_own_candidates_only(alice: Person, bob: Person, tasks: list[str]) -> None:
    shared = tasks[0][:6]
    others = bob.client.run(three, 1)
    assert others.result(30) == 4
    status, body = alice.ask("GET", f"/v1/tasks/{shared}")
    assert (status, body["error"]["code"]) == (409, "ambiguous")
    assert all(task in body["error"]["message"] for task in tasks)
    assert others.id not in body["error"]["message"]


def test_part_of_other_tenants_id_is_not_found(alice: Person, bob: Person, tasks: list[str]) -> None:
    lease = alice.client.lease(mode="warm")
    try:
        for kind, whole in (("tasks", tasks[0]), ("leases", lease.id)):
            for given in (whole, whole[-12:], whole[:30]):
                status, body = bob.ask("GET", f"/v1/{kind}/{given}")
                assert (status, body["error"]["code"]) == (404, "not_found"), given
                assert given == whole or whole not in json.dumps(body)
        assert bob.ask("DELETE", f"/v1/leases/{lease.id[-12:]}")[0] == 404
    finally:
        lease.shutdown()


@pytest.mark.parametrize("given", ["12345", "0" * 33, "g" * 12, "%25%25%25%25%25%25", "a_b_c_", "..%2f..%2fnodes"])
def test_what_is_no_id_is_refused(alice: Person, given: str) -> None:
    status, body = alice.ask("GET", f"/v1/tasks/{given}")
    assert (status, body["error"]["code"]) == (400, "invalid_request")


def test_commands_take_what_their_lists_show(manager: Daemon, alice: Person, tasks: list[str]) -> None:
    environment = {**manager.client_environment(), "DAYFLY_MANAGER": str(alice.connection)}

    def said(*words: str) -> str:
        return run(program(), *words, env=environment).stdout

    shown = [line.split()[0] for line in said("task", "list").splitlines()[1:]]
    assert len(set(shown)) == len(shown)
    for end in shown:
        assert end[3:] in said("task", "show", end).splitlines()[0]
        said("task", "output", end)
    assert said("task", "forget", shown[0]) == "Forgot 1 task.\n"
    with alice.client.lease(mode="warm") as lease:
        assert said("lease", "renew", lease.id[-8:], "--for", "5m").startswith(f"Lease {lease.id} lasts 5m")
        assert said("lease", "release", lease.id[-8:]) == f"Lease {lease.id} is released.\n"
