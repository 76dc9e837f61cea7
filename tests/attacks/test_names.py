"""A function's name that another tenant takes over, and results that run code in whoever reads them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from harness.daemons import Daemon
from harness.people import Person
from harness.programs import program, run

mayfly = pytest.importorskip("mayfly", reason="the package is not installed: make build")

# Workers cannot import what pytest made of this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

#: Seconds until a task has ended.
PATIENCE = 60


@pytest.fixture(scope="module")
def carol(manager: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    """The victim, who wants alice's ``resize``. Bob is the one who attacks."""
    person = Person(manager, "carol", tmp_path_factory.mktemp("carol"))
    yield person
    person.client.close()


class Payload:
    """What is executed where it is unpickled."""

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.mark,)


def honest(width: int) -> list[int]:
    return [width, width]


def hostile(mark: str) -> Any:
    return Payload(mark)


@pytest.fixture(scope="module")
def shared(people: dict[str, Person]) -> dict[str, Any]:
    """Alice's ``resize``, and then two of bob's, each for everybody."""
    alice, bob = people["alice"].client, people["bob"].client
    made = {"alice": alice.register(honest, name="resize", share=["*"])}
    bob.register(honest, name="resize", share=["*"], description="the same, to look at")
    made["bob"] = bob.register(hostile, name="resize", share=["*"])
    return made


def named_by(person: Person) -> dict[str, str]:
    return {**os.environ, "MAYFLY_MANAGER": str(person.connection)}


def test_bare_name_of_another_tenant_is_refused_with_candidates(carol: Person, shared: dict[str, Any]) -> None:
    with pytest.raises(mayfly.Error) as refused:
        carol.client.function("resize")
    assert refused.value.code == "not_found"
    assert "`alice/resize`, `bob/resize`" in refused.value.message
    assert "as in `alice/resize`" in refused.value.message
    # The same wherever a function is named.
    steps = [mayfly.Step("one", "resize")]
    for ask in (
        lambda: carol.client.trigger("hook", "resize", webhook=True),
        lambda: carol.client.flow(steps, 1),
        lambda: carol.client.share("resize", []),
        lambda: carol.client.remove_function("resize"),
    ):
        with pytest.raises(mayfly.Error, match="`alice/resize`, `bob/resize`"):
            ask()
    for path in ("", "/code"):
        status, body = carol.ask("GET", f"/v1/functions/resize{path}")
        assert (status, body["error"]["code"]) == (404, "not_found")
    status, body = carol.ask("GET", "/v1/tasks?function=resize")
    assert (status, body["error"]["code"]) == (404, "not_found")


def test_bare_name_on_command_line_is_refused_with_candidates(
    carol: Person, shared: dict[str, Any], tmp_path: Path
) -> None:
    flow = tmp_path / "flow.toml"
    flow.write_text("[[step]]\nname = 'one'\nfunction = 'resize'\n")
    for words in (
        ("task", "run", "resize", "1"),
        ("task", "list", "--function", "resize"),
        ("function", "show", "resize"),
        ("function", "diff", "resize"),
        ("function", "share", "resize"),
        ("function", "remove", "resize"),
        ("trigger", "webhook", "hook", "--function", "resize"),
        ("flow", "start", str(flow)),
    ):
        done = run(program(), *words, check=False, env=named_by(carol))
        assert done.returncode != 0, words
        assert "`alice/resize`, `bob/resize`" in done.stderr, (words, done.stderr)


def test_owner_before_name_names_that_tenants_function(carol: Person, shared: dict[str, Any]) -> None:
    client = carol.client
    for found in (client.function("alice/resize"), client.function("resize", owner="alice")):
        assert (found.id, found.owner) == (shared["alice"].id, "alice")
    assert client.run(client.function("alice/resize"), 3).result(PATIENCE) == [3, 3]
    assert "alice/resize" in repr(client.function("alice/resize"))
    owners = {function.owner for function in client.functions() if function.name == "resize"}
    assert owners == {"alice", "bob"}
    # One's own is what a name alone means, whoever shares another of that name.
    own = client.register(honest, name="resize", description="carol's own")
    try:
        assert client.function("resize").id == own.id
        assert client.function("carol/resize").id == own.id
    finally:
        assert [gone.id for gone in client.remove_function("resize")] == [own.id]
    environment = named_by(carol)
    ran = run(program(), "task", "run", "alice/resize", "4", "--wait=60", env=environment)
    assert json.loads(ran.stdout) == [4, 4]
    shown = run(program(), "function", "show", "alice/resize", env=environment).stdout
    assert f"alice/resize@{shared['alice'].id}" in shown
    assert "hostile" in run(program(), "function", "diff", "bob/resize", env=environment).stdout
    assert client.flow([mayfly.Step("one", "alice/resize")], 5).result(PATIENCE) == [5, 5]


def test_pinned_version_runs_exactly_or_not_at_all(carol: Person, people: dict[str, Person]) -> None:
    alice, client = people["alice"].client, carol.client
    first = alice.register(honest, name="pinned", share=["*"])
    whole = f"alice/pinned@{first.id}"
    for pin in (whole, whole[: len("alice/pinned@") + 16]):
        assert client.function(pin).id == first.id
    assert client.function("pinned", owner="alice", version=first.id).id == first.id
    # A new version changes nothing about it.
    later = alice.register(hostile, name="pinned", share=["*"])
    assert client.function("alice/pinned").id == later.id
    assert client.function(whole).id == first.id
    # What it runs in is a part of what is pinned: the same code for another environment is another version.
    elsewhere = alice.register(honest, name="pinned", share=["*"], environment=["packaging==24.1"])
    assert elsewhere.status["hash"] == first.status["hash"]
    assert elsewhere.id != first.id
    for wrong in ("alice/pinned@" + first.id[:8], f"alice/pinned@{first.status['hash']}", "alice/pinned@2"):
        with pytest.raises(mayfly.Error) as refused:
            client.function(wrong)
        assert refused.value.code == "invalid_request"
    # Gone, or no longer shared.
    alice.share(first, [])
    with pytest.raises(mayfly.Error, match="any more") as refused:
        client.function(whole)
    assert refused.value.code == "not_found"
    alice.remove_function(first)
    with pytest.raises(mayfly.Error) as refused:
        client.function(whole)
    assert refused.value.code == "not_found"


def test_function_name_with_separator_is_refused(people: dict[str, Person]) -> None:
    for name in ("alice/resize", "resize@1"):
        with pytest.raises(mayfly.Error, match="is no name for a function"):
            people["bob"].client.register(honest, name=name, share=["*"])
