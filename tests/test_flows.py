"""Flows: functions that are called with each other's results, for each of many too, through their manager's death."""

from __future__ import annotations

import concurrent.futures as cf
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from harness.leaks import wait_until
from harness.managers import Manager, tenant
from harness.marks import executions
from harness.programs import program

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")
Step = dayfly.Step

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


def numbers(count: int) -> list[int]:
    return list(range(count))


def square(number: int, offset: int = 0) -> int:
    return number * number + offset


def total(squares: list[int], factor: int = 1) -> int:
    return factor * sum(squares)


def fail(_: Any) -> None:
    raise ValueError("no good")


def test_step_receives_result_of_the_previous_step(client: dayfly.Client) -> None:
    steps = [
        Step("numbers", numbers),
        Step("squares", square, map=True, keywords={"offset": 1}),
        Step("sum", total),
    ]
    flow = client.flow(steps, 100, name="sums")
    assert flow.result(30) == sum(n * n + 1 for n in range(100))
    assert flow.done()
    seen = [(step["name"], step["state"], step["tasks"], step["done"]) for step in flow.status["steps"]]
    assert seen == [("numbers", "done", 1, 1), ("squares", "done", 100, 100), ("sum", "done", 1, 1)]
    assert "sums" in repr(flow)
    [same] = client.flows()
    assert (same.id, same.status["state"]) == (flow.id, "done")
    assert same.result() == flow.result()
    assert client.find_flow(flow.id).result() == flow.result()
    with pytest.raises(dayfly.Error, match="no flow") as caught:
        client.find_flow("0" * 32)
    assert caught.value.code == "not_found"
    # Its tasks are tasks like others.
    assert len(client.tasks(tag=flow.tag)) == 102


def test_step_takes_several_results_and_the_input(client: dayfly.Client) -> None:
    def pair(left: Any, right: Any) -> list[Any]:
        return [left, right]

    steps = [
        Step("double", lambda n: 2 * n),
        Step("triple", lambda n: 3 * n, of="input"),
        Step("all", lambda a, b, n: [a, b, n], of=["double", "triple", "input"]),
        # Each of the first, with all of the second.
        Step("pairs", pair, of=["all", "double"], map=True),
        Step("alone", lambda: "nobody", of=[]),
        Step("end", lambda pairs, alone: [pairs, alone], of=["pairs", "alone"]),
    ]
    assert client.flow(steps, 5).result(30) == [[[10, 10], [15, 10], [5, 10]], "nobody"]


def test_for_each_over_empty_list_returns_empty_list(client: dayfly.Client) -> None:
    flow = client.flow([Step("numbers", numbers), Step("squares", square, map=True), Step("sum", total)], 0)
    assert flow.result(30) == 0
    assert [step["tasks"] for step in flow.status["steps"]] == [1, 0, 1]


def test_independent_steps_run_in_parallel(client: dayfly.Client, tmp_path: Path) -> None:
    def meet(place: str, own: str, other: str) -> str:
        Path(place, own).touch()
        until = time.monotonic() + 20
        while not Path(place, other).exists():
            assert time.monotonic() < until
            time.sleep(0.01)
        return own

    steps = [
        Step("a", meet, of="input", keywords={"own": "a", "other": "b"}),
        Step("b", meet, of="input", keywords={"own": "b", "other": "a"}),
        Step("both", lambda *names: list(names), of=["a", "b"]),
    ]
    assert client.flow(steps, str(tmp_path)).result(30) == ["a", "b"]


def test_failed_step_fails_its_flow(client: dayfly.Client, tmp_path: Path) -> None:
    place = str(tmp_path)

    def touch(_: Any) -> None:
        Path(place, "reached").touch()

    steps = [Step("numbers", numbers), Step("bad", fail, map=True), Step("after", touch)]
    flow = client.flow(steps, 3)
    with pytest.raises(dayfly.Error, match=r"(?s)the step `bad` failed in its task .*no good"):
        flow.result(30)
    assert flow.status["state"] == "failed"
    assert [step["state"] for step in flow.status["steps"]] == ["done", "failed", "failed"]
    assert not Path(place, "reached").exists()


def test_flow_fails_at_its_first_failed_task(client: dayfly.Client) -> None:
    def wait_or_fail(number: int) -> None:
        if number == 1:
            raise ValueError("no good")
        time.sleep(60)

    with pytest.raises(dayfly.Error, match=r"(?s)the step `some` failed in its task .*no good"):
        client.flow([Step("numbers", numbers), Step("some", wait_or_fail, map=True)], 2).result(30)


def test_repeated_arguments_of_for_each_are_bounded(client: dayfly.Client) -> None:
    steps = [Step("numbers", numbers), Step("each", lambda n, text: n, of=["numbers", "input"], map=True)]
    steps[0] = Step("numbers", lambda _: list(range(1_000)), of="input")
    with pytest.raises(dayfly.Error, match="with each of 1000 elements") as caught:
        client.flow(steps, "x" * 100_000).result(30)
    assert caught.value.code == "too_large"


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([Step("one", lambda n: n), Step("each", square, map=True)], "for each element of a list"),
        ([Step("strange", lambda n: object())], "JSON"),
    ],
)
def test_invalid_for_each_input_fails_with_reason(client: dayfly.Client, steps: list[Step], words: str) -> None:
    with pytest.raises(dayfly.Error, match=words):
        client.flow(steps, 3).result(30)


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([], "0 steps"),
        ([Step("a", numbers), Step("a", numbers)], "two steps have the name"),
        ([Step("a", numbers, of="b"), Step("b", numbers)], "is not an earlier step"),
        ([Step("input", numbers)], "is not a step name"),
        ([Step("a", numbers, map=True, of=[])], "maps over no list"),
    ],
)
def test_invalid_flow_is_refused(client: dayfly.Client, steps: list[Step], words: str) -> None:
    with pytest.raises(dayfly.Error, match=words):
        client.flow(steps, 3)
    assert client.flows() == []


def test_tasks_have_priority_and_deadline_of_their_step(client: dayfly.Client) -> None:
    steps = [Step("slow", lambda _: time.sleep(60), priority=3, deadline=0.5)]
    with pytest.raises(dayfly.DeadlineExceeded):
        client.flow(steps).result(30)
    for wrong in ({"priority": 200}, {"deadline": -1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            client.flow([Step("slow", numbers, **wrong)])


def test_cancelled_flow_cancels_its_tasks(client: dayfly.Client, tmp_path: Path) -> None:
    place = str(tmp_path)

    def sleep(number: int) -> None:
        Path(place, str(number)).touch()
        time.sleep(60)

    flow = client.flow([Step("numbers", numbers), Step("sleep", sleep, map=True)], 5)
    wait_until(lambda: any(tmp_path.iterdir()), "a task runs", 30)
    flow.cancel()
    with pytest.raises(dayfly.Error) as caught:
        flow.result(20)
    assert caught.value.code == "cancelled"
    tasks = client.tasks(tag=flow.tag).futures
    assert cf.wait(tasks, 20).not_done == set()
    assert sorted(task.cancelled() for task in tasks) == [False, True, True, True, True, True]
    # Once more is nothing new.
    flow.cancel()


def test_oversized_results_fail_only_their_flow(client: dayfly.Client) -> None:
    steps = [Step("numbers", numbers), Step("long", lambda _: "x" * (8 << 20), map=True)]
    with pytest.raises(dayfly.Error, match="more than 67108864 bytes") as caught:
        client.flow(steps, 9).result(60)
    assert caught.value.code == "too_large"
    # What it had is free again.
    assert len(client.flow(steps, 7).result(60)) == 7


def leave_a_mark(number: int, place: str, gate: str) -> int:
    with open(f"{place}/{number}", "ab") as mark:
        mark.write(b"x")
    while not Path(gate).exists():
        time.sleep(0.01)
    return number


def test_killed_manager_continues_its_flows(manager: Manager, tmp_path: Path) -> None:
    place = tmp_path / "marks"
    place.mkdir()
    gate = tmp_path / "gate"
    with dayfly.connect(config=manager.state) as client:
        many = {"place": str(place), "gate": str(gate)}
        steps = [
            Step("numbers", numbers),
            Step("many", leave_a_mark, map=True, keywords=many, repeatable=True),
            Step("sum", total, repeatable=True),
        ]
        flow = client.flow(steps, 20)
        wait_until(lambda: executions(place), "the second step runs", 30)
        manager.again()
        gate.touch()
        with dayfly.connect(config=manager.state) as other:
            [same] = other.flows()
            assert same.id == flow.id
            assert same.result(60) == sum(range(20))
    # What ran when it died ran again, and nothing else did.
    assert sorted(executions(place)) == list(range(20))
    assert sum(executions(place).values()) <= 20 + 4


def test_trigger_starts_a_flow(client: dayfly.Client) -> None:
    def words(event: dict[str, Any]) -> list[str]:
        return event["body"].split()  # type: ignore[no-any-return]

    trigger = client.trigger("said", words, webhook=True, then=[Step("lengths", len, map=True), Step("sum", total)])
    taken = trigger.fire("a few words")
    assert taken["task"] is None
    again = trigger.fire("a few words", key="other")
    assert again["flow"] != taken["flow"]
    wait_until(lambda: all(event["task_state"] == "done" for event in trigger.history()), "both end", 30)
    flows = {flow.id: flow for flow in client.flows()}
    assert flows[taken["flow"]].result(10) == 9
    assert [event["flow"] for event in trigger.history()] == [again["flow"], taken["flow"]]
    bad = client.trigger("bad", words, webhook=True, then=[Step("bad", fail)])
    bad.fire("x")
    wait_until(lambda: bad.history()[0]["error"], "it fails", 30)
    assert "no good" in bad.history()[0]["error"]["message"]
    with pytest.raises(dayfly.Error, match="two steps"):
        client.trigger("twice", words, webhook=True, then=[Step("event", total)])


def test_other_tenant_cannot_see_or_cancel_flow(manager: Manager, client: dayfly.Client, state: Path) -> None:
    flow = client.flow([Step("numbers", numbers)], 3)
    token = json.loads(tenant(manager.daemon, "alice", state).read_text())["token"]

    def ask(method: str, path: str, body: Any = None) -> tuple[int, Any]:
        sent = None if body is None else json.dumps(body).encode()
        status, said = manager.daemon.ask(method, path, sent, token=token, Content_Type="application/json")
        return status, json.loads(said)

    assert ask("GET", f"/v1/flows/{flow.id}")[0] == 404
    assert ask("POST", f"/v1/flows/{flow.id}/cancel", {})[0] == 404
    assert ask("GET", "/v1/flows") == (200, [])
    # An id of another's is not taken over, with a function that both may run.
    function = client.register(numbers, share=["*"]).id
    stolen = {"id": flow.id, "steps": [{"name": "a", "function": function}], "input": 1}
    assert ask("POST", "/v1/flows", stolen)[0] == 403
    assert flow.result(30) == [0, 1, 2]
    # Whoever may not run its function starts none.
    own = client.register(square).id
    assert ask("POST", "/v1/flows", {"steps": [{"name": "a", "function": own}], "input": 1})[0] == 404


FLOW = """
name = "sums"

[[step]]
name = "numbers"
function = "numbers"

[[step]]
name = "squares"
function = "square"
map = true
retries = 1
keywords = { offset = 2 }

[[step]]
name = "sum"
function = "total"
"""


def test_command_line_manages_flows(manager: Manager, client: dayfly.Client, tmp_path: Path) -> None:
    for function in (numbers, square, total):
        client.register(function)
    file = tmp_path / "sums.toml"
    file.write_text(FLOW)

    def dayfly_flow(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [program(), "flow", *arguments]
        environment = manager.daemon.client_environment()
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)

    ran = dayfly_flow("run", str(file), "--input", "10")
    assert (ran.returncode, json.loads(ran.stdout)) == (0, sum(n * n + 2 for n in range(10))), ran.stderr
    (tmp_path / "input.json").write_text("3")
    started = dayfly_flow("start", str(file), "--input", f"@{tmp_path / 'input.json'}")
    flow = started.stdout.strip()
    shown = dayfly_flow("show", flow, "--wait", "30")
    assert "squares" in shown.stdout
    assert shown.stdout.strip().endswith("11")
    assert flow in dayfly_flow("list").stdout
    assert "done" in dayfly_flow("cancel", flow).stdout
    bad = dayfly_flow("run", str(file), "--input", '"no number"')
    assert bad.returncode != 0
    assert "the step `numbers` failed" in bad.stderr
    file.write_text(FLOW.replace("map =", "mapp ="))
    assert "mapp" in dayfly_flow("run", str(file)).stderr
