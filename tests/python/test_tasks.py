"""Durable tasks from Python: submission, execution, results, cancellation and search."""

from __future__ import annotations

import asyncio
import concurrent.futures as cf
import itertools
import json
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.daemons import Daemon
from harness.leaks import wait_until
from harness.managers import manager_here

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")


@pytest.fixture(scope="module")
def manager() -> Iterator[Daemon]:
    with manager_here() as manager:
        yield manager


@pytest.fixture(scope="module")
def client(manager: Daemon) -> Iterator[dayfly.Client]:
    with dayfly.connect(config=manager.state) as client:
        yield client


@pytest.fixture
def executor(client: dayfly.Client) -> Iterator[dayfly.Executor]:
    with dayfly.Executor(client=client) as executor:
        yield executor


def area(width: int, height: int) -> int:
    """The area of a rectangle."""
    return width * height


def wait_for(path: str) -> str:
    """Reports that it runs, and waits until it may end."""
    Path(path + ".begun").touch()
    while not Path(path).exists():
        time.sleep(0.01)
    return "released"


def test_executor_is_a_concurrent_futures_executor(executor: dayfly.Executor) -> None:
    assert isinstance(executor, cf.Executor)
    assert executor.submit(area, 6, height=7).result(30) == 42
    assert list(executor.map(area, range(100), range(100), timeout=30)) == [n * n for n in range(100)]
    assert list(executor.map(abs, range(-50, 0), chunksize=7, timeout=30)) == list(range(50, 0, -1))
    futures = {executor.submit(area, n, 2): n for n in range(20)}
    assert all(future.result() == 2 * futures[future] for future in cf.as_completed(futures, timeout=30))


def test_exception_has_the_remote_traceback(executor: dayfly.Executor) -> None:
    def fail(what: str) -> None:
        raise LookupError(what)

    with pytest.raises(LookupError, match="nothing there") as raised:
        executor.submit(fail, "nothing there").result(30)
    assert "in fail" in str(raised.value.__cause__)


def test_large_arguments_and_results_travel(executor: dayfly.Executor) -> None:
    data = os.urandom(5 << 20)
    assert executor.submit(lambda data: data[::-1], data).result(60) == data[::-1]


def test_too_large_result_fails_only_its_task(executor: dayfly.Executor) -> None:
    assert len(executor.submit(bytes, 70 << 20).result(60)) == 70 << 20
    assert executor.submit(len, bytes(70 << 20)).result(60) == 70 << 20
    # More memory than its worker has by default.
    with pytest.raises(dayfly.Error) as raised:
        executor.submit(bytes, 6 << 30).result(60)
    assert raised.value.code == "out_of_memory"
    assert executor.submit(area, 6, 7).result(30) == 42


def test_changed_globals_are_captured_again(executor: dayfly.Executor) -> None:
    factor = 2

    def scaled(n: int) -> int:
        return n * factor

    assert executor.submit(scaled, 10).result(30) == 20
    factor = 3
    assert executor.submit(scaled, 10).result(30) == 30


def test_registered_function_runs_by_name_and_version(client: dayfly.Client) -> None:
    first = client.register(area, name="area", walltime=10)
    assert client.register(area, name="area", walltime=10).id == first.id
    second = client.register(lambda width, height: 2 * width * height, name="area")
    assert (first.version, second.version) == (1, 2)
    assert client.function("area").id == second.id
    assert client.run(client.function("area"), 6, 7).result(30) == 84
    assert client.run(client.function(first.id), 6, 7).result(30) == 42
    kept = client.function(first.id).status
    assert kept["description"] == "The area of a rectangle."
    assert "return width * height" in kept["source"]
    assert kept["resources"]["walltime_ms"] == 10_000
    assert {function.id for function in client.functions()} >= {first.id, second.id}


def test_registered_function_is_removed_with_its_versions(client: dayfly.Client) -> None:
    versions = [client.register(fn, name="short lived") for fn in (abs, len)]
    assert [one.id for one in client.remove_function(versions[1])] == [versions[1].id]
    assert client.function("short lived").id == versions[0].id
    assert [one.version for one in client.remove_function("short lived")] == [1]
    with pytest.raises(dayfly.Error, match="there is no function"):
        client.function("short lived")


def test_function_options_conflict_with_registered_functions(client: dayfly.Client) -> None:
    registered = client.register(area, name="area")
    settings: dict[str, Any] = {
        "cores": 2,
        "memory": 1 << 30,
        "gpus": 1,
        "ranks": 2,
        "placement": "packed",
        "environment": ["numpy"],
        "image": "tool",
        "source": True,
    }
    for name, value in settings.items():
        with dayfly.Executor(client=client, **{name: value}) as executor:
            why = f"{name}= of this executor has no effect on .*area v.* register"
            for submit in (executor.submit, executor.map):
                with pytest.raises(ValueError, match=why):
                    submit(registered, [6], [7])
        with pytest.raises(ValueError, match=f"{name}= "):
            client.map(registered, [6], [7], **{name: value})
    # Default values and options of tasks are accepted.
    with dayfly.Executor(client=client, cores=1, memory=0, walltime=60, retries=1, repeatable=True) as executor:
        assert executor.submit(registered, 6, 7).result(30) == 42


def test_unknown_endpoint_is_refused_at_creation(client: dayfly.Client, manager: Daemon) -> None:
    async def map_later() -> None:
        await client.amap(abs, [-1], endpoint="nope")

    async def batch_later() -> None:
        async with client.abatch(endpoint="nope"):
            pass

    calls = [
        lambda: client.map(abs, [-1], endpoint="nope"),
        lambda: client.batch(endpoint="nope"),
        lambda: dayfly.Executor("nope", client=client),
        lambda: dayfly.Executor("nope", client=client, durable=False),
        lambda: dayfly.durable(endpoint="nope", client=client)(abs).submit(-1),
        lambda: asyncio.run(map_later()),
        lambda: asyncio.run(batch_later()),
    ]
    for call in calls:
        with pytest.raises(
            dayfly.RequestError, match=r"no endpoint `nope`.* There are: `local`.*client.endpoints"
        ) as no:
            call()
        assert no.value.code == "not_found"
    [local] = client.endpoints()
    for name in (local["name"], local["id"]):
        assert list(client.map(abs, [-1], endpoint=name).results(30)) == [1]
    # Refused executors leave nothing behind.
    assert sum(client.batch("other").counts().values()) == 0


def test_used_tag_is_refused_unless_extended(client: dayfly.Client) -> None:
    first = client.map(abs, [-1, -2], tag="taken")
    refused = r"'taken' has 2 tasks already.*client.tasks\('taken'\).*extend=True"
    with pytest.raises(dayfly.TagInUse, match=refused):
        client.map(abs, [-1, -2], tag="taken")
    with pytest.raises(dayfly.TagInUse, match=refused):
        asyncio.run(client.amap(abs, [-1, -2], tag="taken"))
    with pytest.raises(dayfly.TagInUse):
        client.batch("taken")
    more = client.map(abs, [-3], tag="taken", extend=True)
    assert list(more.results(30)) == [3]
    assert list(client.tasks("taken").results(30)) == [1, 2, 3]
    assert list(first.results(30)) == [1, 2]
    client.forget(tag="taken")
    assert list(client.map(abs, [-4], tag="taken").results(30)) == [4]


def test_executor_shows_its_number_of_tasks(client: dayfly.Client) -> None:
    with dayfly.Executor(client=client, tag="counted") as executor:
        assert repr(executor) == "<dayfly.Executor 'counted': 0 of 0 tasks done>"
        assert list(executor.map(abs, range(3))) == [0, 1, 2]
        assert executor.submit(abs, -1).result(30) == 1
        assert repr(executor) == "<dayfly.Executor 'counted': 4 of 4 tasks done>"


def test_tasks_of_a_killed_submitter_are_found(client: dayfly.Client, manager: Daemon, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    program = f"""
import dayfly, os, time
from pathlib import Path

def work(n, gate):
    while not Path(gate).exists():
        time.sleep(0.01)
    return n * n

batch = dayfly.connect(config={str(manager.state)!r}).map(work, range(40), [{str(gate)!r}] * 40, tag="orphans")
print(len(batch), flush=True)
os.kill(os.getpid(), 9)
"""
    orphaned = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (orphaned.returncode, orphaned.stdout.strip()) == (-9, "40"), orphaned.stderr
    gate.touch()
    batch = client.tasks("orphans")
    assert len(batch) == 40
    assert list(batch.results(timeout=60)) == [n * n for n in range(40)]
    assert batch.counts() == {"queued": 0, "waiting": 0, "environment": 0, "running": 0, "done": 40}
    # The results can be fetched again.
    assert list(client.tasks("orphans")) == [n * n for n in range(40)]


def test_task_is_found_by_id_with_its_state(client: dayfly.Client, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    future = client.run(wait_for, str(gate))
    wait_until(lambda: Path(f"{gate}.begun").exists(), "the task runs")
    wait_until(lambda: client.task_status(future.id)["state"] == "running", "it is told that it runs")
    again = client.task(future.id)
    assert not again.done()
    gate.touch()
    assert again.result(30) == "released"
    status = client.task_status(future.id)
    assert (status["state"], status["attempts"], status["error"]) == ("done", 1, None)
    assert status["submitted_at_ms"] <= status["started_at_ms"] <= status["ended_at_ms"]
    with pytest.raises(dayfly.Error, match="you have no task"):
        client.task("0" * 32)


def test_tasks_of_one_tag_are_found_by_id(client: dayfly.Client, manager: Daemon) -> None:
    ids = [client.batch("some", extend=True).submit(abs, -number).id for number in range(30)]
    with dayfly.connect(config=manager.state) as other:
        # The result of a later request may have arrived before, when no thread waited for it.
        assert [other.task(task).result(30) for task in ids] == list(range(30))
        assert other.task(ids[0]).result(30) == 0
        assert list(other.tasks("some").results(30)) == list(range(30))


def test_waiting_and_running_tasks_are_cancelled(client: dayfly.Client, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with dayfly.Executor(client=client) as executor:
        running = executor.submit(wait_for, str(gate))
        wait_until(lambda: Path(f"{gate}.begun").exists(), "the task runs")
        others = [executor.submit(wait_for, str(gate)) for _ in range(500)]
        last = others.pop()
        assert executor._pool.flush(30)
        assert last.cancel()
        running.kill()
        for future in others:
            future.kill()
        with pytest.raises(cf.CancelledError):
            running.result(30)
        for future in [*others, last]:
            with pytest.raises(cf.CancelledError):
                future.result(30)
    assert client.task_status(running.id)["error"]["code"] == "cancelled"


def test_task_behind_long_ones_is_cancelled_immediately(client: dayfly.Client, tmp_path: Path) -> None:
    never = str(tmp_path / "never")
    with dayfly.Executor(client=client) as executor:
        futures = [executor.submit(wait_for, f"{never}{n}") for n in range(12)]
        assert executor._pool.flush(10)
        wait_until(lambda: client.task_status(futures[0].id)["state"] == "running", "the first one runs")
        futures[-1].kill()
        with pytest.raises(cf.CancelledError):
            futures[-1].result(5)
        client.kill(futures)


def test_running_task_is_killed_but_not_cancelled(client: dayfly.Client, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    released, killed = (client.run(wait_for, f"{gate}{n}") for n in range(2))
    for n in range(2):
        wait_until(lambda n=n: Path(f"{gate}{n}.begun").exists(), "both run")
    assert not released.cancel()
    assert not released.cancelled()
    wait_until(released.running, "the manager knows that it runs")
    Path(f"{gate}0").touch()
    assert released.result(30) == "released"
    assert not released.cancel()
    assert not released.kill()
    assert killed.kill()
    with pytest.raises(cf.CancelledError):
        killed.result(30)
    assert killed.cancel()
    assert not killed.kill()
    assert client.task_status(killed.id)["error"]["code"] == "cancelled"


def test_tasks_sent_ahead_of_running_ones_are_cancelled(client: dayfly.Client, tmp_path: Path) -> None:
    batch = client.batch()
    futures = [batch.submit(wait_for, str(tmp_path / f"gate{n}")) for n in range(40)]
    batch.flush()
    begun = lambda: [n for n in range(40) if (tmp_path / f"gate{n}.begun").exists()]  # noqa: E731
    wait_until(begun, "some run")
    states = [client.task_status(future)["state"] for future in futures]
    # The task is at its endpoint, and at no worker.
    ahead = futures[len(states) - 1 - states[::-1].index("waiting")]
    assert ahead.cancel()
    assert ahead.cancelled()
    wait_until(lambda: client.task_status(ahead)["state"] == "done", "the manager has its end")
    cancelled = batch.cancel()
    assert cancelled["ended"] + cancelled["running"] == 39
    assert cancelled["running"] >= 1
    assert cancelled["told"] == 0
    wait_until(lambda: batch.counts()["done"] == 40 - cancelled["running"], "the others have ended")
    # A worker that received a task may not have begun it yet.
    wait_until(lambda: len(begun()) == cancelled["running"], "those that were not cancelled run")
    running = begun()
    assert client.cancel(futures) == {"ended": 0, "told": 0, "running": len(running)}
    ended = batch.kill()
    assert ended["ended"] + ended["told"] == cancelled["running"]
    wait_until(lambda: batch.counts()["done"] == 40, "all have ended", timeout=30)
    # Tasks that counted as cancelled never began.
    assert begun() == running
    assert len(running) == cancelled["running"]


def test_shutdown_with_cancel_futures_leaves_running_tasks_alone(client: dayfly.Client, tmp_path: Path) -> None:
    executor = dayfly.Executor(client=client)
    futures = [executor.submit(wait_for, str(tmp_path / "gate")) for _ in range(60)]
    wait_until((tmp_path / "gate.begun").exists, "one runs")
    executor.shutdown(wait=False, cancel_futures=True)
    (tmp_path / "gate").touch()
    states = [client.task(future.id) for future in futures]
    ended = [state.exception(30) if not state.cancelled() else None for state in states]
    assert ended == [None] * 60
    assert 1 <= sum(state.cancelled() for state in states) < 60


def test_command_cancels_only_waiting_tasks_on_request(client: dayfly.Client, manager: Daemon, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    running = client.run(wait_for, str(gate))
    wait_until(Path(f"{gate}.begun").exists, "it runs")
    cancelled = manager.cli("task", "cancel", running.id, "--only-waiting")
    assert cancelled == {"ended": 0, "told": 0, "running": 1}
    gate.touch()
    assert running.result(30) == "released"


def test_async_cancel_and_kill_leave_the_loop_free(client: dayfly.Client, tmp_path: Path) -> None:
    async def main() -> None:
        batch = await client.amap(wait_for, [str(tmp_path / "never")])
        wait_until((tmp_path / "never.begun").exists, "it runs")
        assert not await batch[0].acancel()
        assert await batch.acancel() == {"ended": 0, "told": 0, "running": 1}
        assert await client.acancel(batch.futures) == {"ended": 0, "told": 0, "running": 1}
        assert (await batch.akill())["told"] == 1
        with pytest.raises(cf.CancelledError):
            batch[0].result(30)
        assert not await batch[0].akill()
        assert await client.akill(batch.futures) == {"ended": 0, "told": 0, "running": 0}

    asyncio.run(main())


def test_batch_is_killed_as_a_whole(client: dayfly.Client, tmp_path: Path) -> None:
    batch = client.map(wait_for, [str(tmp_path / "never")] * 300)
    cancelled = batch.kill()
    assert cancelled["ended"] + cancelled["told"] == 300
    wait_until(lambda: batch.counts()["done"] == 300, "all have ended", timeout=30)
    # The client learns of it a moment later.
    wait_until(lambda: batch.done() == 300, "all are heard of", timeout=30)


def test_tasks_are_killed_by_id_and_future(client: dayfly.Client, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with dayfly.Executor(client=client) as executor:
        futures = [executor.submit(wait_for, str(gate)) for _ in range(30)]
        killed = client.kill([futures[0], *(future.id for future in futures[1:20])])
        assert killed["ended"] + killed["told"] == 20
        assert sum(client.kill(futures[20]).values()) == 1
        assert sum(client.kill(futures[21].id).values()) == 1
        for future in futures[:22]:
            with pytest.raises(cf.CancelledError):
                future.result(30)
        gate.touch()
        assert [future.result(30) for future in futures[22:]] == ["released"] * 8
        # Ended tasks stay unchanged, and belong to no other tenant.
        assert client.kill(futures) == {"ended": 0, "told": 0, "running": 0}


def test_walltime_ends_a_function_and_its_children(client: dayfly.Client, tmp_path: Path) -> None:
    written = tmp_path / "pid"

    def linger() -> None:
        child = subprocess.Popen(["sleep", "1000"])
        written.write_text(str(child.pid))
        child.wait()

    with dayfly.Executor(client=client, walltime=0.5) as executor, pytest.raises(dayfly.DeadlineExceeded):
        executor.submit(linger).result(30)
    child = int(written.read_text())
    wait_until(lambda: not Path(f"/proc/{child}").exists(), "the child has ended, too")


def test_deadline_ends_waiting_and_running_tasks(client: dayfly.Client, tmp_path: Path) -> None:
    with dayfly.Executor(client=client, deadline=0.5) as executor:
        futures = [executor.submit(wait_for, str(tmp_path / "never")) for _ in range(20)]
        for future in futures:
            with pytest.raises(dayfly.DeadlineExceeded):
                future.result(30)


def fail_and_note(path: str, times: int) -> int:
    """Fails the given number of times, and records the times of its calls."""
    with open(path, "a") as file:
        file.write(f"{time.monotonic()}\n")
    if len(Path(path).read_text().split()) <= times:
        raise ValueError("not yet")
    return times


def test_failed_task_is_retried_with_growing_waits(client: dayfly.Client, tmp_path: Path) -> None:
    noted = tmp_path / "calls"
    with dayfly.Executor(client=client, retries=3, retry_wait=0.2) as executor:
        future = executor.submit(fail_and_note, str(noted), 3)
        wait_until(noted.exists, "it is called", 30)
        # Other tasks use the workers meanwhile.
        assert executor.submit(area, 6, 7).result(30) == 42
        assert future.result(30) == 3
    calls = [float(line) for line in noted.read_text().split()]
    waits = [later - earlier for earlier, later in itertools.pairwise(calls)]
    assert all(wait >= wanted for wait, wanted in zip(waits, (0.2, 0.4, 0.8), strict=True)), waits
    assert client.task_status(future.id)["attempts"] == 4


def test_task_between_retries_is_cancelled_and_has_deadlines(client: dayfly.Client, tmp_path: Path) -> None:
    noted = tmp_path / "calls"
    with dayfly.Executor(client=client, retries=3, retry_wait=3600) as executor:
        future = executor.submit(fail_and_note, str(noted), 3)
        wait_until(lambda: client.task_status(future)["attempts"] == 1 and noted.exists(), "it was called", 30)
        wait_until(lambda: client.task_status(future)["state"] == "queued", "it rests", 30)
        assert future.cancel()
    late = {"retries": 3, "retry_wait": 3600, "deadline": 1}
    with dayfly.Executor(client=client, **late) as executor, pytest.raises(dayfly.DeadlineExceeded):
        executor.submit(fail_and_note, str(noted), 3).result(30)
    with pytest.raises(ValueError, match="retry_wait=3601"):
        dayfly.Executor(client=client, retry_wait=3601)


def test_task_of_dead_worker_repeats_only_if_repeatable(client: dayfly.Client, tmp_path: Path) -> None:
    def die_at_first(path: str) -> str:
        if not Path(path).exists():
            Path(path).touch()
            os.kill(os.getpid(), 9)
        return "alive"

    with dayfly.Executor(client=client) as executor, pytest.raises(dayfly.Error) as raised:
        executor.submit(die_at_first, str(tmp_path / "once")).result(30)
    assert raised.value.code == "maybe_executed"
    with dayfly.Executor(client=client, repeatable=True) as executor:
        assert executor.submit(die_at_first, str(tmp_path / "twice")).result(30) == "alive"


def test_raising_function_is_retried_the_given_times(client: dayfly.Client, tmp_path: Path) -> None:
    tries = tmp_path / "tries"

    def third_time(path: str) -> int:
        with open(path, "a") as file:
            file.write("x")
        count = os.path.getsize(path)
        if count < 3:
            raise ValueError(count)
        return count

    with dayfly.Executor(client=client, retries=2) as executor:
        assert executor.submit(third_time, str(tries)).result(30) == 3
    tries.unlink()
    with dayfly.Executor(client=client, retries=1) as executor, pytest.raises(ValueError, match="2"):
        executor.submit(third_time, str(tries)).result(30)


def test_higher_priority_runs_first(client: dayfly.Client, tmp_path: Path) -> None:
    gate, order = tmp_path / "gate", tmp_path / "order"

    def note(path: str, what: str) -> None:
        with open(path, "a") as file:
            file.write(what)
        time.sleep(0.02)

    with dayfly.Executor(client=client) as low, dayfly.Executor(client=client, priority=5) as high:
        blockers = [low.submit(wait_for, str(gate)) for _ in range(300)]
        slow = [low.submit(note, str(order), "l") for _ in range(10)]
        fast = [high.submit(note, str(order), "h") for _ in range(10)]
        assert low._pool.flush(30)
        assert high._pool.flush(30)
        gate.touch()
        cf.wait([*blockers, *slow, *fast], timeout=60)
    written = order.read_text()
    # A few tasks of low priority may have been at the dispatcher already.
    assert written.index("h") < len(written) - 10
    assert written.rindex("h") < written.rindex("l")


def test_memoized_task_takes_an_earlier_result(client: dayfly.Client, tmp_path: Path) -> None:
    def count(path: str, n: int) -> int:
        with open(f"{path}/{n}", "a") as file:
            file.write("x")
        time.sleep(0.1)
        if n == 13:
            raise ValueError(n)
        return n * n

    def executed(n: int) -> int:
        return os.path.getsize(tmp_path / str(n))

    with dayfly.Executor(client=client, memoize=True) as executor:
        # Some are submitted while the first one runs, others after it has ended.
        together = [executor.submit(count, str(tmp_path), n % 3) for n in range(300)]
        assert [future.result(30) for future in together] == [(n % 3) ** 2 for n in range(300)]
        again = [executor.submit(count, str(tmp_path), n % 3) for n in range(300)]
        assert [future.result(30) for future in again] == [(n % 3) ** 2 for n in range(300)]
        assert [executed(n) for n in range(3)] == [1, 1, 1]
        assert client.task_status(again[0].id)["attempts"] == 0
        # A failed task is executed again for each submission, because it may succeed.
        for future in [executor.submit(count, str(tmp_path), 13) for _ in range(3)]:
            with pytest.raises(ValueError, match="13"):
                future.result(30)
        assert executed(13) == 3
        # A task that waits for another's result is cancelled alone.
        followers = [executor.submit(count, str(tmp_path), 5) for _ in range(3)]
        followers[1].kill()
        assert [followers[n].result(30) for n in (0, 2)] == [25, 25]
    with dayfly.Executor(client=client) as executor:
        assert executor.submit(count, str(tmp_path), 1).result(30) == 1
    assert executed(1) == 2


def test_threads_submit_and_wait_concurrently(executor: dayfly.Executor) -> None:
    failures: list[BaseException] = []

    def many(base: int) -> None:
        try:
            futures = [executor.submit(area, base, n) for n in range(200)]
            assert [future.result(60) for future in futures] == [base * n for n in range(200)]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=many, args=(base,)) for base in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_ten_thousand_tasks_have_one_outcome_each(client: dayfly.Client) -> None:
    batch = client.map(abs, range(-10_000, 0))
    assert list(batch.results(timeout=120)) == list(range(10_000, 0, -1))


def ask(manager: Daemon, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    """Sends one HTTP request, in JSON unless the headers specify another type."""
    data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
    status, said = manager.ask(method, path, data, **({"Content_Type": "application/json"} | headers))
    return status, json.loads(said or b"null")


def test_task_submitted_twice_is_one_task(client: dayfly.Client, manager: Daemon, tmp_path: Path) -> None:
    def count(path: str) -> None:
        with open(path, "a") as file:
            file.write("x")

    function = client.register(count, name="count").id
    counted = tmp_path / "counted"
    import base64

    arguments = base64.b64encode(pickle.dumps((str(counted),)) + b"\0").decode()
    submission = {"function": function, "tag": "keyed", "tasks": [{"key": "only once", "arguments": arguments}]}
    first = ask(manager, "POST", "/v1/tasks", submission)
    assert first[0] == 201, first
    (task,) = first[1]["tasks"]
    assert ask(manager, "POST", "/v1/tasks", submission)[1]["tasks"] == [task]
    status, outcome = ask(manager, "GET", f"/v1/tasks/{task}/outcome?wait_ms=20000")
    assert (status, outcome["id"]) == (200, task)
    assert ask(manager, "POST", "/v1/tasks", submission)[1]["tasks"] == [task]
    assert client.run(abs, -1).result(30) == 1
    assert counted.read_text() == "x"


def test_program_without_python_registers_and_runs_source(manager: Daemon) -> None:
    import base64

    source = "import math\n\ndef hypotenuse(a, b=1):\n    return {'c': math.hypot(a, b), 'of': (a, b)}\n"
    function = {
        "name": "hypotenuse",
        "form": {"form": "source", "entry": "hypotenuse"},
        "code": base64.b64encode(source.encode()).decode(),
    }
    status, registered = ask(manager, "POST", "/v1/functions", function)
    assert status == 201, registered

    def outcome(**call: Any) -> dict[str, Any]:
        submission = {"function": registered["id"], "tasks": [{"call": call}]}
        status, accepted = ask(manager, "POST", "/v1/tasks", submission)
        assert status == 201, accepted
        status, found = ask(manager, "GET", f"/v1/tasks/{accepted['tasks'][0]}/outcome?wait_ms=20000")
        assert status == 200, found
        return dict(found)

    assert outcome(arguments=[3], keywords={"b": 4})["result"] == {"c": 5.0, "of": [3, 4]}
    failed = outcome(arguments=["three"])
    assert failed["error"]["code"] == "function_error"
    assert failed["error"]["message"].startswith("the function raised TypeError: ")
    assert failed["error"]["exception"]["type"] == "TypeError"
    assert "in hypotenuse" in failed["error"]["exception"]["traceback"]


def test_source_that_does_not_load_gives_the_reason(manager: Daemon) -> None:
    import base64

    for source, why in (
        ("def f(:", "SyntaxError"),
        ("import no_such_module", "ModuleNotFoundError"),
        ("", "defines no"),
    ):
        function = {
            "form": {"form": "source", "entry": "f"},
            "code": base64.b64encode(source.encode()).decode(),
        }
        registered = ask(manager, "POST", "/v1/functions", function)[1]
        accepted = ask(manager, "POST", "/v1/tasks", {"function": registered["id"], "tasks": [{"call": {}}]})[1]
        found = ask(manager, "GET", f"/v1/tasks/{accepted['tasks'][0]}/outcome?wait_ms=20000")[1]
        assert found["error"]["code"] == "load_failed", found
        assert why in found["error"]["message"]


def test_invalid_requests_are_refused(client: dayfly.Client, manager: Daemon) -> None:
    function = client.register(abs, name="abs").id
    one = {"arguments": ""}
    wrong = {
        "no such function": ({"function": "0" * 32, "tasks": [one]}, "not_found"),
        "no such endpoint": ({"function": function, "endpoint": "mars", "tasks": [one]}, "not_found"),
        "no tasks": ({"function": function, "tasks": []}, "invalid_request"),
        "a tag without end": ({"function": function, "tag": "x" * 300, "tasks": [one]}, "invalid_request"),
        "one key twice": ({"function": function, "tasks": [one | {"key": "a"}, one | {"key": "a"}]}, "invalid_request"),
        "no base64": ({"function": function, "tasks": [{"arguments": "?"}]}, "invalid_request"),
    }
    for what, (submission, code) in wrong.items():
        status, answer = ask(manager, "POST", "/v1/tasks", submission)
        assert status >= 400, what
        assert answer["error"]["code"] == code, (what, answer)
    status, answer = ask(manager, "POST", "/v1/tasks", b"\xc1\xff", Content_Type="application/msgpack")
    assert (status, answer["error"]["code"]) == (400, "invalid_request")


def test_manager_unpickles_nothing(client: dayfly.Client, manager: Daemon, tmp_path: Path) -> None:
    trace = tmp_path / "trace"

    class Malicious:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, (f"echo $PPID > {trace}",)

    # The pickle takes effect only in a worker, which belongs to the submitter.
    with dayfly.Executor(client=client) as executor:
        executor.submit(area, Malicious(), 2).result(30)
    assert int(trace.read_text()) != manager.pid


def test_diff_shows_changes_between_versions(client: dayfly.Client) -> None:
    def first(x: int) -> int:
        return x + 1

    def second(x: int) -> int:
        return x + 2

    earlier, later = (client.register(fn, name="changes") for fn in (first, second))
    changed = later.diff(earlier).splitlines()
    assert (earlier.version, later.version) == (1, 2)
    assert "-        return x + 1" in changed
    assert "+        return x + 2" in changed
    assert later.diff(later) == ""
