"""Long arguments and results of tasks: stored apart under their hash, in a directory or a bucket."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import stores
from harness.daemons import Daemon, free_port, private_directory
from harness.endpoints import Endpoint, manager_alone
from harness.leaks import wait_until
from harness.programs import bin_dir

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")

MIB = 1 << 20


@pytest.fixture
def directory() -> Iterator[Path]:
    os.environ.setdefault("DAYFLY_BIN", str(bin_dir() / "dayfly"))
    with private_directory() as directory:
        yield Path(directory)


@contextlib.contextmanager
def running(state: Path, *more: str, **environment: str) -> Iterator[Daemon]:
    """A manager with a node, at a port that it has again when it is started again."""
    daemon = Daemon("up", "--listen", f"127.0.0.1:{free_port()}", *more, state=state, env=environment)
    try:
        yield daemon
    finally:
        daemon.stop()


def ask(
    manager: Daemon, method: str, path: str, body: bytes | None = None, *, token: str = "", kind: str = "octet-stream"
) -> tuple[int, bytes]:
    """A request whose body is bytes, unless it is of another kind."""
    return manager.ask(method, path, body, token=token, Content_Type=f"application/{kind}")


def used(manager: Daemon) -> int:
    """Bytes in the content store."""
    return int(json.loads(ask(manager, "GET", "/v1/contents")[1])["bytes"])


def reversed_bytes(data: bytes) -> bytes:
    """The bytes in the other order."""
    return data[::-1]


def test_long_arguments_arrive_whole_and_are_stored_once(directory: Path) -> None:
    data = os.urandom(3 * MIB)
    with running(directory / "state") as manager, dayfly.connect(config=manager.state) as client:
        assert client.run(reversed_bytes, data).result(30) == data[::-1]
        # The result, and the arguments with what is pickled around them.
        assert 6 * MIB <= used(manager) < 6 * MIB + 2_000
        before = used(manager)
        futures = [client.run(reversed_bytes, data) for _ in range(20)]
        assert all(future.result(30) == data[::-1] for future in futures)
        assert used(manager) == before
        batch = client.map(len, [os.urandom(MIB // 2) for _ in range(40)])
        assert list(batch.results(timeout=60)) == [MIB // 2] * 40
        # A result that is read by its tag, from another session.
        kept = client.batch("kept")
        assert kept.submit(reversed_bytes, data).result(30) == data[::-1]
        with dayfly.connect(config=manager.state) as other:
            assert list(other.tasks(tag="kept").results(timeout=30)) == [data[::-1]]


def fail_at_length(data: bytes) -> None:
    """Raises what was given."""
    raise ValueError(data)


def test_long_exception_arrives_whole(directory: Path) -> None:
    data = os.urandom(MIB)
    with running(directory / "state") as manager, dayfly.connect(config=manager.state) as client:
        with pytest.raises(ValueError) as raised:
            client.run(fail_at_length, data).result(30)
        assert raised.value.args == (data,)


@pytest.mark.skipif(stores.unavailable() is not None, reason=str(stores.unavailable()))
def test_contents_are_stored_in_the_configured_bucket(directory: Path) -> None:
    data = os.urandom(40 * MIB)
    (directory / "s3").mkdir()
    store = stores.S3(directory / "s3")
    try:
        store.put("before", b"something that is not ours")
        place = ("--contents", f"{store.url}/dayfly")
        with running(directory / "state", *place, **store.environment()) as manager:
            with dayfly.connect(config=manager.state) as client:
                # Longer than what is stored in one request.
                assert client.run(reversed_bytes, data).result(120) == data[::-1]
                assert client.run(reversed_bytes, data[:MIB]).result(60) == data[:MIB][::-1]
            assert not list((manager.state / "contents").glob("*/*"))
            assert used(manager) > 82 * MIB
        assert store.left("dayfly")
    finally:
        store.stop()


def test_contents_over_http_belong_to_their_tenant(directory: Path) -> None:
    data = os.urandom(MIB)
    with running(directory / "state") as manager:
        status, said = ask(manager, "POST", "/v1/contents", data)
        content = json.loads(said)
        assert (status, content["bytes"]) == (201, MIB)
        path = f"/v1/contents/{content['hash']}"
        assert ask(manager, "GET", path) == (200, data)
        assert ask(manager, "PUT", path, data) == (201, said)
        assert used(manager) == MIB
        # Of another tenant's it hears what it would of one that is not there.
        manager.cli("tenant", "set", "alice")
        token = directory / "alice.json"
        manager.cli("token", "create", "laptop", "--tenant", "alice", "--output", str(token))
        alice = json.loads(token.read_text())["token"]
        assert ask(manager, "GET", path, token=alice)[0] == 404
        status, said = ask(manager, "PUT", path, data[1:], token=alice)
        assert (status, json.loads(said)["error"]["code"]) == (400, "hash_mismatch")
        assert ask(manager, "GET", path, token=alice)[0] == 404
        assert ask(manager, "PUT", path, data, token=alice)[0] == 201
        assert ask(manager, "GET", path, token=alice) == (200, data)
        assert ask(manager, "GET", "/v1/contents/nonsense")[0] == 400
        assert ask(manager, "GET", f"/v1/endpoints/tasks/{'0' * 32}/contents/{content['hash']}")[0] == 401


def test_unknown_argument_hash_is_refused(directory: Path) -> None:
    with running(directory / "state") as manager, dayfly.connect(config=manager.state) as client:
        function = client.register(len, name="length").id
        # Whatever the codec writes, the client has stored it before.
        data = os.urandom(MIB)
        assert client.run(len, data).result(30) == MIB
        (stored,) = (manager.state / "contents").glob("*/*")
        content = {"hash": stored.name, "bytes": stored.stat().st_size}

        def submitted(task: dict[str, Any]) -> tuple[int, Any]:
            body = json.dumps({"function": function, "tag": "by hash", "tasks": [task]}).encode()
            status, said = ask(manager, "POST", "/v1/tasks", body, kind="json")
            return status, json.loads(said)

        status, accepted = submitted({"content": content})
        assert status == 201
        assert client.task(accepted["tasks"][0]).result(30) == MIB
        for wrong, code in [
            ({"content": content | {"hash": "0" * 64}}, "not_found"),
            ({"content": content | {"bytes": 7}}, "invalid_request"),
            ({"content": content, "arguments": "AAAA"}, "invalid_request"),
        ]:
            assert submitted(wrong)[1]["error"]["code"] == code


def test_content_above_quota_is_refused(directory: Path) -> None:
    state = directory / "state"
    with running(state, "--most-contents", "2M") as manager, dayfly.connect(config=state) as client:
        with pytest.raises(dayfly.Error, match="content store holds 2097152 bytes") as refused:
            client.run(len, os.urandom(4 * MIB)).result(30)
        assert refused.value.code == "quota_exceeded"
        with pytest.raises(dayfly.Error, match="result cannot be stored") as refused:
            client.run(os.urandom, 4 * MIB).result(30)
        assert refused.value.code == "quota_exceeded"
        assert used(manager) == 0
        assert client.run(len, os.urandom(MIB)).result(30) == MIB


def raise_size(data: bytes) -> None:
    """Fails."""
    raise ValueError(len(data))


def failed(client: Any, size: int) -> str:
    """Runs a function that fails, with so many bytes. Returns the task."""
    task = client.run(raise_size, os.urandom(size))
    with pytest.raises(ValueError, match=str(size)):
        task.result(30)
    return str(task.id)


def retried(manager: Daemon, task: str) -> tuple[int, Any]:
    """Submits a failed task again."""
    status, said = ask(manager, "POST", f"/v1/tasks/{task}/retry", b"", kind="json")
    return status, json.loads(said)


def test_failed_tasks_keep_arguments_within_quota(directory: Path) -> None:
    state = directory / "state"
    with running(state, "--most-contents", "2M") as manager, dayfly.connect(config=state) as client:
        # In the row of the task, and in the content store.
        for size in (100_000, 300_000):
            task = failed(client, size)
            status, shown = ask(manager, "GET", f"/v1/tasks/{task}")
            assert status == 200
            assert size <= json.loads(shown)["argument_bytes"] < size + 1_000
            before = used(manager)
            assert before >= size
            status, again = retried(manager, task)
            assert status == 201, again
            with pytest.raises(ValueError, match=str(size)):
                client.task(again["tasks"][0]).result(30)
        # Both copies of the short ones count, and the content once.
        before = used(manager)
        assert 500_000 <= before < 510_000
        manager.stop()
        again = manager.restart()
        try:
            assert used(again) == before
            kept = failed(client, 400_000)
            assert used(again) < MIB
            assert ask(again, "POST", "/v1/contents", os.urandom(300_000))[0] == 201
            # More than half of the quota is used.
            assert used(again) > MIB
            lost = failed(client, 200_000)
            short = failed(client, 1_000)
            status, said = retried(again, lost)
            assert (status, said["error"]["code"]) == (404, "not_found")
            assert "submit it again" in said["error"]["message"]
            assert [retried(again, task)[0] for task in (kept, short)] == [201, 201]

            def tasks(query: str = "") -> list[Any]:
                return list(json.loads(ask(again, "GET", f"/v1/tasks{query}")[1]))

            wait_until(lambda: all(one["state"] == "done" for one in tasks()), "the ends of the tasks")
            before = used(again)
            body = json.dumps({"tasks": [one["id"] for one in tasks()]}).encode()
            assert ask(again, "POST", "/v1/tasks/forget", body, kind="json")[0] == 200
            # Those in rows go with their tasks, and contents stay for an hour.
            assert before - 220_000 < used(again) <= before - 200_000
        finally:
            again.stop()


def test_contents_are_listed_in_pages(directory: Path) -> None:
    with running(directory / "state") as manager, dayfly.connect(config=manager.state) as client:
        tasks = [client.run(reversed_bytes, os.urandom(size)) for size in (300_000, 400_000)]
        for task in tasks:
            task.result(30)

        def listed(query: str = "", token: str = "") -> list[Any]:
            status, said = ask(manager, "GET", f"/v1/contents/list{query}", token=token)
            assert status == 200, said
            entries: list[Any] = json.loads(said)
            return entries

        every = listed()
        # Two arguments, which their tasks need no longer, and two results.
        assert len(every) == 4
        assert [one["hash"] for one in every] == sorted(one["hash"] for one in every)
        results = [one for one in every if one["results_of"]]
        assert {one["task"] for one in results} == {task.id for task in tasks}
        assert all("task" not in one and one["arguments_of"] == 0 for one in every if one not in results)
        assert all(0 < one["since_ms"] <= one["used_at_ms"] for one in every)
        assert sum(one["bytes"] for one in every) <= used(manager)
        assert listed("?limit=3") + listed(f"?limit=3&after={every[2]['hash']}") == every
        assert listed("?limit=0") == every[:1]
        assert ask(manager, "GET", "/v1/contents/list?after=zz")[0] == 400
        manager.cli("tenant", "set", "astro")
        assert listed(token=manager.cli("token", "create", "laptop", "--tenant", "astro")["token"]) == []


def test_stored_content_survives_its_manager(directory: Path) -> None:
    data = [os.urandom(MIB) for _ in range(60)]
    with running(directory / "state") as manager, dayfly.connect(config=manager.state) as client:
        batch = client.map(reversed_bytes, data, repeatable=True)
        wait_until(lambda: batch.done() > 5, "tasks go on", timeout=60)
        manager.kill_tree()
        again = manager.restart()
        try:
            results = batch.results(timeout=120)
            assert all(result == given[::-1] for result, given in zip(results, data, strict=True))
        finally:
            again.stop()


def test_client_stores_deleted_content_again(directory: Path) -> None:
    data = os.urandom(MIB)
    with running(directory / "state") as manager, dayfly.connect(config=manager.state) as client:
        assert client.run(len, data).result(30) == MIB
        manager.kill_tree()
        # As it would be after an hour.
        with contextlib.closing(sqlite3.connect(manager.state / "tasks.db")) as books, books:
            assert books.execute("DELETE FROM contents").rowcount == 1
        for stored in (manager.state / "contents").glob("*/*"):
            stored.unlink()
        again = manager.restart()
        try:
            assert client.run(len, data).result(60) == MIB
        finally:
            again.stop()


def test_task_with_deleted_arguments_fails_with_reason(directory: Path) -> None:
    with manager_alone(directory / "manager", free_port()) as manager:
        here = Endpoint(manager, directory / "home", "here").set_up()
        with dayfly.connect(config=manager.state) as client:
            batch = client.map(len, [os.urandom(MIB)])
            batch.flush()
            manager.stop()
            for stored in (manager.state / "contents").glob("*/*"):
                stored.unlink()
            again = manager.restart()
            try:
                here.start()
                with pytest.raises(dayfly.LoadError, match="arguments cannot be read"):
                    list(batch.results(timeout=60))
            finally:
                here.stop()
                again.stop()


def test_remote_endpoint_accesses_contents_of_its_tasks_only(directory: Path) -> None:
    data = os.urandom(3 * MIB)
    with manager_alone(directory / "manager", free_port()) as manager:
        here = Endpoint(manager, directory / "home", "here", "--workers-per-node", "2").set_up()
        here.start()
        try:
            with dayfly.connect(config=manager.state) as client:
                assert client.run(reversed_bytes, data).result(60) == data[::-1]
                batch = client.map(reversed_bytes, [os.urandom(MIB // 2) for _ in range(50)])
                assert sum(len(result) for result in batch.results(timeout=60)) == 25 * MIB
                # Much in all, of parts that are not long, and more than one message has.
                parts = [client.run(os.urandom, 100_000) for _ in range(700)]
                assert client.run(lambda parts: sum(map(len, parts)), parts).result(100) == 70_000_000
                task = client.run(len, data)
                task.result(30)
                # Arguments and result of the first task.
                stored = max((manager.state / "contents").glob("*/*"), key=lambda one: one.stat().st_size)
                assert stored.stat().st_size > 3 * MIB
                token = json.loads((here.directory / "credential.json").read_text())["token"]
                # It has ended: the endpoint has it no more.
                path = f"/v1/endpoints/tasks/{task.id}/contents/{stored.name}"
                assert ask(manager, "GET", path, token=token)[0] == 404
                assert ask(manager, "PUT", path, data[::-1], token=token)[0] == 404
                assert ask(manager, "GET", f"/v1/contents/{stored.name}", token=token)[0] == 401
        finally:
            here.stop()
