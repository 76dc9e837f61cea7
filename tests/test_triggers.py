"""Triggers: functions that start by the clock, by files and by requests; nothing is lost, and nothing is two tasks."""

from __future__ import annotations

import base64
import concurrent.futures
import itertools
import json
import os
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import stores
from harness.daemons import free_port
from harness.endpoints import Endpoint, manager_alone
from harness.leaks import wait_until
from harness.managers import Manager, tenant
from harness.programs import program, run

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")

EACH_SECOND = "* * * * * *"
MIB = 1 << 20


@pytest.fixture
def manager(state: Path) -> Iterator[Manager]:
    manager = Manager(state / "up")
    yield manager
    manager.stop()


@pytest.fixture
def client(manager: Manager) -> Iterator[dayfly.Client]:
    with dayfly.connect(config=manager.state) as client:
        yield client


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    """A directory in which files arrive."""
    made = tmp_path / "in"
    made.mkdir()
    return made


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    """A directory in which `record` leaves its marks."""
    made = tmp_path / "marks"
    made.mkdir()
    return made


def record(event: dict[str, Any], place: str, by: str = "number") -> dict[str, Any]:
    """One byte for each execution, in a file that is called as something of the event is; answers the event."""
    with open(os.path.join(place, os.path.basename(str(event[by]))), "ab") as mark:
        mark.write(b"x")
    return event


def same(event: dict[str, Any]) -> dict[str, Any]:
    """Answers the event."""
    return event


def fail(event: dict[str, Any], place: str) -> None:
    """Leaves its mark, and raises."""
    record(event, place)
    raise ValueError(f"no use for {event['body']}")


def executed(marks: Path) -> dict[str, int]:
    """How often `record` was executed, by what its marks are called."""
    return {mark.name: mark.stat().st_size for mark in marks.iterdir()}


def now_ms() -> int:
    """The wall clock."""
    return time.time_ns() // 1_000_000


def heard(trigger: dayfly.Trigger) -> list[dict[str, Any]]:
    """What a trigger heard of, in its order."""
    return trigger.history(10_000)[::-1]


def settled(trigger: dayfly.Trigger, count: int = 0, timeout: float = 60) -> list[dict[str, Any]]:
    """The same, once there are so many of which all tasks have ended."""

    def started() -> bool:
        status = trigger.refresh()
        return status["waiting"] == 0 and status["started"] + status["refused"] >= count

    wait_until(started, f"{count} events are heard of and started", timeout)
    wait_until(lambda: all(one["task_state"] == "done" for one in heard(trigger)), "their tasks end", timeout)
    return heard(trigger)


def tick(metronome: dayfly.Trigger, times: int = 2) -> None:
    """Waits until a timer has started so many tasks more."""
    until = metronome.refresh()["started"] + times
    wait_until(lambda: metronome.refresh()["started"] >= until, "another timer goes on", 30)


def leave_nothing_out(events: list[dict[str, Any]]) -> None:
    """Of a timer's events of each second, every time was heard of, or is counted as missed by the next that was."""
    of = [one["event"] for one in events]
    for earlier, later in itertools.pairwise(of):
        assert later["due_ms"] - earlier["due_ms"] == 1_000 * (1 + later["missed"]), (earlier, later)


def put(path: Path, text: str) -> None:
    """A file that is there at once, whole."""
    beside = path.parent.parent / f"{path.name}.part"
    beside.write_text(text)
    beside.replace(path)


def names(events: list[dict[str, Any]]) -> list[str]:
    """What the files of events are called."""
    return [os.path.basename(one["event"]["path"]) for one in events]


def send(hook: dayfly.Trigger, body: bytes, **headers: str) -> tuple[int, Any]:
    """What a program is answered that knows the address of a webhook, and nothing else."""
    assert hook.url is not None
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(hook.url, body, named, method="POST")
    context = ssl.create_default_context(cadata=hook.ca_pem)
    try:
        with urllib.request.urlopen(request, timeout=30, context=context) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


# By the clock


def test_timer_starts_tasks_and_lists_them(manager: Manager, client: dayfly.Client, marks: Path) -> None:
    begun_ms = now_ms()
    keywords = {"place": str(marks), "by": "due_ms"}
    timer = client.trigger("each-second", record, timer=EACH_SECOND, keywords=keywords)
    assert timer.status["state"] == "active"
    assert timer.status["next_at_ms"] > begun_ms
    assert timer.status["next_at_ms"] % 1_000 == 0
    wait_until(lambda: timer.refresh()["started"] >= 3, "three times pass", 30)
    timer.pause()
    events = settled(timer)
    leave_nothing_out(events)
    assert [one["number"] for one in events] == list(range(1, len(events) + 1))
    for one in events:
        event = one["event"]
        assert (event["trigger"], event["kind"], event["number"]) == ("each-second", "timer", one["number"])
        assert begun_ms < event["due_ms"] <= event["at_ms"] == one["at_ms"]
        assert (one["state"], one["error"]) == ("started", None)
        assert client.task(one["task"]).result(30) == event
    assert executed(marks) == {str(one["event"]["due_ms"]): 1 for one in events}
    tasks = manager.daemon.cli("task", "list", "--tag", "trigger:each-second")
    assert {task["id"] for task in tasks} == {one["task"] for one in events}
    assert "each-second: timer, paused" in repr(timer)


def test_killed_manager_makes_up_missed_times_once(manager: Manager, client: dayfly.Client, marks: Path) -> None:
    keywords = {"place": str(marks), "by": "due_ms"}
    timer = client.trigger("each-second", record, timer=EACH_SECOND, keywords=keywords)
    forgetful = client.trigger("forgetful", same, timer=EACH_SECOND, catch_up=False)
    wait_until(lambda: timer.refresh()["started"] >= 2, "it goes on", 30)
    manager.kill()
    killed_ms = now_ms()
    # No manager is there, so that the clock is all that there is to wait for.
    wait_until(lambda: now_ms() > killed_ms + 3_500, "some of its times pass")
    again_ms = now_ms()
    manager.start_again()
    for one in (timer, forgetful):
        tick(one, 3)
        one.pause()
    events = settled(timer)
    leave_nothing_out(events)
    first = next(one["event"] for one in events if one["event"]["due_ms"] > killed_ms)
    assert first["missed"] >= 2
    assert len([one for one in events if killed_ms < one["event"]["due_ms"] < again_ms]) <= 1
    counted = executed(marks)
    assert set(counted.values()) == {1}
    # What was at a worker when that was killed is in doubt; nothing else is.
    assert {one["error"]["code"] for one in events if one["error"]} <= {"maybe_executed"}
    assert {str(one["event"]["due_ms"]) for one in events if not one["error"]} <= set(counted)
    assert len({one["task"] for one in events}) == len({one["event"]["due_ms"] for one in events}) == len(events)
    due = [one["event"]["due_ms"] for one in settled(forgetful)]
    assert [one for one in due if killed_ms < one < again_ms] == []
    assert due[-1] > again_ms


def test_paused_trigger_starts_nothing_until_resumed(client: dayfly.Client) -> None:
    metronome = client.trigger("metronome", same, timer=EACH_SECOND)
    timer = client.trigger("timer", same, timer=EACH_SECOND, paused=True)
    assert (timer.status["state"], timer.status["next_at_ms"]) == ("paused", 0)
    tick(metronome)
    assert timer.history() == []
    resumed_ms = now_ms()
    timer.resume()
    assert timer.status["state"] == "active"
    # What passed meanwhile is not made up for.
    assert settled(timer, 1)[0]["event"]["due_ms"] > resumed_ms
    timer.pause()
    paused_ms = now_ms()
    tick(metronome)
    assert [one for one in heard(timer) if one["event"]["due_ms"] > paused_ms] == []


def test_expired_trigger_starts_nothing(client: dayfly.Client) -> None:
    metronome = client.trigger("metronome", same, timer=EACH_SECOND)
    timer = client.trigger("timer", same, timer=EACH_SECOND, valid_for=1)
    wait_until(lambda: timer.refresh()["state"] == "expired", "it expires")
    assert timer.status["next_at_ms"] == 0
    expired_ms = timer.status["expires_at_ms"]
    assert expired_ms <= now_ms()
    tick(metronome)
    assert [one for one in heard(timer) if one["event"]["due_ms"] > expired_ms] == []
    with pytest.raises(dayfly.Error, match="expired"):
        timer.fire()
    status, said = send(timer, b"")
    assert (status, said["error"]["code"]) == (403, "forbidden")
    # It can be set anew.
    assert client.trigger("timer", same, timer=EACH_SECOND).status["state"] == "active"


# By files


def test_new_or_changed_file_fires_trigger_once(client: dayfly.Client, inbox: Path, marks: Path) -> None:
    put(inbox / "before.txt", "was there")
    # What came a quarter of a second before counts, too.
    put_ms = now_ms()
    wait_until(lambda: now_ms() > put_ms + 500, "it is older than the trigger")
    keywords = {"place": str(marks), "by": "path"}
    trigger = client.trigger("in", record, files=inbox / "*.txt", every=0.1, keywords=keywords)
    source = trigger.status["source"]
    assert (source["place"], source["pattern"], source["every_ms"]) == (str(inbox), "*.txt", 100)
    (inbox / "deep").mkdir()
    for name in ("other.tmp", "deep/below.txt", "1.txt", "2.txt", "3.txt"):
        put(inbox / name, name)
    events = settled(trigger, 3)
    assert sorted(names(events)) == ["1.txt", "2.txt", "3.txt"]
    for one in events:
        event = one["event"]
        written = os.stat(event["path"])
        assert (event["kind"], event["bytes"]) == ("files", written.st_size)
        assert event["modified_at_ms"] == written.st_mtime_ns // 1_000_000
        assert client.task(one["task"]).result(30) == event
    with open(inbox / "2.txt", "ab", buffering=0) as changed:
        changed.write(b", and more")
    assert settled(trigger, 4)[3]["event"]["bytes"] == len("2.txt, and more")
    # One that is moved in is new here, however old it is.
    old = inbox.parent / "old.txt"
    old.write_text("of 2001")
    os.utime(old, (1_000_000_000, 1_000_000_000))
    old.rename(inbox / "old.txt")
    last = settled(trigger, 5)[4]["event"]
    assert (os.path.basename(last["path"]), last["modified_at_ms"]) == ("old.txt", 1_000_000_000_000)
    assert executed(marks) == {"1.txt": 1, "2.txt": 2, "3.txt": 1, "old.txt": 1}
    # All that are there, also in directories below, where that is wanted.
    everything = client.trigger("all", same, files=inbox / "**/*.txt", existing=True, every=0.1)
    expected = ["1.txt", "2.txt", "3.txt", "before.txt", "below.txt", "old.txt"]
    assert sorted(names(settled(everything, len(expected)))) == expected


def test_growing_file_fires_trigger_when_complete(client: dayfly.Client, inbox: Path) -> None:
    # Looked at often, but less often than its writer may be held up.
    trigger = client.trigger("in", same, files=inbox, every=1)
    done = threading.Event()

    def grow() -> None:
        with open(inbox / "slow", "ab", buffering=0) as slow:
            while not done.wait(0.02):
                slow.write(b"x" * 100)

    writer = threading.Thread(target=grow)
    writer.start()
    try:
        for number, name in enumerate(("a", "b"), 1):
            put(inbox / name, name)
            assert names(settled(trigger, number))[-1] == name
    finally:
        done.set()
        writer.join(10)
    assert names(settled(trigger, 3)) == ["a", "b", "slow"]
    put(inbox / "c", "c")
    events = settled(trigger, 4)
    assert names(events) == ["a", "b", "slow", "c"]
    assert events[2]["event"]["bytes"] == (inbox / "slow").stat().st_size


def test_files_arriving_without_manager_fire_once(
    manager: Manager, client: dayfly.Client, inbox: Path, marks: Path
) -> None:
    keywords = {"place": str(marks), "by": "path"}
    trigger = client.trigger("in", record, files=inbox, every=0.1, repeatable=True, keywords=keywords)
    for number in range(100):
        put(inbox / str(number), str(number))
    wait_until(lambda: len(executed(marks)) >= 10, "the first are executed", 60)
    manager.kill()
    for number in range(100, 150):
        put(inbox / str(number), str(number))
    manager.start_again()
    for number in range(150, 200):
        put(inbox / str(number), str(number))
    events = settled(trigger, 200)
    expected = [str(number) for number in range(200)]
    assert Counter(names(events)) == Counter(expected)
    assert [one["error"] for one in events] == [None] * 200
    assert sorted(executed(marks)) == sorted(expected)
    tasks = manager.daemon.cli("task", "list", "--tag", "trigger:in", "--limit", "1000")
    assert len(tasks) == 200
    assert {task["id"] for task in tasks} == {one["task"] for one in events}
    assert trigger.status["started"] == 200


def test_missing_directory_is_reported_and_watched_later(client: dayfly.Client, tmp_path: Path) -> None:
    later = tmp_path / "later"
    trigger = client.trigger("in", same, files=later, every=0.1)
    wait_until(lambda: trigger.refresh()["trouble"], "that it is not there is told")
    assert str(later) in trigger.status["trouble"]["message"]
    later.mkdir()
    put(later / "first", "first")
    assert names(settled(trigger, 1)) == ["first"]
    wait_until(lambda: trigger.refresh()["trouble"] is None, "there is no trouble any more")


def test_files_arriving_during_pause_fire_on_resume(client: dayfly.Client, inbox: Path) -> None:
    metronome = client.trigger("metronome", same, timer=EACH_SECOND)
    trigger = client.trigger("in", same, files=inbox, every=0.1, paused=True)
    put(inbox / "patient", "patient")
    tick(metronome)
    assert trigger.history() == []
    trigger.resume()
    assert names(settled(trigger, 1)) == ["patient"]


@pytest.mark.skipif(stores.unavailable() is not None, reason=str(stores.unavailable()))
def test_new_object_in_bucket_fires_trigger(state: Path) -> None:
    (state / "s3").mkdir()
    store = stores.S3(state / "s3")
    try:
        manager = Manager(state / "up", **store.environment())
        try:
            with dayfly.connect(config=manager.state) as client:
                place = f"{store.url}/in"
                trigger = client.trigger("in", same, files=f"{place}/*.txt", every=0.2)
                assert (trigger.status["source"]["place"], trigger.status["source"]["pattern"]) == (place, "*.txt")
                for name in ("in/other.bin", "in/deep/2.txt", "in/1.txt"):
                    store.put(name, b"one")
                [one] = settled(trigger, 1)
                assert (one["event"]["path"], one["event"]["bytes"]) == (f"{place}/1.txt", 3)
                store.put("in/1.txt", b"other")
                again = settled(trigger, 2)[1]["event"]
                assert (again["path"], again["bytes"]) == (f"{place}/1.txt", 5)
                both = client.trigger("all", same, files=f"{place}/**/*.txt", existing=True, every=0.2)
                assert sorted(names(settled(both, 2))) == ["1.txt", "2.txt"]
                # A bucket that is not there is told.
                lost = client.trigger("lost", same, files="s3://no-such-bucket", every=0.2)
                wait_until(lambda: lost.refresh()["trouble"], "that it is not there is told", 30)
                assert trigger.refresh()["trouble"] is None
        finally:
            manager.stop()
    finally:
        store.stop()


def test_endpoint_watches_files_for_its_owner_only(state: Path, inbox: Path) -> None:
    with manager_alone(state / "manager", free_port()) as manager:
        here = Endpoint(manager, state / "home", "here", "--workers-per-node", "1", "--share-with", "alice").set_up()
        try:
            with dayfly.connect(config=tenant(manager, "alice", state)) as alice:
                # She may have tasks there, and not see what its owner sees.
                assert alice.trigger("hook", same, webhook=True, endpoint="here").status["owner"] == "alice"
                for more in ({"endpoint": "here"}, {"watched_at": "here"}):
                    with pytest.raises(dayfly.Error, match="not yours") as refused:
                        alice.trigger("in", same, files=inbox, **more)
                    assert refused.value.code == "forbidden"
                assert [one.name for one in alice.triggers()] == ["hook"]
            with dayfly.connect(config=manager.state) as client:
                trigger = client.trigger("in", same, files=inbox, every=0.1, watched_at="here")
                assert "`here`" in trigger.status["trouble"]["message"]
                put(inbox / "first", "first")
                here.start()
                assert names(settled(trigger, 1)) == ["first"]
                assert trigger.refresh()["trouble"] is None
                here.stop()
                put(inbox / "second", "second")
                here.start()
                assert names(settled(trigger, 2)) == ["first", "second"]
        finally:
            print(here.log())
            here.stop()


# By requests


def test_tasks_have_deadline_and_priority_of_their_trigger(client: dayfly.Client) -> None:
    def linger(event: dict[str, Any]) -> None:
        time.sleep(60)

    hook = client.trigger("hook", linger, webhook=True, priority=-3, deadline=0.5)
    hook.fire("x")
    wait_until(lambda: len(client.tasks("trigger:hook")) == 1, "its task is there", 30)
    with pytest.raises(dayfly.DeadlineExceeded):
        client.tasks("trigger:hook")[0].result(30)
    for wrong in ({"priority": -129}, {"deadline": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            client.trigger("hook", linger, webhook=True, **wrong)


def test_webhook_accepts_json_text_and_bytes(client: dayfly.Client, marks: Path) -> None:
    hook = client.trigger("hook", record, webhook=True, keywords={"place": str(marks)})
    assert hook.token is not None
    assert hook.url is not None
    assert hook.url.endswith(f"/v1/hooks/{hook.token}")
    everything = bytes(range(256))
    bodies: list[tuple[bytes, str, Any]] = [
        (b'{"branch": "main", "of": [1, 2.5, null]}', "application/json", {"branch": "main", "of": [1, 2.5, None]}),
        ("größer".encode(), "text/plain; charset=utf-8", "größer"),
        (everything, "application/octet-stream", {"base64": base64.b64encode(everything).decode()}),
        (b"", "text/plain", None),
        (b"x" * MIB, "text/plain", "x" * MIB),
    ]
    taken = [send(hook, body, Content_Type=kind) for body, kind, _ in bodies]
    assert [(status, said["number"], said["known"]) for status, said in taken] == [
        (202, number, False) for number in range(1, len(bodies) + 1)
    ]
    events = settled(hook, len(bodies))
    assert [one["task"] for one in events] == [said["task"] for _, said in taken]
    for one, (_, kind, body) in zip(events, bodies, strict=True):
        event = one["event"]
        assert (event["kind"], event["content_type"], event["body"]) == ("webhook", kind, body)
        assert client.task(one["task"]).result(30) == event
    assert executed(marks) == {str(number): 1 for number in range(1, len(bodies) + 1)}
    status, said = send(hook, b"x" * (MIB + 1))
    assert (status, said["error"]["code"]) == (413, "payload_too_large")
    # Whoever finds it later is not told what it takes.
    [found] = client.triggers()
    assert (found.name, found.token, found.url, found.ca_pem) == ("hook", None, None, None)
    assert hook.token not in json.dumps(found.status)


def test_repeated_idempotency_key_is_one_event(manager: Manager, client: dayfly.Client, marks: Path) -> None:
    hook = client.trigger("hook", record, webhook=True, keywords={"place": str(marks)})
    status, first = send(hook, b"1", Idempotency_Key="a")
    assert (status, first["known"]) == (202, False)
    known = first | {"known": True}
    assert send(hook, b"1", Idempotency_Key="a") == (202, known)
    assert hook.fire(1, key="a") == known
    path = "/v1/triggers/hook/events"
    status, said = manager.daemon.ask("POST", path, b"1", Content_Type="application/json", Idempotency_Key="a")
    assert (status, json.loads(said)) == (202, known)
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        taken = list(threads.map(lambda _: hook.fire("at once", key="b/ä?&="), range(40)))
    assert {one["number"] for one in taken} == {2}
    assert [one["known"] for one in taken].count(False) == 1
    # Without a key, each is one of its own.
    assert [hook.fire(1)["number"], hook.fire(1)["number"]] == [3, 4]
    assert [one["key"] for one in settled(hook, 4)[:2]] == ["a", "b/ä?&="]
    assert executed(marks) == {"1": 1, "2": 1, "3": 1, "4": 1}
    manager.kill()
    manager.start_again()
    assert hook.fire(1, key="a") == known
    assert len(hook.history()) == 4


def test_accepted_events_start_tasks_despite_kills(manager: Manager, client: dayfly.Client, marks: Path) -> None:
    hook = client.trigger("hook", record, webhook=True, repeatable=True, keywords={"place": str(marks)})
    numbers = []
    for _ in range(3):
        numbers += [hook.fire(number)["number"] for number in range(30)]
        manager.kill()
        manager.start_again()
    assert numbers == list(range(1, 91))
    events = settled(hook, 90)
    assert [one["number"] for one in events] == numbers
    assert [one["error"] for one in events] == [None] * 90
    assert sorted(executed(marks)) == sorted(map(str, numbers))
    assert len(manager.daemon.cli("task", "list", "--tag", "trigger:hook")) == 90


def test_hook_token_fires_only_its_live_trigger(manager: Manager, client: dayfly.Client) -> None:
    hook = client.trigger("hook", same, webhook=True)
    assert hook.token is not None
    for method, path in [
        ("GET", "/v1/tasks"),
        ("GET", "/v1/triggers"),
        ("GET", "/v1/triggers/hook/events"),
        ("POST", "/v1/triggers/hook/events"),
        ("DELETE", "/v1/triggers/hook"),
        ("GET", "/v1/functions"),
    ]:
        assert manager.daemon.ask(method, path, b"{}", token=hook.token)[0] == 401, path
    # Nor is another token good for it.
    strange = dayfly.Trigger(client, hook.status, {"url": f"{hook.url}0", "ca_pem": hook.ca_pem})
    assert send(strange, b"1")[0] == 404
    assert send(hook, b"1")[0] == 202
    again = client.trigger("hook", same, webhook=True, description="another")
    assert (again.status["id"], again.status["description"]) == (hook.status["id"], "another")
    assert send(hook, b"2")[0] == 404
    assert send(again, b"2")[0] == 202
    again.pause()
    status, said = send(again, b"3")
    assert (status, "paused" in said["error"]["message"]) == (403, True)
    again.resume()
    assert [one["event"]["body"] for one in settled(again, 2)] == [1, 2]
    again.remove()
    assert send(again, b"4")[0] == 404
    assert client.triggers() == []
    with pytest.raises(dayfly.Error, match="no trigger `hook`") as gone:
        again.refresh()
    assert gone.value.code == "not_found"


def test_other_tenant_cannot_see_or_fire_trigger(
    manager: Manager, client: dayfly.Client, state: Path, inbox: Path
) -> None:
    hook = client.trigger("hook", same, webhook=True)
    connection = tenant(manager.daemon, "alice", state, "--valid-for", "1h")
    token = json.loads(connection.read_text())["token"]
    with dayfly.connect(config=connection) as alice:
        assert alice.triggers() == []
        for name in ("hook", hook.status["id"]):
            path = f"/v1/triggers/{name}"
            for method, at in [
                ("GET", path),
                ("DELETE", path),
                ("POST", f"{path}/pause"),
                ("POST", f"{path}/resume"),
                ("GET", f"{path}/events"),
                ("POST", f"{path}/events"),
            ]:
                body = b"{}" if method == "POST" else None
                assert manager.daemon.ask(method, at, body, token=token, Content_Type="application/json")[0] == 404, at
        # Nor may she run what is not hers, look at what the manager's own site sees, or outlive her token.
        with pytest.raises(dayfly.Error) as refused:
            alice.trigger("mine", hook.status["function"], webhook=True)
        assert refused.value.code == "not_found"
        for more in ({"files": inbox}, {"files": inbox, "watched_at": "local"}, {"webhook": True, "valid_for": 7200}):
            with pytest.raises(dayfly.Error, match=r"not yours|outlive") as refused:
                alice.trigger("mine", same, **more)
            assert refused.value.code == "forbidden"
        # The name is hers as well.
        own = alice.trigger("hook", same, webhook=True)
        assert own.status["id"] != hook.status["id"]
        assert own.status["owner"] == "alice"
        assert own.status["expires_at_ms"] <= now_ms() + 3_600_000
        own.fire("hers")
        assert [one["event"]["body"] for one in settled(own, 1)] == ["hers"]
    assert hook.history() == []
    assert [one.status["id"] for one in client.triggers()] == [hook.status["id"]]


# What goes along, and what goes wrong


def together(event: dict[str, Any], *, of: list[int], name: str = "none") -> dict[str, Any]:
    """Answers what it was given."""
    return {"body": event["body"], "of": of, "name": name}


def test_source_function_receives_arguments_by_name(manager: Manager, client: dayfly.Client) -> None:
    client.register(together, name="pickled")
    source = "def together(event, *, of, name='none'):\n    return {'body': event['body'], 'of': of, 'name': name}\n"
    code = base64.b64encode(source.encode()).decode()
    form = {"form": "source", "entry": "together"}
    assert manager.daemon.post("/v1/functions", {"name": "source", "form": form, "code": code})[0] == 201
    for name in ("pickled", "source"):
        keywords = {"of": [1, 2], "name": "größer"}
        hook = client.trigger(name, name, webhook=True, keywords=keywords, walltime=30)
        assert (hook.status["keywords"], hook.status["options"]["walltime_ms"]) == (keywords, 30_000)
        hook.fire({"a": None})
        [one] = settled(hook, 1)
        assert client.task(one["task"]).result(30) == {"body": {"a": None}, **keywords}


def test_failed_function_is_retried_and_in_history(client: dayfly.Client, marks: Path) -> None:
    hook = client.trigger("hook", fail, webhook=True, retries=2, keywords={"place": str(marks)})
    hook.fire("this")
    [one] = settled(hook, 1)
    assert (one["state"], one["task_state"], one["error"]["code"]) == ("started", "done", "function_error")
    assert "no use for this" in one["error"]["message"]
    assert executed(marks) == {"1": 3}
    # The trigger itself is well.
    assert (hook.refresh()["trouble"], hook.status["started"], hook.status["refused"]) == (None, 1, 0)


def test_invalid_trigger_is_refused_with_reason(manager: Manager, client: dayfly.Client, tmp_path: Path) -> None:
    function = client.register(same, name="same").id
    timer, files = {"kind": "timer"}, {"kind": "files", "place": "/data"}
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"source": timer | {"cron": "every day"}}, "`every day`"),
        ({"source": timer | {"cron": "61 * * * *"}}, "`61 * * * *`"),
        ({"source": timer | {"cron": "0 0 30 2 *"}}, "never"),
        ({"source": timer | {"cron": "* * * * *", "zone": "Mars/Olympus"}}, "Mars/Olympus"),
        ({"source": files | {"place": "in"}}, "`in`"),
        ({"source": files | {"place": "s3://"}}, "`s3://`"),
        ({"source": files | {"pattern": "a["}}, "`a[`"),
        ({"source": files | {"every_ms": 1}}, "1 ms"),
        ({"source": files | {"endpoint": "mars"}}, "mars"),
        ({"source": {"kind": "flood"}}, "flood"),
        ({"name": "1 2"}, "`1 2`"),
        ({"function": "0" * 32}, "function"),
        ({"endpoint": "mars"}, "mars"),
    ]
    for change, word in wrong:
        body = {"name": "wrong", "function": function, "source": {"kind": "webhook"}} | change
        status, said = manager.daemon.post("/v1/triggers", body)
        assert 400 <= status < 500, change
        assert word in said["error"]["message"], (change, said)
    assert client.triggers() == []
    for more, word in [
        ({}, "none"),
        ({"timer": EACH_SECOND, "webhook": True}, "timer= and webhook=True"),
        ({"webhook": True, "pattern": "*"}, "pattern="),
        ({"timer": EACH_SECOND, "every": 1}, "every="),
        ({"webhook": True, "valid_for": 0}, "valid_for=0"),
        ({"webhook": True, "retries": -1}, "retries=-1"),
    ]:
        with pytest.raises(ValueError, match=word):
            client.trigger("wrong", function, **more)
    environment = manager.daemon.client_environment()
    for words, word in [
        (("timer", "wrong", "every day", "--function", "same"), "`every day`"),
        (("timer", "wrong", "* * * * *", "--zone", "Mars/Olympus", "--function", "same"), "Mars/Olympus"),
        (("files", "wrong", str(tmp_path), "--pattern", "a[", "--function", "same"), "`a[`"),
        (("files", "wrong", str(tmp_path), "--every", "soon", "--function", "same"), "soon"),
        (("webhook", "wrong", "--function", "same", "--keyword", "alone"), "`alone`"),
        (("webhook", "wrong", "--function", "no-such-function"), "no-such-function"),
        (("fire", "wrong", "--event", "{"), "JSON"),
        (("show", "wrong"), "`wrong`"),
    ]:
        done = run(program(), "trigger", *words, check=False, env=environment)
        assert done.returncode != 0, words
        assert word in done.stderr, (words, done.stderr)


# From the command line


def test_command_line_manages_triggers(manager: Manager, client: dayfly.Client, tmp_path: Path, marks: Path) -> None:
    function = client.register(record, name="record").id
    environment = manager.daemon.client_environment()

    def say(*words: str) -> Any:
        return manager.daemon.cli("trigger", *words)

    def show(*words: str, check: bool = True) -> str:
        return run(program(), "trigger", *words, check=check, env=environment, cwd=tmp_path).stdout

    assert say("list") == []
    assert show("list") == "No triggers.\n"
    options = ("--valid-for", "1h", "--retries", "2", "--walltime", "30s", "--description", "for a test")
    keywords = ("--keyword", f"place={marks}", "--keyword", 'by="number"')
    new = say("webhook", "hook", "--function", "record", *keywords, *options)
    status = new["status"]
    assert new["url"].endswith(new["token"])
    assert "BEGIN CERTIFICATE" in new["ca_pem"]
    assert (status["function"], status["description"]) == (function, "for a test")
    assert status["keywords"] == {"place": str(marks), "by": "number"}
    assert (status["options"]["retries"], status["options"]["walltime_ms"]) == (2, 30_000)
    assert status["expires_at_ms"] == status["created_at_ms"] + 3_600_000
    assert say("list") == [say("show", "hook")] == [status]

    taken = say("fire", "hook", "--event", '{"a": 1}', "--key", "only once")
    assert say("fire", "hook", "--event", '{"a": 1}', "--key", "only once") == taken | {"known": True}
    wait_until(lambda: say("history", "hook")[0]["task_state"] == "done", "its task ends", 30)
    say("fire", "hook")
    wait_until(lambda: say("history", "hook")[0]["task_state"] == "done", "its task ends", 30)
    second, first = say("history", "hook")
    assert (first["task"], first["key"], first["event"]["body"]) == (taken["task"], "only once", {"a": 1})
    assert second["event"]["body"] is None
    assert say("history", "hook", "--limit", "1") == [second]
    assert manager.daemon.cli("task", "result", first["task"])["result"] == first["event"]
    assert executed(marks) == {"1": 1, "2": 1}

    assert say("pause", "hook")["state"] == "paused"
    done = run(program(), "trigger", "fire", "hook", check=False, env=environment)
    assert (done.returncode, "paused" in done.stderr) == (4, True)
    assert say("resume", "hook")["state"] == "active"

    words = ("timer", "nightly", "30 2 * * *", "--zone", "Europe/Berlin", "--no-catch-up", "--function", function)
    nightly = say(*words, "--paused")["status"]
    cron = {"kind": "timer", "cron": "30 2 * * *", "zone": "Europe/Berlin", "catch_up": False}
    assert (nightly["source"], nightly["state"]) == (cron, "paused")
    # A directory is that of whoever asks.
    words = ("files", "scans", "scans/new", "--pattern", "*.tif", "--existing", "--every", "5s", "--function", "record")
    assert "scans/new/*.tif" in show(*words)
    place = {"kind": "files", "place": str(tmp_path / "scans/new"), "pattern": "*.tif"}
    assert say("show", "scans")["source"] == place | {"existing": True, "every_ms": 5_000}

    listed = show("list").splitlines()
    assert [line.split()[:2] for line in listed[1:]] == [["hook", "webhook"], ["nightly", "timer"], ["scans", "files"]]
    assert "waits for   30 2 * * * (Europe/Berlin)" in show("show", "nightly")
    assert 'keyword     by="number"' in show("show", "hook")
    assert first["task"] in show("history", "hook")
    assert show("history", "nightly") == "No events.\n"
    assert "/v1/hooks/" in show("webhook", "hook", "--function", "record")

    assert say("remove", "hook")["name"] == "hook"
    assert show("remove", "scans").startswith("The trigger scans is gone")
    assert [one["name"] for one in say("list")] == ["nightly"]
    assert show("show", "hook", check=False) == ""
