"""A tenant sends texts and bodies that are too long: they are refused, and leave nothing behind."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.daemons import Daemon
from harness.leaks import wait_until
from harness.managers import most_memory
from harness.people import Person

MIB = 1 << 20


def function(**changed: Any) -> dict[str, Any]:
    """A function to register."""
    code = base64.b64encode(b"def f(text): return len(text)").decode()
    return {"form": {"form": "source", "entry": "f"}, "code": code, **changed}


def refused(answer: tuple[int, Any], words: str) -> None:
    """Asserts that a request was refused in a few words."""
    status, body = answer
    assert status in (400, 413, 422), body
    assert words in body["error"]["message"]
    assert len(body["error"]["message"]) < 2_000


@pytest.mark.parametrize(
    ("field", "words"),
    [("name", "name has"), ("description", "description has"), ("source", "source has")],
)
def test_long_function_text_is_refused_unaudited(manager: Daemon, alice: Person, field: str, words: str) -> None:
    refused(alice.ask("POST", "/v1/functions", function(**{field: "x" * MIB})), words)
    assert "function.register" not in str(manager.cli("audit", "--limit", "1"))


@pytest.mark.parametrize("path", ["/v1/tasks/cancel", "/v1/tasks/forget"])
def test_long_tag_is_refused_and_not_audited(manager: Daemon, alice: Person, path: str) -> None:
    before = (manager.state / "manager.db").stat().st_size
    for _ in range(3):
        refused(alice.ask("POST", path, {"tasks": [], "tag": "x" * 30 * MIB}), "the tag has")
    assert all(entry["action"] not in ("task.cancel", "task.forget") for entry in manager.cli("audit"))
    assert (manager.state / "manager.db").stat().st_size < before + MIB


def test_long_tag_of_tasks_is_refused(alice: Person) -> None:
    submission = {"function": "0" * 32, "tag": "x" * 300, "tasks": [{"call": {}}]}
    refused(alice.ask("POST", "/v1/tasks", submission), "the tag has 300 bytes; 256 are allowed")


@pytest.mark.parametrize(
    ("method", "path", "length"),
    [
        ("POST", "/v1/endpoints", 3 * MIB),
        ("PUT", "/v1/teams/team", 3 * MIB),
        ("POST", "/v1/tokens", 100_000),
        ("PUT", "/v1/functions/f/sharing", 3 * MIB),
        ("POST", "/v1/triggers", 2 * MIB),
        ("PUT", f"/v1/queries/{'0' * 32}", MIB),
    ],
)
def test_long_body_is_refused_where_none_is_wanted(alice: Person, method: str, path: str, length: int) -> None:
    try:
        status, body = alice.ask(method, path, {"description": "x" * length})
    except OSError:
        return  # The manager closed the connection before all of it was sent.
    assert status == 413, body


def test_team_holds_the_promised_members(alice: Person) -> None:
    members = [f"{n:05}-{'x' * 122}" for n in range(10_000)]
    status, body = alice.ask("PUT", "/v1/teams/full", {"members": members})
    assert status == 200, body[:500]
    refused(alice.ask("PUT", "/v1/teams/full", {"members": [*members, "one more"]}), "10000 members at most")


def test_entries_of_the_audit_log_are_short(manager: Daemon, alice: Person) -> None:
    members = [f"tenant-{n}-{'x' * 100}" for n in range(500)]
    status, body = alice.ask("PUT", "/v1/teams/many", {"members": members})
    assert status == 200, body
    (entry,) = manager.cli("audit", "--limit", "1")
    assert entry["action"] == "team.set"
    assert len(entry["details"]) <= 4096
    assert json.loads(entry["details"])["bytes"] > 50_000


def test_audit_log_is_read_by_pages(manager: Daemon, alice: Person) -> None:
    for _ in range(5):
        alice.ask("PUT", "/v1/teams/page", {"members": []})
    last = [entry["number"] for entry in manager.cli("audit", "--limit", "4")]
    assert len(last) == 4
    assert last == sorted(last)
    earlier = [entry["number"] for entry in manager.cli("audit", "--limit", "2", "--before", str(last[1]))]
    assert earlier == [last[0] - 1, last[0]]
    later = [entry["number"] for entry in manager.cli("audit", "--above", str(last[1]))]
    assert later == last[2:]
    status, page = manager.ask("GET", f"/v1/audit?before={last[3]}&limit=2")
    assert status == 200
    assert [entry["number"] for entry in json.loads(page)] == last[1:3]


def test_old_entries_of_the_audit_log_go(start: Callable[..., Daemon], state: Path) -> None:
    first = start("manager", "--listen", "127.0.0.1:0", state=state / "kept")
    for n in range(12):
        first.cli("tenant", "set", f"tenant-{n}")
    first.stop()
    again = start("manager", "--listen", "127.0.0.1:0", "--most-audit", "1K", state=state / "kept")
    wait_until(lambda: len(again.cli("audit")) < 12, "old entries are gone")
    assert again.cli("audit")[-1]["subject"] == "tenant-11"


def test_inline_arguments_count_as_contents(start: Callable[..., Daemon], state: Path, tmp_path: Path) -> None:
    options = ("manager", "--listen", "127.0.0.1:0", "--most-contents", "1M")
    manager = start(*options, state=state / "kept")
    mallory = Person(manager, "mallory", tmp_path)
    status, answer = mallory.ask("POST", "/v1/endpoints", {"name": "away"})
    assert status == 201, answer
    status, registered = mallory.ask("POST", "/v1/functions", function())
    assert status == 201, registered

    def submit() -> tuple[int, str]:
        call = {"arguments": ["x" * (600 << 10)]}
        body = {"function": registered["id"], "endpoint": "away", "tag": "big", "tasks": [{"call": call}]}
        status, answer = mallory.ask("POST", "/v1/tasks", body)
        return status, answer.get("error", {}).get("code", "")

    assert submit() == (201, "")
    assert submit() == (429, "quota_exceeded")
    mallory.client.close()
    manager.stop()
    again = start(*options, state=state / "kept")
    mallory.url = again.connection["manager"]
    assert submit() == (429, "quota_exceeded")
    status, answer = mallory.ask("POST", "/v1/tasks/cancel", {"tag": "big"})
    assert status == 200, answer
    wait_until(lambda: submit() == (201, ""), "there is room again")


def test_long_descriptions_are_refused_without_leaking_memory(manager: Daemon, alice: Person) -> None:
    before = most_memory(manager.pid)
    for _ in range(5):
        status, answer = alice.ask("POST", "/v1/functions", function(description="x" * 40 * MIB))
        assert (status, answer["error"]["code"]) == (400, "invalid_request")
    # A body and what is parsed of it, and not one of each request.
    assert most_memory(manager.pid) - before < 200 * MIB
