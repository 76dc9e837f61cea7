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
from harness.endpoints import endpoints_of
from harness.leaks import wait_until
from harness.managers import manager_here
from harness.people import Person
from harness.programs import program, run

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")

# Workers cannot import what pytest made of this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

#: Seconds until a task has ended.
TIMEOUT = 60


@pytest.fixture(scope="module")
def manager() -> Iterator[Daemon]:
    """One that isolates nobody, so that what is executed in a worker shows."""
    with manager_here("--run-tenants-as-me") as manager:
        yield manager


@pytest.fixture(scope="module")
def carol(manager: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    """The victim, who wants alice's ``resize``. Bob is the one who attacks."""
    person = Person(manager, "carol", tmp_path_factory.mktemp("carol"))
    yield person
    person.client.close()


class Payload:
    """What makes a directory where it is unpickled, unless that is the worker which makes sure that it can be."""

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (f"import os\nif os.getpid() != {os.getpid()}: os.mkdir({self.mark!r})",)


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
    return {**os.environ, "DAYFLY_MANAGER": str(person.connection)}


def test_other_tenants_bare_name_is_refused_with_candidates(carol: Person, shared: dict[str, Any]) -> None:
    with pytest.raises(dayfly.Error) as refused:
        carol.client.function("resize")
    assert refused.value.code == "not_found"
    assert "`alice/resize`, `bob/resize`" in refused.value.message
    assert "as in `alice/resize`" in refused.value.message
    # The same wherever a function is named.
    steps = [dayfly.Step("one", "resize")]
    for ask in (
        lambda: carol.client.trigger("hook", "resize", webhook=True),
        lambda: carol.client.flow(steps, 1),
        lambda: carol.client.share("resize", []),
        lambda: carol.client.remove_function("resize"),
    ):
        with pytest.raises(dayfly.Error, match="`alice/resize`, `bob/resize`"):
            ask()
    for path in ("", "/code"):
        status, body = carol.ask("GET", f"/v1/functions/resize{path}")
        assert (status, body["error"]["code"]) == (404, "not_found")
    status, body = carol.ask("GET", "/v1/tasks?function=resize")
    assert (status, body["error"]["code"]) == (404, "not_found")


def test_command_line_refuses_bare_name_with_candidates(carol: Person, shared: dict[str, Any], tmp_path: Path) -> None:
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
    assert client.run(client.function("alice/resize"), 3).result(TIMEOUT) == [3, 3]
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
    assert client.flow([dayfly.Step("one", "alice/resize")], 5).result(TIMEOUT) == [5, 5]


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
        with pytest.raises(dayfly.Error) as refused:
            client.function(wrong)
        assert refused.value.code == "invalid_request"
    # Gone, or no longer shared.
    alice.share(first, [])
    with pytest.raises(dayfly.Error, match="any more") as refused:
        client.function(whole)
    assert refused.value.code == "not_found"
    alice.remove_function(first)
    with pytest.raises(dayfly.Error) as refused:
        client.function(whole)
    assert refused.value.code == "not_found"


def test_function_name_with_separator_is_refused(people: dict[str, Person]) -> None:
    for name in ("alice/resize", "resize@1"):
        with pytest.raises(dayfly.Error, match="is no name for a function"):
            people["bob"].client.register(honest, name=name, share=["*"])


# Results that run code in whoever reads them


def hostile_error(mark: str) -> Any:
    raise ValueError(Payload(mark))


def hostile_class(mark: str) -> Any:
    class OopsError(Exception):
        def __reduce__(self) -> tuple[Any, ...]:
            return Payload(mark).__reduce__()

    raise OopsError("no\x1b[31m")


def hostile_array(mark: str) -> Any:
    import numpy as np

    array = np.empty(2, dtype=object)
    array[0] = Payload(mark)
    return array


def hostile_list(mark: str) -> Any:
    return [1, {"a": Payload(mark)}]


def plain(_: str) -> Any:
    import numpy as np

    return {"number": 1.5, "array": np.arange(3.0)}


def failing(text: str) -> Any:
    raise KeyError(text)


@pytest.fixture(scope="module")
def bobs(people: dict[str, Person]) -> dict[str, str]:
    """Functions of bob's, for everybody, by what they are called here."""
    functions = (hostile, hostile_error, hostile_class, hostile_array, hostile_list, plain, failing)
    return {fn.__name__: people["bob"].client.register(fn, share=["*"]).owner for fn in functions}


@pytest.mark.parametrize("name", ["hostile", "hostile_array", "hostile_list"])
def test_result_of_another_tenants_function_runs_nothing_here(
    carol: Person, bobs: dict[str, str], tmp_path: Path, name: str
) -> None:
    mark = tmp_path / "executed"
    client, function = carol.client, carol.client.function(f"bob/{name}")
    future = client.run(function, str(mark))
    for ask in (lambda: future.result(TIMEOUT), lambda: client.task(future.id).result(TIMEOUT)):
        with pytest.raises(dayfly.Untrusted) as refused:
            ask()
        assert refused.value.code == "untrusted"
        assert "`bob`" in refused.value.message
        assert "trust=['bob']" in refused.value.message
    with pytest.raises(dayfly.Untrusted):
        list(client.map(function, [str(mark)]).results(timeout=TIMEOUT))
    with dayfly.Executor(client=client, trust=["alice"]) as executor, pytest.raises(dayfly.Untrusted):
        list(executor.map(function, [str(mark)], chunksize=2))
    assert not mark.exists()


@pytest.mark.parametrize("name", ["hostile_error", "hostile_class"])
def test_exception_of_another_tenants_function_runs_nothing_here(
    carol: Person, bobs: dict[str, str], tmp_path: Path, name: str
) -> None:
    mark = tmp_path / "executed"
    function = carol.client.function(f"bob/{name}")
    error = carol.client.run(function, str(mark)).exception(TIMEOUT)
    assert isinstance(error, dayfly.RemoteError)
    assert "\x1b" not in f"{error} {error.__cause__}"
    with dayfly.Executor(client=carol.client) as executor, pytest.raises(dayfly.RemoteError):
        list(executor.map(function, [str(mark)] * 2, chunksize=2))
    assert not mark.exists()


def test_data_of_another_tenants_function_is_read(carol: Person, bobs: dict[str, str]) -> None:
    found = carol.client.run(carol.client.function("bob/plain"), "").result(TIMEOUT)
    assert (found["number"], found["array"].tolist()) == (1.5, [0, 1, 2])
    error = carol.client.run(carol.client.function("bob/failing"), "x").exception(TIMEOUT)
    assert (type(error), error.args) == (KeyError, ("x",))
    assert "in failing" in str(error.__cause__)


def test_result_of_trusted_tenant_is_unpickled(carol: Person, bobs: dict[str, str], tmp_path: Path) -> None:
    marks = [tmp_path / str(number) for number in range(5)]
    client = carol.client
    client.run(client.function("bob/hostile", trust=["bob"]), str(marks[0])).result(TIMEOUT)
    with dayfly.Executor(client=client, trust="bob") as executor:
        executor.submit(client.function("bob/hostile"), str(marks[1])).result(TIMEOUT)
    list(client.map(client.function("bob/hostile"), [str(marks[2])], trust=True).results(timeout=TIMEOUT))
    with dayfly.connect(config=carol.connection, trust=["bob"]) as trusting:
        trusting.run(trusting.function("bob/hostile"), str(marks[3])).result(TIMEOUT)
    future = client.run(client.function("bob/hostile"), str(marks[4]))
    with pytest.raises(dayfly.Untrusted):
        future.result(TIMEOUT)
    client.task(future.id, trust=True).result(TIMEOUT)
    assert all(mark.is_dir() for mark in marks)


def describe(*given: Any) -> str:
    return repr(given)


def test_other_tenants_result_runs_no_code(carol: Person, bobs: dict[str, str], tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    client = carol.client
    bad = client.run(client.function("bob/hostile"), str(mark))
    good = client.run(client.function("bob/plain"), "")
    own = client.run(describe, 1)
    error = client.run(describe, own, [bad]).exception(TIMEOUT)
    assert isinstance(error, dayfly.Untrusted)
    assert "`bob`" in error.message
    assert not mark.exists()
    told = client.run(describe, own, good, [good]).result(TIMEOUT)
    assert told.count("array([0., 1., 2.])") == 2
    # Nor where the function that is given it is bob's own, or where its answer is remembered.
    with pytest.raises(dayfly.RemoteError, match="Untrusted"):
        client.run(client.function("bob/plain"), bad).result(TIMEOUT)
    trusting = client.function("bob/hostile", trust=True)
    client.run(describe, client.run(trusting, str(mark))).result(TIMEOUT)
    assert mark.is_dir()


def test_memoized_answer_of_another_tenants_function_stays_theirs(
    carol: Person, people: dict[str, Person], tmp_path: Path
) -> None:
    mark = tmp_path / "executed"
    theirs = people["bob"].client.register(hostile, name="memoized", share=["*"])
    with dayfly.Executor(client=carol.client, memoize=True) as executor:
        with pytest.raises(dayfly.Untrusted):
            executor.submit(carol.client.function("bob/memoized"), str(mark)).result(TIMEOUT)
        # The same code, of carol's own: executed anew, and hers to unpickle.
        own = carol.client.register(hostile, name="memoized")
        assert own.status["hash"] == theirs.status["hash"]
        future = executor.submit(own, str(mark))
        future.result(TIMEOUT)
        assert mark.is_dir()
        assert carol.client.task_status(future.id)["attempts"] == 1


def test_result_of_removed_function_is_anybodys(manager: Daemon, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    person = Person(manager, "dora", tmp_path)
    with person.client as client:
        own = client.register(hostile, name="short lived")
        future = client.run(own, str(mark))
        task = future.id
        wait_until(lambda: client.task_status(future)["state"] == "done", "it ends", TIMEOUT)
        assert person.ask("GET", f"/v1/tasks/{task}/outcome")[1].get("foreign") is None
        client.remove_function(own)
        assert person.ask("GET", f"/v1/tasks/{task}/outcome")[1]["foreign"] == [""]
    assert not mark.exists()


def test_outcome_names_whoever_may_have_made_it(carol: Person, bobs: dict[str, str]) -> None:
    client = carol.client
    for function, foreign in ((client.function("bob/plain"), ["bob"]), (client.register(honest, name="own"), None)):
        future = client.run(function, 1)
        future.exception(TIMEOUT)
        status, outcome = carol.ask("GET", f"/v1/tasks/{future.id}/outcome")
        assert status == 200
        assert outcome.get("foreign") == foreign


def test_result_from_another_tenants_endpoint_runs_nothing_here(
    manager: Daemon, carol: Person, state: Path, tmp_path: Path
) -> None:
    marks = [tmp_path / str(number) for number in range(4)]
    client = carol.client
    own = client.register(hostile, name="my own")
    with endpoints_of(manager, state) as make:
        make("--share-with", "carol", "--min-blocks", "1", "--workers-per-node", "2")
        with dayfly.Executor("here", client=client, memoize=True) as executor:
            assert executor.submit(honest, 2).result(TIMEOUT) == [2, 2]
            with pytest.raises(dayfly.Untrusted, match=r"trust=\['default'\]"):
                executor.submit(own, str(marks[0])).result(TIMEOUT)
            with pytest.raises(dayfly.RemoteError):
                executor.submit(hostile_class, str(marks[0])).result(TIMEOUT)
            # As an argument at the manager's own endpoint, too.
            bad = executor.submit(own, str(marks[0]))
            assert isinstance(client.run(describe, bad).exception(TIMEOUT), dayfly.Untrusted)
        assert not marks[0].exists()
        # What ran there is not remembered for here.
        with dayfly.Executor(client=client, memoize=True) as executor:
            future = executor.submit(own, str(marks[1]))
            future.result(TIMEOUT)
            assert marks[1].is_dir()
            assert client.task_status(future)["attempts"] == 1
        with dayfly.Executor("here", client=client, trust=["default"]) as executor:
            executor.submit(own, str(marks[2])).result(TIMEOUT)
            assert marks[2].is_dir()
        with dayfly.Executor("here", client=client, durable=False, workers=1) as executor:
            assert executor.submit(honest, 2).result(TIMEOUT) == [2, 2]
            assert list(executor.map(abs, range(-3, 0))) == [3, 2, 1]
            with pytest.raises(dayfly.Untrusted, match="`default`"):
                executor.submit(hostile, str(marks[3])).result(TIMEOUT)
            with pytest.raises(dayfly.RemoteError):
                executor.submit(hostile_class, str(marks[3])).result(TIMEOUT)
            with pytest.raises(dayfly.RemoteError):
                list(executor.map(hostile_class, [str(marks[3])] * 2))
            assert not marks[3].exists()
        with dayfly.Executor("here", client=client, durable=False, workers=1, trust=True) as executor:
            executor.submit(hostile, str(marks[3])).result(TIMEOUT)
            assert marks[3].is_dir()
